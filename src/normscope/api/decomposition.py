"""How much each token of a text takes from each other, layer by layer."""

import dataclasses
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import BatchEncoding

from normscope.analyses.findings import WordMaps
from normscope.api.observation import observe
from normscope.api.picture import Picture
from normscope.errors import InputError
from normscope.maths.mixing import Method
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import Text, batch_from_texts, describe_type
from normscope.statistics.tidy import tidy


@dataclasses.dataclass(frozen=True, eq=False)
class Decomposition:
    """How much each token of a text takes from each other, layer by layer."""

    tokens: tuple[str, ...]
    weights: Float[Tensor, "layer query key"]
    """α, averaged over heads."""
    vectors: Float[Tensor, "layer query key"]
    """‖F_ij‖ = ‖Σ_h αf(x_j)‖."""
    residual: Float[Tensor, "layer query key"] | None
    """‖R_ij‖: with the residual connection; None if a norm comes before it (OLMo 2)."""
    normalised: Float[Tensor, "layer query key"] | None
    """‖T_ij‖: with the residual connection and the layer normalisation; None if no norm follows attention."""
    ratios: Float[Tensor, "method layer query"]
    """Mixing ratios by method."""
    methods: tuple[Method, ...]
    """The methods that are defined for the model's blocks."""

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row per layer, query and key; tokens are numbered from 0."""
        layers, length, _ = self.weights.shape
        tokens = np.array(self.tokens, dtype=object)
        maps = {
            "attn_w": self.weights,
            "attn_n": self.vectors,
            "attnres_n": self.residual,
            "attnresln_n": self.normalised,
        }
        return tidy(
            {
                "query_token": tokens[:, None],
                "key_token": tokens,
                **{name: values for name, values in maps.items() if values is not None},
            },
            layer=range(1, layers + 1),
            query=range(length),
            key=range(length),
        )

    @cached_property
    def mixing(self) -> pd.DataFrame:
        """The mixing ratio of every token: one row per layer, method and token."""
        _, layers, length = self.ratios.shape
        table = tidy(
            {"token": np.array(self.tokens, dtype=object), "ratio": self.ratios},
            method=[str(method) for method in self.methods],
            layer=range(1, layers + 1),
            position=range(length),
        )
        return table[["layer", "method", "position", "token", "ratio"]]

    @cached_property
    def table(self) -> pd.DataFrame:
        """The mean mixing ratio over tokens: one row per layer, one column per method."""
        return self.mixing.pivot_table(index="layer", columns="method", values="ratio", sort=False)

    def figure(self, layer: int | None = None) -> Picture:
        """How much each token takes from each other in one layer (by default the last): weights and vectors side by side.

        Raises:
            InputError: If there is no such layer.
        """
        number = len(self.weights) if layer is None else layer
        if not 1 <= number <= len(self.weights):
            raise InputError(f"layer={layer}: expected 1 to {len(self.weights)}")
        titles = {
            "attn_w": "α: weights",
            "attn_n": "‖F‖: vectors",
            "attnres_n": "with the residual connection",
            "attnresln_n": "the whole block",
        }
        pairs = self.pairs[self.pairs["layer"] == number]
        titles = {name: title for name, title in titles.items() if name in pairs}
        tidy = pairs.melt(
            id_vars=["query", "key", "query_token", "key_token"], value_vars=list(titles), var_name="measure"
        ).assign(frame="none")
        return Picture(
            WordMaps(
                table=tidy,
                panel="measure",
                panel_titles=titles,
                row="query",
                row_label="query_token",
                column="key",
                column_label="key_token",
                value="value",
                frame="frame",
                caption=f"How much each token (row) takes from each token (column) in layer {number}; darker is more.",
            )
        )

    def _repr_html_(self) -> str:
        return str(self.table.style.format("{:.1%}").to_html()) + self.figure()._repr_html_()

    def __repr__(self) -> str:
        return f"{' '.join(self.tokens)}\n{self.table.to_string(float_format='{:.3f}'.format)}"


def decompose(model: LoadedModel, text: Text | BatchEncoding) -> Decomposition:
    """Decompose how much each token of a text takes from each other.

    Norms of pair vectors come from Gram matrices of the heads' vectors, in float64, from the model's activations: no tensor
    of size query × key × model is built.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer.

    Returns:
        Maps by layer. `.table` has the mean mixing ratios; `.pairs` and `.mixing` have everything as tidy tables.

    Raises:
        InputError: If it is anything else, or too long for the model.
    """
    if isinstance(text, list):
        raise InputError(f"decompose takes one text or one pair (tuple) of texts; got {describe_type(text)}")
    batch = batch_from_texts(model, text)
    if batch.sequences != 1:
        raise InputError(f"decompose takes one text; got a BatchEncoding of {batch.sequences}")
    methods = model.layout.methods
    layers: list[dict[str, Tensor]] = []
    for block in observe(model, batch):
        ratios = torch.stack([block.mixing_ratios[method][0] for method in methods]).cpu().double()
        layers.append({str(method): maps[0] for method, maps in block.pair_maps().items()} | {"ratios": ratios})
    maps = {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    tokens = model.tokenizer.convert_ids_to_tokens(batch.input_ids[0].tolist())
    return Decomposition(
        tokens=tuple(tokens),
        weights=maps["attn_w"],
        vectors=maps["attn_n"],
        residual=maps.get("attnres_n"),
        normalised=maps.get("attnresln_n"),
        ratios=maps["ratios"].transpose(0, 1),
        methods=methods,
    )
