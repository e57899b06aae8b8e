"""Attribution maps of a whole model: which tokens each output comes from."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import BatchEncoding

from normscope.api.arguments import exclusive, single_text
from normscope.api.one_text import described
from normscope.api.types import Model, Text
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
from normscope.config.calls import Choice, Several, checked
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.maths.choices import ValueBias
from normscope.models.load.loaded import LoadedModel
from normscope.results.findings import Sentence, Summary
from normscope.results.maps import TokenMap
from normscope.results.result import Result
from normscope.results.table_files import Lazy
from normscope.results.token_labels import as_text, labels
from normscope.rounding import number
from normscope.statistics.tidy import tidy

_METHODS = (MapMethod.ROLLOUT, MapMethod.NORM_ROLLOUT, MapMethod.ALTI, MapMethod.DECOMPX)
"""The methods by default; for a translation, only ALTI+."""

_STRONGEST = 12
"""Pairs of tokens that are printed."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Maps:
    """How much each token contributes to each output vector of a model, by method."""

    tokens: tuple[str, ...]
    """The outputs; for a translation, the tokens that the decoder reads."""
    source: tuple[str, ...]
    """For a translation, the source's tokens, which come first among those that contribute; otherwise empty."""
    cumulative: Mapping[str, Float[np.ndarray, "layer query _"]]
    """From the input up to each layer; `decompx` has one more column, for the bias."""
    layers: Mapping[str, Float[np.ndarray, "layer query key"]]
    """The map of each layer by itself, of methods that have one."""
    shares: Mapping[str, Float[np.ndarray, "query _"]]
    """The signed share of each source in each output, with a column for the bias, of methods that have the vectors for it."""

    @classmethod
    def of(cls, found: Mapping[MapMethod, ModelMaps], tokens: tuple[str, ...], source: tuple[str, ...] = ()) -> "_Maps":
        """The maps of one text, on the CPU."""
        cumulative, layers, shares = {}, {}, {}
        for method, maps in found.items():
            assert maps.cumulative is not None
            cumulative[str(method)] = np.stack([layer[0].cpu().numpy() for layer in maps.cumulative])
            if maps.layers is not None:
                layers[str(method)] = np.stack([layer[0].cpu().numpy() for layer in maps.layers])
            if maps.shares is not None:
                shares[str(method)] = maps.shares[0].cpu().numpy()
        return cls(tokens, source, cumulative, layers, shares)

    @property
    def keys(self) -> tuple[str, ...]:
        """The tokens that contribute."""
        return (*self.source, *self.tokens)

    def result(self, unit: str) -> Result:
        """The maps, with tables that are made when they are read."""
        tables: dict[str, Callable[[], pd.DataFrame]] = {
            "total": self._total,
            "layers": functools.partial(self._stacked, self.layers),
        }
        biased = {name: values for name, values in self.cumulative.items() if values.shape[2] > len(self.keys)}
        tables |= {"bias": functools.partial(_bias, biased, self.tokens)} if biased else {}
        count = len(next(iter(self.cumulative.values())))
        token_map = TokenMap(
            title=as_text(self.tokens),
            queries=self.tokens,
            keys=self.keys,
            layers=tuple(range(1, count + 1)),
            maps={name: values[:, :, : len(self.keys)] for name, values in self.cumulative.items()},
            is_cross_attention=bool(self.source),
            unit=unit,
        )
        strongest = _summary(token_map)
        first = next(iter(token_map.maps.values()))[-1]
        row = int(first.argmax()) // len(self.keys)
        (output, source), (method, value) = strongest.table.index[0], next(strongest.table.iloc[:1].items())
        text = f"Through all layers, {output} takes the most from {source}: {number(value.iloc[0])} ({method})."
        return Result(
            tables=Lazy(tables),
            maps=[token_map],
            sentences=[Sentence(text, table="total", measure=str(method), place={"layer": count, "token": row})],
            summaries={"": strongest},
        )

    def _total(self) -> pd.DataFrame:
        """One row per method, output and source, through all layers.

        Tokens are numbered from 0, in a translation on each side.
        """
        tables = []
        for name, values in self.cumulative.items():
            table = self._of_pairs(
                {"value": values[-1]} | ({"share": self.shares[name]} if name in self.shares else {})
            )
            tables.append(table.assign(method=name))
        return _first("method", pd.concat(tables, ignore_index=True))

    def _stacked(self, maps: Mapping[str, Float[np.ndarray, "layer query key"]]) -> pd.DataFrame:
        """One row per method, layer, output and source."""
        tables = [
            self._of_pairs({"value": values}, layer=range(1, len(values) + 1)).assign(method=name)
            for name, values in maps.items()
        ]
        return _first("method", pd.concat(tables, ignore_index=True)) if tables else pd.DataFrame()

    def _of_pairs(self, values: Mapping[str, np.ndarray], **axes: range) -> pd.DataFrame:
        """One row per output and source, the bias last if values have a column for it."""
        columns = next(iter(values.values())).shape[-1]
        names = (*self.keys, "bias")[:columns]
        table = tidy(
            {
                "query_token": np.array(self.tokens, dtype=object)[:, None],
                "key_token": np.array(names, dtype=object),
                **values,
            },
            **axes,
            query=range(len(self.tokens)),
            key=range(columns),
        )
        if self.source:
            of_source = table["key"] < len(self.source)
            table.insert(len(axes) + 1, "side", np.where(of_source, "source", "target"))
            table["key"] -= np.where(of_source, 0, len(self.source))
        return table


