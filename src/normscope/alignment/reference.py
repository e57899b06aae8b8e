"""A parallel corpus with reference alignments: those of people and those of other aligners."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.alignment.links import LinkFile, punctuated_words, words_of
from normscope.analyses.declarations.alignment import AlignmentOptions, LinkFileOptions, WordsAre
from normscope.data.annotation import spaced_words
from normscope.data.examples import Example, Link, Links
from normscope.data.resources import Resource, ResourceContext, State, packed, unpacked
from normscope.data.token_sequence import Segmenter
from normscope.errors import InputError

SEGMENTERS: Mapping[WordsAre, Segmenter] = {WordsAre.spaced: spaced_words, WordsAre.punctuated: punctuated_words}


@dataclasses.dataclass(frozen=True)
class SentencePair:
    """A sentence and its translation, as words, with the human links between them."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: Links


@dataclasses.dataclass(frozen=True)
class Reference:
    """What alignments are compared with."""

    pairs: Mapping[int, SentencePair]
    """By row of the corpus, from 1."""
    baselines: Mapping[str, Mapping[int, frozenset[Link]]]
    """Alignments of other aligners, by name and row."""

    def packed(self) -> dict[str, Any]:
        """The reference in JSON's types."""
        return {
            "pairs": [
                [row, pair.source, pair.target, sorted(pair.links.sure), sorted(pair.links.possible)]
                for row, pair in self.pairs.items()
            ],
            "baselines": {name: _packed(links) for name, links in self.baselines.items()},
        }

    @classmethod
    def unpacked(cls, content: Mapping[str, Any]) -> "Reference":
        """The reference that `packed` has written."""
        return cls(
            {
                row: SentencePair(tuple(source), tuple(target), Links(_links(sure), _links(possible)))
                for row, source, target, sure, possible in content["pairs"]
            },
            {name: _unpacked(links) for name, links in content["baselines"].items()},
        )


class ReferenceResource(Resource[Reference]):
    """Reads a whole parallel corpus and its alignments.

    Args:
        options: Where gold links and other aligners' links come from.
    """

    reads_corpus = True
    content = "the alignments"
    ignores_limit = True  # a file of links has a line for every row

    def __init__(self, options: AlignmentOptions) -> None:
        self._options = options

    def start(self, _context: ResourceContext) -> None:
        """Prepare for the first pairs."""
        self._examples: list[Example | str] = []
        self._reference: Reference | None = None

    def read(self, examples: Sequence[Example | str]) -> None:
        """Keep the next sentence pairs."""
        self._examples += examples

    def finish(self) -> Reference:
        """The reference.

        Raises:
            InputError: If texts and links do not match; the message names the file, line and link.
        """
        if self._reference is None:
            self._reference = reference(self._examples, self._options)
        return self._reference

    def state(self) -> State:
        """The finished reference."""
        return packed(self.finish().packed())

    def add(self, state: State) -> None:
        """Take the reference that was made before."""
        self._reference = Reference.unpacked(unpacked(state))

    def digest(self, value: Reference) -> str:
        """A hash of the words and links."""
        content = [
            (row, pair.source, pair.target, sorted(pair.links.sure), sorted(pair.links.possible))
            for row, pair in value.pairs.items()
        ]
        return hashlib.sha256(repr(content).encode()).hexdigest()


def reference(examples: Sequence[Example | str], options: AlignmentOptions) -> Reference:
    """The pairs of a parallel corpus and their alignments.

    Raises:
        InputError: If texts and links do not match; the message names the file, line and link.
    """
    segmenter = SEGMENTERS[options.words]
    words = [_words(example, segmenter) for example in examples]
    lengths = [(len(source), len(target)) for source, target in words]
    if options.gold.path is None:
        links = [_links_of(example) for example in examples]
    else:
        links = _link_file(options.gold, "analysis.alignment.gold.path").read(lengths)
    pairs = {
        row: SentencePair(*words[row - 1], links[row - 1])
        for row, example in enumerate(examples, start=1)
        if isinstance(example, Example)
    }
    if not any(pair.links.sure for pair in pairs.values()):
        raise InputError(
            f"analysis.alignment.gold.path={options.gold.path}: expected a sure link (1-2); the error rate needs "
            "at least one"
        )
    baselines = {name: _baseline(name, entry, lengths) for name, entry in (options.baselines or {}).items()}
    return Reference(pairs, baselines)


def _packed(alignments: Mapping[int, frozenset[Link]]) -> list[Any]:
    return [[row, sorted(links)] for row, links in alignments.items()]


def _unpacked(alignments: Sequence[Any]) -> dict[int, frozenset[Link]]:
    return {row: _links(links) for row, links in alignments}


def _links(pairs: Sequence[Sequence[int]]) -> frozenset[Link]:
    return frozenset((source, target) for source, target in pairs)


def _words(example: Example | str, segmenter: Segmenter) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(example, str) or example.text_pair is None:
        return (), ()
    return tuple(words_of(example.text, segmenter)), tuple(words_of(example.text_pair, segmenter))


def _links_of(example: Example | str) -> Links:
    if isinstance(example, str):
        return Links(frozenset(), frozenset())
    if example.links is None:
        raise InputError(
            "analysis.alignment.gold.path is not set: expected a file of links, with lines such as `1-2 3p4`"
        )
    return example.links


def _link_file(options: LinkFileOptions, key: str) -> LinkFile:
    assert options.path is not None
    return LinkFile(Path(options.path).expanduser(), key, options.base, options.direction)  # type: ignore[arg-type]


def _baseline(name: str, entry: Any, lengths: Sequence[Link]) -> dict[int, frozenset[Link]]:
    key = f"analysis.alignment.baselines.{name}"
    settings = entry if isinstance(entry, Mapping) else {"path": entry}
    unknown = set(settings) - {"path", "base", "direction"}
    if unknown or not isinstance(settings.get("path"), str):
        raise InputError(f"{key}={entry}: expected a file, or {{path: FILE, base: 0, direction: source-target}}")
    alignments = _link_file(LinkFileOptions(**{str(option): value for option, value in settings.items()}), key).read(
        lengths
    )
    return {row: links.possible for row, links in enumerate(alignments, start=1)}
