"""How verdicts are asked for and read: payloads, strict parsing, rules."""
