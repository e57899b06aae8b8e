"""Terminal output: messages and progress on stderr, results on stdout."""

import dataclasses
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from tqdm import tqdm

from normscope.errors import escaped
from normscope.reporting.options import Verbosity
from normscope.reporting.published import COMPARISON
from normscope.reporting.text_table import text_table
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.rounding import begun, counted
from normscope.streams import WIDTH, wrapped

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0
"""How often progress is printed where stderr is not a terminal."""


_SECONDS_BETWEEN_BEATS = 0.5

_quiet = False
_brief = False
"""Whether the run is one of several, which have a line each."""
_spoke = 0.0
"""When the last line was printed, by `time.monotonic`."""


def set_verbosity(verbosity: Verbosity, *, brief: bool = False) -> None:
    """Set how much this process prints from now on.

    Args:
        verbosity: The user's choice.
        brief: Whether the run is one of several: it prints neither tables nor details, but warnings and progress.
    """
    global _quiet, _brief
    _quiet, _brief = verbosity is Verbosity.quiet, brief


def say(*sentences: str) -> None:
    """Print a message to stderr, above any progress bar, in lines that fit into a terminal; nothing if the run is quiet."""
    global _spoke
    _spoke = time.monotonic()
    if not _quiet:
        tqdm.write(wrapped(escaped(", ".join(sentences))), file=sys.stderr)


def say_detail(*sentences: str) -> None:
    """Print a message to stderr about a run that has the terminal to itself."""
    if not _brief:
        say(*sentences)


class PhaseLine:
    """A line at the bottom of a terminal that says what a run is doing while no bar does. It is not shown elsewhere."""

    def __init__(self) -> None:
        self._line: tqdm[Any] | None = None

    def show(self, text: str) -> None:
        """Show a text in place of the one before."""
        if not sys.stderr.isatty() or _quiet:
            return
        if self._line is None:
            self._line = tqdm(bar_format="{desc}", file=sys.stderr, dynamic_ncols=True, leave=False)
        self._line.set_description_str(escaped(text))

    def hide(self) -> None:
        """Remove the line from the terminal."""
        if self._line is not None:
            self._line.close()
            self._line = None


class Heartbeat:
    """Says what a run is doing whenever it has printed nothing for ten seconds, from a thread; a terminal's bars go on.

    Args:
        text: A method that returns what the run is doing, and for how long. The thread ends with the object that has it.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        self._text, self._ended = weakref.WeakMethod(text), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="normscope-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        global _spoke
        _spoke = time.monotonic()
        self._thread.start()

    def end(self) -> None:
        """Print nothing more."""
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_BEATS):
            text = self._text()
            if text is None:
                return
            if sys.stderr.isatty():
                _refresh_bars()
            elif time.monotonic() - _spoke >= _SECONDS_BETWEEN_LINES - _SECONDS_BETWEEN_BEATS:
                say(text())
            del text


def _refresh_bars() -> None:
    """Draw all bars again, with the time that has passed."""
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.refresh()


@dataclasses.dataclass(frozen=True)
class Throughput:
    """The state of a run at one moment."""

    examples: int
    """Examples read, those before a resumption included."""
    total: int | None
    """Examples to read, if known."""
    new_examples: int
    """Examples read since this process started."""
    new_tokens: int
    """Tokens analysed since then."""
    seconds: float
    """Seconds since then."""
    model_seconds: float
    """Seconds of these in which the model and the analyses ran."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens analysed per second; 0 before any time has passed."""
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples read per second; 0 before any time has passed."""
        return self.new_examples / self.seconds if self.seconds else 0.0

    @property
    def model_share(self) -> float:
        """Share of the time in which the model and the analyses ran; 0 before any time has passed."""
        return self.model_seconds / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the corpus has been read; None if its size or the speed is unknown."""
        if self.total is None or not self.examples_per_second:
            return None
        return max(self.total - self.examples, 0) / self.examples_per_second

    def sentence(self) -> str:
        """The state as a line for a log."""
        read = (
            counted(self.examples, "example")
            if self.total is None
            else f"{self.examples:,} of {counted(self.total, 'example')}"
        )
        parts = [read, f"{self.tokens_per_second:,.0f} tokens/s"]
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """A duration as a person would round it: `40 s`, `5 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class CorpusBar:
    """Progress over a corpus: a bar with throughput and remaining time on a terminal, now and then a plain line in a log.

    Args:
        total: Number of examples, if known.
        title: What the run is doing.
        shown: Whether anything is printed.
    """

    def __init__(self, total: int | None, title: str, *, shown: bool = True) -> None:
        self._bar: tqdm[Any] | None = None
        self._title, self._shown = title, shown
        if shown and sys.stderr.isatty() and not _quiet:
            self._bar = tqdm(total=total, desc=escaped(title), unit=" examples", file=sys.stderr, dynamic_ncols=True)
        self._printed = 0.0

    def __enter__(self) -> "CorpusBar":
        """The bar itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def update(self, throughput: Throughput) -> None:
        """Show the state after a batch."""
        if self._bar is not None:
            if self._bar.n == 0:
                self._bar.initial = throughput.examples - throughput.new_examples  # of a resumed run
                self._bar.n = self._bar.initial
            self._bar.set_postfix_str(f"{throughput.tokens_per_second:,.0f} tokens/s", refresh=False)
            self._bar.update(throughput.examples - self._bar.n)
        elif self._shown and throughput.seconds - self._printed >= _SECONDS_BETWEEN_LINES:
            self._printed = throughput.seconds
            say(f"{self._title}: {throughput.sentence()}")


