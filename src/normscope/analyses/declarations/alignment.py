"""Word alignment: which source word does each translated word come from? Options, and what the analysis returns."""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from omegaconf import II
from pydantic import Field

from normscope.analyses.info import AnalysisConfig, AnalysisInfo, RunSettings
from normscope.analyses.papers import DING_2019, KOBAYASHI_2020
from normscope.config.rules import OWN, Count, Expected, FilePath, Options, Seed, Share
from normscope.errors import InputError
from normscope.results.axes import HEAD, LAYER, STREAM
from normscope.results.declare import Axis, Column, Declared, Rollup, Table, Where, at_largest, at_smallest, unitless


class Setting(enum.StrEnum):
    """Which row of a decoder's attention belongs to a target token."""

    awo = "awo"
    """Alignment with output: the row in which the token is predicted."""
    awi = "awi"
    """Alignment with input: the row in which the token is read."""


class WordsAre(enum.StrEnum):
    """How texts are split into the words that links refer to."""

    spaced = "spaced"
    punctuated = "punctuated"


@dataclasses.dataclass
class LinkFileOptions(Options):
    """A file of word alignments in Pharaoh format."""

    path: FilePath | None = None
    """The file, one line per sentence pair."""
    base: int = 0
    """Number of the first word of a sentence: 0 or 1."""
    direction: str = "source-target"
    """Which side a link names first: `source-target` or `target-source`."""


_BASELINES = Expected("{NAME: FILE, ...}, or null", lambda given: isinstance(given, dict | None))


@dataclasses.dataclass
class AlignmentOptions(AnalysisConfig):
    """Word alignment from cross-attention (Kobayashi et al. 2020)."""

    gold: LinkFileOptions = dataclasses.field(default_factory=LinkFileOptions)
    """Manual alignments: `1-2` is a sure link, `3p4` a possible one."""
    words: WordsAre = WordsAre.spaced
    """What counts as a word: text between spaces (`spaced`), or runs of letters and single punctuation marks (`punctuated`)."""
    baselines: Annotated[Any, _BASELINES, OWN] = (
        None  # a dict; if it were typed as one, Hydra would demand a + before its keys
    )
    """Alignments of other aligners: NAME: FILE, or NAME: {path: FILE, base: 0, direction: source-target}."""
    sentences: list[int] = dataclasses.field(default_factory=list)
    """Rows of the corpus, from 1, whose maps are drawn; by default, the first three. Of recordings, one is drawn, by
    default the first."""
    setting: Setting | None = None
    """Whether maps are drawn of alignment with output (`awo`) or with input (`awi`); by default, the one in which vectors align
    better in their best layer."""
    smoothgrad: Count | None = None
    """Align by gradients as well, with so many noisy copies of each source (SmoothGrad as in Ding et al. 2019, who take 30). It
    takes a pass back through the model for each target word: minutes for 500 pairs on a GPU, hours without one."""
    noise: Share = 0.15
    """Standard deviation of this noise, as a share of the range of the values of a sentence's embeddings."""
    seed: Seed = II("seed")
    """Seed of this noise."""
    tolerance: Annotated[float, Field(ge=0)] = 0.1
    """For recordings: by how many seconds the frame with the largest value may lie outside its word."""

    def validate(self, run: RunSettings) -> None:
        """Check that the run has cross-attention to align by and links to compare with.

        Raises:
            InputError: If the stack is not cross-attention, gold links are missing, or a baseline has an invalid name.
        """
        if run.model.stack not in (None, "cross"):
            raise InputError(
                f"model.stack={run.model.stack}: analysis=alignment needs cross-attention; leave model.stack out"
            )
        if run.dataset.kind == "audio":
            self._check_sounds()
        elif self.gold.path is None and run.dataset.kind != "toy":
            raise InputError(
                "analysis.alignment.gold.path is not set: expected a file of word alignments, with lines such as `1-2 3p4`, "
                "for dataset=parallel"
            )
        for name in self.baselines or {}:
            if not re.fullmatch(r"[\w.+-]+", str(name)) or name in METHOD.titles:
                raise InputError(
                    f"analysis.alignment.baselines.{name}: expected a name of letters, digits, _, ., + and -, and none of "
                    f"{', '.join(METHOD.titles)}"
                )

    def _check_sounds(self) -> None:
        """Refuse what is for translations."""
        of_links = {"gold.path": self.gold.path, "baselines": self.baselines, "smoothgrad": self.smoothgrad}
        for key, value in of_links.items():
            if value:
                raise InputError(
                    f"analysis.alignment.{key} applies only to translations, not to dataset=audio; leave it out"
                )


