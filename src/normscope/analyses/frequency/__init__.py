"""Token frequency against weights, norms and mixing ratios."""
