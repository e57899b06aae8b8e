"""The model's own code as an affine map of its tokens' vectors, with everything that is not linear held fixed."""
