"""Layouts that say something wrong: every field of a literal, exchanged for everything of the same kind that a model has."""

import contextlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.models.sites.layout import ModelLayout
from normscope.models.sites.linear_layers import Columns
from normscope.models.sites.rotary import Planes
from normscope.models.sites.site import HeadNorms, Site
from tests.tiny import changed, changed_sites

IN_LAYER = {
    "attention": ("module", "output"),
    "residual": ("carried", "norm", "attention_norm", "sum_consumer"),
}
"""Paths of modules, by part of a site."""
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
REQUIRED = ("module", "query", "key", "value", "output")

NOT_MUTATED = {
    "family": "a name",
    "source": "a link for messages",
    "stack": "the caller's choice",
    "routed": "whether each layer reads what it reads in the untouched model",
    "float32_inside": "loosens or tightens the bound in float64 alone",
    "fused_reference": "chooses which of transformers' own implementations is the reference",
    "site.layer": "sites of other layers are sites of other modules; see test_different_layers",
    "site.inner": "of families with bottlenecks; see test_hybrids",
    "residual.bottleneck": "see test_hybrids",
    "residual.output_norm": "where hidden vectors are read, which the proof of the network shows; see test_feed_forward",
    "residual.scaling": "see test_own_models",
    "residual.scaling_of_network": "see test_own_models",
    "site.has_network": "which analyses are refused",
    "attention.reader": "of latent attention; see test_hybrids",
    "attention.gate": "see test_hybrids",
    "stream.layers": "another list of layers is another model; binding fails",
    "stream.width": "norms of another width cannot be bound",
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
    """Every wrong layout that differs from a right one in one field, or in the position of a norm, of its second block.

    Layers that share their modules are changed together.
    """
    site = layout.sites[1]
    path = layout.stream.layers[site.layer - 1]
    alike = [number for number, other in enumerate(layout.stream.layers, start=1) if other == path]
    layer = _Layer(model, path)
    for part, field, value in _wrong_parts_of(site, layer, layout.stream.width):
        # A layout that nothing could prove cannot be built.
        with contextlib.suppress(ValueError):
            yield Mutation(f"{part}.{field}", value, changed_sites(layout, part, alike, **{field: value}))
    for field in IN_MODEL:
        for _, value in _others(_Layer(model, ""), field, getattr(layout.stream, field)):
            yield Mutation(f"stream.{field}", value, changed(layout, "stream", **{field: value}))
    yield Mutation("registry", not layout.registry, changed(layout, None, registry=not layout.registry))
    yield Mutation("unit_offset", not layout.unit_offset, changed(layout, None, unit_offset=not layout.unit_offset))
    if not layout.registry:
        assert site.attention.scale is not None
        for scale in (site.attention.scale * 1.03, None):
            yield Mutation("attention.scale", scale, changed_sites(layout, "attention", alike, scale=scale))
    for position, named, wrong in _wrong_positions(site, layer):
        value = {"norm": None, "sum_consumer": None, "norm_position": position} | {named: wrong}
        yield Mutation("residual.norm_position", (position, wrong), changed_sites(layout, "residual", alike, **value))


class _Layer(NamedTuple):
    """A layer, or a whole model, in which other modules are looked for."""

    model: nn.Module
    path: str

    def modules(self) -> Iterator[tuple[str, str, nn.Module]]:
        """Every module: its path in the layer and in the model, and itself."""
        for path, module in self.model.get_submodule(self.path).named_modules():
            yield path, f"{self.path}.{path}" if self.path and path else self.path or path, module


def _wrong_parts_of(site: Site, layer: _Layer, width: int) -> Iterator[tuple[str, str, object]]:
    """Parts of a site, their fields, and wrong values."""
    for part, fields in IN_LAYER.items():
        for field in fields:
            for wrong in _others(layer, field, getattr(getattr(site, part), field)):
                yield part, *wrong
    for wrong in _wrong_attention(site, layer, width):
        yield "attention", *wrong
    yield "residual", "scale", site.residual.scale * 1.7


def _wrong_attention(site: Site, layer: _Layer, width: int) -> Iterator[tuple[str, object]]:
    attention = site.attention
    for field in OF_HEADS:
        yield from _wrong_heads(site, field, layer, width)
    yield from _wrong_head_norms(site, layer)
    if attention.rotation is not None:
        size, adjacent = attention.rotation
        for wrong in (None, Planes(size, not adjacent), Planes(size - 2, adjacent)):
            yield "rotation", wrong
    yield "key_heads", 1 if attention.key_heads > 1 else attention.heads
    yield "heads", attention.heads // 2


def _wrong_head_norms(site: Site, layer: _Layer) -> Iterator[tuple[str, object]]:
    norms = site.attention.head_norms
    none = norms or HeadNorms(None, None, by_head=False, turned=False)
    for field, path in (("key", none.key), ("query", none.query)):
        for _, other in _others(layer, f"norm of the {field}", path):
            yield "head_norms", none._replace(**{field: other})
    if norms is None:
        return
    yield "head_norms", None
    if norms.key is not None:
        yield "head_norms", norms._replace(by_head=not norms.by_head)
        if site.attention.rotation is not None:
            yield "head_norms", norms._replace(turned=not norms.turned)


def _wrong_heads(site: Site, field: str, layer: _Layer, width: int) -> Iterator[tuple[str, object]]:
    """Another linear layer, no separate bias, the heads of another part, or in another order."""
    attention = site.attention
    heads = getattr(attention, field)
    if heads is None:
        return
    for _, other in _others(layer, field, heads.projection):
        yield field, heads._replace(projection=other)
    if heads.bias is not None:
        yield field, heads._replace(bias=None)
    if heads.columns is None:
        number = attention.heads if field == "query" else attention.key_heads
        size = width // attention.heads
        yield field, heads._replace(columns=Columns(tuple(range(0, number * size, size))[::-1], size))
        return
    others = {getattr(attention, other).columns for other in OF_HEADS}
    for columns in (*others - {heads.columns}, heads.columns._replace(first=heads.columns.first[::-1])):
        yield field, heads._replace(columns=columns)


def _wrong_positions(site: Site, layer: _Layer) -> Iterator[tuple[str, str, str | None]]:
    """Other positions of the norm; the field that they need, and its value."""
    norms = [whole for path, whole, module in layer.modules() if path and _is_norm(module)]
    readers = [*norms, *([site.residual.sum_consumer] if site.residual.sum_consumer else [])]
    for position, named, paths in (
        ("post", "norm", norms),
        ("branch", "norm", norms),
        ("pre", "sum_consumer", readers),
        ("parallel", "norm", [None]),
    ):
        for path in paths if position != site.residual.norm_position else []:
            yield position, named, path


def _others(layer: _Layer, field: str, path: str | None) -> Iterator[tuple[str, str | None]]:
    """Other modules of the same kind and shape, and none."""
    if path is not None and field not in REQUIRED:
        yield field, None
    if path is None:
        like = _is_norm if field in NORMS else None
    else:
        shape = _shape(attrgetter(path)(layer.model))
        like = lambda module: _shape(module) == shape  # noqa: E731
    if like is not None:
        for inside, other, module in layer.modules():
            # One of each kind is enough: the layers of a list are alike.
            if (
                inside
                and other != path
                and like(module)
                and not any(part.isdigit() and int(part) > 1 for part in inside.split("."))
            ):
                yield field, other


def _shape(module: Any) -> tuple[object, ...]:
    if not isinstance(module, nn.Module):
        return (type(module),)
    return (type(module).__name__, *(tuple(parameter.shape) for parameter in module.parameters()))


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ and not list(module.children())
