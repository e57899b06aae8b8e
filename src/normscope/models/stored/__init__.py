"""A checkpoint's files and weights: reading them, and checking them first."""
