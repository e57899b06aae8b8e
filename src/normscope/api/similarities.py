"""The similarity of texts, as sums over pairs of tokens."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import BatchEncoding
from typing_extensions import TypeAliasType

from normscope.api.arguments import exclusive, single_text
from normscope.api.attribution import Attributed, drawn_on_image, target_maps
from normscope.api.one_text import described, stacked
from normscope.api.targets import chosen_embedder
from normscope.api.types import Model, Text, Texts
from normscope.attribution.methods import check_followed
from normscope.attribution.passes import HeldPass, held_pass
from normscope.attribution.similarities import (
    Scored,
    SimilarityParts,
    compared,
    embedded_parts,
    late_parts,
    late_parts_along,
    met,
    parts_along,
    product_of_lengths,
)
from normscope.config.calls import Choice, checked
from normscope.config.rules import Expected
from normscope.data.batching import Batch
from normscope.data.encoders import prompt_length
from normscope.data.tokenization import encoded
from normscope.errors import InputError, cut, describe_type
from normscope.maths.choices import Pooling, SimilarityFunction, ValueBias
from normscope.maths.embedder import Embedder
from normscope.maths.tensors import wide
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import is_single, require_unicode
from normscope.models.load.towers import tower_for
from normscope.results.figures import ColouredText, Figure, PatchMaps, TextPair
from normscope.results.findings import Sentence, Summary
from normscope.results.maps import PatchedImage, TokenMap
from normscope.results.result import Result
from normscope.results.token_labels import as_text, label
from normscope.rounding import begun, counted, number
from normscope.running.token_maps import patched_image
from normscope.statistics.tidy import tidy
from normscope.untrusted.images import is_image

_SHOWN = 12
"""Pairs of tokens that are printed."""
_SAID = 5
"""Pairs of tokens in a sentence."""

_NAMES = {
    SimilarityFunction.cosine: "cosine similarity",
    SimilarityFunction.dot: "dot product",
    SimilarityFunction.maxsim: "late-interaction score",
    SimilarityFunction.mean_maxsim: "mean late-interaction score",
}

_RANKED = 10
"""Texts in a figure."""

_TITLE = 60
"""Characters of a text in the menu of the explorer."""


class _Similarity(NamedTuple):
    """The similarity of two embeddings, as a sum over pairs of tokens."""

    tokens_a: tuple[str, ...]
    tokens_b: tuple[str, ...]
    matrix: Float[np.ndarray, "a b"]
    """What each pair of tokens adds to the similarity. The last row is the bias in a, the last column the bias in b."""
    value: float
    """The similarity: the sum of the matrix."""
    pooling: str
    function: str = "cosine"
    """What the embeddings are compared by: their `cosine`, their product (`dot`), or late interaction (`maxsim`, or
    `meanmaxsim` for the mean instead of the sum)."""
    images: tuple[PatchedImage | None, PatchedImage | None] = (None, None)
    """What the last tokens of either side are patches of; None for a text."""
    matches: pd.DataFrame | None = None
    """For late interaction, one row per token of the first text whose vector is compared: the token of the second text that it
    is matched with (`b`), and what the two vectors add (`value`). These values add up to the similarity, and the matrix traces
    them back to the tokens that the vectors come from."""
    vectors: pd.DataFrame | None = None
    """For a query and a page, one row per pair of a vector of the query (`a`) and a token of the page (`b`, last the bias): the
    `product` of their vectors, and what of the match of `a` comes from `b` (`value`)."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per pair, the largest first; tokens are numbered from 0."""
        return self.pair().table.sort_values("value", ascending=False, kind="stable", ignore_index=True)

    @property
    def of_tokens(self) -> float:
        """What pairs of tokens add, without the biases."""
        return float(self.matrix[:-1, :-1].sum())

    @property
    def metrics(self) -> dict[str, float]:
        """The similarity, and what pairs of tokens and pairs with a bias add; of a page, also what the matched tokens add."""
        sums = {"value": self.value, "tokens": self.of_tokens, "biases": self.value - self.of_tokens}
        return sums if self.vectors is None else sums | {"matched": self.of_matches}

    @property
    def of_tokens_b(self) -> Float[np.ndarray, " b"]:
        """What each token of the second text adds, together with all tokens of the first."""
        return self.matrix[:-1, :-1].sum(axis=0)

    @property
    def titles(self) -> tuple[str, str]:
        """Both texts; of an image, its name."""
        texts = zip((self.tokens_a, self.tokens_b), self.images, strict=True)
        first, second = (as_text(tokens) if image is None else image.title for tokens, image in texts)
        return first, second

    @property
    def sides(self) -> str:
        """What is compared, in words."""
        return ("texts", "an image and a text", "images")[sum(each is not None for each in self.images)]

    @property
    def what(self) -> str:
        """The number in words."""
        return _NAMES[SimilarityFunction(self.function)]

    def pair(self, rank: str = "", place: int = 0) -> TextPair:
        """Both texts with their map.

        Args:
            rank: What the title begins with; it then names the second text instead of the number.
            place: The number of the pair among several, from 1.
        """
        title = (
            f"{rank}{number(self.value)}: {cut(self.titles[1], _TITLE)}"
            if rank
            else f"{self.what} {number(self.value)}"
        )
        return TextPair(title, self.tokens_a, self.tokens_b, self.matrix, self.what, place)

    @property
    def sentence(self) -> str:
        """The similarity, what adds up to it, and the pairs of tokens that add most."""
        table = self.table
        best = table[(table["a"] < len(self.tokens_a)) & (table["b"] < len(self.tokens_b))].head(_SAID)
        words = self.of_tokens
        places = zip(best["a"], best["b"], best["value"], strict=True)
        pairs = ", ".join(f"{self._name(0, a)}\u2013{self._name(1, b)} {number(value)}" for a, b, value in places)
        parts = f"pairs of tokens add {number(words)}, pairs with a bias {number(self.value - words)}"
        if self.vectors is not None:
            parts += f"; {number(self.of_matches)} of it comes from the matched tokens of the page themselves"
        return f"{begun(self.what)} {number(self.value)}: {parts}. The pairs that add most: {pairs}."

    def _name(self, side: int, at: int) -> str:
        """A token as people read it."""
        tokens, image = (self.tokens_a, self.tokens_b)[side], self.images[side]
        is_patch = image is not None and at in image.places
        return f"patch {tokens[at]}" if is_patch else label(tokens[at])

    def on_image(self) -> list[Attributed]:
        """What the tokens of the first image add: together with all that it is compared with, and with each token of a text.

        Of a page, what they add to the match of each vector of the query.
        """
        side = 0 if self.images[0] is not None else 1
        matrix, tokens = (self.matrix, self.tokens_a) if side == 0 else (self.matrix.T, self.tokens_b)
        others = [("the biases", matrix[:, -1])] if self.images[1 - side] is None else []
        if others:
            words = self.tokens_b if side == 0 else self.tokens_a
            others = [*((f"“{label(word)}”", column) for word, column in zip(words, matrix.T, strict=False)), *others]
        if self.vectors is not None:
            others = [(name, rows["value"].to_numpy()) for name, rows in self._by_match()]
        columns = [(self.what, matrix.sum(axis=1)), *others]
        return [
            Attributed(
                tokens, values[:-1], float(values[-1]), 0.0, float(values.sum()), name, 0.0, image=self.images[side]
            )
            for name, values in columns
        ]

    def _by_match(self) -> list[tuple[str, pd.DataFrame]]:
        """Each token of the query with its match, and its rows of `vectors`."""
        assert self.images[1] is not None
        assert self.matches is not None
        assert self.vectors is not None
        named = [(at, self._name(1, at)) for at in self.matches["b"]]
        names = [name if at in self.images[1].places else f"“{name}”" for at, name in named]
        rows = zip(self.matches["token_a"], names, self.vectors.groupby("a", sort=False), strict=True)
        return [(f"“{label(of)}” with {name}", found) for of, name, (_, found) in rows]

    @property
    def products(self) -> Float[np.ndarray, "row token"]:
        """The products of the vectors of a page with those of the query: all together, then one by one."""
        rows = np.stack([rows["product"].to_numpy()[:-1] for _, rows in self._by_match()])
        return np.concatenate([rows.sum(axis=0, keepdims=True), rows])

    @property
    def of_matches(self) -> float:
        """What the tokens of a page add to the matches of their own vectors."""
        assert self.vectors is not None
        assert self.matches is not None
        return float(self.matches.merge(self.vectors, on=["a", "b"])["value_y"].sum())

    def matched(self) -> PatchMaps:
        """The products of each vector of the query with those of all patches, laid on the page."""
        image = self.images[1]
        assert image is not None
        assert self.matches is not None
        values = [image.of(each) for each in self.products[1:]]
        panels = [str(place) for place in range(len(values))]
        matches = zip(self._by_match(), self.matches["value"], strict=True)
        titles = [f"{name}: {number(value)}" for (name, _), value in matches]
        return image.maps(
            dict(zip(panels, values, strict=True)),
            dict(zip(panels, titles, strict=True)),
            dict.fromkeys(panels, ""),
            "The product of the vector of each token of the query with the vector of each patch. The title of a map has the "
            "largest product of all tokens of the page, which is what the token adds to the score. A vector is made of the "
            "whole page, so a match does not show where on the page its reason is.",
            signed=True,
        )


