"""What analyses need from the whole corpus or from other files before the first batch."""

import abc
import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from normscope.data.batching import windows
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import Corpus, Example
from normscope.data.options import DatasetOptions

T = TypeVar("T")

State = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Readers:
    """The processes that read a corpus together."""

    windows: Callable[[Corpus], Iterator[list[Example | str]]] = lambda corpus: windows(corpus.examples())
    """The windows of a corpus that this process reads."""
    agreeing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """A step that succeeds in all processes or fails in all of them."""
    gathered: Callable[[dict[str, State]], list[dict[str, State]]] = lambda states: [states]
    """The values of all processes."""


ALONE = Readers()


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
    divisible: bool = False
    """Whether several processes may read a part of the corpus each, and add up their `state`s."""
    content: str = ""
    """What it takes from the corpus, for messages."""

    @abc.abstractmethod
    def start(self, context: ResourceContext) -> None:
        """Prepare for the first examples.

        Raises:
            InputError: If the resource cannot be made.
        """

    def read(self, examples: Sequence[Example | str]) -> None:
        """Process the next examples of the corpus; a string is the reason why one was skipped."""

    def state(self) -> State:
        """What has been read so far if it is divisible, otherwise what has been made of the whole corpus."""
        return {}

    def add(self, state: State) -> None:
        """Add what has been read of another part of the corpus, or take what was made of the whole."""

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
    resources: Mapping[str, Resource[Any]],
    context: ResourceContext,
    open_corpus: Callable[[DatasetOptions], Corpus],
    readers: Readers = ALONE,
) -> dict[str, Prepared]:
    """Prepare resources, in one pass over the corpus if any of them needs it.

    If some ignore `dataset.limit`, or cannot be divided among several processes, they have a pass of their own.

    Args:
        resources: What to prepare, by name.
        context: What they are made from.
        open_corpus: Opens the corpus of dataset options.
        readers: The processes that read the corpus.

    Returns:
        The resources, by name.

    Raises:
        InputError: If a resource cannot be made.
    """
    for resource in resources.values():
        resource.start(context)
    reading = {name: resource for name, resource in resources.items() if resource.reads_corpus}
    for ignores_limit, divisible in itertools.product((False, True), repeat=2):
        same = {
            name: resource
            for name, resource in reading.items()
            if (resource.ignores_limit, resource.divisible) == (ignores_limit, divisible)
        }
        if not same:
            continue
        dataset = dataclasses.replace(context.dataset, limit=None) if ignores_limit else context.dataset
        with readers.agreeing() if divisible else contextlib.nullcontext():
            for window in (readers if divisible else ALONE).windows(open_corpus(dataset)):
                for resource in same.values():
                    resource.read(window)
        if divisible:
            _add_up(same, context, readers.gathered({name: resource.state() for name, resource in same.items()}))
    return {name: _prepared(resource) for name, resource in resources.items()}


def _add_up(
    resources: Mapping[str, Resource[Any]], context: ResourceContext, states: Sequence[Mapping[str, State]]
) -> None:
    """Give resources the sum of states."""
    for name, resource in resources.items():
        resource.start(context)
        for state in states:
            resource.add(state[name])


def _prepared(resource: Resource[Any]) -> Prepared:
    value = resource.finish()
    return Prepared(value, resource.digest(value))


def packed(value: Any) -> State:
    """A value of JSON's types as a state."""
    return {"json": torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)}


def unpacked(state: State) -> Any:
    """The value that `packed` was given."""
    return json.loads(state["json"].numpy().tobytes())
