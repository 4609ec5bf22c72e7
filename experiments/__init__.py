"""Experiments: one file a claim, with records of what was measured."""
