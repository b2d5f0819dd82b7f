"""Formulas over recorded text, ids and verdicts; pure functions, one measure each."""
