"""Streaming accumulators: what a corpus of any size adds up to, in bounded memory."""
