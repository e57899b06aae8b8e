"""Infers where things are from what a model computes."""
