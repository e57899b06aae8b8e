"""Layouts that say something wrong: every field of a literal, exchanged for everything of the same kind that a model has."""

import contextlib
import dataclasses
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.models.feed_forward_modules import bind_feed_forward
from normscope.models.layout import FeedForwardLayout, HeadNorms, ModelLayout
from normscope.models.linear_layers import Columns
from normscope.models.rotary import Planes
from tests.tiny import changed

IN_LAYER = {
    "attention": ("module", "output"),
    "residual": ("carried", "norm", "attention_norm", "sum_consumer"),
}
"""Paths in a layer, by part of the layout."""
OF_HEADS = ("query", "key", "value")
IN_MODEL = ("final_norm", "embedding_norm", "convolution", "output_projection")
NORMS = (
    "norm",
    "attention_norm",
    "final_norm",
    "embedding_norm",
    "output_norm",
    "norm of the key",
    "norm of the query",
)
REQUIRED = ("module", "query", "key", "value", "output", "input", "activation")

NOT_MUTATED = {
    "family": "a name",
    "source": "a link for messages",
    "stack": "the caller's choice",
    "routed": "whether each layer reads what it reads in the untouched model",
    "float32_inside": "loosens or tightens the bound in float64 alone",
    "unknown_network": "a reason for messages",
    "inner": "of families with bottlenecks; see test_hybrids",
    "residual.bottleneck": "see test_hybrids",
    "residual.output_norm": "where hidden vectors are read, which the proof of the network shows; see test_feed_forward",
    "residual.scaling": "see test_own_models",
    "attention.reader": "of latent attention; see test_hybrids",
    "attention.gate": "see test_hybrids",
    "attention.fused_reference": "chooses which of transformers' own implementations is the reference",
    "stream.layers": "another list of layers is another model; binding fails",
    "stream.width": "norms of another width cannot be bound",
    "stream.without": "see test_hybrids",
    "stream.places": "see test_own_models",
    "stream.end": "see test_own_models",
    "stream.swapped": "see test_own_models",
    "stream.changes_in_place": "an additional copy",
}
"""Fields that are not mutated here, and why."""


class Mutation(NamedTuple):
    """A wrong layout."""

    field: str
    value: object
    layout: ModelLayout

    def __str__(self) -> str:
        return f"{self.field}={self.value!r}"


def mutations(layout: ModelLayout, model: PreTrainedModel) -> Iterator[Mutation]:
    """Every wrong layout that differs from a right one in one field, or in the position of its norm."""
    layer = layout.parts(model)[0].root
    for part, field, value in _wrong_fields(layout, layer, model):
        # A layout that nothing could prove cannot be built.
        with contextlib.suppress(ValueError):
            name = field if part is None else f"{part}.{field}"
            yield Mutation(name, value, changed(layout, part, **{field: value}))
    yield from _wrong_positions(layout, layer)
    if layout.feed_forward and not layout.routed:
        form = bind_feed_forward(model, layout)[0].layout
        for field, value in _wrong_parts(form, layer):
            wrong = dataclasses.replace(form, **{field: value})
            yield Mutation(f"feed_forward.{field}", value, dataclasses.replace(layout, feed_forward=(wrong,)))


def _wrong_fields(
    layout: ModelLayout, layer: nn.Module, model: PreTrainedModel
) -> Iterator[tuple[str | None, str, object]]:
    """Parts of the layout (None for itself), their fields, and wrong values."""
    for part, fields in IN_LAYER.items():
        for field in fields:
            for wrong in _others(layer, field, getattr(getattr(layout, part), field)):
                yield part, *wrong
    for field in IN_MODEL:
        for wrong in _others(model, field, getattr(layout.stream, field)):
            yield "stream", *wrong
    for wrong in _wrong_attention(layout, layer):
        yield "attention", *wrong
    yield "residual", "scales", (layout.residual.scales[0] * 1.7, *layout.residual.scales[1:])
    yield None, "unit_offset", not layout.unit_offset


