"""Models: names to weights, weights to observed blocks. Only this package may know an architecture."""
