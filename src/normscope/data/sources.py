"""From a dataset config to a corpus."""

import dataclasses
import importlib.resources
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from normscope.data.examples import Corpus, Example
from normscope.data.files import TextFile
from normscope.errors import InputError
from normscope.schema import DatasetKind, DatasetOptions


def open_corpus(options: DatasetOptions) -> Corpus:
    """The corpus that a config describes.

    Raises:
        InputError: If it cannot be had; the message names the config key.
    """
    match options.kind:
        case DatasetKind.sample:
            corpus: Corpus = TextFile(sample_path())
        case DatasetKind.text:
            if options.path is None:
                raise InputError("dataset.path is not set: expected a .txt, .jsonl, .csv or .parquet file")
            corpus = TextFile(
                Path(options.path).expanduser(), options.text_column, options.pair_column, header=options.header
            )
        case _:
            assert_never(options.kind)
    return corpus if options.limit is None else _Limited(corpus, options.limit)


def sample_path() -> Path:
    """The sample corpus that comes with the package: paragraph pairs and single sentences."""
    return Path(str(importlib.resources.files("normscope.data") / "sample.jsonl"))


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
        return itertools.islice(self.corpus.examples(), self.limit)
