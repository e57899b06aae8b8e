"""Cost of the analyses relative to the bare forward pass: `make bench`."""
