"""What a run is doing, how long each phase has taken, and how fast it reads its corpus."""

import contextlib
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TypeVar

import torch

from normscope.data.examples import CorpusCounts
from normscope.reporting.terminal import CorpusBar, Heartbeat, PhaseLine, Throughput, duration, steps_bar
from normscope.reporting.weights_and_biases import Tracker
from normscope.running.options import RunOptions

T = TypeVar("T")

_SECONDS_BETWEEN_LOGS = 10.0
_GIB = 2**30


class Phase(StrEnum):
    """A phase of a run."""

    START = "start"
    """Python, its libraries and the config are loaded."""
    MODEL = "model"
    """The model is loaded and verified."""
    CORPUS = "corpus"
    """The corpus is opened, and read if an analysis needs all of it beforehand; up to the first batch."""
    PASS = "pass"
    """Batches run through the model and the analyses."""
    INTERVENTIONS = "interventions"
    """The model runs again: with something replaced, or on sampled sequences."""
    RESULTS = "results"
    """Tables, numbers and sentences are made from what was accumulated."""
    MAPS = "maps"
    """The token maps of the report are computed."""
    PUBLISHING = "publishing"
    """Tables, figures and the report are written, and the tracker finishes."""


class Phases:
    """The phases of a run, known from the start. Each ends where the next one begins, so that no time is left out.

    Args:
        coming: The phases, in order. The run is in the first.
        begun: When that began, by `clock`; now by default.
        shown: Whether a terminal shows which one it is.
        clock: Returns seconds, and never goes back.
    """

    def __init__(
        self,
        coming: Iterable[Phase],
        begun: float | None = None,
        *,
        shown: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coming, self._clock, self._shown = tuple(coming), clock, shown
        self._since = clock() if begun is None else begun
        self._seconds: dict[Phase, float] = {}
        self._step_seconds: dict[str, float] = {}
        self._line = PhaseLine()
        self._now = self._coming[0]
        self._heartbeat = Heartbeat(self._doing) if shown else None
        if self._heartbeat is not None:
            self._heartbeat.start()
        self._show()

    def __enter__(self) -> "Phases":
        """The phases, which are shown until the context ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing the phase."""
        self.end()

    @property
    def title(self) -> str:
        """The phase that the run is in, and its number."""
        return f"{self._now} ({self._coming.index(self._now) + 1} of {len(self._coming)})"

    def begin(self, phase: Phase) -> None:
        """Move on to a phase of the run, which ends the one before. Nothing changes if the run is already in it."""
        self._seconds, self._since = self._so_far(now := self._clock()), now
        self._now = phase
        self._show()

    def seconds(self) -> dict[str, float]:
        """Seconds so far of each phase that has begun, in order."""
        so_far = self._so_far(self._clock())
        return {str(phase): round(so_far[phase], 3) for phase in self._coming if phase in so_far}

    def step_seconds(self) -> dict[str, float]:
        """Seconds so far of the steps within phases, by name."""
        return {what: round(seconds, 3) for what, seconds in self._step_seconds.items()}

    def steps(self, steps: Iterable[T], total: int, what: str) -> Iterator[T]:
        """Iterate over steps of the phase, with a progress bar.

        Args:
            total: Their number.
            what: What they are.
        """
        started = self._clock()
        try:
            self._line.hide()
            yield from steps_bar(steps, total, f"{self.title}, {what}") if self._shown else steps
            self._show()
        finally:
            self._step_seconds[what] = self._step_seconds.get(what, 0.0) + self._clock() - started

    def corpus_bar(self, total: int | None) -> CorpusBar:
        """The progress bar of a phase that reads the corpus.

        Args:
            total: Number of examples, if known.
        """
        self._line.hide()
        return CorpusBar(total, self.title, shown=self._shown)

    def end(self) -> None:
        """Stop showing the phase."""
        if self._heartbeat is not None:
            self._heartbeat.end()
        self._line.hide()

    def _doing(self) -> str:
        return f"{self.title}: {duration(self._clock() - self._since)} so far"

    def _so_far(self, now: float) -> dict[Phase, float]:
        return self._seconds | {self._now: self._seconds.get(self._now, 0.0) + now - self._since}

    def _show(self) -> None:
        if self._shown:
            self._line.show(f"{self.title} …")


def coming(options: RunOptions) -> list[Phase]:
    """The phases of a run with these options, in order."""
    begins = [Phase.START, Phase.MODEL, Phase.CORPUS]
    maps = [Phase.MAPS] if options.report.enabled else []
    return [*begins, Phase.PASS, Phase.INTERVENTIONS, Phase.RESULTS, *maps, Phase.PUBLISHING]


class ProgressMeter:
    """Measures a run's throughput and memory while it reads its corpus.

    Args:
        counts: What has been read so far; it grows.
        total: Number of examples, if known.
        device: The model's device.
        tracker: Receives the values every ten seconds, and once at the end.
        bar: Shows them.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        counts: CorpusCounts,
        total: int | None,
        device: torch.device,
        tracker: Tracker,
        bar: CorpusBar,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts, self._total, self._device = counts, total, device
        self._tracker, self._bar, self._clock = tracker, bar, clock
        self._examples, self._tokens = _examples(counts), counts.all_tokens
        self._started = self._logged = clock()
        self._model_seconds = 0.0

    @contextlib.contextmanager
    def model_runs(self) -> Iterator[None]:
        """Measure the time in which the model and the analyses run, as opposed to waiting for a batch."""
        started = self._clock()
        yield
        self._model_seconds += self._clock() - started

    def update(self) -> None:
        """Measure after a batch."""
        now = self._clock()
        throughput = self._measured(now)
        self._bar.update(throughput)
        if now - self._logged >= _SECONDS_BETWEEN_LOGS:
            self._log(throughput, now)

    def finish(self) -> Throughput:
        """Log the final values, and return them."""
        now = self._clock()
        throughput = self._measured(now)
        self._log(throughput, now)
        return throughput

    def _measured(self, now: float) -> Throughput:
        examples = _examples(self._counts)
        return Throughput(
            examples=examples,
            total=self._total,
            new_examples=examples - self._examples,
            new_tokens=self._counts.all_tokens - self._tokens,
            seconds=now - self._started,
            model_seconds=self._model_seconds,
        )

    def _log(self, throughput: Throughput, now: float) -> None:
        self._logged = now
        left = throughput.seconds_left
        values = {
            "tokens_per_second": throughput.tokens_per_second,
            "examples_per_second": throughput.examples_per_second,
            "model_share": throughput.model_share,
            "peak_memory_gib": peak_memory(self._device) / _GIB,
        }
        self._tracker.progress(throughput.examples, values | ({} if left is None else {"seconds_left": left}))


def peak_memory(device: torch.device) -> int:
    """The most memory used so far, in bytes: of a CUDA device, or otherwise of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024  # macOS counts bytes, Linux KiB


def _examples(counts: CorpusCounts) -> int:
    return counts.used + counts.skipped.total()
