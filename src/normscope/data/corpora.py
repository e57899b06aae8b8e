"""Opens the corpus of a dataset config."""

import dataclasses
import importlib.resources
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from normscope.data.annotation import SPACES
from normscope.data.conllu_file import ConlluFile
from normscope.data.examples import Corpus, Example
from normscope.data.hub import HubDataset
from normscope.data.input_files import InputFiles
from normscope.data.options import DatasetKind, DatasetOptions, Segmentation
from normscope.data.segmentation import Segmented, WikiText
from normscope.data.text_files import TextFile, TextFiles, files_left_out, find_files, has_columns
from normscope.data.toy_corpus import PAIRS as TOY_PAIRS
from normscope.data.toy_corpus import ToyCorpus
from normscope.errors import InputError


def open_corpus(options: DatasetOptions) -> Corpus:
    """The corpus that a config describes.

    Raises:
        InputError: If it cannot be opened; the message names the config key.
    """
    match options.kind:
        case DatasetKind.sample:
            corpus: Corpus = TextFile(sample_path())
        case DatasetKind.text:
            corpus = _text(options)
        case DatasetKind.hub:
            corpus = HubDataset(
                _path(options, "the name of a dataset on the Hub"),
                options.config,
                options.split,
                options.revision,
                options.text_column,
                options.pair_column,
                _label_column(options),
                options.score_column,
            )
        case DatasetKind.parallel:
            corpus = _parallel(options)
        case DatasetKind.toy:
            corpus = ToyCorpus(TOY_PAIRS, options.seed)
        case DatasetKind.images:
            corpus = InputFiles.images(_path(options, "an image, a folder of images or a glob pattern"))
        case DatasetKind.audio:
            corpus = InputFiles.recordings(
                _path(options, "an audio file, a folder of them, a glob pattern or a .jsonl file")
            )
        case DatasetKind.conllu:
            corpus = ConlluFile(Path(_path(options, "a CoNLL-U file")).expanduser())
        case _:
            assert_never(options.kind)
    return arranged(corpus, options)


def arranged(corpus: Corpus, options: DatasetOptions) -> Corpus:
    """A corpus cut into examples and limited as its options say."""
    documents = options.segmentation is Segmentation.pair or options.segmentation is Segmentation.sentence
    if options.wikitext:
        corpus = WikiText(corpus, articles=options.segmentation is not Segmentation.none)
    if documents:
        corpus = Segmented(corpus, options.segmentation, options.seed)
    return corpus if options.limit is None else _Limited(corpus, options.limit)


def _path(options: DatasetOptions, expected: str) -> str:
    if options.path is None:
        raise InputError(f"dataset.path is not set: expected {expected}")
    return options.path


def text_keys(options: DatasetOptions) -> list[str]:
    """The keys that say where a corpus has its texts, as far as it reads them."""
    match options.kind:
        case DatasetKind.sample | DatasetKind.toy:
            return []
        case DatasetKind.hub:
            return ["dataset.path", "dataset.text_column"]
        case DatasetKind.text if any(map(has_columns, find_files(options.path or "", "dataset.path"))):
            return ["dataset.path", "dataset.text_column"]
        case _:
            return ["dataset.path"]


def left_out(options: DatasetOptions) -> list[str]:
    """The files in the folder of a corpus that are no part of it."""
    if options.kind not in (DatasetKind.text, DatasetKind.parallel) or options.path is None:
        return []
    return files_left_out(options.path)


def _label_column(options: DatasetOptions) -> str | None:
    """The column of annotated words whose values are categories."""
    return options.categories if isinstance(options.categories, str) else None


def _text(options: DatasetOptions, plain: bool = False) -> Corpus:
    paths = find_files(
        _path(options, "a .txt, .jsonl, .csv, .tsv or .parquet file, a folder or a pattern"), "dataset.path"
    )
    second = [] if options.pair_path is None else [Path(options.pair_path).expanduser()]
    if not any(has_columns(path) for path in [*paths, *second]):
        _refuse_columns(options, paths[0])
    columns = options.text_column, options.pair_column, options.header, options.delimiter, options.quoting
    label = _label_column(options)
    files = tuple(
        TextFile(
            path,
            *columns,
            plain=plain,
            label_column=label,
            score_column=options.score_column,
            conversations=options.chat_template,
        )
        for path in paths
    )
    corpus: Corpus = files[0] if len(files) == 1 else TextFiles(files)
    if not second:
        return corpus
    return SideBySide(corpus, TextFile(second[0], *columns, key="dataset.pair_path", plain=plain))


