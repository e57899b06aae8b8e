"""Weights and vector norms (Kobayashi et al. 2020)."""
