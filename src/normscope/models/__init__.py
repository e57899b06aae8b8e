"""Models: names to weights, weights to observed blocks. Only this package knows an architecture."""
