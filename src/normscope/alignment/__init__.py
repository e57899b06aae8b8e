"""Word alignment from cross-attention, measured against human alignments (Kobayashi et al. 2020, section 5)."""