SMOOTHGRAD = "smoothgrad"
METHOD = Axis(
    "method",
    "`attn_w`: weights; `attn_n`: vector norms.",
    titles={"attn_w": "weights", "attn_n": "vectors", SMOOTHGRAD: "SmoothGrad"},
)
SETTING = Axis(
    "setting",
    "`awo`: alignment with output; `awi`: alignment with input.",
    titles={"awo": "with output", "awi": "with input"},
)
_ERROR_RATE = "alignment error rate"
_RATES: Mapping[str, Column | str] = {
    "aer": Column("Alignment error rate, in [0, 1].", label=f"{_ERROR_RATE} (%)"),
    "precision": Column("Share of the links found that are possible links in the reference.", label="precision (%)"),
    "recall": Column("Share of the reference's sure links that are found.", label="recall (%)"),
}
_SENTENCES = Column("Number of sentence pairs.", kind="whole")
_ROW = Axis("row", "Row of the corpus, from 1.", noun="sentence pair", kind="whole")
_HEAD = HEAD.but("Head, from 1; 0 stands for the layer as a whole.")


def _of_model(layers: Any) -> Any:
    return layers > 0


def _single(heads: Any) -> Any:
    return heads > 0


def _norm_and_rate(rows: Any, _column: str) -> Any:
    if rows["aer"].nunique() < 2:
        return float("nan")
    return rows["mean_norm"].rank().corr(rows["aer"].rank())


_LAYERS: Where = {"layer": _of_model, "head": 0}
_HEADS: Where = {"layer": _of_model, "head": _single}
_LAYERS_BY_NORM: Where = {"method": "attn_n", **_LAYERS}
_HEADS_BY_NORM: Where = {"method": "attn_n", **_HEADS}
_NAME = "<method>/<setting>"
_LARGEST = "attn_n/<setting>/largest_norm"
_FINDING = {
    "right": "words found by the best head (%)",
    "layer": "layer of the head that finds most words",
    "head": "head that finds most words",
}
_WORDS = {"aer": _ERROR_RATE, "precision": "precision", "recall": "recall"}


def _picked(
    name: str, what: str, by: str, how: Callable[[Any, str], Any], where: Where, rates: Sequence[str] = ("aer",)
) -> tuple[Rollup, ...]:
    """Which layer or head has the lowest error rate or the largest norm, and its rates.

    Args:
        name: The prefix of the names.
        what: `layer` or `head`.
        by: The criterion, in words.
        how: Finds the row of that layer or head.
        where: The rows of layers, or of heads.
        rates: The columns of rates to report.
    """
    picked = f"{what} with the {by}"
    labels = {"layer": picked} if what == "layer" else {"layer": f"layer of the {picked}", "head": picked}
    labels |= {rate: f"{_WORDS[rate]} of the {picked} (%)" for rate in rates}
    return tuple(
        Rollup(f"{name}/{column}", f"The {unitless(label)}.", of=f"aer.{column}", how=how, where=where, label=label)
        for column, label in labels.items()
    )


