"""Outlier dimensions of the hidden vectors (Maruta & Matsuzaki 2024)."""
