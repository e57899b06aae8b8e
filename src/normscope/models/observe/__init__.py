"""Reads what a model is, runs it, yields its blocks, and adds up their parts."""
