"""How much of each word of a translation comes from the source, and how much from the target so far."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from normscope.analyses.attribution.options import AttributionOptions
from normscope.attribution.methods import MapMethod
from normscope.attribution.translations import attribute_words, translation_maps
from normscope.data.annotation import spaced_words
from normscope.data.batching import Batch
from normscope.data.examples import Example
from normscope.data.words import NO_WORD
from normscope.errors import InputError
from normscope.models.interventions import InterventionRunner
from normscope.statistics.intervals import mean_interval

TRANSLATION_METHODS = (MapMethod.ALTI, MapMethod.DECOMPX)
"""The methods that attribute translations."""

_DRAWN, _DRAWN_WORDS = 2, 40
"""Number of translations whose shares are drawn: the shortest that have at most so many words on both sides."""


class WordShares(NamedTuple):
    """Where the words of one translation come from."""

    target: Int[np.ndarray, " row"]
    """The words of the target that have a row, counted from 0."""
    source: Int[np.ndarray, " column"]
    """The words of the source that have tokens, counted from 0."""
    read: Int[np.ndarray, " word"]
    """The words of the target that have tokens."""
    shares: Float[np.ndarray, "row share"]
    """How much of each row comes from each word of the source; from the source's special tokens; from each word of the target
    that is read; and from the target's start and special tokens. Rows add up to 1."""

    @property
    def of_source(self) -> Float[np.ndarray, " row"]:
        """How much of each target word comes from the source, with its special tokens."""
        return np.asarray(self.shares[:, : len(self.source) + 1].sum(axis=1))

    @property
    def of_special(self) -> Float[np.ndarray, " row"]:
        """How much of each target word comes from the source's special tokens."""
        return np.asarray(self.shares[:, len(self.source)])


def word_shares(
    scores: Float[np.ndarray, "position token"],
    target_words: Int[np.ndarray, " target"],
    source_words: Int[np.ndarray, " source"],
) -> WordShares:
    """The shares of words, from the scores of tokens.

    A word's scores are the means over its tokens, and are added up over the tokens of the words that they come from. Shares are
    the sizes of these scores, divided by their sum. Words whose scores are all 0 have no row.

    Args:
        scores: What the output at each position of the target, which predicts the next token, takes from the source's tokens,
            then from those of the target.
        target_words: The word of the token predicted at each position; NO_WORD for special tokens.
        source_words: The word of each token of the source.
    """
    read = np.concatenate([[NO_WORD], target_words[:-1]])  # a token is read one position after it was predicted
    predicted = target_words[: len(scores)]
    rows, source = (np.unique(words[words != NO_WORD]) for words in (predicted, source_words))
    members = _members(predicted, rows)
    means = members @ scores / members.sum(axis=1, keepdims=True)
    of_source, of_target = means[:, : len(source_words)], means[:, len(source_words) :]
    columns = [
        of_source @ _members(source_words, np.append(source, NO_WORD)).T,
        of_target @ _members(read, np.append(rows, NO_WORD)).T,
    ]
    sizes = np.abs(np.hstack(columns))
    total = sizes.sum(axis=1)
    defined = total > 0
    return WordShares(rows[defined], source, rows, sizes[defined] / total[defined, None])


def _members(words: Int[np.ndarray, " token"], numbers: Int[np.ndarray, " word"]) -> Float[np.ndarray, "word token"]:
    return (words == numbers[:, None]).astype(float)


class DrawnTranslation(NamedTuple):
    """The shares of a short translation, by method."""

    source: Sequence[str]
    target: Sequence[str]
    shares: dict[str, WordShares]


