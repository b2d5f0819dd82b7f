"""Continuity: does a memory keep track of a life, with corrections, forgetting, links and restarts?

A fixture holds scripted lives. `fixture` reads one, `rules` checks it, `scripts` makes our own. Schema, rules and
patterns are those of `ebigunso/character-memory-evals`.
"""
