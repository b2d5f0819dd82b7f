"""How verdicts are asked for and read: payloads and strict parsing."""
