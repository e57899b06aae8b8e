"""A table of sabotages: what is changed in a layer of a tiny model, when, and by which means.

The layers of the models run the code below, which computes what the families' own does and can be changed at named sites. It
notes what it has really computed, and `judged` compares that with what is observed, by brute force.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from normscope.errors import InputError
from normscope.maths.mixing import Method
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.models.observe.check import Check
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of
from normscope.models.prove.verification import verify
from tests.tiny import FAMILY_CONFIGS, tiny_model

LAYER = 2
"""The layer that is changed."""
WORD = 42
"""The number of the token at which some changes are made."""
POSITION, LENGTH = 14, 12
"""Some changes are made from this position on, and in texts longer than this; no probe is as long."""
LARGE = 2.5

Family = Literal["bert", "llama"]


# When. Whether all tokens are changed, or which are, (text, token).


def always(_sites: "Sites", _vectors: Tensor) -> bool:
    return True


def late(sites: "Sites", _vectors: Tensor) -> Tensor | bool:
    places = torch.arange(sites.ids.shape[1]) >= POSITION
    return places.expand(sites.ids.shape) if sites.ids.shape[1] > POSITION else False


def long(sites: "Sites", _vectors: Tensor) -> bool:
    return sites.ids.shape[1] > LENGTH


def word(sites: "Sites", _vectors: Tensor) -> Tensor | bool:
    found = sites.ids == WORD
    return found if bool(found.any()) else False


def padded(sites: "Sites", _vectors: Tensor) -> Tensor:
    return (sites.ids == 0).any(dim=1, keepdim=True).expand(sites.ids.shape)


def padding(sites: "Sites", _vectors: Tensor) -> Tensor:
    return sites.ids == 0


def large(_sites: "Sites", vectors: Tensor) -> Tensor:
    rows = vectors.transpose(1, 2).flatten(2) if vectors.ndim == 4 else vectors
    return rows.abs().amax(dim=-1) > LARGE


def later_call(sites: "Sites", _vectors: Tensor) -> bool:
    """From the first pass after the proof on."""
    return sites.is_armed


def one_call(sites: "Sites", _vectors: Tensor) -> bool:
    """In the third pass alone, which belongs to the proof."""
    return sites.passes == 3


When = Callable[["Sites", Tensor], Tensor | bool]
WHEN: dict[str, When] = {
    each.__name__.replace("_", " "): each
    for each in (always, late, long, word, padded, padding, large, later_call, one_call)
}


# What is changed, and how.


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of vectors, (text, [head,] token, dimension), and its linear part with everything else held."""

    of: Callable[[Tensor], Tensor]
    linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Given parts (source, *vectors), the vectors before the change, and after it."""
    mixes: bool = False
    """Whether it mixes tokens."""


def scaled(vectors: Tensor) -> Tensor:
    return vectors * 0.5


def shifted(vectors: Tensor) -> Tensor:
    return vectors + 0.3


def clipped(vectors: Tensor) -> Tensor:
    return vectors.clamp(-0.5, 0.5)


def turned(vectors: Tensor) -> Tensor:
    return vectors.roll(1, dims=-1)


def smoothed(vectors: Tensor) -> Tensor:
    return 0.9 * vectors + 0.1 * vectors.roll(1, dims=-2)


def sharpened(vectors: Tensor) -> Tensor:
    """Larger numbers grow, as a row of weights that is squared and divided by its sum."""
    squared = vectors * vectors
    return squared / squared.sum(dim=-1, keepdim=True)


def _ratio(parts: Tensor, before: Tensor, after: Tensor) -> Tensor:
    return parts * torch.where(before == 0, 0, after / torch.where(before == 0, 1, before))


CHANGES = {
    "scaled": Change(scaled, _ratio),
    "shifted": Change(shifted, lambda parts, _before, _after: parts),
    "clipped": Change(clipped, _ratio),
    "turned": Change(turned, lambda parts, _before, _after: turned(parts)),
    "smoothed": Change(smoothed, lambda parts, _before, _after: smoothed(parts), mixes=True),
    "sharpened": Change(sharpened, _ratio),
}


def _near(vectors: Tensor) -> Tensor:
    """What mixes each token's vector with that of the one before."""
    tokens = vectors.shape[-2]
    return (torch.eye(tokens) + 0.1 * torch.eye(tokens).roll(1, dims=0)).to(vectors)


