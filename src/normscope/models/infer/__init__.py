"""Infers where a model's parts are from what it computes."""
