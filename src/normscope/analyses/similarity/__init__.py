"""Which categories of tokens the similarity of texts comes from."""
