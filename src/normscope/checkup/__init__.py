"""`normscope checkup`: what of a model must be left alone when it is quantised, pruned or served, and what it differs in."""
