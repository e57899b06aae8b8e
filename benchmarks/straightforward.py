"""Mixing ratios and attribution as the papers define them, with every vector built explicitly: query × key × model.

The tests use it as a reference, and the benchmark shows how much the algebraic shortcuts save. It supports only BERT's layout
and handles one sequence at a time, since its tensors are `tokens` times as large as the model's own.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import BertModel

METHODS = ("attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n")


def mixing_ratios(model: BertModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """r_i of every token.

    Args:
        model: Any BERT, in evaluation mode.
        inputs: `input_ids`, `attention_mask` and whatever else its forward takes.

    Returns:
        Ratios with axes method, layer, batch, token, in the order of METHODS; NaN at padding.
    """
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
        token_mask = inputs["attention_mask"].bool()
        ratios = torch.full((len(METHODS), len(model.encoder.layer), *token_mask.shape), torch.nan, dtype=model.dtype)
        for index, layer in enumerate(model.encoder.layer):
            for sequence in range(len(token_mask)):
                tokens = token_mask[sequence]
                x = output.hidden_states[index][sequence, tokens]
                alpha = output.attentions[index][sequence][:, tokens][:, :, tokens]
                ratios[:, index, sequence, tokens] = _of_block(layer.attention, x, alpha)
    return ratios


def decomposition(model: BertModel, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """DecompX's vectors x_{i⇐k} after the last layer, of each sequence: query, source, model. The last source is the bias.

    Args:
        model: Any BERT without dropout, in evaluation mode.
        inputs: `input_ids`, `attention_mask` and whatever else its forward takes.
    """
    model.set_attn_implementation("eager")
    decompositions = []
    with torch.inference_mode():
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
        for sequence, tokens in enumerate(inputs["attention_mask"].bool()):
            x = output.hidden_states[0][sequence, tokens]
            vectors = torch.cat(
                [torch.diag_embed(torch.ones(len(x), dtype=x.dtype)), torch.zeros_like(x[:, :1])], dim=1
            )
            vectors = vectors.unsqueeze(-1) * x.unsqueeze(1)
            for index, layer in enumerate(model.encoder.layer):
                alpha = output.attentions[index][sequence][:, tokens][:, :, tokens]
                vectors = _through_layer(layer, vectors, alpha)
            decompositions.append(vectors)
    return decompositions


def value_zeroing(model: BertModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """1 − cos of each layer's outputs with and without the value of one token: batch, layer, query, key.

    One pass of the layer for each token without padding, eight at once.

    Args:
        model: Any BERT without dropout, in evaluation mode.
        inputs: `input_ids`, `attention_mask` and whatever else its forward takes.
    """
    changes = []
    with torch.inference_mode():
        output = model(**inputs, output_hidden_states=True)
        for sequence, tokens in enumerate(inputs["attention_mask"].bool()):
            for layer, hidden in zip(model.encoder.layer, output.hidden_states, strict=False):
                x = hidden[sequence, tokens]
                untouched = layer(x[None])
                whole = [_without_values(layer, x, group) for group in torch.arange(len(x)).split(8)]
                changes.append(1 - torch.cosine_similarity(torch.cat(whole), untouched, dim=-1).T)
    return torch.stack(changes)


def _without_values(layer: Any, x: Tensor, zeroed: Tensor) -> Tensor:
    def zero(_module: Any, _args: Any, value: Tensor) -> Tensor:
        value[torch.arange(len(zeroed)), zeroed] = 0
        return value

    handle = layer.attention.self.value.register_forward_hook(zero)
    outputs = layer(x.expand(len(zeroed), *x.shape))
    handle.remove()
    assert isinstance(outputs, Tensor)
    return outputs


def _through_layer(layer: Any, vectors: Tensor, alpha: Tensor) -> Tensor:
    attention, bias = layer.attention, slice(-1, None)
    value = vectors @ attention.self.value.weight.T
    value[:, bias] += attention.self.value.bias
    heads = value.unflatten(-1, (len(alpha), -1))
    context = torch.einsum("hqk,kshd->qshd", alpha, heads).flatten(start_dim=2)
    attended = context @ attention.output.dense.weight.T
    attended[:, bias] += attention.output.dense.bias
    vectors = _normalised(attention.output.LayerNorm, vectors + attended)
    inner = vectors @ layer.intermediate.dense.weight.T
    inner[:, bias] += layer.intermediate.dense.bias
    u = inner.sum(dim=1, keepdim=True)
    added = inner * (layer.intermediate.intermediate_act_fn(u) / u) @ layer.output.dense.weight.T
    added[:, bias] += layer.output.dense.bias
    return _normalised(layer.output.LayerNorm, vectors + added)


def _normalised(norm: Any, vectors: Tensor) -> Tensor:
    deviation = (vectors.sum(dim=1).var(dim=-1, correction=0) + norm.eps).sqrt()
    scaled = (vectors - vectors.mean(dim=-1, keepdim=True)) * norm.weight / deviation[:, None, None]
    scaled[:, -1] += norm.bias
    return scaled


def _of_block(attention: Any, x: Tensor, alpha: Tensor) -> Tensor:
    heads, tokens, _ = alpha.shape
    value = attention.self.value(x).view(tokens, heads, -1).transpose(0, 1)
    output_weight = attention.output.dense.weight.T.view(heads, value.shape[-1], -1)
    transformed = value @ output_weight  # f^h(x_j): head, key, model
    f = torch.einsum("hqk,hkm->qkm", alpha, transformed)  # F_ij

    diagonal = torch.arange(tokens)
    attn_w = 1 - alpha[:, diagonal, diagonal].mean(dim=0)
    attn_n = _ratio(f)

    r = f  # R_ij, in the place of F_ij
    r[diagonal, diagonal] += x
    attnres_n = _ratio(r)

    norm = attention.output.LayerNorm
    deviation = (x + attention.output.dense(_heads_side_by_side(alpha @ value))).var(dim=-1, correction=0)
    t = r.sub_(r.mean(dim=-1, keepdim=True)).mul_(norm.weight)  # T_ij, in the place of R_ij
    t.div_((deviation + norm.eps).sqrt()[:, None, None])
    return torch.stack([attn_w, attn_n, attn_w / 2, attnres_n, _ratio(t)])


def _heads_side_by_side(context: Tensor) -> Tensor:
    return context.transpose(0, 1).flatten(start_dim=1)


def _ratio(vectors: Tensor) -> Tensor:
    diagonal = torch.arange(len(vectors))
    preserving = vectors[diagonal, diagonal]
    mixing = (vectors.sum(dim=1) - preserving).norm(dim=-1)
    return mixing / (mixing + preserving.norm(dim=-1))