Prompts = TypeAliasType("Prompts", Annotated[str | tuple[str, str], Expected("a str or a pair (a tuple of two str)")])
"""A prompt, or one for each side."""


@checked
@exclusive
def similarity(
    model: Model,
    text_a: Texts,
    text_b: Texts,
    *,
    pooling: Choice[Pooling] | None = None,
    bias: Choice[ValueBias] = "token",
    prompts: Prompts | None = None,
) -> Result:
    """Split the similarity of two texts into what each pair of tokens adds to it.

    If P_k is what token k contributes to the embedding e of its text (DecompX's vectors, pooled), the cosine is exactly
    Σ_kl ⟨P_k, P_l⟩ / (‖e_a‖ ‖e_b‖), and the product of the embeddings, for models that compare by it, Σ_kl ⟨P_k, P_l⟩. Dense
    layers, norms and truncation after pooling are included; slopes of activations, deviations and lengths are held fixed.
    Models with late interaction keep a vector for each token instead, and the number is MaxSim; its matches are held fixed.

    Models with an image tower and a text tower (CLIP, SigLIP) compare images and texts: each side is read by the tower that
    can read it, and the tokens of an image are [CLS] and its patches. Retrievers (ColPali, ColQwen2, ColModernVBERT) compare
    the image of a page with a query by late interaction; in whichever order they are given, the query comes first in tables.

    Args:
        model: A sentence encoder, a model with two towers, or a retriever; see `load` and `wrap`.
        text_a: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer; or a list of texts. For
            late interaction, the query. For a model with two towers, also an image: a `PIL.Image`, its file or an array.
        text_b: The other text, in the same forms. A list of texts is compared with `text_a`, such as documents with a query; if
            both are lists, the texts in the same places are compared.
        pooling: `mean`, `cls`, `last`, `mean_sqrt`, `weighted_mean` or `max`, for the cosine of vectors pooled in this way. By
            default, embeddings are made and compared as the model's sentence-transformers files say.
        bias: Where the value biases go; see `attribute`.
        prompts: What to put before both texts, or a pair for each: names of the model's prompts, or texts. By default, the
            model's default prompt, if its files name one; for late interaction, its prompts for queries and documents; `""`
            for none.

    Returns:
        A result: `.table` has what each pair of tokens adds, the largest first, with the biases as rows and columns of their
        own; `.metrics` the similarity (`value`) and what pairs of `tokens` and pairs with a bias (`biases`) add. For late
        interaction, `.tables["matches"]` has the token that each token is matched with. If a list was given, tables have a
        column `number`, from 1; `.tables["ranking"]` has the pairs of texts in order, and `.tables["words"]` the second texts'
        tokens. For an image, `.figure()` lays on it what its patches add, together and with each token of the text, and `.maps`
        has the same numbers. For a page, these are parts of the match of each vector of the query; `.figure("matches")` shows
        the products of the vectors, `.tables["vectors"]` has both, and the metric `matched` is what matched tokens add.

    Examples:
        >>> import normscope
        >>> pair = normscope.similarity(normscope.load(), "A man plays the guitar.", "Someone is making music.")
        >>> round(pair.metrics["value"], 2), tuple(pair.table.loc[0, ["token_a", "token_b"]])
        (0.55, ('guitar', 'music'))

    Raises:
        InputError: If an argument is invalid, the model's embeddings cannot be split into parts, or a text is too long.
    """
    rule = ValueBias(bias)
    embedder = None if pooling is None else chosen_embedder(model, pooling)
    of_a, of_b = prompts if isinstance(prompts, tuple) else (prompts, prompts)
    texts_a, texts_b = _lists(text_a, text_b)
    if model.retrieves and is_image(text_a if texts_a is None else texts_a[0]):  # the query comes first
        text_a, texts_a, of_a, text_b, texts_b, of_b = text_b, texts_b, of_b, text_a, texts_a, of_a
    # Of two images, one is carried.
    alone = not any(map(is_image, [text_a] if texts_a is None else texts_a))
    first, second = (_Embedding(model, embedder, rule, *each) for each in zip(_KINDS, (True, alone), strict=True))
    side_a = repeat(first.of(text_a, of_a)) if texts_a is None else (first.of(text, of_a) for text in texts_a)
    side_b = repeat(second.of(text_b, of_b)) if texts_b is None else (second.of(text, of_b) for text in texts_b)
    if texts_a is None and texts_b is None:
        return compared_texts(model, next(side_a), next(side_b))
    return _result_of(model, [_compared(*pair) for pair in zip(side_a, side_b, strict=False)], single=False)


