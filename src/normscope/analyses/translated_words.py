"""How much of each word of a translation comes from the source, and how much from the target so far.

Two methods attribute translations: ALTI+ (Ferrando et al. 2022, EMNLP) and DecompX with everything held fixed.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from normscope.analyses.base import Requirements
from normscope.analyses.declarations.attribution import DECLARED, OF_TRANSLATIONS, AttributionOptions
from normscope.analyses.finite import require_finite
from normscope.analyses.samples import PAIRS, SampledPairs
from normscope.attribution.methods import MapMethod
from normscope.attribution.translations import attribute_words, translation_maps
from normscope.data.annotation import spaced_words
from normscope.data.batching import Batch
from normscope.data.examples import Example
from normscope.data.words import NO_WORD
from normscope.errors import InputError
from normscope.maths.choices import ValueBias
from normscope.models.load.interventions import InterventionRunner
from normscope.results.figures import Lines
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, roll_up
from normscope.rounding import brief_share, counted
from normscope.statistics.intervals import mean_interval, within_whole

TRANSLATION_METHODS = (MapMethod.ALTI, MapMethod.DECOMPX)
"""The methods that attribute translations."""


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
        self._words: list[dict[str, object]] = []
        self.without_rows = 0
        """Number of pairs without a word that can be attributed."""

    def run(self, pairs: Sequence[Example]) -> None:
        """Attribute pairs that have row numbers."""
        for pair in self._runner.progress(pairs, len(pairs), "attribution of translations"):
            batch = self._runner.translation(pair, spaced_words)
            found = {} if batch is None else self._shares(batch)
            found = {method: shares for method, shares in found.items() if len(shares.target) and len(shares.source)}
            self.without_rows += not found
            texts = [pair.text_pair[start:end] for start, end in spaced_words(pair.text_pair)] if pair.text_pair else []
            for method, shares in found.items():
                numbers = zip(
                    shares.target.tolist(), shares.of_source.tolist(), shares.of_special.tolist(), strict=True
                )
                self._words += [
                    {"method": method, "row": pair.row, "word": number, "text": texts[number]}
                    | {"source": of_source, "special": of_special}
                    for number, of_source, of_special in numbers
                ]

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

    def result(self) -> Result:
        """The table `target_words`, its metrics, a figure and a sentence for each method.

        Raises:
            InputError: If no pair could be attributed.
        """
        if not self._words:
            raise InputError(
                "analysis=attribution: no sampled translation has words on both sides that can be attributed"
            )
        words = pd.DataFrame(self._words)
        require_finite(words["source"].to_numpy(dtype=float), "the shares of the source")
        metrics = roll_up(DECLARED, {"target_words": words}).metrics
        notes = []
        if self.without_rows:
            texts = counted(self.without_rows, "sampled translation has", "sampled translations have")
            notes.append(f"{texts} no words that can be attributed")
        of_methods = by_axes("translation/<method>/source", metrics)
        percent = {OF_TRANSLATIONS[method]: 100 * share for method, share in of_methods.items()}
        return Result(
            tables={"target_words": words},
            metrics=metrics,
            figures={"source_share": _by_position(words)},
            summaries={
                "attribution": Summary(
                    pd.DataFrame({"from the source %": percent}).rename_axis("method"),
                    digits=1,
                    caption="how much of a target word comes from the source, in %; the rest comes from the target so far",
                )
            },
            sentences=sentences_of_translations(metrics),
            notes=notes,
        )


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


def requirements_of_translations(options: AttributionOptions) -> Requirements:
    """A sample of translations, and the head that predicts them.

    Raises:
        InputError: If an option is not defined for translations.
    """
    translation_methods(options)
    unusable = {
        "target": options.target is not None,
        "pooling": options.pooling is not None,
        "erasure": options.erasure is not None,
        "bias": options.bias is not ValueBias.token,
    }
    for key, given in unusable.items():
        if given:
            raise InputError(
                f"analysis.attribution.{key}={getattr(options, key)}: not defined for translations (model.stack=cross), "
                "where words are attributed; leave it out, or set model.stack=encoder"
            )
    pairs = SampledPairs(
        options.sequences,
        options.seed,
        "analysis=attribution with model.stack=cross: expected texts and their translations (dataset=parallel, or "
        "dataset.pair_column)",
    )
    return Requirements(feed_forward=True, translator=True, resources={PAIRS: pairs})


def _by_position(words: pd.DataFrame) -> Lines:
    """The share of the source by the position of a word, with intervals over translations."""
    rows: list[dict[str, object]] = []
    for (method, word), group in words.groupby(["method", "word"]):
        mean, _, high = mean_interval(group["source"].to_numpy())
        ends = within_whole(np.array(mean), np.array(high - mean))
        of_word = {"source": mean, "low": float(ends[0]), "high": float(ends[1])}
        rows.append({"method": method, "word": word} | {name: 100 * value for name, value in of_word.items()})
    return Lines(
        table=pd.DataFrame(rows),
        x="word",
        y="source",
        series="method",
        series_titles=OF_TRANSLATIONS,
        y_label="share from the source (%)",
        x_label="target word",
        band=("low", "high"),
        caption=(
            "Share of each target word that comes from the source, by position; the rest comes from the target so far. "
            f"Means and 95% intervals over {counted(words['row'].nunique(), 'translation')}, fewer for later words. "
            "Where the share falls, the model continues from its own words rather than from the source."
        ),
    )


def sentences_of_translations(metrics: Mapping[str, float]) -> list[Sentence]:
    """How much of a target word comes from the source, according to each method.

    Args:
        metrics: Numbers by name.
    """
    sentences = []
    for method, share in by_axes("translation/<method>/source", metrics).items():
        special = metrics[f"translation/{method}/special"]
        text = (
            f"According to {OF_TRANSLATIONS[method]}, {brief_share(share)} of a target word comes from the source on average "
            f"({brief_share(special)} from its special tokens), and the rest from the target so far."
        )
        sentences.append(Sentence(text, figure="source_share", table="target_words"))
    return sentences
