"""Data sets of the Hugging Face Hub, streamed; local files first, and quick to say that there is no network."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normscope.data.examples import Corpus, Example
from normscope.data.rows import RowReader
from normscope.errors import InputError, one_line
from normscope.network import hub_reachable


@dataclasses.dataclass(frozen=True)
class HubDataset(Corpus):
    """One split of a data set, read as it arrives; where there is no network, from the local cache."""

    name: str
    config: str | None
    split: str
    revision: str | None
    text_column: str | int | None
    pair_column: str | int | None

    def __post_init__(self) -> None:
        # Found out before a model is loaded, which takes longer.
        if not Path(self.name).exists() and not self._cached() and not hub_reachable():
            raise InputError(
                f"dataset.path={self.name}: it is not in the local cache and the Hub cannot be reached; give a local file: "
                "dataset=text dataset.path=FILE"
            )

    def _cached(self) -> bool:
        home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
        cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
        return (cache / self.name.replace("/", "___")).is_dir()

    @property
    def total(self) -> int | None:
        """Not known before the data set is read."""
        return None

    def examples(self) -> Iterator[Example | str]:
        """Examples in the split's order, or why a row is none."""
        reader = RowReader(self.name, self.text_column, self.pair_column)
        for number, row in enumerate(self._rows(), start=1):
            yield reader.example(row, number)

    def _rows(self) -> Any:
        import datasets  # slow to import, and most runs do without

        online = hub_reachable()
        if not online:
            datasets.config.HF_HUB_OFFLINE = True
        datasets.disable_progress_bars()
        try:
            return datasets.load_dataset(
                self.name, self.config, split=self.split, revision=self.revision, streaming=online
            )
        except Exception as error:  # neither the library nor what it calls agrees on types
            raise InputError(
                f"dataset.path={self.name}: {one_line(error)}; check dataset.path, .config, .split and .revision, or give "
                "a local file: dataset=text dataset.path=FILE"
            ) from error
