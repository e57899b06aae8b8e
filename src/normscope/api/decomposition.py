"""How much each token of a text receives from every other, layer by layer."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar, overload

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import BatchEncoding

from normscope.api.arguments import checked, chosen, exclusive, whole_numbers
from normscope.api.picture import Several
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.errors import InputError, escaped
from normscope.maths.mixing import OF_STAGE, Method
from normscope.maths.tensors import lengthened
from normscope.models.blocks.token_block import TokenBlock
from normscope.models.blocks.word_block import WordBlock
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import Text, batch_from_texts, is_single
from normscope.models.observe.observer import Observer
from normscope.results.maps import TokenMap
from normscope.results.pictures import Explorer, Picture
from normscope.running.token_maps import SHARE, pair_maps, without_values
from normscope.statistics.tidy import tidy

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Decomposition:
    """How much each token of a text receives from every other, layer by layer. With `level="word"`, words stand for tokens."""

    tokens: tuple[str, ...]
    """The tokens (or words) that receive; in cross-attention, those of the target."""
    key_tokens: tuple[str, ...]
    """The tokens that contribute: those of `tokens`, or in cross-attention those of the source."""
    maps: Mapping[str, Float[Tensor, "layer query key"]]
    """What all heads together pass from key to query, by the name of the column in `pairs`, without what `measures` leaves out.

    `attn_w`: α, averaged over heads. `attn_n`: ‖F_ij‖ = ‖Σ_h αf(x_j)‖. `attnres_n`: ‖R_ij‖, with the residual connection,
    unless a norm comes before it (OLMo 2). `attnresln_n`: ‖T_ij‖, with the layer normalisation as well, if a norm follows
    attention. `share`: the signed share of each key in the block's output, as far through the block as it goes; with the
    share of the biases, those of a query add up to 1 (see `maths/shares.py`). With `feed_forward=True`, as far as the
    family has them: `atbff_n` (through the network), `atbffres_n` (with its residual connection), `atbffresln_n` (with its
    normalisation)."""
    ratios: Float[Tensor, "method layer query"]
    """Mixing ratios by method."""
    methods: tuple[Method, ...]
    """The methods that are defined for the model's blocks."""
    head_maps: Mapping[str, Float[Tensor, "layer head query key"]] = dataclasses.field(default_factory=dict)
    """α (`attn_w`) and ‖αf(x_j)‖ (`attn_n`) of every head; empty unless `heads=True`; 0 for heads that a layer does not
    have."""
    text: str = ""
    """The text as the tokenizer decodes it; source → target in an encoder–decoder's decoder."""
    is_cross_attention: bool = False
    """Whether keys are the tokens of another sequence."""
    words: tuple[int, ...] | None = None
    """The word that each token is part of, from 0; None if words are decomposed, the tokenizer does not mark words, or no word
    has two tokens."""
    key_words: tuple[int, ...] | None = None
    """The word that each contributing token is part of, as in `words`."""
    level: Level = Level.token
    """Whether tokens or words were decomposed."""
    parts: Float[Tensor, "part vector_method layer query"] | None = None
    """The shares of the other tokens, the token itself (through attention), the residual connection and the biases, by the
    methods that measure vectors; they add up to 1."""
    layers: tuple[int, ...] = ()
    """The layers that were decomposed, from 1; all if empty."""
    positions: tuple[int, ...] = ()
    """The places of `tokens` in the text, from 0; all if empty."""

    @property
    def _layers(self) -> Sequence[int]:
        return self.layers or range(1, len(self.maps["attn_w"]) + 1)

    @property
    def _positions(self) -> Sequence[int]:
        return self.positions or range(len(self.tokens))

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row per layer, query and key; tokens are numbered from 0."""
        return tidy(
            {
                "query_token": np.array(self.tokens, dtype=object)[:, None],
                "key_token": np.array(self.key_tokens, dtype=object),
                **self.maps,
            },
            layer=self._layers,
            query=self._positions,
            key=range(len(self.key_tokens)),
        )

    @cached_property
    def output_shares(self) -> pd.DataFrame:
        """What every output is made of: one row per layer, method and token, with four shares that add up to 1."""
        assert self.parts is not None
        names = ("share", "own", "residual", "bias")
        table = tidy(
            {"token": np.array(self.tokens, dtype=object)} | dict(zip(names, self.parts, strict=True)),
            method=[str(method) for method in self.methods if method in OF_STAGE.values()],
            layer=self._layers,
            position=self._positions,
        )
        return table[["layer", "method", "position", "token", *names]]

    def to_pandas(self) -> pd.DataFrame:
        """Every map as one tidy table; the same as `pairs`."""
        return self.pairs

    @cached_property
    def mixing(self) -> pd.DataFrame:
        """The mixing ratio of every token: one row per layer, method and token."""
        table = tidy(
            {"token": np.array(self.tokens, dtype=object), "ratio": self.ratios},
            method=[str(method) for method in self.methods],
            layer=self._layers,
            position=self._positions,
        )
        return table[["layer", "method", "position", "token", "ratio"]]

    @cached_property
    def table(self) -> pd.DataFrame:
        """The mean mixing ratio over tokens: one row per layer, one column per method."""
        return self.mixing.pivot_table(index="layer", columns="method", values="ratio", sort=False)

    @checked
    def figure(self, layer: int | None = None) -> Picture:
        """Draw how much each token receives from every other in one layer (by default the last), weights beside vectors.

        Raises:
            InputError: If there is no such layer.
        """
        number = self._layers[-1] if layer is None else layer
        if number not in self._layers:
            known = ", ".join(map(str, self.layers)) or f"1 to {len(self._layers)}"
            raise InputError(f"layer={layer}: expected {known}")
        titles = {
            "attn_w": "α: weights",
            "attn_n": "‖F‖: vectors",
            "attnres_n": "with the residual connection",
            "attnresln_n": "the attention block",
            "atbff_n": "the feed-forward network",
            "atbffres_n": "with its residual connection",
            "atbffresln_n": "the whole layer",
        }
        unit = self.level
        caption = f"How much each {unit} (row) receives from each {unit} (column) in layer {number}; darker is more."
        return Picture(self.token_map().panels(titles, caption, number))

    def explorer(self) -> Explorer:
        """Interactive token maps, as in a report: every layer and measure, and heads if they were kept.

        Raises:
            InputError: If there are too many values for one page.
        """
        return Explorer(self.figure(), [self.token_map()])

    def token_map(self) -> TokenMap:
        """Every map in the form that the explorer takes, in float32."""
        head_maps, norms = {}, None
        # The explorer's layers have the same heads; each head of a layer has some weight.
        if self.head_maps and bool(self.head_maps["attn_w"].flatten(2).any(dim=2).all()):
            head_maps = {name: values.float().numpy() for name, values in self.head_maps.items()}
            if self.level is Level.token:
                # ‖f(x_j)‖ = Σ_i α_ij ‖f(x_j)‖ / Σ_i α_ij. A key that nobody attends to contributes 0 with any norm.
                del head_maps["attn_n"]
                sums, vectors = (self.head_maps[name].sum(dim=2) for name in ("attn_w", "attn_n"))
                norms = torch.where(sums > 0, vectors / sums, 0.0).float().numpy()
        return TokenMap(
            title=self.text or " ".join(self.tokens),
            queries=self.tokens,
            keys=self.key_tokens,
            layers=tuple(self._layers),
            maps={name: values.float().numpy() for name, values in self.maps.items()},
            head_maps=head_maps,
            norms=norms,
            is_cross_attention=self.is_cross_attention,
            query_words=self.words,
            key_words=self.key_words,
            unit=str(self.level),
        )

    def _repr_html_(self) -> str:
        return str(self.table.style.format("{:.1%}").to_html()) + self.figure()._repr_html_()

    def __repr__(self) -> str:
        return f"{escaped(' '.join(self.tokens))}\n{self.table.to_string(float_format='{:.3f}'.format)}"


class Decompositions(Several[Decomposition]):
    """The decompositions of several texts, in their order. Tables of all of them have a column `sequence`, counted from 0."""

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row per sequence, layer, query and key."""
        return self._concatenated([each.pairs for each in self])

    @cached_property
    def mixing(self) -> pd.DataFrame:
        """The mixing ratio of every token: one row per sequence, layer, method and token."""
        return self._concatenated([each.mixing for each in self])

    @cached_property
    def output_shares(self) -> pd.DataFrame:
        """What every output is made of: one row per sequence, layer, method and token."""
        return self._concatenated([each.output_shares for each in self])

    @cached_property
    def table(self) -> pd.DataFrame:
        """The mean mixing ratio over the tokens of all texts: one row per layer, one column per method."""
        return self.mixing.pivot_table(index="layer", columns="method", values="ratio", sort=False)

    def to_pandas(self) -> pd.DataFrame:
        """Every map as one tidy table; the same as `pairs`."""
        return self.pairs

    def explorer(self) -> Explorer:
        """Interactive token maps of all texts, as in a report.

        Raises:
            InputError: If there are no texts, or too many values for one page.
        """
        if not self:
            raise InputError("explorer: expected at least one text")
        return Explorer(self[0].figure(), [each.token_map() for each in self])

    def _repr_html_(self) -> str:
        return str(self.table.style.format("{:.1%}").to_html())

    def __repr__(self) -> str:
        return f"{len(self)} text{'' if len(self) == 1 else 's'}\n{self.table.to_string(float_format='{:.3f}'.format)}"


