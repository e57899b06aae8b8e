"""Which heads, layers and probes follow dependency relations (Clark et al. 2019), by weights and by vectors."""
