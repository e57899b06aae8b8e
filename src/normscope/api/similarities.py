"""The similarity of texts, as sums over pairs of tokens."""

import dataclasses
import html
from itertools import repeat
from typing import Any, NamedTuple, overload

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import BatchEncoding

from normscope.api.arguments import checked, chosen, exclusive, single_text
from normscope.api.picture import LEGEND, Several, coloured
from normscope.api.targets import chosen_embedder
from normscope.attribution.methods import check_followed
from normscope.attribution.similarities import Scored, compared, embedded_parts, late_parts, met
from normscope.data.batching import Batch
from normscope.data.encoders import prompt_length
from normscope.errors import InputError, cut, escaped
from normscope.maths.choices import SimilarityFunction, ValueBias
from normscope.maths.embedder import Embedder
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import Text, describe_type, is_single, require_unicode
from normscope.results.figures import ColouredText, TextPair
from normscope.results.pictures import Explorer, Picture
from normscope.rounding import number

_SHOWN = 5

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


@dataclasses.dataclass(frozen=True, eq=False)
class Similarity:
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
    matches: pd.DataFrame | None = None
    """For late interaction, one row per token of the first text whose vector is compared: the token of the second text that it
    is matched with (`b`), and what the two vectors add (`value`). These values add up to the similarity, and the matrix traces
    them back to the tokens that the vectors come from."""

    @property
    def sources_a(self) -> tuple[str, ...]:
        """The names of the rows."""
        return (*self.tokens_a, "bias")

    @property
    def sources_b(self) -> tuple[str, ...]:
        """The names of the columns."""
        return (*self.tokens_b, "bias")

    @property
    def table(self) -> pd.DataFrame:
        """One row per pair, the largest first; tokens are numbered from 0."""
        return self._pair().table.sort_values("value", ascending=False, kind="stable", ignore_index=True)

    def figure(self) -> Picture:
        """The matrix, as a figure."""
        return Picture(self._pair().figure())

    def explorer(self) -> Explorer:
        """Both texts and the map as an interactive page, which notebooks display."""
        return Explorer(self.figure(), pairs=[self._pair()])

    def _pair(self, title: str | None = None) -> TextPair:
        """Both texts with their map.

        Args:
            title: By default, the similarity.
        """
        return TextPair(
            title or f"{self._what} {number(self.value)}", self.tokens_a, self.tokens_b, self.matrix, self._what
        )

    @property
    def _of_tokens(self) -> float:
        """What pairs of tokens add, without the biases."""
        return float(self.matrix[:-1, :-1].sum())

    @property
    def _what(self) -> str:
        return _NAMES[SimilarityFunction(self.function)]

    @property
    def _summary(self) -> str:
        table = self.table
        best = table[(table["a"] < len(self.tokens_a)) & (table["b"] < len(self.tokens_b))].head(_SHOWN)
        words = self._of_tokens
        named = zip(best["token_a"], best["token_b"], best["value"], strict=True)
        pairs = ", ".join(f"{a}\u2013{b} {number(value)}" for a, b, value in named)
        parts = f"pairs of tokens add {number(words)}, pairs with a bias {number(self.value - words)}"
        return f"{self._what.capitalize()} {number(self.value)}: {parts}. The pairs that add most: {pairs}."

    def _repr_html_(self) -> str:
        rows, columns = self.matrix.sum(axis=1)[:-1], self.matrix.sum(axis=0)[:-1]
        largest = float(max(np.abs(rows).max(initial=0), np.abs(columns).max(initial=0)))
        return (
            '<div style="font-family:system-ui,sans-serif;max-width:50em">'
            f"<p>{html.escape(self._summary)}</p>{coloured(self.tokens_a, rows, largest)}"
            f"{coloured(self.tokens_b, columns, largest)}{LEGEND}</div>{self.figure()._repr_html_()}"
        )

    def __repr__(self) -> str:
        return escaped(self._summary)


