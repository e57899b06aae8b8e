"""Where a model keeps the parts of its layers."""
