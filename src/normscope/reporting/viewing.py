"""Views of results: of those in memory (`page`, `compare`), and of run folders (`normscope page`, `normscope compare`)."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from typing_extensions import TypeAliasType

from normscope.config.calls import Instance, Several, checked
from normscope.config.rules import Expected
from normscope.config.schema import check_options
from normscope.errors import InputError, one_line
from normscope.reporting.comparison import in_terminal, runs
from normscope.reporting.comparison.compare import compared, write
from normscope.reporting.comparison.page import comparison_page
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.verdict import verdict
from normscope.reporting.drawing import figure_files
from normscope.reporting.options import Appearance, FigureOptions, appearance
from normscope.reporting.page import report
from normscope.reporting.page.paper import page_of_paper
from normscope.reporting.run_folder import REPORT
from normscope.reporting.terminal import say
from normscope.results.findings import Summary
from normscope.results.map_differences import differences_of_maps
from normscope.results.result import Result
from normscope.results.run_files import FUNCTION, RESULTS, Status
from normscope.untrusted.writing import write_file, write_named

_ONE = "a normscope.Result"

Results = TypeAliasType(
    "Results",
    Annotated[
        Annotated[Result, Instance(_ONE)] | Several[Annotated[Result, Instance(_ONE)]],
        Expected(f"{_ONE}, or a list of these"),
    ],
)
"""A `Result`, or several."""


@checked
def page(results: Results, path: str | Path | None = None) -> str:
    """Make an HTML page: the report of one run, or the comparison of several. It needs no other file.

    Args:
        results: A `Result`, or several; differences are measured from the first of several.
        path: A file to write the page to as well.

    Returns:
        The page as HTML.

    Examples:
        >>> import normscope
        >>> result = normscope.run("mixing", texts=["A short text."])
        >>> normscope.page(result)[:15]
        '<!doctype html>'

    Raises:
        InputError: If `results` is anything else or cannot be drawn, or the file cannot be written.
    """
    several = _listed(results)
    with _drawn("results"):
        content = report.page(several[0]) if len(several) == 1 else comparison_page(_comparison(several))
    if path is not None:
        write_named(path, content.encode())
    return content


@checked
def compare(results: Results) -> Result:
    """Compare results: which differences are detectable, and how large they are.

    Args:
        results: Results of runs, or of a function of single texts: for two texts, for instance, a text before and after a
            change, one text in two models, or two answers. Differences are measured from the first.

    Returns:
        A result: `.sentences` is the verdict, `.table` has one row per metric and one column per result, and other tables have
        every value by layer and the outcomes of significance tests. Where results have token maps, `.maps` holds the
        differences between maps of the same text, or of texts that share tokens, `.tables["map_changes"]` the largest ones of
        each measure, and `.figure(layer=3)` draws them. Of runs, `page(results)` shows more than the page of this result; of
        single texts, the page of this result, which has the maps.

    Examples:
        >>> import normscope
        >>> model = normscope.load()
        >>> texts = [normscope.decompose(model, f"The film was {word} good.") for word in ("not", "very")]
        >>> normscope.compare(texts).maps[0].queries[3:6]
        ('was', 'not → very', 'good')
        >>> results = [normscope.run("mixing", texts=["A short text."], layers=[layer]) for layer in (1, 3)]
        >>> normscope.compare(results).sentences[0].rpartition(": ")[2]
        '4.4% in layers=[1] and 18% in layers=[3].'

    Raises:
        InputError: If no run has completed, or `results` is anything else.
    """
    several = _listed(results)
    with _drawn("results"):
        comparison = _comparison(several)
        tables = {name: getattr(comparison, name) for name in _COMPARED}
        different = in_terminal.most_different(comparison)
        maps = differences_of_maps(several, comparison.runs["label"])
        are_texts = all(FUNCTION in result.config for result in several)
        return Result(
            tables={name: rows for name, rows in {**tables, **maps.tables}.items() if len(rows)},
            maps=maps.maps,
            # Of single texts, nothing can be tested.
            sentences=maps.sentences if maps.sentences and are_texts else [*verdict(comparison), *maps.sentences],
            summaries={"": Summary(different, digits=3, caption="Measures that differ most")} if len(different) else {},
            notes=comparison.failures,
            facts={"model": comparison.model, "sequences": len(several)},
            config={FUNCTION: "compare", "text": comparison.title},
        )


_COMPARED = ("metrics", "values", "seeds", "tests", "sequence_tests", "training", "crossings")
"""The tables of a comparison."""


def _listed(results: Results) -> list[Result]:
    several = [results] if isinstance(results, Result) else list(results)
    if not several:
        raise InputError(f"results: expected {_ONE}, or a list of these, got an empty list")
    return several


@contextlib.contextmanager
def _drawn(what: object) -> Iterator[None]:
    """Whatever fails is the results' fault: what normscope saves can be drawn, so someone has changed it."""
    try:
        yield
    except (InputError, BrokenPipeError):
        raise
    except OSError as error:
        raise InputError(f"{what}: cannot be written to: {one_line(error)}") from error
    except Exception as error:  # of pandas, pyarrow, matplotlib and the parser of XML, each of its own type
        raise InputError(f"{what}: cannot be drawn: {type(error).__name__}: {one_line(error)}") from error