class TranslationSample:
    """Attributes sampled translations, one at a time.

    Args:
        options: The options of the analysis.

    Raises:
        InputError: If the checkpoint has no head that predicts a translation.
    """

    def __init__(self, runner: InterventionRunner, options: AttributionOptions) -> None:
        self._runner, self._options = runner, options
        self.methods = translation_methods(options)
        self._head = runner.model.translator if MapMethod.DECOMPX in self.methods else None
        if self._head is None and MapMethod.DECOMPX in self.methods:
            raise InputError(
                f"analysis.attribution.methods: decompx attributes what a translation model predicts, but "
                f"{runner.model.name} has no weights of a translation head; set analysis.attribution.methods=[alti]"
            )
        if MapMethod.ALTI in self.methods:
            _ = runner.model.stacks_verification
        self._sentences: list[dict[str, object]] = []
        self._target: list[dict[str, object]] = []
        self.drawn: list[DrawnTranslation] = []
        self.without_rows = 0
        """Number of pairs without a word that can be attributed."""

    def run(self, pairs: Sequence[Example]) -> None:
        """Attribute pairs that have row numbers."""
        for pair in self._runner.progress(pairs, len(pairs), "attribution of translations"):
            batch = self._runner.translation(pair, spaced_words)
            found = {} if batch is None else self._shares(batch)
            found = {method: shares for method, shares in found.items() if len(shares.target) and len(shares.source)}
            self.without_rows += not found
            for method, shares in found.items():
                self._add(method, pair, shares)
            if found:
                self._offer(pair, found)

    def _shares(self, batch: Batch) -> dict[str, WordShares]:
        assert batch.words is not None
        assert batch.source is not None
        assert batch.source.words is not None
        words, source = (side[0].cpu().numpy() for side in (batch.words, batch.source.words))
        inputs = batch.model_inputs()
        found = {}
        for method in self.methods:
            if method is MapMethod.ALTI:
                # Without the last row, whose token is not read: it ends the sentence.
                scores = translation_maps(self._runner.model.model, inputs).total[0, :-1]
            else:
                assert self._head is not None
                scores = attribute_words(self._head, inputs)
            found[str(method)] = word_shares(scores.cpu().numpy(), words, source)
        return found

    def _add(self, method: str, pair: Example, shares: WordShares) -> None:
        of_pair, of_source = {"method": method, "row": pair.row}, shares.of_source
        self._sentences.append(
            of_pair
            | {
                "source": of_source.mean(),
                "target": 1 - of_source.mean(),
                "special": shares.of_special.mean(),
                "target_words": len(of_source),
                "source_words": len(shares.source),
            }
        )
        texts = _words(pair.text_pair or "")
        self._target += [
            of_pair | {"word": number, "text": texts[number], "source": value}
            for number, value in zip(shares.target.tolist(), of_source.tolist(), strict=True)
        ]

    def _offer(self, pair: Example, shares: dict[str, WordShares]) -> None:
        drawn = DrawnTranslation(_words(pair.text), _words(pair.text_pair or ""), shares)
        if len(drawn.source) + len(drawn.target) <= _DRAWN_WORDS:
            self.drawn = sorted([*self.drawn, drawn], key=lambda each: len(each.source) + len(each.target))[:_DRAWN]

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of the analysis.

        Raises:
            InputError: If no pair could be attributed.
        """
        if not self._sentences:
            raise InputError(
                "analysis=attribution: no sampled translation has words on both sides that can be attributed"
            )
        target = pd.DataFrame(self._target)
        return {
            "translations": pd.DataFrame(self._sentences),
            "translation_positions": _by_position(target),
            "target_words": target,
        }


def _words(text: str) -> list[str]:
    return [text[start:end] for start, end in spaced_words(text)]


def translation_methods(options: AttributionOptions) -> list[MapMethod]:
    """The wanted methods, or all that attribute translations.

    Raises:
        InputError: If a method does not.
    """
    if options.methods is None:
        return list(TRANSLATION_METHODS)
    names = list(dict.fromkeys(map(str, options.methods)))
    wrong = [name for name in names if name not in TRANSLATION_METHODS]
    if wrong:
        raise InputError(
            f"analysis.attribution.methods: {wrong[0]} is not defined for translations (model.stack=cross); expected "
            f"{' or '.join(TRANSLATION_METHODS)}, or set model.stack=encoder"
        )
    return [MapMethod(name) for name in names]


def _by_position(target: pd.DataFrame) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for (method, word), group in target.groupby(["method", "word"]):
        interval = mean_interval(group["source"].to_numpy())
        rows.append(
            {
                "method": str(method),
                "word": int(str(word)),
                "source": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "count": len(group),
            }
        )
    return pd.DataFrame(rows)