def _lists(*sides: Any) -> tuple[list[Any] | None, ...]:
    """The lists of texts among two sides; None for a text.

    Raises:
        InputError: If one is empty, or they have different lengths.
    """
    found = tuple(side if isinstance(side, list) and not is_single(side) else None for side in sides)
    counts = [len(side) for side in found if side is not None]
    if not all(counts):
        raise InputError("similarity: expected at least one text, got none")
    if len({*counts}) > 1:
        raise InputError(f"similarity: expected as many texts on both sides, got {' and '.join(map(str, counts))}")
    return found


_PADDING = "[PADDING]"
"""The tokens of padding of a model that reads them like those of a text, together."""

_KINDS = ("query", "document")
"""What the first and the second text are for late interaction."""


class Embedded(NamedTuple):
    """What a text's embedding is made of; for late interaction, the vectors of its tokens."""

    tokens: tuple[str, ...]
    parts: Float[Tensor, "1 source *token made"] | HeldPass
    """What each token, and last the bias, contributes; of an image that is compared with few tokens, the pass that knows it."""
    whole: Float[Tensor, "1 *token made"]
    embedder: Embedder
    compared: Bool[Tensor, "1 token"]
    """Whether the vector of a token is compared, in late interaction."""
    image: PatchedImage | None = None
    """What the last tokens are patches of; None for a text."""
    bias: ValueBias = ValueBias.token
    """Where the value biases of the first layer go."""

    @property
    def carried(self) -> Float[Tensor, "1 source *token made"]:
        """The parts, which have been carried."""
        assert isinstance(self.parts, Tensor)
        return self.parts