def _bias(biased: Mapping[str, Float[np.ndarray, "layer query _"]], tokens: tuple[str, ...]) -> pd.DataFrame:
    """What comes from the biases up to each layer: one row per method, layer and output."""
    tables = [
        tidy(
            {"query_token": np.array(tokens, dtype=object), "value": values[:, :, -1]},
            layer=range(1, len(values) + 1),
            query=range(len(tokens)),
        ).assign(method=name)
        for name, values in biased.items()
    ]
    return _first("method", pd.concat(tables, ignore_index=True))


def _first(column: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table with one of its columns first."""
    return table[[column, *(name for name in table if name != column)]]


def _summary(of: TokenMap) -> Summary:
    """The pairs of tokens through all layers that the first method finds strongest."""
    last = np.stack([values[-1].ravel() for values in of.maps.values()], axis=1)
    strongest = np.argsort(-last[:, 0], kind="stable")[:_STRONGEST]
    queries, keys = np.unravel_index(strongest, (len(of.queries), len(of.keys)))
    names = pd.MultiIndex.from_arrays(
        [labels([of.queries[at] for at in queries]), labels([of.keys[at] for at in keys])], names=["output", "from"]
    )
    table = pd.DataFrame(last[strongest].astype(float), index=names, columns=list(of.maps))
    return Summary(table, digits=3, caption="The largest parts of outputs, through all layers")


@checked
@exclusive
def attribution_maps(
    model: Model,
    text: Text | BatchEncoding,
    methods: Several[Choice[MapMethod]] | None = None,
    *,
    bias: Choice[ValueBias] = "token",
    stage: Choice[MapStage] = "block",
    level: Choice[Level] = "token",
) -> Result:
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
        A result: `.maps[0]` has a map for each method, in the order of `methods`, from the input up to each layer, without the
        bias. `.table` has the maps through all layers: `value`, with a row for the bias of `decompx`, and the signed `share` of
        each source in each output that `decompx` reads out along the output vectors; with the bias, those of an output add up
        to 1. `.tables["layers"]` has the maps of single layers, which `decompx` has not, and `.tables["bias"]` its bias up to
        each layer. In a translation, the source's tokens come first, and tables have a column `side`.

    Examples:
        >>> import normscope
        >>> maps = normscope.attribution_maps(normscope.load(), "A short text.", "alti")
        >>> maps.maps[0].maps["alti"][-1].sum(axis=1).round(3).tolist()  # each token's shares add up to 1
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]

    Raises:
        InputError: If an argument is invalid, a method is not defined for the model's family, or the text is too long.
    """
    wanted = _methods_of(model, methods)
    at_stage, rule = MapStage(stage), ValueBias(bias)
    of_level = Level(level)
    if model.facts.reads_target:
        if of_level is Level.word:
            raise InputError("level=word is not defined for maps of translations; use level=token")
        return _of_translation(model, text, wanted)
    check_followed(model.facts)
    batch = single_text(model, text, "attribution_maps", of_level)
    if any(method in NEEDS_FEED_FORWARD or method is MapMethod.NORM_ROLLOUT for method in wanted):
        _ = model.layers_verification
    inputs, groups = batch.model_inputs(), batch.partition
    maps = model_maps(model.model, model.facts, inputs, wanted, stage=at_stage, bias=rule, keep=True, groups=groups)
    tokens = batch.unit_texts(model.tokenizer)
    title = as_text(tokens) if batch.own is None else batch.own.titles[0]
    about = described(model, "attribution_maps", [title], level=of_level, stage=at_stage, bias=rule)
    return dataclasses.replace(_Maps.of(maps, tokens).result(str(of_level)), **about)


def _methods_of(model: LoadedModel, methods: Iterable[str] | None) -> list[MapMethod]:
    if methods is None:
        if model.facts.reads_target:
            return [MapMethod.ALTI]
        return [each for each in _METHODS if not model.facts.is_gated or each not in NEEDS_VECTORS_OF_KEYS]
    wanted = [MapMethod(method) for method in methods]
    if not wanted:
        raise InputError("methods: expected at least one method, got none")
    return wanted


def _of_translation(model: LoadedModel, text: object, methods: list[MapMethod]) -> Result:
    for method in methods:
        check_defined_for_translations(method)
    batch = single_text(model, text, "attribution_maps")
    assert batch.source is not None
    source, tokens = batch.source.unit_texts(model.tokenizer), batch.unit_texts(model.tokenizer)
    _ = model.stacks_verification
    maps = translation_maps(model.model, batch.model_inputs())
    found = _Maps.of(dict.fromkeys(methods, maps), tokens, source)
    about = described(model, "attribution_maps", [f"{as_text(source)} → {as_text(tokens)}"])
    return dataclasses.replace(found.result(str(Level.token)), **about)