DECLARED = Declared(
    tables={
        "aer": Table(
            rows=(
                LAYER.but("Layer, from 1; 0 for other aligners."),
                _HEAD,
                METHOD.but(f"{METHOD.meaning} Otherwise `smoothgrad`, or the name of another aligner."),
                SETTING.but(f"{SETTING.meaning} `none` for other aligners."),
            ),
            per="layer, head, method and setting, and one per other aligner",
            values={
                **_RATES,
                "sentences": _SENTENCES,
                "mean_norm": Column(
                    "Mean α (`attn_w`) or norm (`attn_n`) over pairs of tokens; missing for other aligners.",
                    unit=f"{STREAM} for `attn_n`",
                ),
            },
        ),
        "links": Table(
            rows=(
                _ROW,
                LAYER.but("Layer, from 1; 0 for SmoothGrad, which has none."),
                METHOD.but(f"{METHOD.meaning} Also `smoothgrad`."),
                SETTING.but(f"{SETTING.meaning} `none` for SmoothGrad."),
            ),
            values={"links": Column("The links in Pharaoh format, `source-target`, from 0.", kind="text")},
        ),
        "maps": Table(
            rows=(
                _ROW,
                LAYER,
                _HEAD,
                METHOD,
                SETTING,
                Axis("target", "Number of the target word, from 0.", noun="target word", kind="whole"),
                Axis(
                    "source",
                    "Number of the source word, from 0; the last is the end of the sentence.",
                    noun="source word",
                    kind="whole",
                ),
            ),
            values={
                "target_word": Column("The target word.", kind="text"),
                "source_word": Column("The source word, or `</s>`.", kind="text"),
                "value": Column(
                    "α or norm: the sum over the source word's tokens, averaged over the target word's tokens.",
                    unit=f"{STREAM} for `attn_n`",
                ),
                "gold": Column("Whether the reference has the link: `sure`, `possible` or `none`.", kind="text"),
                "link": Column("Whether the target word is aligned with the source word by this map.", kind="truth"),
            },
        ),
        "heads": Table(
            rows=(LAYER, HEAD, METHOD, SETTING),
            per="layer, head, method and setting, for sounds",
            values={
                "rank": Column("Rank of the head by `right`, from 1; ties share the smallest rank.", kind="whole"),
                "right": Column(
                    "Share of words with the frame of largest value inside the word, give or take the tolerance.",
                    label="words found (%)",
                ),
                "words": Column("Number of words.", kind="whole"),
                "published": Column(
                    "Whether the model's generation config names the head (`alignment_heads`).", kind="truth"
                ),
            },
        ),
        "times": Table(
            rows=(_ROW, Axis("word", "Number of the word, from 1.", kind="whole"), METHOD, SETTING),
            per="word, method and setting, for sounds",
            values={
                "text": Column("The word, as its tokens spell it.", kind="text"),
                "start": Column("When the word starts.", unit="second"),
                "end": Column("When the word ends.", unit="second"),
                "layer": Column("Layer of the head that finds most words, from 1.", kind="whole"),
                "head": Column("That head, counted from 1.", kind="whole"),
                "seconds": Column(
                    "The middle of the frame with the head's largest value; missing without one.", unit="second"
                ),
                "right": Column("Whether `seconds` lies inside the word, give or take the tolerance.", kind="truth"),
            },
        ),
    },
    metrics=(
        Rollup(
            f"{_NAME}/layer_mean/aer",
            "Mean error rate over layers.",
            of="aer.aer",
            where=_LAYERS,
            label=f"mean {_ERROR_RATE} over layers (%)",
        ),
        *_picked(f"{_NAME}/best_layer", "layer", "lowest error rate", at_smallest("aer"), _LAYERS, (*_RATES,)),
        *_picked(f"{_NAME}/best_head", "head", "lowest error rate", at_smallest("aer"), _HEADS),
        *_picked(f"{_LARGEST}_layer", "layer", "largest mean norm", at_largest("mean_norm"), _LAYERS_BY_NORM),
        *_picked(f"{_LARGEST}_head", "head", "largest mean norm", at_largest("mean_norm"), _HEADS_BY_NORM),
        Rollup(
            "attn_n/<setting>/heads/spearman_norm_aer",
            "Spearman's ρ between heads' mean norms and error rates; negative if heads with large norms align well.",
            of="aer.aer",
            how=_norm_and_rate,
            where=_HEADS_BY_NORM,
            label=f"Spearman’s ρ of heads’ mean norms and {_ERROR_RATE}s",
        ),
        *(
            Rollup(f"<method>/{rate}", f"{meaning} of another aligner.", of=f"aer.{rate}", where={"layer": 0})
            for rate, meaning in (("aer", "Error rate"), ("precision", "Precision"), ("recall", "Recall"))
        ),
        *(
            Rollup(f"{_NAME}/found/{name}", f"The {label}.", of=f"heads.{name}", how=at_largest("right"), label=label)
            for name, label in _FINDING.items()
        ),
        *(
            Rollup(
                f"{_NAME}/found/{which}",
                f"Mean share of words that {which} heads find.",
                of="heads.right",
                where={"published": published},
                label=f"words found by {which} heads (%)",
            )
            for which, published in (("published", True), ("other", False))
        ),
    ),
    curves=(Rollup(f"{_NAME}/aer", "Alignment error rate of a layer as a whole.", of="aer.aer", where=_LAYERS),),
)

ALIGNMENT = AnalysisInfo(
    name="alignment",
    title="Word alignment",
    question="Which source word, or which part of a sound, does each word come from?",
    options=AlignmentOptions,
    implementation="normscope.alignment.analysis:AlignmentAnalysis",
    papers=(KOBAYASHI_2020, DING_2019),
    supports_words=True,
    supports_cross_attention=True,
    requires_cross_attention=True,
    declared=DECLARED,
)
