"""The model's own code as an affine map of its tokens' vectors: everything held fixed that is not linear."""