def _refuse_columns(options: DatasetOptions, path: Path) -> None:
    """Refuse keys that say how columns are read, for files of lines."""
    for key in ("text_column", "pair_column", "score_column", "delimiter", "quoting"):
        value = getattr(options, key)
        if value is not None:
            raise InputError(
                f"dataset.{key}={value}: expected a file with columns, got {path}, each line of which is a text; leave out "
                f"dataset.{key} or set it to null"
            )


def _parallel(options: DatasetOptions) -> Corpus:
    first = Path(_path(options, "a file of source sentences, or of source ||| target lines")).expanduser()
    if options.pair_path is None:
        if options.separator is None:
            raise InputError(
                "dataset.pair_path is not set: expected the file of translations, or dataset.separator='|||'"
            )
        return SplitLines(TextFile(first, plain=True), options.separator)
    return _text(options, plain=True)


def sample_path() -> Path:
    """The sample corpus shipped with the package: paragraph pairs and single sentences."""
    return Path(str(importlib.resources.files("normscope.data") / "sample.jsonl"))


@dataclasses.dataclass(frozen=True)
class NumberedCorpus(Corpus):
    """A corpus whose examples carry their row numbers."""

    corpus: Corpus

    @property
    def total(self) -> int | None:
        """The number of examples in the corpus."""
        return self.corpus.total

    def examples(self) -> Iterator[Example | str]:
        """Examples, numbered from 1. Skipped ones are numbered as well."""
        query = 0
        for row, example in enumerate(self.corpus.examples(), start=1):
            if isinstance(example, Example):
                query += example.document == 1
                number = query if example.document else 0
                if (example.row, example.query) != (row, number):
                    example = dataclasses.replace(example, row=row, query=number)
            yield example


@dataclasses.dataclass(frozen=True)
class _Limited(Corpus):
    """The first examples of a corpus."""

    corpus: Corpus
    limit: int

    @property
    def total(self) -> int | None:
        total = self.corpus.total
        return self.limit if total is None else min(total, self.limit)

    def examples(self) -> Iterator[Example | str]:
        remaining = self.limit
        for example in self.corpus.examples():
            yield example
            # Skipped ones (empty lines, headings) do not count towards the limit.
            remaining -= isinstance(example, Example)
            if not remaining:
                return


@dataclasses.dataclass(frozen=True)
class PairsOf(Corpus):
    """The pairs of a corpus that has single texts as well."""

    corpus: Corpus

    @property
    def total(self) -> int:
        """The number of pairs."""
        return sum(1 for _ in self.examples())

    def examples(self) -> Iterator[Example | str]:
        """Pairs in order."""
        for example in self.corpus.examples():
            if isinstance(example, str) or example.text_pair is not None:
                yield example


@dataclasses.dataclass(frozen=True)
class SideBySide(Corpus):
    """Two corpora whose examples are paired one by one."""

    first: Corpus
    second: Corpus

    @property
    def total(self) -> int | None:
        """The number of pairs."""
        return self.first.total

    def examples(self) -> Iterator[Example | str]:
        """Pairs in order; incomplete ones are skipped.

        Raises:
            InputError: If one corpus is longer than the other.
        """
        for number, (text, pair) in enumerate(
            itertools.zip_longest(self.first.examples(), self.second.examples()), start=1
        ):
            if text is None or pair is None:
                which = "dataset.path" if text is None else "dataset.pair_path"
                raise InputError(
                    f"{which}: it has {number - 1} rows and the other file more; expected as many rows in both"
                )
            if isinstance(text, str) or isinstance(pair, str):
                yield text if isinstance(text, str) else str(pair)
            else:
                yield Example(text.text, pair.text)


@dataclasses.dataclass(frozen=True)
class SplitLines(Corpus):
    """A corpus with a text and its translation on each line."""

    corpus: TextFile
    separator: str

    @property
    def total(self) -> int | None:
        """The number of lines."""
        return self.corpus.total

    def examples(self) -> Iterator[Example | str]:
        """Pairs in order; incomplete ones are skipped.

        Raises:
            InputError: If a line does not contain the separator exactly once.
        """
        for number, line in enumerate(self.corpus.examples(), start=1):
            if isinstance(line, str):
                yield line
                continue
            sides = [side.strip(SPACES) for side in line.text.split(self.separator)]
            if len(sides) != 2:
                raise InputError(
                    f"dataset.path={self.corpus.path}: line {number}: expected {self.separator!r} once, got it "
                    f"{len(sides) - 1} times; see dataset.separator, or dataset.pair_path for two files"
                )
            yield Example(sides[0], sides[1]) if all(sides) else "empty"
