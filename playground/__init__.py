"""Decoding Playground: shows, live and truthfully, how a language model's next token is chosen."""

__version__ = "0.1.0"
TRACE_VERSION = 1
