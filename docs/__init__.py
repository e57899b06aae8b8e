"""The documentation: pages, and what generates the rest of them."""
