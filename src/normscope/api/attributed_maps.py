"""Attribution maps of a whole model: which tokens each output comes from."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import BatchEncoding

from normscope.api.arguments import checked, chosen, exclusive, single_text
from normscope.api.saved import SAVED, save_result
from normscope.attribution.methods import (
    NEEDS_FEED_FORWARD,
    NEEDS_VECTORS_OF_KEYS,
    MapMethod,
    MapStage,
    check_defined_for_translations,
    check_followed,
)
from normscope.attribution.model_maps import ModelMaps, model_maps
from normscope.attribution.translations import translation_maps
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.maths.choices import ValueBias
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import Text
from normscope.results.maps import TokenMap
from normscope.results.pictures import Explorer, Picture
from normscope.statistics.tidy import tidy

_METHODS = (MapMethod.ROLLOUT, MapMethod.NORM_ROLLOUT, MapMethod.ALTI, MapMethod.DECOMPX)
"""The methods by default; for a translation, only ALTI+."""

_TITLES = {
    MapMethod.ROLLOUT: "rollout of the weights",
    MapMethod.NORM_ROLLOUT: "rollout of the norms",
    MapMethod.GLOBENC: "GlobEnc",
    MapMethod.ALTI: "ALTI",
    MapMethod.VALUE_ZEROING: "value zeroing",
    MapMethod.DECOMPX: "DecompX",
}


@dataclasses.dataclass(frozen=True, eq=False)
class AttributionMap:
    """How much each token contributes to each output vector of a model, by one method. Rows are the outputs."""

    __pydantic_config__ = SAVED

    method: str
    tokens: tuple[str, ...]
    """The tokens of the text, one per row; for a translation, those that the decoder reads."""
    layers: Float[np.ndarray, "layer query key"] | None
    """The map of each layer by itself; None where a method has none (`decompx`). For a translation, each layer of the
    decoder, whose first columns are the encoder's outputs."""
    cumulative: Float[np.ndarray, "layer query key"]
    """From the input up to each layer; `decompx` has one more column, for the bias."""
    level: Level = Level.token
    """Whether rows and columns are tokens or words."""
    source_tokens: tuple[str, ...] | None = None
    """For a translation, the source's tokens, which are the first columns; otherwise None."""
    shares: Float[np.ndarray, "query key"] | None = None
    """The signed share of each source in each output, read out along the output vector, with a column for the bias. Those of an
    output add up to 1. Only `decompx` has the vectors for it; None otherwise."""

    @property
    def total(self) -> Float[np.ndarray, "query key"]:
        """Through all layers: the last of `cumulative`."""
        total: np.ndarray = self.cumulative[-1]
        return total

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the columns: the tokens (for a translation, the source's first) and, for `decompx`, the bias."""
        tokens = (*(self.source_tokens or ()), *self.tokens)
        return (*tokens, "bias") if self.total.shape[1] > len(tokens) else tokens

    @property
    def table(self) -> pd.DataFrame:
        """One row per output and source, through all layers; tokens are numbered from 0, in a translation on each `side`."""
        table = tidy(
            {
                "query_token": np.array(self.tokens, dtype=object)[:, None],
                "key_token": np.array(self.sources, dtype=object),
                "value": self.total,
                **({} if self.shares is None else {"share": self.shares}),
            },
            query=range(len(self.tokens)),
            key=range(len(self.sources)),
        )
        if self.source_tokens is not None:
            of_source = table["key"] < len(self.source_tokens)
            table.insert(1, "side", np.where(of_source, "source", "target"))
            table["key"] -= np.where(of_source, 0, len(self.source_tokens))
        return table

    def figure(self) -> Picture:
        """The map through all layers, as a figure."""
        title = _TITLES[MapMethod(self.method)] + ("" if self.source_tokens is None else "+")
        columns = "column" if self.source_tokens is None else "column: the source, then the target so far"
        caption = f"How much of each output (row) comes from each {self.level} ({columns}), through all layers; darker is more."
        whole = TokenMap(" ".join(self.tokens), self.tokens, self.sources, (0,), {self.method: self.total[None]})
        return Picture(whole.panels({self.method: title}, caption))

    def explorer(self) -> Explorer:
        """The map from the input up to each layer, without the bias, as an interactive page like in a report.

        Raises:
            InputError: If there are too many values for one page.
        """
        return AttributionMaps({self.method: self}).explorer()

    @checked
    def save(self, path: str | Path) -> None:
        """Write everything to a file, which `load_attribution` reads back exactly.

        Args:
            path: The file; its format is safetensors, whatever its name.

        Raises:
            InputError: If the file cannot be written.
        """
        save_result(self, path)

    def _check_sizes(self) -> None:
        """Check that maps have a row for every token and a column for every source."""
        cells = (len(self.tokens), len(self.sources))
        shares = self.total if self.shares is None else self.shares
        rows = len(self.tokens) if self.layers is None else self.layers.shape[1]
        if self.total.shape != cells or shares.shape != cells or rows != len(self.tokens):
            raise ValueError("expected a row for every token and a column for every source")
        MapMethod(self.method)

    def _repr_html_(self) -> str:
        return self.figure()._repr_html_()

    def __repr__(self) -> str:
        table = pd.DataFrame(self.total, index=list(self.tokens), columns=list(self.sources))
        return f"{self.method}\n{table.to_string(float_format='{:.3f}'.format)}"


class AttributionMaps(dict[str, AttributionMap]):
    """The maps of one text, by method."""

    def explorer(self) -> Explorer:
        """The maps of all methods from the input up to each layer, without the bias, as an interactive page like in a report.

        Raises:
            InputError: If there are none, or too many values for one page.
        """
        if not self:
            raise InputError("explorer: expected at least one map")
        one = next(iter(self.values()))
        keys = (*(one.source_tokens or ()), *one.tokens)
        maps = {method: each.cumulative[:, :, : len(keys)].astype(np.float32) for method, each in self.items()}
        token_map = TokenMap(
            title=" ".join(one.tokens),
            queries=one.tokens,
            keys=keys,
            layers=tuple(range(1, len(one.cumulative) + 1)),
            maps=maps,
            is_cross_attention=one.source_tokens is not None,
            unit=str(one.level),
        )
        return Explorer(one.figure(), [token_map])

    def _repr_html_(self) -> str:
        return "".join(each._repr_html_() for each in self.values())


@checked
@exclusive
def attribution_maps(
    model: LoadedModel,
    text: Text | BatchEncoding,
    methods: Iterable[str] | None = None,
    *,
    bias: str = "token",
    stage: str = "block",
    level: str = "token",
) -> AttributionMaps:
    """Map how much of each output vector of a model comes from each token of a text, through all layers.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer. For a translation, by a
            model loaded with `stack="cross"`: the source and the target so far.
        methods: Some of `rollout`, `norm_rollout`, `globenc`, `alti`, `value_zeroing` and `decompx`; by default `rollout`,
            `norm_rollout`, `alti` and `decompx`. For a translation, only `alti`: ALTI+ (Ferrando et al. 2022b).
        bias: Where `decompx` puts the value biases: all in the bias column (`token`), or those of the first layer with the
            tokens whose values they belong to (`decompx`), as the authors' code does.
        stage: The vectors whose norms `norm_rollout` multiplies: `attnres_n`, `attnresln_n`, whichever of them ends the
            attention `block`, or the whole `layer`, which takes many times as long.
        level: `token`, or `word` for whole words: shares are added up over the tokens of a source and averaged over those of an
            output, and `decompx` merges the vectors before it measures them.

    Returns:
        A dictionary with a map for each method, in the order of `methods`; its `.explorer()` shows them on one page.

    Examples:
        >>> import normscope
        >>> maps = normscope.attribution_maps(normscope.load(), "A short text.", "alti")
        >>> maps["alti"].total.sum(axis=1).round(3).tolist()  # each token's shares add up to 1
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]

    Raises:
        InputError: If an argument is invalid, a method is not defined for the model's family, or the text is too long.
    """
    wanted = _methods_of(model, methods)
    at_stage, rule = chosen("stage", stage, MapStage), chosen("bias", bias, ValueBias)
    of_level = chosen("level", level, Level)
    if model.layout.reads_target:
        if of_level is Level.word:
            raise InputError("level=word is not defined for maps of translations; use level=token")
        return _of_translation(model, text, wanted)
    check_followed(model.layout)
    batch = single_text(model, text, "attribution_maps", of_level)
    if any(method in NEEDS_FEED_FORWARD or method is MapMethod.NORM_ROLLOUT for method in wanted):
        _ = model.layers_verification
    inputs, groups = batch.model_inputs(), batch.groups
    maps = model_maps(model.model, model.layout, inputs, wanted, stage=at_stage, bias=rule, keep=True, groups=groups)
    tokens = batch.unit_texts(model.tokenizer)
    return AttributionMaps(
        {str(method): _attribution_map(method, tokens, found, of_level) for method, found in maps.items()}
    )


def _methods_of(model: LoadedModel, methods: Iterable[str] | None) -> list[MapMethod]:
    if methods is None:
        if model.layout.reads_target:
            return [MapMethod.ALTI]
        return [each for each in _METHODS if not model.layout.is_gated or each not in NEEDS_VECTORS_OF_KEYS]
    names = [methods] if isinstance(methods, str) else list(methods)
    return [chosen("methods", name, MapMethod) for name in names]


def _of_translation(model: LoadedModel, text: object, methods: list[MapMethod]) -> AttributionMaps:
    for method in methods:
        check_defined_for_translations(method)
    batch = single_text(model, text, "attribution_maps")
    assert batch.source is not None
    source, tokens = batch.source.unit_texts(model.tokenizer), batch.unit_texts(model.tokenizer)
    _ = model.stacks_verification
    maps = translation_maps(model.model, batch.model_inputs())
    return AttributionMaps(
        {str(method): _attribution_map(method, tokens, maps, Level.token, source) for method in methods}
    )


def _attribution_map(
    method: MapMethod,
    tokens: tuple[str, ...],
    maps: ModelMaps,
    level: Level,
    source: tuple[str, ...] | None = None,
) -> AttributionMap:
    assert maps.cumulative is not None
    return AttributionMap(
        method=str(method),
        tokens=tokens,
        layers=None if maps.layers is None else np.stack([layer[0].cpu().numpy() for layer in maps.layers]),
        cumulative=np.stack([layer[0].cpu().numpy() for layer in maps.cumulative]),
        level=level,
        source_tokens=source,
        shares=None if maps.shares is None else maps.shares[0].cpu().numpy(),
    )
