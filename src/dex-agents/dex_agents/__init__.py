"""Durable agent sessions on Dex."""
