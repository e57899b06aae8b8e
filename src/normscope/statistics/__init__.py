"""Streaming accumulators: statistics of a corpus of any size, in bounded memory."""
