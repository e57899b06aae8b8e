"""How methods and quantities are named for readers."""

METHODS = {
    "rollout": "rollout of weights",
    "norm_rollout": "rollout of norms",
    "globenc": "GlobEnc",
    "alti": "ALTI",
    "value_zeroing": "value zeroing",
    "decompx": "DecompX",
    "gradient_x_input": "gradient × input",
    "integrated_gradients": "integrated gradients",
    "random": "random order",
}

QUANTITIES = {
    "probability": "the probability of the predicted class",
    "cosine": "the cosine with the untouched embedding",
}
