"""Runs read back from their folders and compared."""
