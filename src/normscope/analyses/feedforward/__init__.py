"""Mixing through the whole layer, with the feed-forward network (Kobayashi et al. 2024)."""