@checked
@exclusive
def embedded_text(model: Model, text: Text, kind: str = "query") -> Embedded:
    """What the embedding of a text is made of, with the pooling and the prompt that are the model's own; see `similarity`.

    Args:
        kind: What the text is for late interaction: a `query` or a `document`.

    Raises:
        InputError: If the model's embeddings cannot be split into parts, or the text is too long.
    """
    return _Embedding(model, None, ValueBias.token, kind).of(text, None)


def compared_texts(model: LoadedModel, a: Embedded, b: Embedded) -> Result:
    """The similarity of two texts of a model, split into what each pair of tokens adds to it; see `similarity`."""
    return _result_of(model, [_compared(a, b)], single=True)


def _compared(a: Embedded, b: Embedded) -> _Similarity:
    embedder = a.embedder
    matches = vectors = None
    if embedder.late is None:
        parts = _products(a, b)
    else:
        first, second = (Scored(side.parts, side.whole, side.compared) for side in (a, b))
        mean = embedder.function is SimilarityFunction.mean_maxsim
        places = met(first, second)
        matches = _matches(a, b, places[0], mean=mean)
        if isinstance(b.parts, HeldPass):
            parts, of_vectors = late_parts_along(first, second, places, a.bias)
            vectors = _vectors(a, b, of_vectors)
        else:
            parts = late_parts(first, second, places, mean=mean)
    matrix, value = parts.matrix[0].cpu().numpy(), float(parts.value[0])
    pooling = "none" if embedder.pooling is None else str(embedder.pooling)
    images = (a.image, b.image)
    return _Similarity(a.tokens, b.tokens, matrix, value, pooling, str(embedder.function), images, matches, vectors)


