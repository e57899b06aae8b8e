"""The similarity of two texts, split into pairs of tokens."""

import dataclasses
import html
from typing import Any

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
from normscope.api.targets import chosen_embedder
from normscope.attribution.methods import check_supported
from normscope.attribution.similarities import EncodedTexts, similarity_parts
from normscope.errors import InputError
from normscope.maths.choices import SimilarityFunction, ValueBias
from normscope.maths.embedder import Embedder
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import Text, describe_type
from normscope.rounding import number
from normscope.running.token_maps import texts_of
from normscope.statistics.tidy import tidy

_SHOWN = 5


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
    """What the embeddings are compared by: their `cosine`, or their product (`dot`)."""

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
        title = f"{self._what} {number(self.value)}"
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
                    f"What each pair of tokens adds to the {self._what} of two texts (rows: the first text, columns: the "
                    f"second). All cells add up to {number(self.value)}: orange raises it, purple lowers it."
                ),
                # Biases say nothing about words, and would often make all other cells look pale.
                largest=float(np.abs(self.matrix[:-1, :-1]).max()) or 1.0,
            )
        )

    def explorer(self) -> PairExplorer:
        """Both texts and the map as an interactive page, which notebooks display."""
        pair = TextPair(f"{self._what} {number(self.value)}", self.tokens_a, self.tokens_b, self.matrix)
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
    def _what(self) -> str:
        return {SimilarityFunction.cosine: "cosine similarity", SimilarityFunction.dot: "dot product"}[
            SimilarityFunction(self.function)
        ]

    @property
    def _summary(self) -> str:
        table = self.table
        best = table[(table["a"] < len(self.tokens_a)) & (table["b"] < len(self.tokens_b))].head(_SHOWN)
        words = float(self.matrix[:-1, :-1].sum())
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
    prompts: str | tuple[str, str] | None = None,
) -> Similarity:
    """Split the similarity of two texts into what each pair of tokens adds to it.

    If P_k is what token k contributes to the embedding e of its text (DecompX's vectors, pooled), the cosine is exactly
    Σ_kl ⟨P_k, P_l⟩ / (‖e_a‖ ‖e_b‖), and the product of the embeddings, for models that compare by it, Σ_kl ⟨P_k, P_l⟩. Dense
    layers, norms and truncation after pooling are included; slopes of activations, deviations and lengths are held fixed.

    Args:
        model: A sentence encoder; see `load` and `wrap`.
        text_a: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer.
        text_b: The other text, in the same forms.
        pooling: `mean`, `cls`, `last`, `mean_sqrt`, `weighted_mean` or `max`, for the cosine of vectors pooled in this way. By
            default, embeddings are made and compared as the model's sentence-transformers files say.
        bias: Where the value biases go; see `attribute`.
        prompts: What to put before both texts, or a pair for each: names of the model's prompts, or texts. By default, the
            model's default prompt, if its files name one; `""` for none.

    Raises:
        InputError: If an argument is invalid, the model's embeddings cannot be split into parts, or a text is too long.
    """
    check_supported(model.layout)
    rule, embedder = chosen("bias", bias, ValueBias), chosen_embedder(model, pooling)
    before = prompts if isinstance(prompts, tuple) else (prompts, prompts)
    prompted = [_prompted(model, embedder, text, prompt) for text, prompt in zip((text_a, text_b), before, strict=True)]
    batches = [single_text(model, text, "similarity") for text, _ in prompted]
    _ = model.layers_verification
    encoded = [EncodedTexts(batch.model_inputs(), length) for batch, (_, length) in zip(batches, prompted, strict=True)]
    parts = similarity_parts(model.model, model.layout, *encoded, embedder=embedder, bias=rule)
    tokens_a, tokens_b = (texts_of(model, batch) for batch in batches)
    matrix, value = parts.matrix[0].cpu().numpy(), float(parts.value[0])
    return Similarity(tokens_a, tokens_b, matrix, value, str(embedder.pooling), str(embedder.function))


def _prompted(
    model: LoadedModel, embedder: Embedder, text: Text | BatchEncoding, prompt: str | None
) -> tuple[Any, int]:
    """A text with its prompt, and the number of tokens at its start that belong to the prompt.

    Args:
        prompt: The name of one of the model's prompts, or a text; None for the model's default.
    """
    asked = embedder.default_prompt if prompt is None else prompt
    put = embedder.prompts.get(asked, "" if prompt is None else asked) if asked else ""
    if not put:
        return text, 0
    if not isinstance(text, str):
        if prompt is None:
            return text, 0
        raise InputError(f"prompts: expected none before {describe_type(text)}; put the prompt into the text")
    ids = model.tokenizer(put)["input_ids"]
    closed = bool(ids) and ids[-1] in model.tokenizer.all_special_ids
    return put + text, len(ids) - closed
