"""Corpora: text to examples, examples to batches of tokens with their categories."""