def _comparison(results: Sequence[Result]) -> RunComparison:
    """The comparison of results, whose runs are called by their places."""
    if not any(result.metrics or result.maps for result in results):
        raise InputError("results: expected at least one Result with metrics or token maps, got none")
    return compared({Path(str(number)): result for number, result in enumerate(results)}, [])


def draw_again(folder: Path) -> Path:
    """Remake the figures and the report of a completed run.

    Raises:
        InputError: If the folder does not hold a completed run, is damaged, or cannot be written to.
    """
    result = _completed(folder)
    with _drawn(folder):
        content = report.page(result).encode()
        for name, picture in figure_files(result.figures, _look(result)):
            write_file(folder, name, picture)
        return write_file(folder, REPORT, content)


def draw_paper(folders: Sequence[Path], output: Path) -> Path:
    """Make the page of a paper from runs of its presets.

    Args:
        folders: Of completed runs.
        output: The file of the page.

    Returns:
        The page.

    Raises:
        InputError: If a folder does not hold a completed run, the runs are not of one paper, or the page cannot be written.
    """
    results = {folder: _completed(folder) for folder in folders}
    with _drawn(output):
        content = page_of_paper(results, output.parent)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_named(output, content.encode())
    return output


def _completed(folder: Path) -> Result:
    result = Result.read(folder)
    if result.status != Status.COMPLETED:
        raise InputError(
            f"{folder}: expected a completed run, but it is {result.status}: {result.error or 'no results'}"
        )
    return result


def _look(result: Result) -> Appearance:
    """The appearance of figures that the config asks for, if it is that of a run."""
    options = FigureOptions(**result.config.get("figures", {}))
    check_options(options, "figures.")
    return appearance(options)


def compare_folders(folders: Sequence[Path], output: Path) -> Path:
    """Compare the runs in the given folders: print the verdict, and write the page and the tables.

    Args:
        folders: Runs, or folders that contain them.
        output: The folder for the comparison.

    Raises:
        InputError: If there is nothing to compare, a run is damaged, or the folder cannot be written to.
    """
    return _compared(*runs.read(folders), output)[0]


def _compared(
    found: Mapping[Path, Result],
    failures: Sequence[str],
    output: Path,
    baseline: Path | None = None,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Path, RunComparison]:
    with _drawn(output):
        comparison = compared(found, failures, baseline, thresholds)
        written = write(comparison, output)
        in_terminal.show(comparison)
        return written, comparison


def command(asked: argparse.Namespace) -> Path:
    """Run `page` or `compare`, and return the page that it writes.

    Args:
        asked: The command and its arguments, as the command line has them.

    Raises:
        InputError: If the page cannot be made.
    """
    if asked.command == "page":
        if len(asked.runs) == 1 and asked.output is None:
            return draw_again(asked.runs[0])
        return draw_paper(asked.runs, asked.output or Path("outputs/paper.html"))
    is_sweep = len(asked.runs) == 1 and not os.path.exists(asked.runs[0] / RESULTS)
    output = asked.output or (asked.runs[0] if is_sweep else Path("outputs/comparison"))
    found, failures = runs.read(asked.runs)
    written, comparison = _compared(found, failures, output, asked.baseline, dict(asked.threshold))
    if asked.wandb is not None:
        from normscope.reporting.comparison.wandb_report import uploaded

        entity, _, project = asked.wandb.partition("/")
        group = asked.group or asked.runs[0].resolve().name
        say(f"report in {uploaded(entity, project or 'normscope', group, found, verdict(comparison))}")
    return written
