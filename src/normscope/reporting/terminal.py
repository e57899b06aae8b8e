"""Terminal output: messages on stderr, results on stdout."""

import sys
import time

import numpy as np
import pandas as pd
from tqdm import tqdm

from normscope.errors import escaped
from normscope.reporting.options import Verbosity
from normscope.reporting.published import COMPARISON
from normscope.results.findings import Sentence, Summary
from normscope.results.measures import title
from normscope.results.result import Result
from normscope.rounding import begun
from normscope.streams import wrapped

_LONGEST, _FARTHEST = 30, 10
"""Published numbers of one source: the most of which all are printed, and how many are printed of more."""

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
    """Print a message to stderr, above any progress bar, in lines that fit in a terminal; nothing if the run is quiet."""
    global _spoke
    _spoke = time.monotonic()
    if not _quiet:
        tqdm.write(wrapped(escaped(", ".join(sentences))), file=sys.stderr)


def silence() -> float:
    """Seconds since the last message."""
    return time.monotonic() - _spoke


def has_bars() -> bool:
    """Whether progress is shown by bars: stderr is a terminal, and the run is not quiet."""
    return sys.stderr.isatty() and not _quiet


def say_detail(*sentences: str) -> None:
    """Print a message to stderr about a run that has the terminal to itself."""
    if not _brief:
        say(*sentences)


def show_comparison(comparison: pd.DataFrame) -> None:
    """Print measured beside published numbers, a table for each source, with what differs if a run is not the paper's."""
    for source, rows in comparison.groupby("source", sort=False):
        within, tolerances = int(rows["within"].sum()), rows["tolerance"].agg(["min", "max"])
        tolerance = " to ".join(f"{number:.3g}" for number in tolerances.drop_duplicates())
        heading, columns = f"{source}: {within} of {len(rows)} within {tolerance}", ["within"]
        if rows["differs_in"].any():
            heading, columns = f"{source}, beside this run, which is not the paper's", ["differs in"]
            rows = rows.assign(**{"differs in": rows["differs_in"].str.replace(".name", "")})
        elif np.isinf(rows["tolerance"]).all():  # printed side by side, not compared
            heading, columns = str(source), []
        if len(rows) > _LONGEST:
            heading += f"; the {_FARTHEST} farthest from the published ones"
            rows = rows.loc[(rows["difference"].abs() - rows["tolerance"]).nlargest(_FARTHEST).index]
        shown = rows.set_index("measure").rename(columns={"value": "this run"})
        numbers = ["this run", "published", "difference"]
        if (shown[numbers] % 1 == 0).all(axis=None):
            shown = shown.astype(dict.fromkeys(numbers, int))
        show_table(heading, Summary(shown[[*numbers, *columns]], digits=4))


def show(result: Result) -> None:
    """Print results: of each analysis its first finding and its summary, then notes, and published numbers beside them.

    Of one run of several, nothing: these are compared when all have ended.
    """
    if _brief:
        return
    for name in result.analyses:
        sentences = [sentence for sentence in result.sentences if Sentence.of(sentence).analysis == name]
        summary = result.summaries.get(name, Summary(pd.DataFrame()))
        heading = f"{name}: {summary.caption}" if summary.caption else name
        if sentences:
            show_sentence(f"{name}: {sentences[0]}")
            heading = begun(summary.caption) or title(name)
        show_table(heading, summary)
    for note in result.notes:
        say(note)
    paper = result.config.get("recipe", {}).get("paper")
    if COMPARISON in result.tables:
        show_comparison(result.tables[COMPARISON])
    elif paper is not None:
        say(f"this run has measured none of the published numbers of {paper}")


def show_sentence(sentence: str) -> None:
    """Print a result in words, in lines that fit in a terminal; nothing if the run is quiet."""
    if not _quiet:
        print(f"\n{wrapped(escaped(sentence))}", flush=True)


def show_table(heading: str, summary: Summary) -> None:
    """Print a table below its heading; nothing if the table is empty or the run is quiet."""
    if not summary.table.empty and not _quiet:
        print(f"\n{wrapped(escaped(heading))}\n\n{summary}\n", flush=True)
