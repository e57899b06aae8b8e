"""Comparison of finished runs, read back from their folders."""
