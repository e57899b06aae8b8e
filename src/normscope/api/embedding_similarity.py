"""The cosine similarity of two texts, split into pairs of tokens."""

import dataclasses
import html

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import BatchEncoding

from normscope.analyses.findings import TextPair, WordMaps
from normscope.api.arguments import chosen, single_text
from normscope.api.calls import checked, in_turn
from normscope.api.coloured_tokens import LEGEND, coloured
from normscope.api.explorers import PairExplorer
from normscope.api.picture import Picture
from normscope.api.targets import embedding_pooling
from normscope.attribution.methods import check_supported
from normscope.attribution.similarities import similarity_parts
from normscope.maths.choices import ValueBias
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import Text
from normscope.running.token_maps import texts_of
from normscope.statistics.tidy import tidy

_SHOWN = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Similarity:
    """The cosine similarity of two embeddings, as a sum over pairs of tokens."""

    tokens_a: tuple[str, ...]
    tokens_b: tuple[str, ...]
    matrix: Float[np.ndarray, "a b"]
    """What each pair of tokens adds to the similarity. The last row is the bias in a, the last column the bias in b."""
    value: float
    """The cosine similarity: the sum of the matrix."""
    pooling: str

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
        return self._pairs.sort_values("value", ascending=False, kind="stable", ignore_index=True)

    def figure(self) -> Picture:
        """The matrix, as a figure."""
        title = f"cosine similarity {self.value:.3f}"
        return Picture(
            WordMaps(
                table=self._pairs.assign(frame="none", panel=title),
                panel="panel",
                panel_titles={title: title},
                row="a",
                row_label="token_a",
                column="b",
                column_label="token_b",
                caption=(
                    "What each pair of tokens adds to the cosine similarity of two texts (rows: the first text, columns: the "
                    f"second). All cells add up to {self.value:.3f}: orange raises it, purple lowers it."
                ),
                # Biases say nothing about words, and would often make all other cells look pale.
                largest=float(np.abs(self.matrix[:-1, :-1]).max()) or 1.0,
            )
        )

    def explorer(self) -> PairExplorer:
        """Both texts and the map as an interactive page, which notebooks display."""
        pair = TextPair(f"cosine similarity {self.value:.3f}", self.tokens_a, self.tokens_b, self.matrix)
        return PairExplorer(self.figure(), pair)

    @property
    def _pairs(self) -> pd.DataFrame:
        return tidy(
            {
                "token_a": np.array(self.sources_a, dtype=object)[:, None],
                "token_b": np.array(self.sources_b, dtype=object),
                "value": self.matrix,
            },
            a=range(len(self.sources_a)),
            b=range(len(self.sources_b)),
        )

    @property
    def _summary(self) -> str:
        table = self.table
        best = table[(table["a"] < len(self.tokens_a)) & (table["b"] < len(self.tokens_b))].head(_SHOWN)
        words = float(self.matrix[:-1, :-1].sum())
        pairs = ", ".join(f"{row.token_a}\u2013{row.token_b} {row.value:.3f}" for row in best.itertuples(index=False))
        biases = self.value - words
        text = f"Cosine similarity {self.value:.3f}: pairs of tokens add {words:.3f}, pairs with a bias {biases:.3f}. "
        return f"{text}The pairs that add most: {pairs}.".replace("-0.", "\u22120.")

    def _repr_html_(self) -> str:
        rows, columns = self.matrix.sum(axis=1)[:-1], self.matrix.sum(axis=0)[:-1]
        largest = float(max(np.abs(rows).max(initial=0), np.abs(columns).max(initial=0)))
        return (
            '<div style="font-family:system-ui,sans-serif;max-width:50em">'
            f"<p>{html.escape(self._summary)}</p>{coloured(self.tokens_a, rows, largest)}"
            f"{coloured(self.tokens_b, columns, largest)}{LEGEND}</div>{self.figure()._repr_html_()}"
        )

    def __repr__(self) -> str:
        return self._summary


@checked
@in_turn
def similarity(
    model: LoadedModel,
    text_a: Text | BatchEncoding,
    text_b: Text | BatchEncoding,
    *,
    pooling: str | None = None,
    bias: str = "token",
) -> Similarity:
    """Split the cosine similarity of two texts into what each pair of tokens adds to it.

    If P_k is what token k contributes to the pooled vector e of its text (DecompX's vectors, pooled), the cosine is exactly
    Σ_kl ⟨P_k, P_l⟩ / (‖e_a‖ ‖e_b‖).

    Args:
        model: A sentence encoder; see `load`.
        text_a: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer.
        text_b: The other text, in the same forms.
        pooling: `mean`, `cls` or `last`. By default, what the model's sentence-transformers files say.
        bias: Where the value biases go; see `attribute`.

    Raises:
        InputError: If an argument is invalid, the model's pooling is unknown or not linear, or a text is too long.
    """
    check_supported(model.layout)
    rule, how = chosen("bias", bias, ValueBias), embedding_pooling(model, pooling)
    batches = [single_text(model, text, "similarity") for text in (text_a, text_b)]
    _ = model.layers_verification
    parts = similarity_parts(
        model.model, model.layout, *(batch.model_inputs() for batch in batches), pooling=how, bias=rule
    )
    tokens_a, tokens_b = (texts_of(model, batch) for batch in batches)
    return Similarity(tokens_a, tokens_b, parts.matrix[0].cpu().numpy(), float(parts.value[0]), str(how))
