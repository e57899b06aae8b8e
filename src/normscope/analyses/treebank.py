"""Dependency trees: the relations of a treebank, and the arcs of a batch in terms of what its tokens can tell apart."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from normscope.analyses.declarations.syntax import SyntaxOptions
from normscope.data.batching import Batch
from normscope.data.examples import ROOT, Annotation, Example
from normscope.data.resources import Resource, ResourceContext, State, packed, unpacked
from normscope.data.token_sequence import AnnotatedSentence
from normscope.data.words import NO_WORD
from normscope.errors import InputError
from normscope.maths.partition import Partition
from normscope.maths.tensors import to_device

ALL = "all"
"""The union of the relations but `root` and, by default, PUNCTUATION."""

PUNCTUATION = "punct"
"""The relation of punctuation."""

INSIDE, MISSING = range(2)
"""Why an arc is dropped: inside a unit of words that share their tokens; at a word without a token."""

_MOST_RELATIONS = 200
"""Counts are kept for every relation, head and layer."""


@dataclasses.dataclass(frozen=True, eq=False)
class Treebank:
    """The relations of a treebank."""

    relations: tuple[str, ...]
    """ALL, then the others in alphabetical order; the relation of the root is left out."""
    without_tree: int = 0
    """Number of sentences without a tree."""


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


@dataclasses.dataclass(frozen=True, eq=False)
class Arcs:
    """The arcs of a batch but those of roots. Words that share their tokens are one unit.

    Units of a sentence count from 0, in the order of its words. Special tokens are units as well, after the longest sentence.
    """

    targets: Partition
    """The tokens of the units that are words."""
    sources: Partition
    """The tokens of all units."""
    halves: Int[Tensor, " batch"]
    """The half of the corpus that each sentence belongs to: 0 for odd rows, 1 for even ones."""
    sentence: Int[Tensor, " arc"]
    dependent: Int[Tensor, " arc"]
    """Unit of the dependent."""
    head: Int[Tensor, " arc"]
    relation: Int[Tensor, " arc"]
    """Index among the relations."""
    offset: Int[Tensor, " arc"]
    """How many words the head comes after the dependent."""
    counted: Bool[Tensor, " arc"]
    """Whether the arc counts in `all`."""
    dropped: Int[Tensor, " reason"]
    """Number of arcs that were dropped, by reason."""

    @property
    def special(self) -> Bool[Tensor, "batch unit"]:
        """Which units are special tokens."""
        special = self.sources.exists.clone()
        special[:, : self.targets.count] = False
        return special


def arcs_of(batch: Batch, relations: Mapping[str, int], *, punctuation: bool, subtypes: bool) -> Arcs:
    """The arcs of a batch of annotated sentences.

    Args:
        batch: Its sequences have the words of their tokens; those without heads have no arc.
        relations: The index of every relation.
        punctuation: Whether arcs of punctuation count like others.
        subtypes: Whether relations keep their subtypes.
    """
    assert batch.host.words is not None
    of_token = batch.host.words.numpy()
    lengths = batch.lengths.tolist()
    numbers = [_unit_numbers(of_token[row, :length]) for row, length in enumerate(lengths)]
    targets = max([1, *(len(known) for known in numbers)])
    units = np.full(of_token.shape, -1, dtype=np.int64)
    count = targets
    for row, (known, length) in enumerate(zip(numbers, lengths, strict=True)):
        special = np.flatnonzero(of_token[row, :length] == NO_WORD)
        units[row, :length] = [known.get(word, -1) for word in of_token[row, :length].tolist()]
        units[row, special] = targets + np.arange(len(special))
        count = max(count, targets + len(special))
    rows: list[tuple[int, int, int, int, int, bool]] = []
    dropped = [0, 0]
    for row, sentence in enumerate(batch.sentences):
        if sentence is not None and sentence.annotation.heads is not None:
            labels = [relation_of(label, subtypes=subtypes) for label in sentence.annotation.columns["deprel"]]
            rows += _arcs(row, sentence, labels, numbers[row], relations, dropped)
    tokens, device = torch.from_numpy(units), batch.input_ids.device
    table = to_device(torch.tensor(rows, dtype=torch.int64).view(-1, 6), device)
    return Arcs(
        targets=Partition.of(tokens, targets).to(device),
        sources=Partition.of(tokens, count).to(device),
        halves=to_device((torch.tensor(batch.rows) - 1) % 2, device),
        sentence=table[:, 0],
        dependent=table[:, 1],
        head=table[:, 2],
        relation=table[:, 3],
        offset=table[:, 4],
        counted=(table[:, 5] == 0) | punctuation,
        dropped=torch.tensor(dropped),
    )


def _unit_numbers(words: np.ndarray) -> dict[int, int]:
    """The unit of every word that has tokens, in the order of the words."""
    return {word: number for number, word in enumerate(sorted(set(words.tolist()) - {NO_WORD}))}


def _arcs(
    row: int,
    sentence: AnnotatedSentence,
    labels: Sequence[str],
    numbers: Mapping[int, int],
    relations: Mapping[str, int],
    dropped: list[int],
) -> list[tuple[int, int, int, int, int, bool]]:
    heads = sentence.annotation.heads
    assert heads is not None
    arcs = []
    for word, (head, label) in enumerate(zip(heads, labels, strict=True)):
        if head == ROOT or label not in relations:
            continue
        ends = [numbers.get(sentence.owners[end]) for end in (word, head)]
        if ends[0] is None or ends[1] is None:
            dropped[MISSING] += 1
        elif ends[0] == ends[1]:
            dropped[INSIDE] += 1
        else:
            arcs.append((row, ends[0], ends[1], relations[label], head - word, label == PUNCTUATION))
    return arcs
