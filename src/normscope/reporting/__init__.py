"""Results to files, figures, the terminal and Weights & Biases."""
