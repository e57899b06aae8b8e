"""Attribution through all layers: which tokens a model's outputs come from, by several methods."""
