"""Attention sinks, massive activations and value drains (Gu et al. 2025; Sun et al. 2024; Guo et al. 2024)."""
