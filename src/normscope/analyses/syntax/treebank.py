"""What the syntax analysis must know of a treebank before the first batch."""

import dataclasses
import hashlib
from collections.abc import Sequence

from normscope.analyses.syntax.options import SyntaxOptions
from normscope.data.examples import ROOT, Annotation, Example
from normscope.data.resources import Resource, ResourceContext, State, packed, unpacked
from normscope.errors import InputError

ALL = "all"
"""The union of the relations but `root` and, by default, PUNCTUATION."""

PUNCTUATION = "punct"
"""The relation of punctuation."""

# Counts are kept for every relation, head and layer.
_MOST_RELATIONS = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Treebank:
    """The relations of a treebank."""

    relations: tuple[str, ...]
    """ALL, then the others in alphabetical order; the relation of the root is left out."""
    without_tree: int = 0
    """Number of sentences without a tree."""


def half_of(row: int) -> int:
    """0 for odd rows of the corpus, 1 for even ones."""
    return (row - 1) % 2


def relation_of(label: str, *, subtypes: bool) -> str:
    """A relation, without its subtype unless it is wanted: `nsubj:pass` is `nsubj`."""
    return label if subtypes else label.partition(":")[0]


class TreebankResource(Resource[Treebank]):
    """Reads the relations of a treebank, in one pass that keeps nothing else.

    Args:
        options: Whether relations keep their subtypes.
    """

    reads_corpus = True
    divisible = True
    content = "the relations"

    def __init__(self, options: SyntaxOptions) -> None:
        self._options = options

    def start(self, context: ResourceContext) -> None:
        """Prepare for the first sentences."""
        self._relations: set[str] = set()
        self._trees = self._others = 0
        self._path, self._conllu = context.dataset.path, context.dataset.kind == "conllu"

    def read(self, examples: Sequence[Example | str]) -> None:
        """Collect the relations of the next sentences."""
        for example in examples:
            if isinstance(example, str):
                continue
            if not _has_tree(example):
                self._others += 1
                continue
            annotation = example.annotation
            assert annotation is not None
            self._trees += 1
            self._relations |= _relations(annotation, subtypes=self._options.subtypes)

    def state(self) -> State:
        """The numbers of sentences with and without a tree, and the relations so far."""
        return packed([self._trees, self._others, sorted(self._relations)])

    def add(self, state: State) -> None:
        """Add those of another part of the treebank."""
        trees, others, relations = unpacked(state)
        self._trees += trees
        self._others += others
        self._relations |= set(relations)

    def finish(self) -> Treebank:
        """The treebank.

        Raises:
            InputError: If it has no tree, no arc between words, too many relations, or one named `all`.
        """
        if not self._trees:
            if self._conllu:
                raise InputError(
                    f"dataset.path={self._path}: analysis=syntax needs heads (column 7), but no sentence has any"
                )
            raise InputError(
                "analysis=syntax needs sentences with heads and relations; set dataset=conllu dataset.path=FILE.conllu"
            )
        if not self._relations:
            raise InputError(
                f"dataset.path={self._path}: analysis=syntax needs heads other than 0, but no word has one"
            )
        if ALL in self._relations:
            raise InputError(f"dataset.path={self._path}: expected no relation named {ALL!r}, the name of their union")
        if len(self._relations) > _MOST_RELATIONS:
            raise InputError(
                f"analysis.syntax.subtypes={self._options.subtypes}: expected at most {_MOST_RELATIONS} relations, the "
                f"treebank has {len(self._relations)}"
            )
        return Treebank((ALL, *sorted(self._relations)), self._others)

    def digest(self, value: Treebank) -> str:
        """A hash of the relations."""
        return hashlib.sha256(repr(value.relations).encode()).hexdigest()


def _has_tree(example: Example) -> bool:
    annotation = example.annotation
    return annotation is not None and annotation.heads is not None and "deprel" in annotation.columns


def _relations(annotation: Annotation, *, subtypes: bool) -> set[str]:
    assert annotation.heads is not None
    return {
        relation_of(label, subtypes=subtypes)
        for label, head in zip(annotation.columns["deprel"], annotation.heads, strict=True)
        if head != ROOT
    }
