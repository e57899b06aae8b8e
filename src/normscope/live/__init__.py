"""`normscope serve`: a local page on which a text is typed and changed, and what a model makes of it is seen at once."""