class Similarities(Several[Similarity]):
    """The similarities of several pairs of texts, in their order."""

    counted = "number"

    @property
    def table(self) -> pd.DataFrame:
        """One row per pair of texts (`number`, from 0) and pair of tokens, the largest first within each pair of texts."""
        return self._concatenated([each.table for each in self])

    @property
    def ranking(self) -> pd.DataFrame:
        """The pairs of texts, the most similar first.

        `value` is the similarity, the sum of what pairs of tokens (`tokens`) and pairs with a bias (`biases`) add.
        """
        rows = [(place, each.value, each._of_tokens) for place, each in enumerate(self)]
        table = pd.DataFrame(rows, columns=["number", "value", "tokens"])
        table["biases"] = table["value"] - table["tokens"]
        ranked = table.sort_values("value", ascending=False, kind="stable", ignore_index=True)
        ranked.insert(0, "rank", range(1, len(ranked) + 1))
        return ranked

    @property
    def words(self) -> pd.DataFrame:
        """The tokens of the second texts: `occurrences`, and what all and the mean of them add with the first text's tokens."""
        parts = [pd.DataFrame({"token": each.tokens_b, "value": each.matrix[:-1, :-1].sum(axis=0)}) for each in self]
        table = pd.concat(parts) if parts else pd.DataFrame({"token": [], "value": []})
        grouped = table.groupby("token", sort=False)["value"].agg(["size", "sum", "mean"]).reset_index()
        named = grouped.rename(columns={"size": "occurrences", "sum": "total"})
        return named.sort_values("total", ascending=False, kind="stable", ignore_index=True)

    @property
    def _ranked(self) -> list[Similarity]:
        return [self[place] for place in self.ranking["number"].tolist()]

    def figure(self) -> Picture:
        """The second texts, the most similar first, with each token coloured by what it adds, on one scale.

        Raises:
            InputError: If there are none.
        """
        if not self:
            raise InputError("figure: expected at least one pair of texts")
        first = next(iter(self))
        tables = [
            pd.DataFrame(
                {
                    "token": each.tokens_b,
                    "value": each.matrix[:-1, :-1].sum(axis=0),
                    "text": f"{rank}. {number(each.value)}: tokens {number(each._of_tokens)}, biases "
                    f"{number(each.value - each._of_tokens)}",
                }
            )
            for rank, each in enumerate(self._ranked[:_RANKED], start=1)
        ]
        left_out = f" The {_RANKED} most similar of {len(self)} are shown." if len(self) > _RANKED else ""
        return Picture(
            ColouredText(
                table=pd.concat(tables, ignore_index=True),
                text="text",
                caption=f"What each token of a text adds to its {first._what} with the other text of its pair, together with "
                "all tokens of that text: orange raises it, purple lowers it. Pairs with a bias belong to no token; with them, "
                f"tokens add up to the number in the title.{left_out}",
                value_label="what a token adds",
            )
        )

    def explorer(self) -> Explorer:
        """All pairs of texts with their maps as an interactive page, the most similar first.

        If all pairs have the same first text, a query, the page begins with the ten most similar documents: their tokens
        coloured on one scale, what the tokens and the constant part (pairs with a bias) add, and the lead of each document
        over the next.

        Raises:
            InputError: If there are none, or too many values for one page.
        """
        if not self:
            raise InputError("explorer: expected at least one pair of texts")
        ranked = [
            each._pair(f"{rank}. {number(each.value)}: {cut(' '.join(each.tokens_b), _TITLE)}")
            for rank, each in enumerate(self._ranked, start=1)
        ]
        return Explorer(self.figure(), pairs=ranked)

    def _repr_html_(self) -> str:
        return self.figure()._repr_html_()

    def __repr__(self) -> str:
        return escaped(self.ranking.to_string(index=False, float_format="{:.3f}".format), keep="\n")


@overload
def similarity(
    model: LoadedModel,
    text_a: Text | BatchEncoding,
    text_b: Text | BatchEncoding,
    *,
    pooling: str | None = None,
    bias: str = "token",
    prompts: str | tuple[str, str] | None = None,
) -> Similarity: ...


@overload
def similarity(
    model: LoadedModel,
    text_a: Text | BatchEncoding | list[Text],
    text_b: Text | BatchEncoding | list[Text],
    *,
    pooling: str | None = None,
    bias: str = "token",
    prompts: str | tuple[str, str] | None = None,
) -> Similarity | Similarities: ...


@checked
@exclusive
def similarity(
    model: LoadedModel,
    text_a: Text | BatchEncoding | list[Text],
    text_b: Text | BatchEncoding | list[Text],
    *,
    pooling: str | None = None,
    bias: str = "token",
    prompts: str | tuple[str, str] | None = None,
) -> Similarity | Similarities:
    """Split the similarity of two texts into what each pair of tokens adds to it.

    If P_k is what token k contributes to the embedding e of its text (DecompX's vectors, pooled), the cosine is exactly
    Σ_kl ⟨P_k, P_l⟩ / (‖e_a‖ ‖e_b‖), and the product of the embeddings, for models that compare by it, Σ_kl ⟨P_k, P_l⟩. Dense
    layers, norms and truncation after pooling are included; slopes of activations, deviations and lengths are held fixed.
    Models with late interaction keep a vector for each token instead, and the number is MaxSim; its matches are held fixed.

    Args:
        model: A sentence encoder; see `load` and `wrap`.
        text_a: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer; or a list of texts. For
            late interaction, the query.
        text_b: The other text, in the same forms. A list of texts is compared with `text_a`, such as documents with a query; if
            both are lists, the texts in the same places are compared.
        pooling: `mean`, `cls`, `last`, `mean_sqrt`, `weighted_mean` or `max`, for the cosine of vectors pooled in this way. By
            default, embeddings are made and compared as the model's sentence-transformers files say.
        bias: Where the value biases go; see `attribute`.
        prompts: What to put before both texts, or a pair for each: names of the model's prompts, or texts. By default, the
            model's default prompt, if its files name one; for late interaction, its prompts for queries and documents; `""`
            for none.

    Returns:
        The parts of the similarity; if a list was given, a sequence of these, with a `.ranking`.

    Examples:
        >>> import normscope
        >>> pair = normscope.similarity(normscope.load(), "A man plays the guitar.", "Someone is making music.")
        >>> round(pair.value, 2), tuple(pair.table.loc[0, ["token_a", "token_b"]])
        (0.55, ('guitar', 'music'))

    Raises:
        InputError: If an argument is invalid, the model's embeddings cannot be split into parts, or a text is too long.
    """
    check_followed(model.layout)
    rule = chosen("bias", bias, ValueBias)
    embedder = model.any_embedder if pooling is None else chosen_embedder(model, pooling)
    of_a, of_b = prompts if isinstance(prompts, tuple) else (prompts, prompts)
    texts_a, texts_b = (side if isinstance(side, list) and not is_single(side) else None for side in (text_a, text_b))
    for side in (texts_a, texts_b):
        if side is not None and not side:
            raise InputError("similarity: expected at least one text, got none")
    if texts_a is not None and texts_b is not None and len(texts_a) != len(texts_b):
        raise InputError(f"similarity: expected as many texts on both sides, got {len(texts_a)} and {len(texts_b)}")
    first, second = (_Embedding(model, embedder, rule, kind) for kind in _KINDS)
    side_a = repeat(first.of(text_a, of_a)) if texts_a is None else (first.of(text, of_a) for text in texts_a)
    side_b = repeat(second.of(text_b, of_b)) if texts_b is None else (second.of(text, of_b) for text in texts_b)
    found = (compared_embeddings(*pair) for pair in zip(side_a, side_b, strict=False))
    return next(found) if texts_a is None and texts_b is None else Similarities([*found])


