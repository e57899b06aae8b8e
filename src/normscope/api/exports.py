"""Decompositions in the formats of other libraries, which are optional."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from normscope.errors import InputError
from normscope.maths.layer_composition import WHOLE_LAYER
from normscope.maths.mixing import Method

if TYPE_CHECKING:
    import xarray


@runtime_checkable
class Maps(Protocol):
    """The part of a `Decomposition` that is exported."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that receive."""

    @property
    def key_tokens(self) -> tuple[str, ...]:
        """The tokens that contribute."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers, from 1; all if empty."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The places of the receiving tokens; all if empty."""

    @property
    def maps(self) -> dict[str, Tensor]:
        """Maps (layer, query, key) by name."""

    @property
    def shares(self) -> Tensor | None:
        """Signed shares, (layer, query, key)."""

    @property
    def feed_forward(self) -> Mapping[str, Tensor]:
        """Those of them that go through feed-forward networks."""

    @property
    def ratios(self) -> Tensor:
        """Mixing ratios, (method, layer, query)."""

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods of the ratios."""

    @property
    def head_weights(self) -> Tensor | None:
        """α of every head, (layer, head, query, key)."""

    @property
    def head_vectors(self) -> Tensor | None:
        """‖αf(x)‖ of every head, (layer, head, query, key)."""


def to_xarray(maps: Maps) -> "xarray.Dataset":
    """See `Decomposition.to_xarray`.

    Raises:
        InputError: If xarray is not installed.
    """
    try:
        import xarray
    except ImportError as error:
        raise InputError("to_xarray needs xarray: pip install xarray") from error
    arrays: dict[str, Any] = {name: (("layer", "query", "key"), values.numpy()) for name, values in maps.maps.items()}
    if maps.shares is not None:
        arrays["share"] = (("layer", "query", "key"), maps.shares.numpy())
    arrays["ratio"] = (("measure", "layer", "query"), maps.ratios.numpy())
    for name, values in _heads(maps).items():
        arrays[f"{name}_heads"] = (("layer", "head", "query", "key"), values.numpy())
    layers, queries, keys = maps.maps["attn_w"].shape
    coordinates: dict[str, Any] = {
        "layer": np.array(maps.layers or range(1, layers + 1)),
        "query": np.array(maps.positions or range(queries)),
        "key": np.arange(keys),
        "query_token": ("query", list(maps.tokens)),
        "key_token": ("key", list(maps.key_tokens)),
        "measure": [str(method) for method in maps.methods],  # `sel` has an argument `method` of its own
    }
    for values in _heads(maps).values():
        coordinates["head"] = np.arange(1, values.shape[1] + 1)
    return xarray.Dataset(arrays, coordinates)


def to_circuitsvis(maps: Maps, measure: str, layer: int | None) -> dict[str, Any]:
    """See `Decomposition.to_circuitsvis`.

    Raises:
        InputError: If there is no such map, or keys and queries are different tokens.
    """
    if maps.tokens != maps.key_tokens:
        raise InputError(
            "to_circuitsvis: circuitsvis draws one list of tokens, but cross-attention, and maps of some queries, have two"
        )
    drawn = maps.maps if layer is None else _heads(maps)
    if layer is not None and not drawn:
        raise InputError(f"layer={layer}: there are no maps of single heads; call decompose(…, heads=True)")
    if measure == WHOLE_LAYER and layer is None:
        if not maps.feed_forward:
            raise InputError(
                "measure='layer': no map goes through the whole layer; call decompose(…, feed_forward=True)"
            )
        measure = list(maps.feed_forward)[-1]
    if measure not in drawn:
        raise InputError(f"measure={measure!r}: expected one of {', '.join(drawn)}")
    values = drawn[measure]
    if layer is not None:
        known = maps.layers or tuple(range(1, len(values) + 1))
        if layer not in known:
            raise InputError(f"layer={layer}: expected {', '.join(map(str, maps.layers)) or f'1 to {len(values)}'}")
        values = values[known.index(layer)]
    kind = "layer" if layer is None else f"layer {layer}, head"
    return {
        "attention": values.float().numpy(),
        "tokens": list(maps.tokens),
        "attention_head_names": [f"{kind} {number}" for number in range(1, len(values) + 1)],
        "max_value": float(values.max()),
        "mask_upper_tri": not bool(values.triu(1).any()),  # it hides later tokens by default
    }


def _heads(maps: Maps) -> dict[str, Tensor]:
    heads = {"attn_w": maps.head_weights, "attn_n": maps.head_vectors}
    return {name: values for name, values in heads.items() if values is not None}