@overload
def decompose(
    model: LoadedModel,
    text: Text | BatchEncoding,
    *,
    heads: bool = False,
    feed_forward: bool = False,
    level: str = "token",
    layers: Iterable[int] | None = None,
    queries: Iterable[int] | None = None,
    measures: Iterable[str] | None = None,
) -> Decomposition: ...


@overload
def decompose(
    model: LoadedModel,
    text: list[Text],
    *,
    heads: bool = False,
    feed_forward: bool = False,
    level: str = "token",
    layers: Iterable[int] | None = None,
    queries: Iterable[int] | None = None,
    measures: Iterable[str] | None = None,
) -> Decompositions: ...


@checked
@exclusive
def decompose(
    model: LoadedModel,
    text: Text | list[Text] | BatchEncoding,
    *,
    heads: bool = False,
    feed_forward: bool = False,
    level: str = "token",
    layers: Iterable[int] | None = None,
    queries: Iterable[int] | None = None,
    measures: Iterable[str] | None = None,
) -> Decomposition | Decompositions:
    """Decompose a text: how much does each token receive from every other, layer by layer?

    Norms of pair vectors come from Gram matrices of the heads' vectors, in float64, from the model's activations: no tensor
    of size query × key × model is built. Each text passes through the model by itself, so its numbers depend on no other text.

    Args:
        model: See `load` and `wrap`.
        text: A text, a pair (tuple) of texts, token ids (a list, an array or a tensor, also with a row for each text), a list
            of these, or a BatchEncoding from the model's tokenizer. For the decoder of an encoder–decoder: pairs of a source
            and its translation.
        heads: Whether to keep the maps of individual heads as well.
        feed_forward: Whether to follow the vectors through the feed-forward network, too, with its biases as summands. Its
            last projection then runs once per pair of tokens.
        level: `token`, or `word` for whole words: vectors are averaged over the tokens of a receiving word, added up over
            those of a contributing word, and then measured. Words are those of the tokenizer. To use your own, pass
            `model.tokenizer(words, is_split_into_words=True)`.
        layers: Which layers, from 1; all by default. Those that are left out cost no more than the pass itself.
        queries: The receiving tokens, by their places in the text from 0 (−1 is the last one); all by default. For a long text,
            maps of a few tokens take a small part of the time and memory.
        measures: Which maps of pairs to compute in addition to the weights (`attn_w`): any of `attn_n`, `attnres_n`,
            `attnresln_n` and `share` that are defined for the family; all by default.

    Returns:
        Maps by layer. `.table` has the mean mixing ratios; `.pairs` and `.mixing` have everything as tidy tables. For a list,
        or a BatchEncoding of several texts: a sequence of these, which has the same tables with a column `sequence`.

    Examples:
        >>> import normscope
        >>> result = normscope.decompose(normscope.load(), "A short text.")
        >>> result.tokens
        ('[CLS]', 'a', 'short', 'text', '.', '[SEP]')
        >>> round(float(result.table.loc[6, "attnresln_n"]), 2)  # mean mixing ratio of the last attention block
        0.22

    Raises:
        InputError: If `text` is anything else, or too long for the model; or if the feed-forward networks of the model's family
            cannot be followed.
    """
    if feed_forward:
        _ = model.layers_verification
    of_level = chosen("level", level, Level)
    batch = batch_from_texts(model, text, of_level)
    wanted = whole_numbers("layers", layers, 1, model.layers)
    for layer in wanted or ():
        model.layout.check_attends("layers", layer)
    if queries is not None and (feed_forward or of_level is Level.word):
        raise InputError("queries: expected maps of attention blocks between tokens; leave out feed_forward and level")
    rows, asked = None if queries is None else list(queries), _measures(model, measures)
    observer = Observer(model.model, model.layout, wanted, feed_forward=feed_forward)
    decompositions = [
        _decomposition(model, observer, batch.part(number, number + 1), rows, asked, heads, feed_forward)
        for number in range(batch.sequences)
    ]
    single = is_single(text) and len(decompositions) == 1
    return decompositions[0] if single else Decompositions(decompositions)


