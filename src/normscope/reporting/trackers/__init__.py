"""Trackers: what runs log besides their folders. Each library is imported by one module, and only when it is used."""
