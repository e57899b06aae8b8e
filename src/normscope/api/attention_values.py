"""Attention, and what it carries, between chosen tokens and regions of a text, computed alongside the model's fused kernel."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import psutil
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import BatchEncoding

from normscope.api.arguments import python_call, refuse_overflow, within
from normscope.api.attended import AttentionValues as AttentionValues
from normscope.api.attended import result_of
from normscope.api.one_text import described
from normscope.api.regions import ReadSide, asks_for_words, regions_of
from normscope.api.types import Model, Texts
from normscope.config.calls import Choice, Several, checked
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.maths.choices import HeadReduction, PairMeasure
from normscope.maths.partition import Partition
from normscope.models.blocks.block import AttentionBlock
from normscope.models.blocks.region_sums import RegionSums
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import batch_from_texts, is_single, places_of_tokens
from normscope.models.observe.check import Check
from normscope.models.observe.observer import Observer
from normscope.results.result import Result

_COMPARED = 32
"""Number of rows, spread evenly over the requested ones, whose α is compared with what the model does."""

_LARGEST_SHARE = 0.8
"""The share of the free memory that a result may take."""


@checked
def attention(
    model: Model,
    text: Texts,
    *,
    queries: Any = None,
    keys: Any = None,
    layers: Several[int] | None = None,
    heads: Several[int] | None = None,
    measure: Choice[PairMeasure] = "weight",
    reduce: Choice[HeadReduction] | None = None,
    top: int | None = None,
) -> Result:
    """Measure how much tokens or regions of a text receive from others through attention, at any length.

    The model runs torch's fused attention. Its log-normalisers give α a few rows or one tile at a time: α_ij = exp(s_ij − ℓ_i).
    So this takes memory for the result and one tile, and not for all pairs, as `output_attentions=True` does.

    Args:
        model: See `load` and `wrap`.
        text: As in `decompose`. Each text in a list passes through the model separately.
        queries: The tokens or regions that receive; all tokens by default. One of these, or a list of them:

            - a position from 0, or −1 for the last token;
            - a slice of tokens, as one region;
            - `(start, end)`, a span of characters, or of tokens if the text is given as ids;
            - `"last"` (the last token), `"tokens"`, `"words"`, `"sentences"`, `"texts"` (of a pair), `"messages"` (of a
              conversation), `"answer"` (the last answer of a conversation, or the second text of a pair), `"prompt"`
              (everything before that answer, or the first text), or `"images"` (the tokens of each image).

            A dict names regions: `{"question": (0, 31), "context": slice(40, 900), "names": [7, 12]}`.
        keys: The tokens or regions that queries receive from, given in the same way. In cross-attention, those of the source.
        layers: Which layers, from 1; all by default.
        heads: Which heads, from 1; all by default.
        measure: `weight` (α), `norm` (‖αf(x)‖), `share` (the signed share in the attention output) or `score` (before the
            softmax). For a region, values are summed over its queries and keys; scores are averaged over visible pairs.
        reduce: `mean` or `max` over heads; by default, each head separately.
        top: Keep only this many keys for each query, those with the largest values.

    Returns:
        A result: `.table` has a row for each value, `.tables["strongest"]` the keys from which each query receives most, and
        `.maps` arrays for each text: what all of these heads together pass (the mean over them; of shares, the sum), by layer,
        query and key, and what single heads pass, if all of them were asked for. For a list of texts, or a BatchEncoding of
        several, tables have a column `sequence`, counted from 0.

    Examples:
        >>> import normscope
        >>> model = normscope.load()
        >>> result = normscope.attention(model, "A short text.", queries="last", keys="words", reduce="mean")
        >>> result.maps[0].maps["attn_w"].shape, result.maps[0].keys
        ((6, 1, 6), ('[CLS]', 'a', 'short', 'text', '.', '[SEP]'))

    Raises:
        InputError: If regions overlap, are empty or lie outside the text; if a layer has no softmax attention; if the result
            does not fit into memory; or if the text is too long for the model.
    """
    with python_call():
        asked = asked_of(model, layers, heads, measure, reduce, top)
        found, single, tokens = model.exclusively(lambda: _attention(model, text, queries, keys, asked))
        given = {"queries": queries, "keys": keys, "layers": layers, "heads": heads, "reduce": reduce, "top": top}
        about = described(model, "attention", [each.text for each in found], measure=measure, **given)
        about["facts"]["tokens"] = tokens
        return dataclasses.replace(result_of(found, None if single else "sequence"), **about)


class Asked(NamedTuple):
    """What is requested of each layer."""

    layers: Sequence[int]
    heads: Sequence[int]
    measure: PairMeasure
    reduction: HeadReduction | None
    top: int | None


def asked_of(
    model: LoadedModel,
    layers: Iterable[int] | None,
    heads: Iterable[int] | None,
    measure: str,
    reduce: str | None,
    top: int | None,
) -> Asked:
    """The layers, heads and measure, and which heads and keys are kept.

    Raises:
        InputError: If there is no such layer, head or measure.
    """
    if top is not None and top < 1:
        raise InputError(f"top={top}: expected a number of keys, 1 or more")
    facts = model.facts
    numbers = within("layers", layers, 1, facts.last) or list(facts.attends)
    for layer in numbers:
        facts.check_attends("layers", layer)
    if facts.heads_differ and (heads is not None or reduce is None):
        raise InputError(
            f"reduce: the layers of {model.name} differ in their number of heads; set reduce=mean or max, and leave heads out"
        )
    of_heads = within("heads", heads, 1, facts.heads) or list(range(1, facts.heads + 1))
    return Asked(
        layers=sorted(numbers),
        heads=of_heads,
        measure=PairMeasure(measure),
        reduction=None if reduce is None else HeadReduction(reduce),
        top=top,
    )


def _attention(
    model: LoadedModel,
    text: Any,
    queries: object,
    keys: object,
    asked: Asked,
) -> tuple[list[AttentionValues], bool, int]:
    """What queries receive, text by text, whether it is a single one, and the number of tokens."""
    words = asks_for_words(queries) or asks_for_words(keys)
    batch = batch_from_texts(model, text, Level.word if words else Level.token)
    single = is_single(text) and batch.sequences == 1
    texts = [text] if is_single(text) else text
    observer = Observer(model.model, model.facts, asked.layers, projections=False)
    if asked.measure is PairMeasure.score and not model.facts.calls_function:
        raise InputError(
            "measure=score: this model computes attention in its own code, which returns weights but no scores; choose weight, "
            "norm or share"
        )
    found = []
    for number in range(batch.sequences):
        of_text = batch.part(number, number + 1)
        given = texts[number] if len(texts) == batch.sequences and not isinstance(texts, BatchEncoding) else None
        sides = [read_side(model, given, of_text, side, words) for side in (0, 1)]
        rows, columns = regions_of("queries", queries, sides[0]), regions_of("keys", keys, sides[1])
        values = _of_text(model, observer, of_text, asked, rows, columns)
        spans = _spans_of_keys(sides[1], rows, columns) if asked.measure is not PairMeasure.score else ()
        found.append(values._replace(text=str(given), spans=spans) if spans else values)
    return found, single, int(batch.token_mask.sum())


def _spans_of_keys(read: ReadSide, queries: Partition, keys: Partition) -> tuple[tuple[int, int, int] | None, ...]:
    """Where keys lie in a text that is read for a single token; see `TokenMap.key_spans`.

    Args:
        read: The text of the keys.
    """
    if not isinstance(read.text, str) or read.batch.is_cross_attention or int((queries.of_token >= 0).sum()) != 1:
        return ()
    places = places_of_tokens(read.model, read.text, read.batch.input_ids[0].tolist())
    if places is None:
        return ()
    sentences = regions_of("keys", "sentences", read).of_token[0].tolist()
    spans: list[tuple[int, int, int] | None] = [None] * len(keys.names)
    for place, sentence, key in zip(places, sentences, keys.of_token[0].tolist(), strict=True):
        if place is not None and key >= 0:
            first, start, end = spans[key] or (sentence, *place[1:])
            spans[key] = (first if first >= 0 else sentence, start, max(end, place[2]))
    starts = [span[1] for span in spans if span is not None]
    return tuple(spans) if starts == sorted(starts) and starts else ()


def read_side(model: LoadedModel, text: object, batch: Batch, side: int, words: bool) -> ReadSide:
    """The text that queries (side 0) or keys (side 1) read.

    Args:
        text: The text as given; None if only its tokens are known.
        words: Whether words are requested.
    """
    if batch.source is not None and isinstance(
        text, tuple
    ):  # the decoder's input is shifted, so characters are not known
        text = text[0] if side == 1 and batch.is_cross_attention else None
    of_side = batch.keys if side == 1 else batch
    tokens = dataclasses.replace(of_side, units=None).unit_texts(model.tokenizer)
    return ReadSide(model, text, of_side, tokens, of_side.unit_texts(model.tokenizer) if words else ())


def _of_text(
    model: LoadedModel, observer: Observer, batch: Batch, asked: Asked, queries: Partition, keys: Partition
) -> AttentionValues:
    """The result for one text."""
    heads = 1 if asked.reduction else len(asked.heads)
    columns = len(keys.names) if asked.top is None else min(asked.top, len(keys.names))
    dtype = torch.promote_types(model.dtype, torch.float32)
    shape = (len(asked.layers), heads, len(queries.names), columns)
    _check_size(shape, dtype, indices=asked.top is not None)
    values = torch.empty(shape, dtype=dtype)
    strongest = None if asked.top is None else torch.empty(shape, dtype=torch.int32)
    index = {layer: place for place, layer in enumerate(asked.layers)}
    every = len(asked.heads) == model.facts.heads
    of_heads = None if every else torch.tensor(asked.heads) - 1

    def visit(block: AttentionBlock) -> None:
        place = index[block.layer]
        sums = RegionSums(block, asked.measure, queries, keys, of_heads)
        for rows, of_rows in sums.rows():
            found = reduced(of_rows, asked.reduction)
            if strongest is not None:
                found, at = found.topk(columns, dim=-1)
                strongest[place][:, rows] = at.to("cpu", torch.int32)
            values[place][:, rows] = found.to("cpu", dtype)

    receiving = queries.tokens_of(slice(None), slice(None))
    observer.check.only = receiving[_spread(len(receiving))]
    with observer:
        inputs, on_host = batch.to(model.device).model_inputs(), batch.host.model_inputs()
        observer.run(inputs, visit, on_host=on_host, check=Check.SOME)
    if asked.measure is not PairMeasure.score and not bool(values.sum().isfinite()):
        refuse_overflow(model)
    text = str(model.tokenizer.decode(batch.input_ids[0].tolist(), skip_special_tokens=True))
    return array_of(values, strongest, asked, queries, keys, text)


def array_of(
    values: Tensor, strongest: Tensor | None, asked: Asked, queries: Partition, keys: Partition, text: str
) -> AttentionValues:
    """Values with their axes.

    Args:
        values: Layer, head (one if heads are reduced), query, and key or rank.
        strongest: The keys of ranks; None if all keys are kept.
    """
    axes: dict[str, Sequence[Any]] = {"layer": tuple(asked.layers), "head": tuple(asked.heads), "query": queries.names}
    axes |= {"key": keys.names} if strongest is None else {"rank": tuple(range(1, values.shape[-1] + 1))}
    if asked.reduction is not None:
        del axes["head"]
        values = values[:, 0]
        strongest = None if strongest is None else strongest[:, 0]
    return AttentionValues(
        values=values.numpy(),
        axes=axes,
        positions={"query": tuple(queries.first[0].tolist()), "key": tuple(keys.first[0].tolist())},
        keys=keys.names,
        strongest=None if strongest is None else strongest.numpy(),
        measure=str(asked.measure),
        text=text,
    )


def _check_size(shape: Sequence[int], dtype: torch.dtype, *, indices: bool) -> None:
    """Refuse a result that cannot fit into memory, before the model runs."""
    size = math.prod(shape) * (dtype.itemsize + 4 * indices)
    largest = _LARGEST_SHARE * _free_memory()
    if size > largest:
        layers, heads, queries, keys = (f"{number:,}" for number in shape)
        raise InputError(
            f"queries: expected a result that fits into {largest / 2**30:,.1f} GiB of free memory, got {layers} layers × "
            f"{heads} heads × {queries} queries × {keys} keys, {size / 2**30:,.1f} GiB; choose fewer layers, heads, queries "
            "or keys, or set regions, reduce='mean' or top=K"
        )


def _free_memory() -> int:
    """Free memory, in bytes."""
    return int(psutil.virtual_memory().available)


def _spread(count: int) -> Int[Tensor, " chosen"]:
    """At most `_COMPARED` numbers below a count, spread evenly and including the last."""
    return torch.linspace(0, count - 1, min(count, _COMPARED)).round().long()


def reduced(
    values: Float[Tensor, "head query key"], reduction: HeadReduction | None
) -> Float[Tensor, "kept query key"]:
    """What is kept of the heads."""
    match reduction:
        case None:
            return values
        case HeadReduction.mean:
            return values.mean(dim=0, keepdim=True)
        case HeadReduction.max:
            return values.amax(dim=0, keepdim=True)