def _measures(model: LoadedModel, measures: Iterable[str] | None) -> tuple[str, ...] | None:
    """The wanted maps of pairs; None for all."""
    if measures is None:
        return None
    names = (measures,) if isinstance(measures, str) else tuple(measures)
    of_vectors = [str(method) for method in model.layout.methods if method in OF_STAGE.values()]
    defined = ["attn_w", *(of_vectors[:1] if model.layout.is_cross_attention else of_vectors), SHARE]
    for name in names:
        if name not in defined:
            raise InputError(f"measures={str(name)[:80]!r}: expected some of {', '.join(defined)}")
    return names


def _decomposition(
    model: LoadedModel,
    observer: Observer,
    batch: Batch,
    rows: list[int] | None,
    measures: tuple[str, ...] | None,
    heads: bool,
    feed_forward: bool,
) -> Decomposition:
    """The decomposition of a batch of one.

    Args:
        rows: The places of the receiving tokens; None for all.
        measures: The wanted maps of pairs; None for all.
    """
    batch = batch.to(model.device)
    length = batch.input_ids.shape[1]
    places = whole_numbers("queries", None if rows is None else [_from_end(row, length) for row in rows], 0, length - 1)
    at = None if places is None else torch.tensor(places)
    maps = _maps(model, observer, batch, at, measures, heads, feed_forward)
    ratios, parts = maps.pop("ratios"), maps.pop("parts")
    head_maps = {name: maps.pop(f"head {name}") for name in ("attn_w", "attn_n")} if heads else {}
    about = without_values(model, batch)

    def of_rows(values: tuple[T, ...]) -> tuple[T, ...]:
        return values if places is None else tuple(values[place] for place in places)

    return Decomposition(
        tokens=of_rows(about.queries),
        key_tokens=about.keys,
        maps=maps,
        ratios=ratios.transpose(0, 1),
        methods=model.layout.methods,
        head_maps=head_maps,
        text=about.title,
        is_cross_attention=batch.is_cross_attention,
        words=None if about.query_words is None else of_rows(about.query_words),
        key_words=about.key_words,
        level=Level.token if batch.groups is None else Level.word,
        parts=parts.permute(2, 1, 0, 3),
        layers=tuple(observer.parameters) if len(observer.parameters) < model.layers else (),
        positions=tuple(places or ()),
    )


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
    methods = model.layout.methods
    at = slice(None) if queries is None else queries

    def beside(units: TokenBlock | WordBlock) -> dict[str, Tensor]:
        of_method, shares = units.mixing_ratios(), units.shares()
        ratios = torch.stack([of_method[method][0] for method in methods])
        parts = torch.stack([torch.stack(list(shares[method])) for method in methods if method in shares])[:, :, 0]
        found = {"ratios": ratios.cpu()[:, at], "parts": parts.cpu()[..., at]}
        if heads:
            of_heads = (lengthened(values[0], model.layout.heads, 0) for values in units.head_maps())
            found["head attn_w"], found["head attn_n"] = of_heads
        return found

    return pair_maps(observer, batch, beside, queries=queries, measures=measures, feed_forward=feed_forward)


def _from_end(place: object, length: int) -> object:
    """A place counted from the end, counted from the beginning."""
    return place + length if isinstance(place, int) and -length <= place < 0 else place
