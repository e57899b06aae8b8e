"""What analyses need from the whole corpus or from other files before the first batch."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from normscope.config.schema import DatasetOptions
from normscope.data.batching import windows
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import Corpus, Example

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ResourceContext:
    """What resources are made from."""

    dataset: DatasetOptions
    encoder: Encoder
    vocabulary: int
    """Number of token ids of the model."""
    open_corpus: Callable[[DatasetOptions], Corpus] = open_corpus
    """Opens the corpus of dataset options."""


class Resource(abc.ABC, Generic[T]):
    """Something that is prepared once per run, before the first batch.

    Resources that need the corpus share one pass over it: `start` is called once, `read` with one window of examples after
    another, and `finish` at the end.
    """

    reads_corpus: bool = False
    """Whether it needs the corpus, so that `read` is called."""
    ignores_limit: bool = False
    """Whether it reads beyond `dataset.limit`."""

    @abc.abstractmethod
    def start(self, context: ResourceContext) -> None:
        """Prepare for the first examples.

        Raises:
            InputError: If the resource cannot be made.
        """

    def read(self, examples: Sequence[Example | str]) -> None:
        """Process the next examples of the corpus; a string is the reason why one was skipped."""

    @abc.abstractmethod
    def finish(self) -> T:
        """The resource.

        Raises:
            InputError: If the corpus is invalid for it.
        """

    @abc.abstractmethod
    def digest(self, value: T) -> str:
        """A hash of the resource. A resumed run must have the same one."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A resource that is ready."""

    value: Any
    digest: str
    """Its hash."""


def prepare_resources(
    resources: Mapping[str, Resource[Any]], context: ResourceContext, open_corpus: Callable[[DatasetOptions], Corpus]
) -> dict[str, Prepared]:
    """Prepare resources, in one pass over the corpus if any of them needs it (two if some ignore `dataset.limit`).

    Args:
        resources: What to prepare, by name.
        context: What they are made from.
        open_corpus: Opens the corpus of dataset options.

    Returns:
        The resources, by name.
    """
    for resource in resources.values():
        resource.start(context)
    for ignores_limit in (False, True):
        readers = [
            resource
            for resource in resources.values()
            if resource.reads_corpus and resource.ignores_limit == ignores_limit
        ]
        if not readers:
            continue
        dataset = dataclasses.replace(context.dataset, limit=None) if ignores_limit else context.dataset
        for window in windows(open_corpus(dataset).examples()):
            for reader in readers:
                reader.read(window)
    values = {name: resource.finish() for name, resource in resources.items()}
    return {name: Prepared(value, resources[name].digest(value)) for name, value in values.items()}
