"""Datasets from the Hugging Face Hub, streamed, or read from the local cache without a network."""

import dataclasses
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import constants

from normscope.data.examples import Corpus, Example
from normscope.data.rows import RowReader
from normscope.errors import InputError, one_line

_CONNECT_SECONDS = 1.5


@dataclasses.dataclass(frozen=True)
class HubDataset(Corpus):
    """One split of a dataset, streamed from the Hub; without a network, read from the local cache."""

    name: str
    config: str | None
    split: str
    revision: str | None
    text_column: str | int | None
    pair_column: str | int | None
    label_column: str | None = None
    """Column with one label per word, for rows whose text is a list of words."""
    score_column: str | int | None = None
    """Column with the gold score of a pair."""

    def __post_init__(self) -> None:
        # Fail before a model is loaded, which takes longer.
        if not Path(self.name).exists() and not self._cached() and not hub_reachable():
            raise InputError(
                f"dataset.path={self.name}: not in the local cache, and the Hub cannot be reached; use a local file: "
                "dataset=text dataset.path=FILE"
            )

    def _cached(self) -> bool:
        home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
        cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
        return (cache / self.name.replace("/", "___")).is_dir()

    @property
    def total(self) -> int | None:
        """Unknown before the dataset is read."""
        return None

    def examples(self) -> Iterator[Example | str]:
        """Examples in the order of the split, or the reason why one is skipped."""
        reader = RowReader(self.name, self.text_column, self.pair_column, self.label_column, self.score_column)
        for number, row in enumerate(self._rows(), start=1):
            yield from reader.examples(row, number)

    def _rows(self) -> Any:
        import datasets  # slow to import, and most runs do not need it

        online = hub_reachable()
        if not online:
            datasets.config.HF_HUB_OFFLINE = True
        datasets.disable_progress_bars()
        try:
            return datasets.load_dataset(
                self.name, self.config, split=self.split, revision=self.revision, streaming=online
            )
        except Exception as error:  # the library and those it calls raise errors of many types
            raise InputError(
                f"dataset.path={self.name}: {one_line(error)}; check dataset.path, .config, .split and .revision, or use "
                "a local file: dataset=text dataset.path=FILE"
            ) from error


def hub_reachable() -> bool:
    """Whether downloads are likely to work. Without a network, each would take half a minute to fail."""
    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    endpoint = urlsplit(constants.ENDPOINT)
    port = endpoint.port or (443 if endpoint.scheme == "https" else 80)
    try:
        socket.create_connection((endpoint.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
