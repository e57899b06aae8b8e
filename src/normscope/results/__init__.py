"""What analyses publish: declared once, and rolled up from their tables."""
