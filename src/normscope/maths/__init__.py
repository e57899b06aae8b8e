"""The papers' mathematics as pure functions on tensors.

Nothing here knows a model, a config or a file. Symbols are the papers': α (`weights`), x_i (`inputs`), f(x)
(`transformed`), F_ij, R_ij and T_ij as in CONTRIBUTING.md.
"""