_KINDS = ("query", "document")
"""What the first and the second text are for late interaction."""


class Embedded(NamedTuple):
    """What a text's embedding is made of; for late interaction, the vectors of its tokens."""

    tokens: tuple[str, ...]
    parts: Float[Tensor, "1 source *token made"]
    """What each token, and last the bias, contributes."""
    whole: Float[Tensor, "1 *token made"]
    embedder: Embedder
    compared: Bool[Tensor, "1 token"]
    """Whether the vector of a token is compared, in late interaction."""


@checked
@exclusive
def embedded_text(model: LoadedModel, text: Text, kind: str = "query") -> Embedded:
    """What the embedding of a text is made of, with the pooling and the prompt that are the model's own; see `similarity`.

    Args:
        kind: What the text is for late interaction: a `query` or a `document`.

    Raises:
        InputError: If the model's embeddings cannot be split into parts, or the text is too long.
    """
    check_followed(model.layout)
    return _Embedding(model, model.any_embedder, ValueBias.token, kind).of(text, None)


def compared_embeddings(a: Embedded, b: Embedded) -> Similarity:
    """The similarity of two texts of the same model, split into what each pair of tokens adds to it."""
    embedder = a.embedder
    matches = None
    if embedder.late is None:
        parts = compared(embedder.function, (a.parts, a.whole), (b.parts, b.whole))
    else:
        first, second = (Scored(side.parts, side.whole, side.compared) for side in (a, b))
        mean = embedder.function is SimilarityFunction.mean_maxsim
        places = met(first, second)
        parts, matches = late_parts(first, second, places, mean=mean), _matches(a, b, places[0], mean=mean)
    matrix, value = parts.matrix[0].cpu().numpy(), float(parts.value[0])
    pooling = "none" if embedder.pooling is None else str(embedder.pooling)
    return Similarity(a.tokens, b.tokens, matrix, value, pooling, str(embedder.function), matches)


def _matches(a: Embedded, b: Embedded, met: Int[Tensor, " a"], *, mean: bool) -> pd.DataFrame:
    """The token of the second text that each token of the first is matched with, and the product of their vectors."""
    products = torch.linalg.vecdot(a.whole[0], b.whole[0, met]) / (int(a.compared.sum()) if mean else 1)
    rows = [
        (i, a.tokens[i], j, b.tokens[j], value)
        for i, (j, value) in enumerate(zip(met.tolist(), products.tolist(), strict=True))
        if bool(a.compared[0, i])
    ]
    return pd.DataFrame(rows, columns=["a", "token_a", "b", "token_b", "value"])


class _Embedding(NamedTuple):
    """How the texts of one side are embedded."""

    model: LoadedModel
    embedder: Embedder
    bias: ValueBias
    kind: str

    def of(self, text: Text | BatchEncoding, prompt: str | None) -> Embedded:
        """What the embedding of a text is made of.

        Args:
            prompt: The name of one of the model's prompts, or a text; None for the model's default.
        """
        model, embedder = self.model, self.embedder
        text, length = self._prompted(text, prompt)
        batch = single_text(model, text, "similarity", as_given=True)
        _ = model.verification
        parts, whole = embedded_parts(
            model.model, model.layout, batch.model_inputs(), embedder=embedder, bias=self.bias, prompt=length
        )
        return Embedded(
            batch.unit_texts(model.tokenizer), parts, whole, embedder, self._compared(batch).to(whole.device)
        )

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
