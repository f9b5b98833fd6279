"""Images outside the session: references in what is stored, bytes in a store."""
