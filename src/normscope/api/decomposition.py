"""How much each token of a text receives from every other, layer by layer."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.api.arguments import exclusive, within
from normscope.api.one_text import described, stacked
from normscope.api.types import Model, Texts
from normscope.config.calls import Choice, Several, checked
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.maths.mixing import OF_STAGE, Method
from normscope.maths.tensors import lengthened
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import batch_from_texts, is_single
from normscope.models.observe.observer import Observer
from normscope.results.codes import METHODS, bracketed
from normscope.results.findings import Sentence, Summary
from normscope.results.maps import TokenMap
from normscope.results.parts import CURVES, tidy_curves
from normscope.results.result import Result
from normscope.rounding import brief_share, compared
from normscope.running.token_maps import SHARE, pair_maps, without_values
from normscope.statistics.tidy import tidy

_PARTS = ("share", "own", "residual", "bias")
"""What an output is made of."""


@checked
@exclusive
def decompose(
    model: Model,
    text: Texts,
    *,
    heads: bool = False,
    feed_forward: bool = False,
    level: Choice[Level] = "token",
    layers: Several[int] | None = None,
    queries: Several[int] | None = None,
    measures: Several[str] | None = None,
) -> Result:
    """Decompose a text: how much does each token receive from every other, layer by layer?

    Norms of pair vectors come from Gram matrices of the heads' vectors, in float64, from the model's activations: no tensor
    of size query × key × model is built. Each text passes through the model by itself, so its numbers depend on no other text.

    Args:
        model: See `load` and `wrap`.
        text: A text, a pair (tuple) of texts, token ids (a list, an array or a tensor, also with a row for each text), a list
            of these, or a BatchEncoding from the model's tokenizer. For the decoder of an encoder–decoder: pairs of a source
            and its translation. Of images or sounds: a file, a `PIL.Image`, an array of rows × columns × 3 bytes, or samples.
            Of images and text: a pair (image, text), where several images are a list, or a conversation with images.
        heads: Whether to keep the maps of individual heads as well.
        feed_forward: Whether to follow the vectors through the feed-forward network, too, with its biases as summands. Its
            last projection then runs once per pair of tokens.
        level: `token`, or `word` for whole words: vectors are averaged over the tokens of a receiving word, added up over
            those of a contributing word, then measured. For your own words: `model.tokenizer(words, is_split_into_words=True)`.
        layers: Which layers, from 1; all by default. Those that are left out cost no more than the pass itself.
        queries: The receiving tokens, by their places in the text from 0 (−1 is the last one); all by default. For a long text,
            maps of a few tokens take a small part of the time and memory.
        measures: Which maps of pairs to compute in addition to the weights (`attn_w`): any of `attn_n`, `attnres_n`,
            `attnresln_n` and `share` that are defined for the family; all by default.

    Returns:
        A result: `.table` has mean mixing ratios, `.tables["ratios"]` those of all tokens and `.tables["output_shares"]` the
        four shares that every output is made of; with several texts, these have a column `sequence`. `.maps` has a map for each
        text, in float64 (`.pairs()` is a table): mean α of heads (`attn_w`), norms of what keys add (`attn_n`), with residual
        (`attnres_n`) and norm (`attnresln_n`), and signed `share`; through networks, `atbff_n`, `atbffres_n`, `atbffresln_n`.

    Examples:
        >>> import normscope
        >>> result = normscope.decompose(normscope.load(), "A short text.")
        >>> result.maps[0].queries
        ('[CLS]', 'a', 'short', 'text', '.', '[SEP]')
        >>> round(float(result.table["ratio"].iloc[-1]), 2)  # mean mixing ratio of the last attention block
        0.22

    Raises:
        InputError: If `text` is anything else, or too long for the model; or if the feed-forward networks of the model's family
            cannot be followed.
    """
    if feed_forward:
        _ = model.layers_verification
    of_level = Level(level)
    batch = batch_from_texts(model, text, of_level)
    wanted = within("layers", layers, 1, model.facts.last)
    for layer in wanted or ():
        model.facts.check_attends("layers", layer)
    if queries is not None and (feed_forward or of_level is Level.word):
        raise InputError("queries: expected maps of attention blocks between tokens; leave out feed_forward and level")
    rows, asked = None if queries is None else list(queries), _measures(model, measures)
    observer = Observer(model.model, model.facts, wanted, feed_forward=feed_forward, projections=False)
    texts = [
        _decomposed(model, observer, batch.part(number, number + 1), rows, asked, heads, feed_forward)
        for number in range(batch.sequences)
    ]
    single = is_single(text) and len(texts) == 1
    return _result_of(model, texts, None if single else "sequence", level=of_level, layers=wanted, queries=rows)


def _result_of(model: LoadedModel, texts: "Sequence[_Decomposed]", column: str | None, **asked: object) -> Result:
    """What is measured of texts, with means over all their tokens.

    Args:
        model: Whose layers were measured.
        texts: At least one.
        column: The column with the number of the text; None for a single text.
        asked: What was asked for, for the config.
    """
    ratios = stacked([_ratios(model, each) for each in texts], column)
    by_layer = ratios.groupby(["layer", "method"], sort=False)["ratio"].mean().reset_index()
    curves = {
        f"mixing/{name}": rows.set_index("layer")["ratio"] for name, rows in by_layer.groupby("method", sort=False)
    }
    means = {str(method): float(mean) for method, mean in ratios.groupby("method", sort=False)["ratio"].mean().items()}
    wide = by_layer.pivot_table(index="layer", columns="method", values="ratio", sort=False)
    return Result(
        tables={
            "by_layer": by_layer,
            "ratios": ratios,
            "output_shares": stacked([_output_shares(model, each) for each in texts], column),
            CURVES: tidy_curves(curves, model.layers),
        },
        metrics={f"mixing/{name}/mean": mean for name, mean in means.items()},
        curves=curves,
        maps=[each.maps for each in texts],
        sentences=sentences_of(means),
        summaries={"": Summary(wide, digits=3, caption="Mean mixing ratio over tokens")},
        notes=[model.facts.note] if model.facts.note and asked["layers"] is None else [],
        **described(model, "decompose", [each.maps.title for each in texts], **asked),
    )


def sentences_of(means: Mapping[str, float]) -> list[Sentence]:
    """The mean mixing ratio of the attention blocks beside that of the weights alone.

    Args:
        means: Mean mixing ratios over tokens and layers by method, the one that takes in most of the block last.
    """
    method, by_weights = list(means)[-1], means.get("attn_w")
    mean, suggested = compared(brief_share, means[method], means[method] if by_weights is None else by_weights)
    suggestion = "" if by_weights is None else f"; attention weights alone suggest {suggested}"
    text = f"The mean mixing ratio over tokens and layers is {mean} {bracketed(METHODS[method])}{suggestion}."
    return [Sentence(text, table="by_layer", measure=method)]


def _measures(model: LoadedModel, measures: Iterable[str] | None) -> tuple[str, ...] | None:
    """The wanted maps of pairs; None for all."""
    if measures is None:
        return None
    names = tuple(measures)
    of_vectors = [str(method) for method in model.facts.methods if method in OF_STAGE.values()]
    defined = ["attn_w", *(of_vectors[:1] if model.facts.is_cross_attention else of_vectors), SHARE]
    for name in names:
        if name not in defined:
            raise InputError(f"measures={name[:80]!r}: expected some of {', '.join(defined)}")
    return names


@dataclasses.dataclass(frozen=True, eq=False)
class _Decomposed:
    """What is measured of one text."""

    maps: TokenMap
    ratios: Float[Tensor, "method layer query"]
    parts: Float[Tensor, "part vector_method layer query"]
    """The shares of the other tokens, the token itself (through attention), the residual connection and the biases, by the
    methods that measure vectors; they add up to 1."""


def _of_tokens(found: _Decomposed, methods: Sequence[Method], values: Mapping[str, Tensor]) -> pd.DataFrame:
    """One row per layer, method and token."""
    table = tidy(
        {"token": np.array(found.maps.queries, dtype=object), **values},
        method=[str(method) for method in methods],
        layer=found.maps.layers,
        position=found.maps.query_places or range(len(found.maps.queries)),
    )
    return table[["layer", "method", "position", "token", *values]]


def _ratios(model: LoadedModel, found: _Decomposed) -> pd.DataFrame:
    return _of_tokens(found, model.facts.methods, {"ratio": found.ratios})


def _output_shares(model: LoadedModel, found: _Decomposed) -> pd.DataFrame:
    of_vectors = [method for method in model.facts.methods if method in OF_STAGE.values()]
    return _of_tokens(found, of_vectors, dict(zip(_PARTS, found.parts, strict=True)))


def _decomposed(
    model: LoadedModel,
    observer: Observer,
    batch: Batch,
    rows: list[int] | None,
    measures: tuple[str, ...] | None,
    heads: bool,
    feed_forward: bool,
) -> _Decomposed:
    """The decomposition of a batch of one.

    Args:
        rows: The places of the receiving tokens; None for all.
        measures: The wanted maps of pairs; None for all.
    """
    batch = batch.to(model.device)
    length = batch.input_ids.shape[1]
    places = within("queries", None if rows is None else [_from_end(row, length) for row in rows], 0, length - 1)
    at = None if places is None else torch.tensor(places)
    maps = _maps(model, observer, batch, at, measures, heads, feed_forward)
    ratios, parts = maps.pop("ratios"), maps.pop("parts")
    values = {name: values.numpy() for name, values in maps.items()}
    of_heads = {name.removeprefix("head "): values.pop(name) for name in list(values) if name.startswith("head ")}
    about = without_values(model, batch)
    if places is not None:
        words = about.query_words
        about = dataclasses.replace(
            about,
            queries=tuple(about.queries[place] for place in places),
            query_words=None if words is None else tuple(words[place] for place in places),
            query_places=tuple(places),
        )
    norms = of_heads.pop("f_n", None)
    token_map = dataclasses.replace(
        about, layers=tuple(observer.parameters), maps=values, head_maps=of_heads, norms=norms
    )
    return _Decomposed(token_map, ratios.transpose(0, 1), parts.permute(2, 1, 0, 3))


def _maps(
    model: LoadedModel,
    observer: Observer,
    batch: Batch,
    queries: Int[Tensor, " query"] | None,
    measures: tuple[str, ...] | None,
    heads: bool,
    feed_forward: bool,
) -> dict[str, Tensor]:
    """What a decomposition consists of, by name: the layers of a batch of one."""
    methods = model.facts.methods

    def beside(units: GroupedBlock) -> dict[str, Tensor]:
        of_method, shares = units.mixing_ratios(), units.shares()
        ratios = torch.stack([of_method[method][0] for method in methods])
        parts = torch.stack([torch.stack(list(shares[method])) for method in methods if method in shares])[:, :, 0]
        if not heads:
            return {"ratios": ratios, "parts": parts}
        weights, vectors = units.head_maps()
        of_heads = {"attn_w": weights, "attn_n": vectors}
        # ‖αf(x)‖ follows from α and ‖f(x)‖, except between words, and where gates differ by query.
        if batch.units is None and not model.facts.is_gated:
            of_heads = {"attn_w": weights, "f_n": units.block.transformed_norms}
        every = {f"head {name}": lengthened(values[0], model.facts.heads, 0) for name, values in of_heads.items()}
        return {"ratios": ratios, "parts": parts, **every}

    return pair_maps(observer, batch, beside, queries=queries, measures=measures, feed_forward=feed_forward)


def _from_end(place: int, length: int) -> int:
    """A place counted from the end, counted from the beginning."""
    return place + length if -length <= place < 0 else place
