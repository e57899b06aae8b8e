"""Runs a model and hands out its blocks, compared with what the model does."""
