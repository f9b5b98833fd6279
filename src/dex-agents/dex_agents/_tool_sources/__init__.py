"""Tools that come from outside the agent: the contract of a source, and what all of them list."""
