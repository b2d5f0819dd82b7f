"""Models: the OpenAI-compatible engine and the deterministic offline reader."""
