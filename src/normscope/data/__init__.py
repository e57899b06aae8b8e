"""Corpora: from text to examples, and from examples to batches of tokens with their categories."""
