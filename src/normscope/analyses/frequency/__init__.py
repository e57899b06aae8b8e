"""Frequency."""
