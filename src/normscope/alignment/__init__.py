"""Word alignment from cross-attention, compared with human alignments (Kobayashi et al. 2020, section 5)."""
