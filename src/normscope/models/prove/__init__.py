"""Proves at load that what is observed is what the untouched model does."""
