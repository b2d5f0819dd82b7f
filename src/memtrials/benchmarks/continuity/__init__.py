"""Continuity: does a memory keep track of a life, with corrections, forgetting, links and restarts?

A fixture holds scripted lives. `fixture` decodes one, `rules` reads and checks it, `binding` settles where its vectors
are from, `labels` says what its queries expect, `scripts` makes our own.
Schema, rules and patterns are those of `ebigunso/character-memory-evals`.
"""
