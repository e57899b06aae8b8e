"""The similarity of texts, as sums over pairs of tokens."""

import dataclasses
import html

import numpy as np
import pandas as pd
from jaxtyping import Float

from normscope.api.coloured_tokens import LEGEND, coloured
from normscope.api.explorers import PairExplorer
from normscope.api.picture import Picture
from normscope.api.several import Several
from normscope.errors import InputError, escaped
from normscope.maths.choices import SimilarityFunction
from normscope.results.figures import ColouredText, TextPair
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

    def explorer(self) -> PairExplorer:
        """Both texts and the map as an interactive page, which notebooks display."""
        return PairExplorer(self.figure(), [self._pair()])

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

    def explorer(self) -> PairExplorer:
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
            each._pair(f"{rank}. {number(each.value)}: {' '.join(each.tokens_b)[:_TITLE]}")
            for rank, each in enumerate(self._ranked, start=1)
        ]
        return PairExplorer(self.figure(), ranked)

    def _repr_html_(self) -> str:
        return self.figure()._repr_html_()

    def __repr__(self) -> str:
        return escaped(self.ranking.to_string(index=False, float_format="{:.3f}".format), keep="\n")
