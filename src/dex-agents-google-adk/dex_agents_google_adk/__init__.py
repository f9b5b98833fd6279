"""dex-agents-google-adk."""