def _products(a: Embedded, b: Embedded) -> SimilarityParts:
    """What each pair of tokens adds to the similarity of two embeddings."""
    if isinstance(a.parts, Tensor) and isinstance(b.parts, Tensor):
        return compared(a.embedder.function, (a.parts, a.whole), (b.parts, b.whole))
    if isinstance(a.parts, Tensor):
        turned = _products(b, a)
        return SimilarityParts(turned.matrix.transpose(-1, -2), turned.value)
    if a.whole.shape != b.whole.shape or a.whole.ndim != 2:
        raise InputError(
            f"similarity: expected embeddings of one size, got {tuple(a.whole.shape[1:])} and {tuple(b.whole.shape[1:])}"
        )
    lengths = product_of_lengths(a.whole, b.whole)
    matrix = parts_along(a.parts, b.carried[0] / lengths, a.bias)
    return SimilarityParts(matrix[None], torch.linalg.vecdot(a.whole, b.whole) / lengths)


def _matches(a: Embedded, b: Embedded, met: Int[Tensor, " a"], *, mean: bool) -> pd.DataFrame:
    """The token of the second text that each token of the first is matched with, and the product of their vectors."""
    products = torch.linalg.vecdot(a.whole[0], b.whole[0, met]) / (int(a.compared.sum()) if mean else 1)
    rows = [
        (i, a.tokens[i], j, b.tokens[j], value)
        for i, (j, value) in enumerate(zip(met.tolist(), products.tolist(), strict=True))
        if bool(a.compared[0, i])
    ]
    return pd.DataFrame(rows, columns=["a", "token_a", "b", "token_b", "value"])


def _vectors(query: Embedded, page: Embedded, of_vectors: Float[Tensor, "vector source"]) -> pd.DataFrame:
    """The product of each vector of a query with each of a page, and what of its match comes from each token of the page.

    Args:
        of_vectors: The latter.
    """
    at = query.compared[0].nonzero().flatten()
    products = query.whole[0, at] @ page.whole[0].T
    values = {"product": torch.nn.functional.pad(products, (0, 1), value=torch.nan), "value": of_vectors}
    table = tidy(
        {name: each.cpu().numpy() for name, each in values.items()}, a=at.tolist(), b=range(len(page.tokens) + 1)
    )
    names = [*page.tokens, "bias"]
    table.insert(1, "token_a", [query.tokens[place] for place in table["a"]])
    table.insert(3, "token_b", [names[place] for place in table["b"]])
    return table


def _result_of(model: LoadedModel, found: Sequence[_Similarity], *, single: bool) -> Result:
    """The similarity of one pair of texts or of several.

    Args:
        model: What has embedded them.
        found: At least one.
        single: Whether there is no list of them, so that tables need no column `number`.
    """
    column = None if single else "number"
    first, ranking = found[0], _ranking(found)
    tables = {"pairs": stacked([each.table for each in found], column, first=1)}
    if first.matches is not None:
        tables["matches"] = stacked([each.matches for each in found if each.matches is not None], column, first=1)
    if first.vectors is not None:
        tables["vectors"] = stacked([each.vectors for each in found if each.vectors is not None], column, first=1)
    figures: dict[str, Figure] = {}
    if not single:
        tables |= {"ranking": ranking, "words": _words(found)}
        if first.images[1] is None:
            figures["ranking"] = _coloured(found, ranking)
    maps: list[TokenMap] = []
    for rank, number_, each in _ranked(found, ranking):
        which = "" if single else f"_{number_}"
        if any(each.images):
            rows = each.on_image()
            assert rows[0].image is not None
            figures[f"pair{which}"] = drawn_on_image(rows, rows[0].image)
            (of_scores,) = target_maps(rows)
            values = dict(of_scores.maps)
            if each.vectors is not None:
                figures[f"matches{which}"] = each.matched()
                values["product"] = each.products[None].astype(np.float32)
            maps.append(dataclasses.replace(of_scores, title=" | ".join(each.titles), maps=values))
        else:
            figures[f"pair{which}"] = each.pair("" if single else f"{rank}. ", 0 if single else number_).figure()
    texts = [" | ".join(each.titles) for each in found]
    about = {"compares": first.function, "pooling": first.pooling}
    return Result(
        tables=tables,
        metrics=first.metrics if single else {},
        figures=figures,
        maps=maps,
        sentences=[Sentence(first.sentence if single else _said_of_several(found, ranking), table="pairs")],
        summaries={"": _summary(first) if single else _summary_of_several(ranking)},
        **described(model, "similarity", texts, **about),
    )