def _wrong_attention(layout: ModelLayout, layer: nn.Module) -> Iterator[tuple[str, object]]:
    attention = layout.attention
    for field in OF_HEADS:
        yield from _wrong_heads(layout, field, layer)
    yield from _wrong_head_norms(layout, layer)
    yield "registry", not attention.registry
    for number, (size, adjacent) in attention.rotation.items():
        yield "rotation", {layer: planes for layer, planes in attention.rotation.items() if layer != number}
        for wrong in (Planes(size, not adjacent), Planes(size - 2, adjacent)):
            yield "rotation", dict(attention.rotation) | {number: wrong}
    if not attention.registry:
        assert attention.scales is not None
        yield "scales", (attention.scales[0] * 1.03, *attention.scales[1:])
        yield "scales", None
    yield "key_heads", tuple(1 if heads > 1 else attention.heads for heads in attention.key_heads)
    yield "heads", attention.heads // 2


def _wrong_head_norms(layout: ModelLayout, layer: nn.Module) -> Iterator[tuple[str, object]]:
    norms = layout.attention.head_norms
    none = norms or HeadNorms(None, None, False, False, frozenset(layout.attends))
    for field, path in (("key", none.key), ("query", none.query)):
        for _, other in _others(layer, f"norm of the {field}", path):
            yield "head_norms", none._replace(**{field: other})
    if norms is None:
        return
    yield "head_norms", None
    for number in norms.layers:
        yield "head_norms", norms._replace(layers=norms.layers - {number})
    if norms.key is not None:
        yield "head_norms", norms._replace(by_head=not norms.by_head)
        if layout.attention.rotation:
            yield "head_norms", norms._replace(turned=not norms.turned)


def _wrong_heads(layout: ModelLayout, field: str, layer: nn.Module) -> Iterator[tuple[str, object]]:
    """Another linear layer, no separate bias, the heads of another part, or in another order."""
    attention = layout.attention
    heads = getattr(attention, field)
    if heads is None:
        return
    for _, other in _others(layer, field, heads.projection):
        yield field, heads._replace(projection=other)
    if heads.bias is not None:
        yield field, heads._replace(bias=None)
    if heads.columns is None:
        number = attention.heads if field == "query" else attention.key_heads[0]
        width = layout.stream.width // attention.heads
        yield field, heads._replace(columns=Columns(tuple(range(0, number * width, width))[::-1], width))
        return
    others = {getattr(attention, other).columns for other in OF_HEADS}
    for columns in (*others - {heads.columns}, heads.columns._replace(first=heads.columns.first[::-1])):
        yield field, heads._replace(columns=columns)


def _wrong_positions(layout: ModelLayout, layer: nn.Module) -> Iterator[Mutation]:
    norms = [path for path, module in layer.named_modules() if _is_norm(module)]
    readers = [*norms, *(form.input for form in layout.feed_forward)]
    nothing = {"norm": None, "sum_consumer": None}
    for position, named, paths in (
        ("post", "norm", norms),
        ("branch", "norm", norms),
        ("pre", "sum_consumer", readers),
        ("parallel", "norm", [None]),
    ):
        for path in paths if position != layout.residual.norm_position else []:
            wrong = changed(layout, "residual", norm_position=position, **nothing | {named: path})
            yield Mutation("residual.norm_position", (position, path), wrong)


def _wrong_parts(form: FeedForwardLayout, layer: nn.Module) -> Iterator[tuple[str, object]]:
    for field in ("input", "output", "multiplier", "norm", "output_norm", "activation"):
        yield from _others(layer, field, getattr(form, field))
    yield "fused", not form.fused


def _others(root: nn.Module, field: str, path: str | None) -> Iterator[tuple[str, str | None]]:
    """Other modules of the same kind and shape, and none."""
    if path is not None and field not in REQUIRED:
        yield field, None
    if field.endswith("bias"):
        return
    if path is None:
        like = _is_norm if field in NORMS else None
    else:
        try:
            shape = _shape(attrgetter(path)(root))
        except AttributeError:
            return  # another form of the network
        like = lambda module: _shape(module) == shape  # noqa: E731
    if like is not None:
        for other, module in root.named_modules():
            # One of each kind is enough: the layers of a list are alike.
            if (
                other
                and other != path
                and like(module)
                and not any(part.isdigit() and int(part) > 1 for part in other.split("."))
            ):
                yield field, other


def _shape(module: Any) -> tuple[object, ...]:
    if not isinstance(module, nn.Module):
        return (type(module),)
    return (type(module).__name__, *(tuple(parameter.shape) for parameter in module.parameters()))


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ and not list(module.children())
