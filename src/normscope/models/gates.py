"""Gates on the outputs of heads: factors that depend on the query, and not on the key.

The attention output is then Σ_j Σ_h α^h_ij (g^h_i ⊙ v^h_j) W_O^h + b_O: still a sum over keys, but what a key contributes is no
longer a multiple of one vector f(x_j).

Source: Qiu et al. 2025, Gated Attention for Large Language Models (arXiv:2505.06708).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

GATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
}
"""The functions that make a gate of a linear layer's output, by the name of the operation."""
