"""The durable session: its Flow, its Steps, what they store, and the client."""
