"""Wrong calls of the Python interface, generated: arguments of other types and values, and damaged models."""
