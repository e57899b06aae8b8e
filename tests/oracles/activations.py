"""Explicit activations of a model, from its weights alone: no code of normscope's is used here."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class Weights:
    """One block's projections, head by head; key and value heads are repeated for each query head."""

    query: np.ndarray  # head model head_dim
    query_bias: np.ndarray  # head head_dim
    key: np.ndarray
    key_bias: np.ndarray
    value: np.ndarray
    value_bias: np.ndarray
    output: np.ndarray  # head head_dim model
    output_bias: np.ndarray  # model; zero where there is none

    @classmethod
    def of(cls, query: nn.Linear, key: nn.Linear, value: nn.Linear, output: nn.Linear, heads: int) -> "Weights":
        size = query.out_features // heads

        def split(linear: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
            weight = linear.weight.numpy().T.reshape(linear.in_features, -1, size).transpose(1, 0, 2)
            repeats = heads // len(weight)
            bias = np.zeros(linear.out_features) if linear.bias is None else linear.bias.numpy()
            return weight.repeat(repeats, axis=0), bias.reshape(-1, size).repeat(repeats, axis=0)

        bias = np.zeros(output.out_features) if output.bias is None else output.bias.numpy()
        return cls(*split(query), *split(key), *split(value), output.weight.numpy().T.reshape(heads, size, -1), bias)


@dataclasses.dataclass(frozen=True)
class Block:
    """One block on one sequence."""

    weights: Weights
    x: np.ndarray  # query model; what the residual connection carries
    entering: np.ndarray  # key model; what enters W_Q, W_K, W_V
    query: np.ndarray  # head query head_dim
    key: np.ndarray  # head key head_dim
    visible: np.ndarray  # query key
    scale: float
    turn: tuple[np.ndarray, np.ndarray] | None  # key head_dim/2; cosine and sine of the rotation of queries and keys
    gamma: np.ndarray | None  # weight of the LayerNorm after the residual connection
    epsilon: float
    is_cross_attention: bool = False  # no key is the query's own token
    beta: np.ndarray | None = None  # bias of that LayerNorm

    @cached_property
    def alpha(self) -> np.ndarray:
        """α: head query key."""
        return softmax(self.scale * self.query @ self.key.transpose(0, 2, 1), self.visible)

    @cached_property
    def f(self) -> np.ndarray:
        """f(x): head key model."""
        return (self.entering @ self.weights.value + self.weights.value_bias[:, None]) @ self.weights.output

    @cached_property
    def weighted(self) -> np.ndarray:
        """‖αf(x)‖: head query key."""
        return np.linalg.norm(self.alpha[..., None] * self.f[:, None], axis=-1)

    @cached_property
    def contributions(self) -> np.ndarray:
        """C_j(m, n): head query key dimension. What dimension j alone puts into key n, times query m."""
        parts = self.entering[None, :, :, None] * self.weights.key[:, None]  # head key dimension head_dim
        parts = rotated(parts.transpose(0, 2, 1, 3), self.turn)  # head dimension key head_dim
        return np.einsum("hqd,hjkd->hqkj", self.query, parts)

    @cached_property
    def key_bias_part(self) -> np.ndarray:
        """What b_K adds to q·k: head query key."""
        bias = np.broadcast_to(self.weights.key_bias[:, None], self.key.shape)
        return self.query @ rotated(bias, self.turn).transpose(0, 2, 1)

    def ratios(self) -> dict[str, np.ndarray]:
        """Mixing ratio of every token by the methods of the block, from the vector of every pair."""
        if self.is_cross_attention:
            return self._ratios_of_cross_attention()
        by_weights = 1 - self.alpha.diagonal(axis1=1, axis2=2).mean(axis=0)
        ratios = {method: _ratio(pairs) for method, pairs in self.stages().items()}
        by_method = {"attn_w": by_weights, "attn_n": ratios.pop("attn_n"), "attnres_w": by_weights / 2}
        return by_method | ratios

    def stages(self) -> dict[str, np.ndarray]:
        """The vector of every pair at every stage of the block, by method: query key model."""
        own = np.arange(len(self.x))
        pairs = np.einsum("hqk,hkm->qkm", self.alpha, self.f)  # F_ij
        residual = pairs.copy()
        residual[own, own] += self.x  # R_ij
        by_method = {"attn_n": pairs, "attnres_n": residual}
        if self.gamma is not None:
            output = self.x + pairs.sum(axis=1) + self.weights.output_bias
            sigma = np.sqrt(output.var(axis=1) + self.epsilon)[:, None, None]
            by_method["attnresln_n"] = self.gamma * (residual - residual.mean(axis=-1, keepdims=True)) / sigma  # T_ij
        return by_method

    @property
    def own_keys(self) -> np.ndarray:
        """Which keys are the query's own: query key."""
        return np.zeros_like(self.visible) if self.is_cross_attention else np.eye(len(self.x), dtype=bool)

    def parts(self) -> dict[str, dict[str, np.ndarray]]:
        """What every output of the block is made of, by method: vectors from the others, the token itself, and so on."""
        pairs = np.einsum("hqk,hkm->qkm", self.alpha, self.f)
        own = np.einsum("qkm,qk->qm", pairs, self.own_keys)
        vectors = {
            "others": pairs.sum(axis=1) - own,
            "own": own,
            "residual": np.zeros_like(own),
            "bias": np.zeros_like(own) + self.weights.output_bias,
        }
        by_method = {"attn_n": vectors, "attnres_n": vectors | {"residual": self.x}}
        if self.gamma is not None:
            output = sum(by_method["attnres_n"].values())
            sigma = np.sqrt(output.var(axis=1, keepdims=True) + self.epsilon)
            by_method["attnresln_n"] = {
                part: self.gamma * (each - each.mean(axis=-1, keepdims=True)) / sigma
                for part, each in by_method["attnres_n"].items()
            }
            by_method["attnresln_n"]["bias"] = by_method["attnresln_n"]["bias"] + self.beta
        if self.is_cross_attention:
            del by_method["attn_n"]
        return by_method

    def shares(self) -> dict[str, dict[str, np.ndarray]]:
        """Signed shares of every token, by method and part."""
        return {method: shares_of(parts) for method, parts in self.parts().items()}

    @cached_property
    def attention_output(self) -> np.ndarray:
        """query model."""
        return np.einsum("hqk,hkm->qm", self.alpha, self.f) + self.weights.output_bias

    def pair_shares(self) -> np.ndarray:
        """Signed shares in the attention output: head query key."""
        pairs, output = np.einsum("hqk,hkm->hqkm", self.alpha, self.f), self.attention_output
        return np.einsum("hqkm,qm->hqk", pairs, output) / (output**2).sum(axis=-1)[:, None]

    def bias_shares(self) -> np.ndarray:
        """The signed share of b_O in every query's attention output."""
        return self.attention_output @ self.weights.output_bias / (self.attention_output**2).sum(axis=-1)

    def _ratios_of_cross_attention(self) -> dict[str, np.ndarray]:
        """A token takes from itself what the residual connection carries, and nothing else."""
        assert self.gamma is not None
        others = np.einsum("hqk,hkm->qm", self.alpha, self.f)
        output = self.x + others + self.weights.output_bias
        sigma = np.sqrt(output.var(axis=1) + self.epsilon)[:, None]

        def ratio(mixing: np.ndarray, preserving: np.ndarray) -> np.ndarray:
            mixed, preserved = (np.linalg.norm(vectors, axis=-1) for vectors in (mixing, preserving))
            return mixed / (mixed + preserved)

        def normalised(vectors: np.ndarray) -> np.ndarray:
            return self.gamma * (vectors - vectors.mean(axis=-1, keepdims=True)) / sigma

        return {"attnres_n": ratio(others, self.x), "attnresln_n": ratio(normalised(others), normalised(self.x))}


def shares_of(parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """⟨c, y⟩ / ⟨y, y⟩ of every part c of an output y."""
    output = sum(parts.values())
    return {part: (each * output).sum(axis=-1) / (output**2).sum(axis=-1) for part, each in parts.items()}


@dataclasses.dataclass(frozen=True)
class Sequence_:
    """One sequence as the model reads it, and what the model makes of it."""

    ids: np.ndarray
    inputs: Mapping[str, torch.Tensor]
    hidden: np.ndarray  # layer (from 0) token model
    blocks: Sequence[Block]
    source_ids: np.ndarray | None = None
    """The encoder's tokens, if queries attend to those."""

    @property
    def all_ids(self) -> np.ndarray:
        """Every token that the model reads: those of the decoder, −1, and those of the encoder."""
        return self.ids if self.source_ids is None else np.concatenate([self.ids, [-1], self.source_ids])


def bert(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Sequence_:
    """A BERT on one sequence without padding."""
    hidden, _ = _hidden(model, model.encoder.layer, inputs)
    blocks = []
    for layer, x in zip(model.encoder.layer, hidden, strict=False):
        own, output = layer.attention.self, layer.attention.output
        weights = Weights.of(own.query, own.key, own.value, output.dense, model.config.num_attention_heads)
        everything = np.ones((len(x), len(x)), dtype=bool)
        norm = output.LayerNorm
        blocks.append(_block(weights, x, x, everything, None, norm.weight.numpy(), norm.eps, norm.bias.numpy()))
    return Sequence_(inputs["input_ids"][0].numpy(), inputs, hidden, blocks)


def qwen2(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Sequence_:
    """A Qwen2 on one sequence without padding: causal, rotary, some layers with a window, biases in W_Q, W_K and W_V."""
    config = model.config
    hidden, entering = _hidden(model, model.layers, inputs, [layer.self_attn.q_proj for layer in model.layers])
    position = torch.arange(hidden.shape[1])
    size = config.hidden_size // config.num_attention_heads
    # In float32, as the model has them.
    frequency = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float) / size)
    angles = position[:, None].float() * frequency
    turn = angles.cos().double().numpy(), angles.sin().double().numpy()
    distance = position[:, None] - position
    blocks = []
    for layer, kind, x, normed in zip(model.layers, config.layer_types, hidden, entering, strict=False):
        own = layer.self_attn
        weights = Weights.of(own.q_proj, own.k_proj, own.v_proj, own.o_proj, config.num_attention_heads)
        visible = distance >= 0
        if kind == "sliding_attention":
            visible &= distance < config.sliding_window
        blocks.append(_block(weights, x, normed, visible.numpy(), turn, None, 0.0))
    return Sequence_(inputs["input_ids"][0].numpy(), inputs, hidden, blocks)


def marian(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Sequence_:
    """The cross-attention of a Marian on one pair without padding."""
    entering: list[tuple[np.ndarray, np.ndarray]] = []

    def keep(_module, args, arguments):
        target = arguments["hidden_states"] if "hidden_states" in arguments else args[0]
        entering.append((target[0].numpy(), arguments["key_value_states"][0].numpy()))

    layers = model.decoder.layers
    handles = [layer.encoder_attn.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    hidden, _ = _hidden(model, layers, inputs)
    for handle in handles:
        handle.remove()
    blocks = []
    for layer, (x, source) in zip(layers, entering, strict=True):
        own, norm = layer.encoder_attn, layer.encoder_attn_layer_norm
        weights = Weights.of(own.q_proj, own.k_proj, own.v_proj, own.out_proj, own.num_heads)
        query, key = (
            vectors @ weight + bias[:, None]
            for vectors, weight, bias in (
                (x, weights.query, weights.query_bias),
                (source, weights.key, weights.key_bias),
            )
        )
        visible = np.ones((len(x), len(source)), dtype=bool)
        scale = query.shape[-1] ** -0.5
        gamma = norm.weight.numpy()
        beta = norm.bias.numpy()
        blocks.append(Block(weights, x, source, query, key, visible, scale, None, gamma, norm.eps, True, beta))
    ids, source_ids = (inputs[name][0].numpy() for name in ("decoder_input_ids", "input_ids"))
    return Sequence_(ids, inputs, hidden, blocks, source_ids)


def softmax(scores: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Softmax over the last axis, of the entries that are visible."""
    scores = np.where(visible, scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def rotated(vectors: np.ndarray, turn: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Rotary embedding: entries i and i + half of a head are the coordinates of a plane that is turned by angle i."""
    if turn is None:
        return vectors
    cosine, sine = turn
    first, second = np.split(vectors, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _block(weights, x, entering, visible, turn, gamma, epsilon, beta=None) -> Block:
    query, key = (
        rotated(entering @ weight + bias[:, None], turn)
        for weight, bias in ((weights.query, weights.query_bias), (weights.key, weights.key_bias))
    )
    scale = query.shape[-1] ** -0.5
    return Block(weights, x, entering, query, key, visible, scale, turn, gamma, epsilon, beta=beta)


def _ratio(pairs: np.ndarray) -> np.ndarray:
    own = np.arange(len(pairs))
    preserving = pairs[own, own]
    mixing = np.linalg.norm(pairs.sum(axis=1) - preserving, axis=-1)
    return mixing / (mixing + np.linalg.norm(preserving, axis=-1))


def _hidden(model, layers, inputs, projections=()) -> tuple[np.ndarray, list[np.ndarray]]:
    """Input of every layer, then the output of the last; and what entered some modules."""
    hidden: list[np.ndarray] = []
    entering: list[np.ndarray] = []
    handles = [layer.register_forward_pre_hook(lambda _, args: hidden.append(args[0][0].numpy())) for layer in layers]
    handles += [
        module.register_forward_pre_hook(lambda _, args: entering.append(args[0][0].numpy())) for module in projections
    ]

    def last(_module, _args, output):
        hidden.append((output if isinstance(output, torch.Tensor) else output[0]).squeeze(0).numpy())

    handles.append(layers[-1].register_forward_hook(last))
    with torch.inference_mode():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return np.stack(hidden), entering
