"""Files of a checkpoint, and their weights: what is read, and what is checked before it is."""
