"""Attribution through all layers, over a sample of sequences: where representations come from, and which method to believe."""
