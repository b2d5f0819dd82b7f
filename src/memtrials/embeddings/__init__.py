"""Vectors without a model at work: authored (`controllable`), hashed (`hashed`) or made before and kept (`frozen`).

They know nothing of benchmarks and systems, so that both can use them. Formats, rules and pinned values are those of
the continuity harness `ebigunso/character-memory-evals`.
"""
