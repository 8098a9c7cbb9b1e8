"""How a token is chosen: ids and scores only; no text, no screen, no network."""