def _ranking(found: Sequence[_Similarity]) -> pd.DataFrame:
    """The pairs of texts, the most similar first: the similarity, and what pairs of tokens and pairs with a bias add to it."""
    rows = [(number_, each.value, each.of_tokens) for number_, each in enumerate(found, start=1)]
    table = pd.DataFrame(rows, columns=["number", "value", "tokens"])
    table["biases"] = table["value"] - table["tokens"]
    ranked = table.sort_values("value", ascending=False, kind="stable", ignore_index=True)
    ranked.insert(0, "rank", range(1, len(ranked) + 1))
    return ranked


def _ranked(found: Sequence[_Similarity], ranking: pd.DataFrame) -> Iterator[tuple[int, int, _Similarity]]:
    """The rank, the number and the parts of each pair, the most similar first."""
    for rank, number_ in enumerate(ranking["number"].tolist(), start=1):
        yield rank, number_, found[number_ - 1]


def _words(found: Sequence[_Similarity]) -> pd.DataFrame:
    """The tokens of the second texts: `occurrences`, and what all and the mean of them add with the first text's tokens."""
    table = pd.concat([pd.DataFrame({"token": each.tokens_b, "value": each.of_tokens_b}) for each in found])
    grouped = table.groupby("token", sort=False)["value"].agg(["size", "sum", "mean"]).reset_index()
    named = grouped.rename(columns={"size": "occurrences", "sum": "total"})
    return named.sort_values("total", ascending=False, kind="stable", ignore_index=True)


def _coloured(found: Sequence[_Similarity], ranking: pd.DataFrame) -> ColouredText:
    """The second texts, the most similar first, with each token coloured by what it adds, on one scale."""
    tables = [
        pd.DataFrame(
            {
                "token": each.tokens_b,
                "value": each.of_tokens_b,
                "text": f"{rank}. {number(each.value)}: tokens {number(each.of_tokens)}, biases "
                f"{number(each.value - each.of_tokens)}",
            }
        )
        for rank, _, each in _ranked(found, ranking.head(_RANKED))
    ]
    left_out = f" The {_RANKED} most similar of {len(found)} are shown." if len(found) > _RANKED else ""
    return ColouredText(
        table=pd.concat(tables, ignore_index=True),
        text="text",
        caption=f"What each token of a text adds to its {found[0].what} with the other text of its pair, together with all "
        "tokens of that text: orange raises it, purple lowers it. Pairs with a bias belong to no token; with them, tokens add "
        f"up to the number in the title.{left_out}",
        value_label="what a token adds",
    )


def _said_of_several(found: Sequence[_Similarity], ranking: pd.DataFrame) -> str:
    first = int(ranking["number"].iloc[0])
    best = found[first - 1]
    text = cut(best.titles[1], _TITLE)
    pairs = counted(len(found), "pair")
    return f"Of {pairs} of {best.sides}, number {first} (“{text}”) has the largest {best.what}: {number(best.value)}."


def _summary(of: _Similarity) -> Summary:
    """The pairs of tokens that add most, without the biases."""
    table = of.table
    best = table[(table["a"] < len(of.tokens_a)) & (table["b"] < len(of.tokens_b))].head(_SHOWN)
    names = pd.MultiIndex.from_frame(best[["token_a", "token_b"]])
    shown = pd.DataFrame({"value": [number(value, signed=True) for value in best["value"]]}, index=names)
    return Summary(shown, caption="The pairs of tokens that add most")


def _summary_of_several(ranking: pd.DataFrame) -> Summary:
    return Summary(ranking.set_index("rank"), digits=3, caption="Pairs of texts, the most similar first")


