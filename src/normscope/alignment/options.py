"""Options of the alignment analysis."""

import dataclasses
import enum
import re
from typing import Annotated, Any

from normscope.alignment.published import PUBLISHED
from normscope.alignment.symmetrisation import Heuristic
from normscope.analyses.info import AnalysisConfig, AnalysisInfo, RunSettings
from normscope.analyses.papers import KOBAYASHI_2020
from normscope.config.rules import Expected, FilePath, Options
from normscope.errors import InputError


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
    baselines: Annotated[Any, _BASELINES] = (
        None  # a dict; if it were typed as one, Hydra would demand a + before its keys
    )
    """Alignments of other aligners: NAME: FILE, or NAME: {path: FILE, base: 0, direction: source-target}."""
    aligners: list[str] = dataclasses.field(default_factory=list)
    """Other aligners to run: eflomal, simalign."""
    simalign_model: str = "google-bert/bert-base-multilingual-cased"
    """Model whose embeddings simalign uses."""
    symmetrisation: Annotated[str, Expected(f"one of {', '.join(Heuristic)}", list(Heuristic).__contains__)] = (
        "grow-diag-final"
    )
    """Heuristic that combines the two directions of an aligner in `aligners`: `intersection`, `union`,
    `grow-diag`, `grow-diag-final`, `grow-diag-and` or `grow-diag-final-and`."""
    reverse: FilePath | None = None
    """Run directory of a model in the opposite direction on the same pairs, for symmetrisation."""
    sentences: list[int] = dataclasses.field(default_factory=list)
    """Rows of the corpus, from 1, whose maps are drawn; by default, the first three."""

    def validate(self, run: RunSettings) -> None:
        """Check that the run has cross-attention to align by and links to compare with.

        Raises:
            InputError: If the stack is not cross-attention, gold links are missing, or a baseline has an invalid name.
        """
        if not self.enabled:
            return
        if run.model.stack not in (None, "cross"):
            raise InputError(
                f"model.stack={run.model.stack}: analysis=alignment needs cross-attention; leave model.stack out"
            )
        if self.gold.path is None and run.dataset.kind != "toy":
            raise InputError(
                "analysis.alignment.gold.path is not set: expected a file of word alignments, with lines such as `1-2 3p4`, "
                "for dataset=parallel"
            )
        for name in self.baselines or {}:
            if not re.fullmatch(r"[\w.+-]+", str(name)) or name in ("attn_w", "attn_n"):
                raise InputError(
                    f"analysis.alignment.baselines.{name}: expected a name of letters, digits, _, ., + and -"
                )


ALIGNMENT = AnalysisInfo(
    name="alignment",
    title="Word alignment",
    question="Which source word does each translated word come from?",
    options=AlignmentOptions,
    implementation="normscope.alignment.analysis:AlignmentAnalysis",
    papers=(KOBAYASHI_2020,),
    supports_words=True,
    supports_cross_attention=True,
    requires_cross_attention=True,
    published=PUBLISHED,
)
