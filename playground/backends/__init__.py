"""Who runs a request: every backend yields the same events."""
