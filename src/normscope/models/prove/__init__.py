"""Proves at load that what is observed is what the model does."""
