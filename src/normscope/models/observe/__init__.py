"""Runs a model, yields its blocks, and compares them with the untouched model."""