def steps_bar(steps: Iterable[T], total: int, what: str) -> Iterable[T]:
    """Iterate over steps with a labelled progress bar, or with a line now and then where stderr is not a terminal."""
    if sys.stderr.isatty() and not _quiet:
        yield from tqdm(steps, total=total, desc=escaped(what), file=sys.stderr, dynamic_ncols=True)
        return
    printed = started = time.monotonic()
    for number, step in enumerate(steps):
        yield step
        now = time.monotonic()
        if now - printed >= _SECONDS_BETWEEN_LINES:
            printed, left = now, (now - started) / (number + 1) * (total - number - 1)
            say(f"{what}: {number + 1:,} of {total:,}, {duration(left)} left")


def show_comparison(comparison: pd.DataFrame) -> None:
    """Print measured beside published numbers, a table for each source, with what differs if a run is not the paper's."""
    for source, rows in comparison.groupby("source", sort=False):
        within = int(rows["within"].sum())
        title, columns = f"{source}: {within} of {len(rows)} within {rows['tolerance'].iloc[0]:g}", ["within"]
        if rows["differs_in"].any():
            title, columns = f"{source}, beside this run, which is not the paper's", ["differs in"]
            rows = rows.assign(**{"differs in": rows["differs_in"].str.replace(".name", "")})
        elif np.isinf(rows["tolerance"]).all():  # printed side by side, not compared
            title, columns = str(source), []
        shown = rows.set_index("measure").rename(columns={"value": "this run"})
        show_table(title, shown[["this run", "published", "difference", *columns]], 4)


def show(result: Result) -> None:
    """Print results: of each analysis its first finding and its summary, then notes, and published numbers beside them.

    Of one run of several, nothing: these are compared when all have ended.
    """
    if _brief:
        return
    for name in result.analyses:
        sentences = [sentence for sentence in result.sentences if Sentence.of(sentence).analysis == name]
        summary = result.summaries.get(name, Summary(pd.DataFrame()))
        title, caption = name, summary.caption
        if sentences:
            show_sentence(f"{name}: {sentences[0]}")
            title, caption = begun(caption) or name, ""
        show_table(title, summary.table, summary.digits, caption)
    for note in result.notes:
        say(note)
    paper = result.config.get("recipe", {}).get("paper")
    if COMPARISON in result.tables:
        show_comparison(result.tables[COMPARISON])
    elif paper is not None:
        say(f"this run has measured none of the published numbers of {paper}")


def show_sentence(sentence: str) -> None:
    """Print a result in words, in lines that fit into a terminal; nothing if the run is quiet."""
    if not _quiet:
        print(f"\n{wrapped(escaped(sentence))}", flush=True)


def show_table(title: str, table: pd.DataFrame, digits: int, caption: str = "") -> None:
    """Print a table below its title and caption, without empty columns; nothing if the table is empty or the run is quiet."""
    if table.empty or _quiet:
        return
    heading = escaped(f"{title}: {caption}" if caption else title)
    text = text_table(table.dropna(axis="columns", how="all"), digits, WIDTH)
    print(f"\n{wrapped(heading)}\n\n{text}\n", flush=True)