class _Embedding(NamedTuple):
    """How the texts or images of one side are embedded."""

    model: LoadedModel
    chosen: Embedder | None
    """None for what the model itself does, with the tower that reads what is given."""
    bias: ValueBias
    kind: str
    records: bool = True
    """Whether it is enough to record the pass of an image, whose many tokens would each have to be carried."""

    @property
    def embedder(self) -> Embedder:
        """How the embedding is made."""
        return self.model.any_embedder if self.chosen is None else self.chosen

    def of(self, text: Text | BatchEncoding, prompt: str | None) -> Embedded:
        """What the embedding of a text or an image is made of.

        Args:
            prompt: The name of one of the model's prompts, or a text; None for the model's default.
        """
        tower = tower_for(self.model, text) if self.chosen is None else self.model
        if tower is not self.model:
            return self._replace(model=tower).of(text, prompt)
        model, embedder = self.model, self.embedder
        check_followed(model.facts)
        if model.retrieves and is_image(text) is not (self.kind == "document"):
            found = "a page (an image), got a text" if self.kind == "document" else "a query (a text), got an image"
            raise InputError(f"similarity: {model.name} compares a query with a page: expected {found}")
        text, length = self._prompted(text, prompt)
        text, length_unpadded = self._padded(text)
        batch = single_text(model, text, "similarity", as_given=True)
        _ = model.verification
        inputs, image = batch.model_inputs(), patched_image(model, batch)
        tokens, units = batch.unit_texts(model.tokenizer), None
        if length_unpadded is not None:
            units = torch.arange(len(tokens), device=model.device).clamp(max=length_unpadded)[None]
            tokens = (*tokens[:length_unpadded], _PADDING)
        parts: Tensor | HeldPass
        if embedder.head is not None and (model.reader is not None or image is not None) and self.records:
            parts = held_pass(model.model, model.facts, inputs, embedder.head)
            whole = wide(parts.returned)
        else:
            parts, whole = embedded_parts(
                model.model, model.facts, inputs, embedder=embedder, bias=self.bias, prompt=length, units=units
            )
        return Embedded(
            tokens, parts, whole.detach(), embedder, self._compared(batch).to(whole.device), image, self.bias
        )

    def _padded(self, text: Any) -> tuple[Any, int | None]:
        """A text as a whole model reads it whose tokenizer makes no mask, and the length of the text without padding.

        Such a model cannot tell padding from a text: it has been trained on texts of one length (SigLIP).
        """
        model = self.model
        tokenizer, length = model.tokenizer, model.max_length
        fixed = (
            model.of_tower is not None and model.reader is None and "attention_mask" not in tokenizer.model_input_names
        )
        if not fixed or length is None or not isinstance(text, str) or tokenizer.pad_token_id is None:
            return text, None
        require_unicode(text)
        own = len(encoded(tokenizer, text)["input_ids"])
        if own >= length:
            return text, None
        return encoded(tokenizer, text, padding="max_length", max_length=length), own

    def _compared(self, batch: Batch) -> Bool[Tensor, "1 token"]:
        late = self.embedder.late
        if late is None:
            return batch.token_mask
        tokens, longest = batch.input_ids.shape[1], late.lengths.get(self.kind)
        if longest is not None and tokens > longest:
            raise InputError(
                f"similarity: expected a {self.kind} of at most {longest} tokens, the limit of {self.model.name}, got {tokens}"
            )
        if self.kind not in late.skipped_in:
            return batch.token_mask
        tokenizer = self.model.tokenizer
        ids = {word: tokenizer.convert_tokens_to_ids(word) for word in late.skipped}
        # Words that are not tokens all become the unknown token.
        known = [each for word, each in ids.items() if each != tokenizer.unk_token_id or word == tokenizer.unk_token]
        compared = batch.token_mask & ~torch.isin(batch.input_ids, batch.input_ids.new_tensor(known))
        if not compared.any():
            raise InputError(
                f"similarity: expected a {self.kind} with at least one token that {self.model.name} compares, got none"
            )
        return compared

    def _prompted(self, text: Text | BatchEncoding, prompt: str | None) -> tuple[Any, int]:
        """A text with its prompt, and the number of tokens at its start that belong to the prompt."""
        put = self._prompt(prompt)
        if not put:
            return text, 0
        if not isinstance(text, str):
            if prompt is None:
                return text, 0
            raise InputError(f"prompts: expected none before {describe_type(text)}; put the prompt into the text")
        require_unicode(put)
        return put + text, prompt_length(self.model.tokenizer, put)

    def _prompt(self, asked: str | None) -> str:
        embedder = self.embedder
        if asked is not None:
            return embedder.prompt(asked)
        return embedder.default_prompts()[_KINDS.index(self.kind)]
