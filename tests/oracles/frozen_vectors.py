"""DecompX's vectors by brute force: every x_{i⇐k} of every layer is built explicitly, and every slope is a quotient."""

import numpy as np
import torch
from torch import Tensor

from tests.oracles.networks import NetworkBlock, network_blocks


def explicit_vectors(model, facts, inputs, *, value_bias: bool = False) -> Tensor:
    """x_{i⇐k} (batch, query, source, model) before the model's final norm, without the bias.

    With `value_bias`, each token has what b_V adds to its values in the first layer.
    """
    return vectors_by_layer(model, facts, inputs, value_bias=value_bias)[-1]


def vectors_by_layer(model, facts, inputs, *, value_bias: bool = False) -> list[Tensor]:
    """The same after every layer."""
    blocks = network_blocks(model, facts, inputs)
    embeddings = blocks[0].attention.inputs
    vectors = torch.eye(embeddings.shape[1], dtype=embeddings.dtype)[None, :, :, None] * embeddings[:, :, None]
    after: list[Tensor] = []
    for block in blocks:
        vectors = _through_layer(block, vectors, value_bias=value_bias and block.layer == 1)
        after.append(vectors)
    return after


def scaled(norm, vectors: Tensor, at: Tensor) -> Tensor:
    """γ ⊙ (v − mean(v)) / σ_i with the deviation of `at` (batch, token, model)."""
    if norm.centred:
        vectors = vectors - vectors.mean(dim=-1, keepdim=True)
        at = at - at.mean(dim=-1, keepdim=True)
    return vectors * norm.weight / at.square().mean(dim=-1).add(norm.epsilon).sqrt()[:, :, None, None]


def network(block: NetworkBlock, read: Tensor) -> Tensor:
    """The feed-forward network of pairs, with quotients for slopes and quadrature for the means of a gated one."""
    parameters = block.parameters
    u = block.pre_activations[:, :, None]
    if not parameters.gated:
        return read @ parameters.input_weight * (parameters.activation(u) / u) @ parameters.output_weight
    nodes, weights = np.polynomial.legendre.leggauss(60)
    mean = sum(
        float(w) / 2 * parameters.activation((float(n) + 1) / 2 * u) for n, w in zip(nodes, weights, strict=True)
    )
    factor = block.multipliers[:, :, None] * (parameters.activation(u) - mean) / u
    neurons = read @ parameters.input_weight * factor + read @ parameters.multiplier_weight * mean
    return neurons @ parameters.output_weight


def _through_layer(block: NetworkBlock, vectors: Tensor, *, value_bias: bool) -> Tensor:
    attention, parameters = block.attention, block.parameters
    weights = attention.parameters
    read = vectors
    if block.input_norm is not None:
        read = scaled(block.input_norm, vectors, attention.inputs)
    values = torch.einsum("bjkm,hmd->bhjkd", read, weights.value_weight)
    if value_bias:
        own = torch.eye(values.shape[2], dtype=values.dtype)
        values = values + own[:, :, None] * weights.value_bias[:, None, None]
    attended = torch.einsum("bhij,bhjkd,hdm->bikm", attention.weights, values, weights.output_weight)
    match attention.parameters.norm_position:
        case "post":
            residual = scaled(
                attention.parameters.normalisation, vectors + attended, attention.inputs + attention.attention_output
            )
        case "branch":
            residual = vectors + scaled(attention.parameters.normalisation, attended, attention.attention_output)
        case _:
            residual = vectors + attended
    read = vectors if parameters.norm_position == "parallel" else residual
    if parameters.norm_position != "post" and parameters.normalisation is not None:
        read = scaled(parameters.normalisation, read, block.norm_inputs)
    added = network(block, read)
    if parameters.output_normalisation is not None:
        added = scaled(parameters.output_normalisation, added, block.output)
    output = residual + added
    return (
        scaled(parameters.normalisation, output, block.residual_sum) if parameters.norm_position == "post" else output
    )
