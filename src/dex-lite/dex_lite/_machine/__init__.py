"""The meaning of a Flow, pure: no I/O, no clock, no randomness, no protobuf, no asyncio."""
