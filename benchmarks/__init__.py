"""What the analyses cost beside the bare forward pass: `make bench`."""
