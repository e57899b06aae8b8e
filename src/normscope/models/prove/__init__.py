"""Proves at load that the observed values are the model's own."""
