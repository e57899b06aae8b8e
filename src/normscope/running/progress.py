"""What a run is doing, how long each phase has taken, and how fast it reads its corpus."""

import contextlib
import resource
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from normscope.data.examples import CorpusCounts
from normscope.errors import escaped
from normscope.models.observe.cancelling import cancelled_by
from normscope.reporting.terminal import has_bars, say, silence
from normscope.reporting.tracker import Tracker
from normscope.rounding import counted, duration
from normscope.running.options import RunOptions

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0
"""How often progress is logged, and printed where stderr is not a terminal."""
_SECONDS_BETWEEN_BEATS = 0.5
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
    VIEWS = "views"
    """Tables, figures and the report are written, and the tracker finishes."""
    TEXT = "text"
    """The model runs on a single text."""


class Phases:
    """The phases of a run, known from the start. Each ends where the next one begins, so that no time is left out.

    A terminal shows the phase, or a bar. A log gets a line whenever nothing has been printed for ten seconds.

    Args:
        coming: The phases, in order. The run is in the first.
        begun: When that began, by `clock`; now by default.
        shown: Whether anything is printed.
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
        self._now, self._silent_from = self._coming[0], time.monotonic()
        self._state: Callable[[], str] | None = None
        self._bar: tqdm[Any] = tqdm(disable=True)
        self._show()
        self._ended = threading.Event()
        if shown:
            threading.Thread(
                target=_beat, args=(weakref.ref(self), self._ended), name="normscope-heartbeat", daemon=True
            ).start()

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

    @contextlib.contextmanager
    def bar(
        self, total: int | None, state: Callable[[], str], what: str = "", unit: str = "it", initial: int = 0
    ) -> "Iterator[tqdm[Any]]":
        """A bar for a step that the phase repeats.

        Args:
            total: Number of repetitions, if known.
            state: How far it is, in words, for a log.
            what: Name of the step; the phase itself by default.
            unit: What is counted.
            initial: Number of repetitions done before.
        """
        self._replace(total=total, desc=escaped(self.title + (what and f", {what}")), unit=unit, initial=initial)
        self._state = lambda: f"{what and f', {what}'}: {state()}"
        try:
            yield self._bar
        finally:
            self._show()

    def steps(self, steps: Iterable[T], total: int, what: str) -> Iterator[T]:
        """Iterate over steps of the phase, with a bar.

        Args:
            total: Their number.
            what: What they are.
        """
        started, done = self._clock(), 0

        def state() -> str:
            left = (self._clock() - started) / max(done, 1) * (total - done)
            return f"{done:,} of {total:,}" + (f", {duration(left)} left" if done else "")

        try:
            with self.bar(total, state, what) as bar:
                for step in steps:
                    yield step
                    done += 1
                    bar.update()
        finally:
            self._step_seconds[what] = self._step_seconds.get(what, 0.0) + self._clock() - started

    @contextlib.contextmanager
    def layers(self) -> Iterator[None]:
        """Context in which passes of this thread are counted layer by layer; nobody knows how many there will be."""
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            bar.update()

        with self.bar(None, lambda: f"{counted(done, 'layer')} so far", unit=" layers") as bar, cancelled_by(count):
            yield

    def beat(self) -> None:
        """Show that time passes: in the bar, or with a line after ten seconds without one."""
        if has_bars():
            self._bar.refresh()
        elif min(silence(), time.monotonic() - self._silent_from) >= _SECONDS_BETWEEN_LINES - _SECONDS_BETWEEN_BEATS:
            state = self._state
            say(self.title + (f": {duration(self._clock() - self._since)} so far" if state is None else state()))

    def end(self) -> None:
        """Stop showing the phase."""
        self._ended.set()
        self._bar.close()

    def _so_far(self, now: float) -> dict[Phase, float]:
        return self._seconds | {self._now: self._seconds.get(self._now, 0.0) + now - self._since}

    def _show(self) -> None:
        """Show the phase, as a line that vanishes."""
        self._state = None
        self._replace(desc=f"{self.title} …", bar_format="{desc}", leave=False)

    def _replace(self, **settings: Any) -> None:
        self._bar.close()
        hidden = not (self._shown and has_bars())
        self._bar = tqdm(**settings, file=sys.stderr, dynamic_ncols=True, disable=hidden)


def _beat(phases: "weakref.ref[Phases]", ended: threading.Event) -> None:
    """The loop of a thread that runs until the phases end or are garbage-collected."""
    while not ended.wait(_SECONDS_BETWEEN_BEATS):
        living = phases()
        if living is None:
            return
        living.beat()
        del living


def coming(options: RunOptions) -> list[Phase]:
    """The phases of a run with these options, in order."""
    begins = [Phase.START, Phase.MODEL, Phase.CORPUS]
    maps = [Phase.MAPS] if options.report.enabled else []
    return [*begins, Phase.PASS, Phase.INTERVENTIONS, Phase.RESULTS, *maps, Phase.VIEWS]


class CorpusProgress:
    """How fast a run reads its corpus, as the bar, the log and the tracker show it.

    Args:
        counts: What has been read so far; it grows.
        total: Number of examples, if known.
        device: The model's device.
        tracker: Receives the values every ten seconds, and once at the end.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        counts: CorpusCounts,
        total: int | None,
        device: torch.device,
        tracker: Tracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts, self._total, self._device = counts, total, device
        self._tracker, self._clock = tracker, clock
        self._examples, self._tokens = self.examples, counts.all_tokens
        self._done, self._tokens_done = self._examples, self._tokens
        """Those of the batches that have ended; one that runs is counted already."""
        self._started = self._logged = clock()
        self._model_seconds = 0.0
        self.seconds = 0.0
        """Seconds until the last batch."""

    @property
    def examples(self) -> int:
        """Examples read, those before a resumption included."""
        return self._counts.used + self._counts.skipped.total()

    @property
    def tokens_per_second(self) -> float:
        """Tokens analysed per second; 0 before any time has passed."""
        return (self._tokens_done - self._tokens) / self.seconds if self.seconds else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples analysed per second; 0 before any time has passed."""
        return (self._done - self._examples) / self.seconds if self.seconds else 0.0

    @property
    def model_share(self) -> float:
        """Share of the time in which the model and the analyses ran; 0 before any time has passed."""
        return self._model_seconds / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the corpus has been analysed; None if its size or the speed is unknown."""
        done = self._done - self._examples
        if self._total is None or not done or not self.seconds:
            return None
        return max(self._total - self._done, 0) * (self._clock() - self._started) / done

    def sentence(self) -> str:
        """The state as a line for a log."""
        total, left = self._total, self.seconds_left
        read = counted(self._done, "example") if total is None else f"{self._done:,} of {counted(total, 'example')}"
        parts = [read]
        if round(self.tokens_per_second):  # 0 until the first batch has ended
            parts.append(f"{self.tokens_per_second:,.0f} tokens/s")
        return ", ".join(parts if left is None else [*parts, f"{duration(left)} left"])

    @contextlib.contextmanager
    def shown(self, phases: Phases) -> Iterator[None]:
        """Show it in the phase while the context lasts, and log the final values."""
        with phases.bar(self._total, self.sentence, unit=" examples", initial=self.examples) as self._bar:
            yield
            self.seconds = self._clock() - self._started
            self._done, self._tokens_done = self.examples, self._counts.all_tokens
            self._log()

    @contextlib.contextmanager
    def model_runs(self) -> Iterator[None]:
        """Measure the time in which the model and the analyses run, as opposed to waiting for a batch."""
        started = self._clock()
        yield
        self._model_seconds += self._clock() - started

    def update(self) -> None:
        """Measure after a batch."""
        now = self._clock()
        self.seconds = now - self._started
        self._done, self._tokens_done = self.examples, self._counts.all_tokens
        self._bar.set_postfix_str(f"{self.tokens_per_second:,.0f} tokens/s", refresh=False)
        self._bar.update(self.examples - self._bar.n)
        if now - self._logged >= _SECONDS_BETWEEN_LINES:
            self._logged = now
            self._log()

    def _log(self) -> None:
        values = {
            "tokens_per_second": self.tokens_per_second,
            "examples_per_second": self.examples_per_second,
            "model_share": self.model_share,
            "peak_memory_gib": peak_memory(self._device) / _GIB,
        }
        left = self.seconds_left
        self._tracker.progress(self.examples, values | ({} if left is None else {"seconds_left": left}))


def peak_memory(device: torch.device) -> int:
    """The most memory used so far, in bytes: of a CUDA device, or otherwise of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024  # macOS counts bytes, Linux KiB
