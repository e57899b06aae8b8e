"""Which dimensions decide the attention scores (Maruta & Matsuzaki 2024)."""