def _by_kernel(vectors: Tensor) -> Tensor:
    kernel = vectors.new_tensor([0.1, 1.0, 0.1])[None, None]
    return F.conv1d(vectors.mT.flatten(0, -2).unsqueeze(1), kernel, padding=1).view(vectors.mT.shape).mT


@torch.library.custom_op("normscope_tests::shifted", mutates_args=())
def _shift(vectors: Tensor) -> Tensor:
    return vectors.roll(1, dims=-2)


MIXERS: dict[str, Callable[[Tensor], Tensor]] = {
    "a matrix": lambda vectors: _near(vectors) @ vectors,
    "a linear layer": lambda vectors: F.linear(vectors.mT, _near(vectors)).mT,
    "einsum": lambda vectors: torch.einsum("ij,bhjd->bhid", _near(vectors), vectors),
    "a kernel": _by_kernel,
    "cumsum": lambda vectors: vectors.cumsum(dim=-2),
    "an operator": lambda vectors: torch.ops.aten.roll.default(vectors, [1], [-2]),
    "a custom operator": lambda vectors: torch.ops.normscope_tests.shifted(vectors),
    "indices": lambda vectors: vectors[:, :, [0, *range(vectors.shape[2] - 1)]],
    "slices": lambda vectors: torch.cat([vectors.new_zeros(vectors[:, :, :1].shape), vectors[:, :, :-1]], dim=2),
    "padding": lambda vectors: F.pad(vectors, (0, 0, 1, 0))[:, :, :-1],
    "a mean": lambda vectors: vectors - vectors.mean(dim=-2, keepdim=True),
    "a softmax": lambda vectors: vectors * vectors.softmax(dim=-2),
    "a norm": lambda vectors: F.layer_norm(vectors.mT, vectors.shape[2:3]).mT,
    "sorting": lambda vectors: vectors.sort(dim=-2).values,
    "a maximum": lambda vectors: vectors.cummax(dim=-2).values,
    "a Fourier transform": lambda vectors: torch.fft.fft(vectors, dim=-2).real,
    "a difference": lambda vectors: vectors.diff(dim=-2, prepend=vectors[:, :, :1]),
    "rotation": lambda vectors: vectors.rot90(2, dims=(2, 3)),
    "a flip": lambda vectors: vectors.flip(2),
    "writing": lambda vectors: _written(vectors),
    "a sparse matrix": lambda vectors: torch.stack(
        [torch.sparse.mm(_near(vectors).to_sparse(), each) for each in vectors.flatten(0, 1)]
    ).view(vectors.shape),
    "pooling": lambda vectors: F.avg_pool2d(vectors, (3, 1), 1, (1, 0)),
    "interpolation": lambda vectors: F.interpolate(vectors, scale_factor=(0.5, 1))[
        :, :, [*range(vectors.shape[2] // 2)] * 3
    ][:, :, : vectors.shape[2]],
}
"""Functions that mix the vectors of tokens."""


def _written(vectors: Tensor) -> Tensor:
    made = vectors.clone()
    made[:, :, 1:] = vectors[:, :, :-1]
    return made


CHANGES |= {name: Change(mixer, lambda parts, _before, _after: parts, mixes=True) for name, mixer in MIXERS.items()}

Means = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes a function of tensors that computes the same in another way."""


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*tensors)

    return call


def in_a_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        def work() -> Any:
            with torch.no_grad():
                return function(*tensors)

        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            return threads.submit(work).result()

    return call


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, function: Callable[..., Any], *tensors: Tensor) -> Any:
        return function(*tensors)


def as_autograd_function(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: _Own.apply(function, *tensors)


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        with torch.no_grad():
            return function(*(each.detach() for each in tensors))

    return call


def without_inference_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return function(*(each.clone() for each in tensors))

    return call


def through_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        made = function(*(torch.from_numpy(each.detach().numpy().copy()) for each in tensors))
        return torch.from_numpy(made.numpy())

    return call


def through_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: torch.tensor(function(*tensors).tolist(), dtype=tensors[0].dtype)


def through_dlpack(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: torch.from_dlpack(function(*tensors))


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            examples = [each.detach() for each in tensors]
            made = torch.jit.trace(lambda *given: function(*given), examples, check_trace=False)
        return made(*tensors)

    return call


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="eager")


class _Module(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


def exported(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            examples = tuple(each.detach().clone() for each in tensors)
            made = torch.export.export(_Module(function), examples).module()
        return made(*tensors)

    return call


def by_functional_call(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: torch.func.functional_call(_Module(function), {}, tensors)


def under_vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: torch.vmap(function)(*tensors)


def in_a_checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: torch.utils.checkpoint.checkpoint(function, *tensors, use_reentrant=False)


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, *tensors: first.copy_(function(first, *tensors))


def into_data(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(first: Tensor, *tensors: Tensor) -> Any:
        first.data.copy_(function(first, *tensors))
        return first

    return call


def into_memory(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(first: Tensor, *tensors: Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            made = function(first, *tensors).numpy()
            np.copyto(first.numpy(), made)
        return first

    return call


def into_an_empty_tensor(function: Callable[..., Any]) -> Callable[..., Any]:
    """As kernels of other libraries write what they compute."""

    def call(*tensors: Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            made = function(*tensors)
        result = torch.empty(made.shape, dtype=made.dtype)
        np.copyto(result.numpy(), made.numpy())
        return result

    return call


def as_a_parameter(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: nn.Parameter(function(*tensors), requires_grad=False)


class _Kind(Tensor):
    pass


def as_a_subclass(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: function(*tensors).as_subclass(_Kind).as_subclass(Tensor)


@torch.library.custom_op("normscope_tests::same", mutates_args=())
def _same(vectors: Tensor) -> Tensor:
    return vectors.clone()


def by_a_custom_operator(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: torch.ops.normscope_tests.same(function(*tensors))


MEANS: dict[str, Means] = {
    each.__name__.replace("_", " "): each
    for each in (
        *(plainly, unseen, in_a_thread, as_autograd_function, without_gradients, without_inference_mode),
        *(through_numpy, through_lists, through_dlpack, traced, compiled, exported, by_functional_call),
        *(under_vmap, in_a_checkpoint, in_place, into_data, into_memory, into_an_empty_tensor, as_a_parameter),
        *(as_a_subclass, by_a_custom_operator),
    )
}


# Attention, computed in other ways. Each is given queries, keys, values and what is added to scores.


def _scores(query: Tensor, key: Tensor, term: Tensor) -> Tensor:
    return query @ key.mT * query.shape[-1] ** -0.5 + term


def by_exponents(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    scores = _scores(query, key, term)
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return (weights / weights.sum(dim=-1, keepdim=True)) @ value


def divided_after(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    scores = _scores(query, key, term)
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return (weights @ value) / weights.sum(dim=-1, keepdim=True)


def by_logarithms(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return _scores(query, key, term).log_softmax(dim=-1).exp() @ value


def by_operators(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    weights = torch.ops.aten._softmax.default(_scores(query, key, term), -1, False)
    return torch.ops.aten.matmul.default(weights, value)


def by_fused_operator(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return torch.ops.aten.scaled_dot_product_attention.default(query, key, value, term)


def by_flash_operator(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=term)[0]


def by_inner_function(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return torch._C._nn.scaled_dot_product_attention(query, key, value, attn_mask=term)


def by_sums(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    """Without a product of matrices."""
    weights = _scores(query, key, term).softmax(dim=-1)
    return (weights.unsqueeze(-1) * value.unsqueeze(2)).sum(dim=3)


def by_einsum(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * query.shape[-1] ** -0.5 + term
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), value)


def in_halves(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    """Half of the queries at a time."""
    halves = zip(query.chunk(2, dim=2), term.chunk(2, dim=2), strict=True)
    return torch.cat([_scores(q, key, t).softmax(dim=-1) @ value for q, t in halves], dim=2)


def head_by_head(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    heads = zip(query.unbind(1), key.unbind(1), value.unbind(1), strict=True)
    return torch.stack([_scores(q, k, term[:, 0]).softmax(dim=-1) @ v for q, k, v in heads], dim=1)


def transposed(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    weights = _scores(query, key, term).softmax(dim=-1)
    return (value.mT @ weights.mT).mT


def by_a_custom_kernel(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return torch.ops.normscope_tests.attention(query, key, value, term)


@torch.library.custom_op("normscope_tests::attention", mutates_args=())
def _attention(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=term)


def with_dropout(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return F.dropout(_scores(query, key, term).softmax(dim=-1), 0.3) @ value


def with_fused_dropout(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=term, dropout_p=0.3)


def with_native_dropout(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return torch.native_dropout(_scores(query, key, term).softmax(dim=-1), 0.3, True)[0] @ value


def with_feature_dropout(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    return torch.feature_dropout(_scores(query, key, term).softmax(dim=-1), 0.3, True) @ value


def with_noise(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    weights = _scores(query, key, term).softmax(dim=-1)
    return (weights * (torch.rand_like(weights) > 0.3)) @ value


def linear(query: Tensor, key: Tensor, value: Tensor, term: Tensor) -> Tensor:
    """No softmax at all."""
    return (_scores(query, key, torch.zeros_like(term)).sigmoid() * (term == 0)) @ value


KERNELS: dict[str, Callable[..., Tensor]] = {
    each.__name__.replace("_", " "): each
    for each in (
        *(by_exponents, divided_after, by_logarithms, by_operators, by_fused_operator, by_flash_operator),
        *(by_inner_function, by_sums, by_einsum, in_halves, head_by_head, transposed, by_a_custom_kernel),
        *(with_dropout, with_fused_dropout, with_native_dropout, with_feature_dropout, with_noise, linear),
    )
}


# The models.


class Sites:
    """Where a layer can be changed, and what it has computed."""

    def __init__(self) -> None:
        self.change: tuple[str, Callable[[Tensor], Tensor], When, Means] | None = None
        """A site, and what changes its vectors."""
        self.part: tuple[str, Means] | None = None
        """A part of the layer, and the means by which it is computed."""
        self.kernel = "registry"
        self.ids = torch.zeros(0)
        self.passes, self.layer, self.is_armed = 0, 0, False
        self.noted: dict[tuple[int, str], Tensor] = {}
        """What was computed, by layer."""

    def begin(self, ids: Tensor) -> None:
        """A pass begins."""
        self.ids, self.layer = ids, 0
        self.passes += 1
        self.noted.clear()

    def note(self, name: str, tensor: Tensor) -> None:
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            self.noted[self.layer, name] = tensor.detach().clone()

    def __call__(self, name: str, vectors: Tensor) -> Tensor:
        """What a site hands on."""
        if self.change is not None and self.change[0] == name and self.layer == LAYER:
            _, of, when, means = self.change
            where = when(self, vectors)
            if where is not False:
                self.note(f"{name} before", vectors)
                vectors = means(_only(of, where, vectors.ndim))(vectors)
        self.note(name, vectors)
        return vectors

    def run(self, name: str, function: Callable[..., Any], *tensors: Tensor) -> Any:
        """What a part of the layer computes."""
        if self.part is not None and self.part[0] == name and self.layer == LAYER:
            return self.part[1](function)(*tensors)
        return function(*tensors)

    def attend(self, module: nn.Module, mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The outputs of heads, beside each other."""
        query, key, value = self("query", query), self("key", key), self("value", value)
        if self.kernel == "registry" or self.layer != LAYER:
            function = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, None)

            def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                return function(module, query, key, value, mask, scaling=query.shape[-1] ** -0.5)[0]

            heads = self.run("attention", fused, query, key, value)
            return heads.reshape(*heads.shape[:2], -1)
        term = self("mask", self._term(module.is_causal, query))
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)

        def by_torch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=term)

        def by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scores = self("scores", query @ key.mT * query.shape[-1] ** -0.5 + term)
            weights = self("weights", self.run("weights", lambda scores: scores.softmax(dim=-1), scores))
            return weights @ value

        kernels = {"torch": by_torch, "by hand": by_hand} | {
            name: functools.partial(kernel, term=term) for name, kernel in KERNELS.items()
        }
        heads = self.run("attention", kernels[self.kernel], query, key, value)
        return heads.transpose(1, 2).flatten(2)

    def _term(self, causal: bool, query: Tensor) -> Tensor:
        """What is added to scores."""
        seen = (self.ids != 0)[:, None, None].expand(-1, 1, self.ids.shape[1], -1)
        seen = seen.tril() | torch.eye(self.ids.shape[1], dtype=torch.bool) if causal else seen
        return torch.zeros(seen.shape, dtype=query.dtype).masked_fill(~seen, torch.finfo(query.dtype).min)


