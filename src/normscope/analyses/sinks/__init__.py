"""Attention sinks and massive activations (Gu et al. 2025; Sun et al. 2024)."""
