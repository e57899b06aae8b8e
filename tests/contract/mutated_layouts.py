"""Layouts that say something wrong: every field of a literal, exchanged for everything of the same kind that a model has."""

import contextlib
import dataclasses
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.models.feed_forward_modules import bind_feed_forward
from normscope.models.layout import BlockLayout, FeedForwardLayout, HeadNorms
from normscope.models.linear_layers import Columns
from normscope.models.rotary import Planes

IN_LAYER = ("attention", "output", "residual", "norm", "attention_norm", "sum_consumer")
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
REQUIRED = ("attention", "query", "key", "value", "output", "input", "activation")

NO_DIFFERENCE = {
    "model_type": "a name",
    "source": "a link for messages",
    "start": "a convention of training, which no computation shows",
    "fused_reference": "chooses which of transformers' own implementations is the reference",
    "float32_inside": "loosens or tightens the bound in float64 alone",
    "routed": "whether each layer reads what it reads in the untouched model",
    "added_in_place": "an additional copy",
    "layers": "another list of layers is another model; binding fails",
    "feed_forward": "mutated field by field",
    "stack": "the caller's choice",
}
"""Fields that are not mutated, or may be anything, and why."""


class Mutation(NamedTuple):
    """A wrong layout."""

    field: str
    value: object
    layout: BlockLayout

    def __str__(self) -> str:
        return f"{self.field}={self.value!r}"


def mutations(layout: BlockLayout, model: PreTrainedModel) -> Iterator[Mutation]:
    """Every wrong layout that differs from a right one in one field, or in the position of its norm."""
    layer = layout.parts(model)[0].root
    for field, value in _wrong_fields(layout, layer, model):
        # A layout that nothing could prove cannot be built.
        with contextlib.suppress(ValueError):
            yield Mutation(field, value, dataclasses.replace(layout, **{field: value}))
    yield from _wrong_positions(layout, layer)
    if layout.feed_forward and not layout.routed:
        form = bind_feed_forward(model, layout)[0].layout
        for field, value in _wrong_parts(form, layer):
            wrong = dataclasses.replace(form, **{field: value})
            yield Mutation(f"feed_forward.{field}", value, dataclasses.replace(layout, feed_forward=(wrong,)))


def _wrong_fields(layout: BlockLayout, layer: nn.Module, model: PreTrainedModel) -> Iterator[tuple[str, object]]:
    for field in IN_LAYER:
        yield from _others(layer, field, getattr(layout, field))
    for field in OF_HEADS:
        yield from _wrong_heads(layout, field, layer)
    for field in IN_MODEL:
        yield from _others(model, field, getattr(layout, field))
    yield from _wrong_head_norms(layout, layer)
    yield "registry", not layout.registry
    for number, (size, adjacent) in layout.rotation.items():
        yield "rotation", {layer: planes for layer, planes in layout.rotation.items() if layer != number}
        for wrong in (Planes(size, not adjacent), Planes(size - 2, adjacent)):
            yield "rotation", dict(layout.rotation) | {number: wrong}
    if not layout.registry:
        assert layout.scales is not None
        yield "scales", (layout.scales[0] * 1.03, *layout.scales[1:])
        yield "scales", None
    yield "key_heads", tuple(1 if heads > 1 else layout.heads for heads in layout.key_heads)
    yield "heads", layout.heads // 2
    yield "residual_scales", (layout.residual_scales[0] * 1.7, *layout.residual_scales[1:])
    yield "unit_offset", not layout.unit_offset


def _wrong_head_norms(layout: BlockLayout, layer: nn.Module) -> Iterator[tuple[str, object]]:
    norms = layout.head_norms
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
        if layout.rotation:
            yield "head_norms", norms._replace(turned=not norms.turned)


def _wrong_heads(layout: BlockLayout, field: str, layer: nn.Module) -> Iterator[tuple[str, object]]:
    """Another linear layer, no separate bias, the heads of another part, or in another order."""
    heads = getattr(layout, field)
    if heads is None:
        return
    for _, other in _others(layer, field, heads.projection):
        yield field, heads._replace(projection=other)
    if heads.bias is not None:
        yield field, heads._replace(bias=None)
    if heads.columns is None:
        number = layout.heads if field == "query" else layout.key_heads[0]
        width = layout.width // layout.heads
        yield field, heads._replace(columns=Columns(tuple(range(0, number * width, width))[::-1], width))
        return
    others = {getattr(layout, other).columns for other in OF_HEADS}
    for columns in (*others - {heads.columns}, heads.columns._replace(first=heads.columns.first[::-1])):
        yield field, heads._replace(columns=columns)


def _wrong_positions(layout: BlockLayout, layer: nn.Module) -> Iterator[Mutation]:
    norms = [path for path, module in layer.named_modules() if _is_norm(module)]
    readers = [*norms, *(form.input for form in layout.feed_forward)]
    nothing = {"norm": None, "sum_consumer": None}
    for position, named, paths in (
        ("post", "norm", norms),
        ("branch", "norm", norms),
        ("pre", "sum_consumer", readers),
        ("parallel", "norm", [None]),
    ):
        for path in paths if position != layout.norm_position else []:
            changed = dataclasses.replace(layout, norm_position=position, **nothing | {named: path})
            yield Mutation("norm_position", (position, path), changed)


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