def _only(of: Callable[[Tensor], Tensor], where: Tensor | bool, axes: int) -> Callable[[Tensor], Tensor]:
    if where is True:
        return of
    assert isinstance(where, Tensor)
    where = where[:, None, :, None] if axes == 4 else where[..., None]
    return lambda vectors: torch.where(where, of(vectors), vectors)


def llama_layer(
    sites: Sites, layer: nn.Module, vectors: Tensor, attention_mask: Any = None, *_: Any, **given: Any
) -> Tensor:
    """What a layer of Llama computes."""
    sites.layer += 1
    attention = layer.self_attn
    vectors = sites("input", vectors)

    def values(normed: Tensor) -> Tensor:
        return attention.v_proj(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    def attended(vectors: Tensor) -> Tensor:
        normed = sites("normed", layer.input_layernorm(vectors))
        query, key = (
            projection(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *given["position_embeddings"])
        heads = sites.attend(attention, attention_mask, query, key, sites.run("values", values, normed))
        return sites("written", sites.run("projection", attention.o_proj, sites("heads", heads)))

    def whole(vectors: Tensor) -> Tensor:
        wrote = sites.run("module", attended, vectors)
        total = sites("sum", sites.run("sum", torch.add, sites("residual", vectors), wrote))
        normed = sites.run("norm", layer.post_attention_layernorm, sites("norm input", total))
        network = sites("network", sites.run("network", layer.mlp, normed))
        return sites("output", total + network)

    return sites.run("layer", whole, vectors)


def bert_layer(
    sites: Sites, layer: nn.Module, vectors: Tensor, attention_mask: Any = None, *_: Any, **_given: Any
) -> Tensor:
    """What a layer of BERT computes."""
    sites.layer += 1
    attention, output = layer.attention.self, layer.attention.output
    vectors = sites("input", vectors)

    def projected(projection: nn.Module, vectors: Tensor) -> Tensor:
        return projection(vectors).unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)

    def attended(vectors: Tensor) -> Tensor:
        query, key = projected(attention.query, vectors), projected(attention.key, vectors)
        value = sites.run("values", functools.partial(projected, attention.value), vectors)
        heads = sites.attend(attention, attention_mask, query, key, value)
        return sites("written", sites.run("projection", output.dense, sites("heads", heads)))

    def whole(vectors: Tensor) -> Tensor:
        wrote = sites.run("module", attended, vectors)
        total = sites("sum", sites.run("sum", torch.add, sites("residual", vectors), wrote))
        normed = sites("norm output", sites.run("norm", output.LayerNorm, sites("norm input", total)))

        def network(vectors: Tensor) -> Tensor:
            return layer.output.dense(layer.intermediate(vectors))

        added = sites("network", sites.run("network", network, normed))
        return sites("output", layer.output.LayerNorm(added + normed))

    return sites.run("layer", whole, vectors)


@functools.cache
def sabotaged_model(family: Family) -> tuple[PreTrainedModel, Sites]:
    """A tiny model, and the sites of its layers."""
    model, sites = tiny_model(FAMILY_CONFIGS[family], torch.float64), Sites()
    layers = model.layers if family == "llama" else model.encoder.layer
    for layer in layers:
        of_family = llama_layer if family == "llama" else bert_layer
        layer.__class__ = type(
            type(layer).__name__,
            (nn.Module,),
            {"forward": lambda layer, *args, of=of_family, **given: of(sites, layer, *args, **given)},
        )
    model.get_input_embeddings().register_forward_pre_hook(lambda _module, args: sites.begin(args[0]))
    return model, sites


@dataclasses.dataclass(frozen=True)
class Sabotage:
    """A model that does something else than its family."""

    family: Family
    site: str = ""
    change: str = ""
    when: str = "always"
    part: str = ""
    means: str = "plainly"
    kernel: str = "registry"

    def __str__(self) -> str:
        return " ".join(filter(None, dataclasses.astuple(self)))

    @contextlib.contextmanager
    def made(self) -> Iterator[tuple[PreTrainedModel, Sites]]:
        """The model."""
        model, sites = sabotaged_model(self.family)
        before = vars(sites).copy()
        sites.change = sites.part = None
        sites.passes, sites.is_armed, sites.kernel = 0, False, self.kernel
        if self.site:
            sites.change = self.site, CHANGES[self.change].of, WHEN[self.when], MEANS[self.means]
        if self.part:
            sites.part = self.part, MEANS[self.means]
        try:
            yield model, sites
        finally:
            vars(sites).update(before)


# What is reported.


def texts() -> Tensor:
    """Texts that are longer than any probe, one of them padded, with the word, and short ones."""
    ids = torch.randint(5, 99, (2, 19), generator=torch.Generator().manual_seed(7))
    ids[0, [3, 16]] = ids[1, 5] = WORD
    ids[1, 11:] = 0
    return ids


@dataclasses.dataclass(frozen=True)
class Reported:
    """What is measured of a block, during its visit."""

    weights: Tensor
    norms: Tensor
    wrote: Tensor
    residual: Tensor
    carried: Tensor
    ratios: Mapping[Method, Tensor]

    @classmethod
    def of(cls, block: AttentionBlock) -> "Reported":
        return cls(
            block.weights.clone(),
            block.head_norms(block.weights),
            block.attention_output.clone(),
            block.inputs.clone(),
            block.composition.block_output.clone(),
            block.mixing_ratios,
        )


def judged(sabotage: Sabotage) -> tuple[str, str]:
    """What is said of a model: `refused` and the message, `exact`, or `wrong` and what is."""
    with sabotage.made() as (model, sites):
        try:
            facts = facts_of(model)
            networks = facts.has_networks
            verify(model, facts, sabotage.family)
            sites.is_armed = True
            for ids in (texts(), texts()[:, :7]):
                blocks: dict[int, Reported] = {}

                def visit(block: AttentionBlock, blocks: dict[int, Reported] = blocks) -> None:
                    blocks[block.layer] = Reported.of(block)

                with Observer(model, facts) as observer:
                    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
                    observer.run(inputs, visit, whole=model, check=Check.TEXTS)
                mistakes = [*_mistakes(sabotage, model, sites, blocks, ids)]
                if networks and sabotage.part:
                    mistakes += _mistakes_of_layers(sabotage, model, facts, ids)
                if mistakes:
                    return "wrong", "; ".join(mistakes)
        except InputError as error:
            return "refused", str(error)
    return "exact", "" if networks else "without networks"


_TOLERANCE = 1e-5
"""Norms in a float64 model round to float32."""


def _mistakes(
    sabotage: Sabotage, model: PreTrainedModel, sites: Sites, blocks: Mapping[int, "Reported"], ids: Tensor
) -> Iterator[str]:
    tokens = ids != 0
    for layer in (1, 2, 3):
        noted = {name: tensor for (number, name), tensor in sites.noted.items() if number == layer}
        block = blocks.get(layer)
        if layer == LAYER and sabotage.kernel == "linear":
            if block is not None:
                yield "a block without softmax"
            continue
        if block is None:
            yield f"no block of layer {layer}"
            continue
        module = model.layers[layer - 1] if sabotage.family == "llama" else model.encoder.layer[layer - 1]
        truth = Truth.of(sabotage, sites, module, noted)
        if layer == LAYER and f"{sabotage.site} before" in noted and CHANGES[sabotage.change].mixes:
            is_changed = not torch.equal(noted[f"{sabotage.site} before"], noted[sabotage.site])
            if is_changed and sabotage.site in ("normed", "value", "heads", "written", "residual"):
                yield "tokens are mixed"
        yield from (f"{name} of layer {layer}" for name in truth.mistakes(block, tokens))


def _mistakes_of_layers(sabotage: Sabotage, model: PreTrainedModel, facts: ModelFacts, ids: Tensor) -> Iterator[str]:
    """Where whole layers are followed, they have the parts of those that are computed plainly."""
    try:
        found = _parts_of_layers(model, facts, ids)
    except InputError:
        return
    with Sabotage(sabotage.family, kernel=sabotage.kernel).made() as (plain, _sites):
        expected = _parts_of_layers(plain, facts_of(plain), ids)
    for layer, parts in expected.items():
        if layer not in found or any(
            _differ(one, other, (ids != 0)[..., None]) for one, other in zip(found[layer], parts, strict=True)
        ):
            yield f"the parts of all of layer {layer}"


def _parts_of_layers(model: PreTrainedModel, facts: ModelFacts, ids: Tensor) -> dict[int, tuple[Tensor, ...]]:
    verify(model, facts, "it", feed_forward=True)
    found: dict[int, tuple[Tensor, ...]] = {}

    def visit(layer: FeedForwardBlock) -> None:
        parts = layer.composition().parts(layer.stages[-1])
        found[layer.attention.layer] = tuple(each.clone() for each in (parts.own, parts.others, parts.constant))

    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    with Observer(model, facts, feed_forward=True) as observer:
        observer.run(inputs, lambda _block: None, visit_feed_forward=visit, check=Check.TEXTS)
    return found


@dataclasses.dataclass(frozen=True)
class Truth:
    """What an attention block does, by brute force."""

    weights: Tensor
    parts: Tensor
    """F^h_ij, (head, key, text, query, model)."""
    residual: Tensor
    wrote: Tensor
    normed: Callable[[Tensor], Tensor] | None
    """The linear part of the norm, for parts (source, text, query, model)."""
    carried: Tensor

    @classmethod
    def of(cls, sabotage: Sabotage, sites: Sites, module: nn.Module, noted: Mapping[str, Tensor]) -> "Truth":
        def changed(name: str, parts: Tensor) -> Tensor:
            before = noted.get(f"{name} before")
            if before is None:
                return parts
            return _linear(sabotage, sites, parts, before, noted[name])

        is_llama = sabotage.family == "llama"
        query, key, value = (noted[name] for name in ("query", "key", "value"))
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        weights = noted.get("weights")
        if weights is None:
            term = noted.get("mask")
            term = sites._term(is_llama, query) if term is None else term
            weights = (query @ key.mT * query.shape[-1] ** -0.5 + term).softmax(dim=-1)
        heads = query.shape[1]
        by_head = torch.zeros(heads, key.shape[2], *query.shape[:1], query.shape[2], heads, value.shape[-1]).double()
        for head in range(heads):
            by_head[head, ..., head, :] = torch.einsum("bij,bjd->jbid", weights[:, head], value[:, head])
        projection = module.self_attn.o_proj if is_llama else module.attention.output.dense
        parts = changed("heads", by_head.flatten(-2).flatten(0, 1)) @ projection.weight.T
        parts = changed("written", parts)
        norm = None if is_llama else module.attention.output.LayerNorm

        def normed(parts: Tensor) -> Tensor:
            parts = changed("norm input", changed("sum", parts))
            deviation = (noted["norm input"].var(dim=-1, correction=0, keepdim=True) + norm.eps).sqrt()
            return changed("norm output", norm.weight * (parts - parts.mean(dim=-1, keepdim=True)) / deviation)

        return cls(
            weights,
            parts.unflatten(0, (heads, -1)),
            noted["residual"],
            noted["written"],
            None if norm is None else normed,
            noted.get("sum before", noted["sum"]) if is_llama else noted["norm output"],
        )

    def mistakes(self, block: Reported, tokens: Tensor) -> Iterator[str]:
        """What a block reports that is not so."""
        pairs = tokens[:, None, :, None] & tokens[:, None, None]
        if _differ(block.weights, self.weights, pairs):
            yield "α"
        norms = self.parts.norm(dim=-1).permute(2, 0, 3, 1)
        if _differ(block.norms, norms, pairs):
            yield "‖αf(x)‖"
        if _differ(block.wrote, self.wrote, tokens[..., None]):
            yield "what W_O writes"
        if _differ(block.residual, self.residual, tokens[..., None]):
            yield "the residual"
        total = self.parts.sum(dim=0)
        own = total.diagonal(dim1=0, dim2=2).permute(0, 2, 1)
        others = total.sum(dim=0) - own
        expected = {
            Method.ATTN_N: _ratio_of(others, own),
            Method.ATTNRES_N: _ratio_of(others, own + self.residual),
        }
        if self.normed is not None:
            after = self.normed(torch.stack([others, own + self.residual]))
            expected[Method.ATTNRESLN_N] = _ratio_of(*after)
        for method, ratio in expected.items():
            if method not in block.ratios:
                yield f"no {method}"
            elif _differ(block.ratios[method], ratio, tokens):
                yield method
        if _differ(block.carried, self.carried, tokens[..., None]):
            yield "what carries on"


def _linear(sabotage: Sabotage, sites: Sites, parts: Tensor, before: Tensor, after: Tensor) -> Tensor:
    change = CHANGES[sabotage.change]
    where = WHEN[sabotage.when](sites, before)
    made = change.linear(parts, before, after)
    return made if where is True else torch.where(torch.as_tensor(where)[..., None], made, parts)


def _ratio_of(others: Tensor, own: Tensor) -> Tensor:
    return others.norm(dim=-1) / (others.norm(dim=-1) + own.norm(dim=-1))


def _differ(found: Tensor, expected: Tensor, where: Tensor) -> bool:
    size = (expected.abs() * where).max().clamp(min=1)
    return found.shape != expected.shape or not bool(((found - expected).abs() * where).max() <= _TOLERANCE * size)


# The table.

SITES = {
    "bert": ("input", "residual", "sum", "norm input", "norm output", "network", "output"),
    "llama": ("input", "normed", "residual", "sum", "norm input", "network", "output"),
}
ATTENTION_SITES = ("query", "key", "value", "heads", "written")
WEIGHT_SITES = ("scores", "mask", "weights")
"""Sites inside of attention that a model's own code computes."""
PARTS = ("values", "attention", "projection", "module", "sum", "norm", "network", "layer", "weights")
_OVERWRITTEN = ("sum", "norm", "network", "layer", "weights")
"""Parts that return tensors of the shape of what they are given."""


def table() -> dict[str, list[Sabotage]]:
    """All sabotages, by family and what is changed."""
    found: dict[str, list[Sabotage]] = {}
    for family in get_args(Family):
        for site in (*SITES[family], *ATTENTION_SITES, *WEIGHT_SITES):
            kernel = "by hand" if site in WEIGHT_SITES else "registry"
            changes = (*_CHANGED, "sharpened") if site == "weights" else _CHANGED
            found[f"{family}, {site}"] = [
                Sabotage(family, site, change, when, kernel=kernel) for change in changes for when in WHEN
            ]
        found[f"{family}, values of several tokens"] = [
            Sabotage(family, "value", change, when) for change in MIXERS for when in ("always", "long")
        ]
        for part in PARTS:
            kernel = "by hand" if part == "weights" else "registry"
            found[f"{family}, {part}, by other means"] = [
                Sabotage(family, part=part, means=means, kernel=kernel)
                for means in MEANS
                if (family, part, means) != _ANOTHER_NORM
                and (part in _OVERWRITTEN or not means.startswith(("in place", "into data", "into memory")))
            ]
        found[f"{family}, kernels"] = [Sabotage(family, kernel=kernel) for kernel in KERNELS]
    return found


_ANOTHER_NORM = "llama", "norm", "in place"
"""This moves a norm onto the residual connection, where it is the block's: no other means of the same."""

_CHANGED = ("scaled", "shifted", "clipped", "turned", "smoothed")

LIMITS = {
    Sabotage("bert", part="norm", means="into memory"),
    Sabotage("bert", part="weights", means="into memory", kernel="by hand"),
    Sabotage("llama", part="weights", means="into memory", kernel="by hand"),
}
"""What is not noticed: numbers that no function of torch has written."""
