"""Attention blocks as sums of vectors, between tokens, words or regions."""
