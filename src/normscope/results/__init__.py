"""What analyses return: declared once, and rolled up from their tables."""
