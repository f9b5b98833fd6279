"""Reviewed operations of connectors as a tool source."""
