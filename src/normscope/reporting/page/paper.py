"""A paper's tables and figures beside ours, in its order: the first sections of a run's report, or a page of several runs."""

import dataclasses
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from normscope.errors import InputError
from normscope.reporting.exhibits import Exhibit, Reproduction, closest, differences, reproduction_of
from normscope.reporting.page.elements import SHOWN_ROWS, id_of_table, readable, table, without_folders
from normscope.reporting.page.sections import Measure, Section, render
from normscope.reporting.published import printed
from normscope.reporting.run_folder import REPORT
from normscope.results.codes import in_words
from normscope.results.result import Result
from normscope.rounding import counted, decimals_of, enumeration, fixed

_UNFOLDED = 40
"""Rows of a table that readers see without unfolding it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a paper's preset."""

    label: str
    """What readers call it. Runs of one label are of one model."""
    report: str
    """The address of its report; empty on that page itself."""
    result: Result

    @property
    def paper(self) -> str | None:
        """The folder of the paper below `experiments/`."""
        paper: str | None = self.result.config["recipe"]["paper"]
        return paper

    @property
    def preset(self) -> str | None:
        """The experiment that was run."""
        preset: str | None = self.result.config["recipe"]["name"]
        return preset


Shown = Sequence[tuple[Exhibit, Sequence[Run]]]
"""The exhibits of a paper that runs show, each with a run of every model that shows it."""


def page_of_paper(results: Mapping[Path, Result], beside: Path) -> str:
    """The page of a paper: what runs of its presets show of it, model beside model, as self-contained HTML.

    Args:
        results: By the folders of the runs.
        beside: The folder of the page, which links to the runs' own reports.

    Raises:
        InputError: If the runs are not of one paper.
    """
    runs = [
        Run(Path(str(result.facts["model"])).name, os.path.relpath(folder / REPORT, beside), result)
        for folder, result in results.items()
    ]
    models = enumeration(list(dict.fromkeys(run.label for run in runs)))
    return render(
        reproduction_of(_paper_of(runs)).paper,
        sections_of_paper(runs),
        subtitle=f"repeated with {models}",
        facts=[counted(len(runs), "run")],
    )


def numbers_of_paper(results: Iterable[Result]) -> pd.DataFrame:
    """The published numbers that runs of a paper's presets measured.

    Args:
        results: Of the runs.

    Returns:
        The columns exhibit, measure and published, and one for each model.

    Raises:
        InputError: If the runs are not of one paper.
    """
    runs = [Run(Path(str(result.facts["model"])).name, "", result) for result in results]
    shown = _shown(reproduction_of(_paper_of(runs)), runs)
    parts = [_numbers_of(exhibit, chosen).assign(exhibit=exhibit.exhibit) for exhibit, chosen in shown]
    numbers = pd.concat(parts).drop(columns="source")
    return numbers.set_index(["exhibit", "measure", "published"]).reset_index()


def sections_of_paper(runs: Sequence[Run]) -> list[Section]:
    """What runs show of their paper: an introduction, then each table or figure, the published numbers beside ours.

    Args:
        runs: Of one paper's presets.
    """
    paper = _paper_of(runs)
    reproduction = reproduction_of(paper)
    shown = _shown(reproduction, runs)
    missing = [exhibit for exhibit in reproduction.exhibits if exhibit not in [one for one, _ in shown]]
    drawn: dict[str, Exhibit] = {}
    return [
        Section(
            "paper",
            "The paper",
            question=reproduction.paper,
            content=Markup("<h3>What differs</h3>") + _lines(_differing(paper, shown)) if shown else Markup(),
            remarks=[reproduction.needs] if reproduction.needs else [],
        ),
        *(_section(paper, exhibit, chosen, drawn) for exhibit, chosen in shown),
        *([Section("paper-rest", "Not shown here", content=_lines(map(_missing, missing)))] if missing else []),
    ]


def _lines(lines: Iterable[Markup]) -> Markup:
    items = Markup().join(Markup("<li>{}</li>").format(line) for line in lines)
    return Markup('<ul class="lines">{}</ul>').format(items)


def _paper_of(runs: Iterable[Run]) -> str:
    """The paper of all runs.

    Raises:
        InputError: If there is none, or they are of several.
    """
    papers = {run.paper for run in runs}
    paper = papers.pop() if len(papers) == 1 else None
    if paper is None:
        got = enumeration(sorted(map(str, papers or [None])))
        raise InputError(f"page: expected runs of the presets of one paper, got recipe.paper={got}")
    return paper


def _shown(reproduction: Reproduction, runs: Sequence[Run]) -> Shown:
    """The exhibits of which a run has something, in the paper's order."""
    chosen = {exhibit.exhibit: _chosen(exhibit, reproduction.offline, runs) for exhibit in reproduction.exhibits}
    return [(exhibit, own) for exhibit in reproduction.exhibits if (own := chosen[exhibit.exhibit])]


def _chosen(exhibit: Exhibit, offline: Mapping[str, str], runs: Sequence[Run]) -> list[Run]:
    """The run of each model that shows an exhibit: that of the exhibit's preset, or else the first of several."""
    own = (exhibit.preset, offline.get(exhibit.preset or ""))
    showing = sorted((run for run in runs if exhibit.shown_in(run.result)), key=lambda run: run.preset not in own)
    of_labels = {run.label: run for run in reversed(showing)}
    return [of_labels[label] for label in dict.fromkeys(run.label for run in runs) if label in of_labels]


def _differing(paper: str, shown: Shown) -> list[Markup]:
    """For each label, a line that says in what its runs differ from the paper's."""
    found: dict[str, dict[str, tuple[object, list[object]]]] = {}
    for exhibit, chosen in shown:
        for run in chosen:
            found.setdefault(run.label, {}).update(differences(paper, [exhibit.exhibit], run.result))
    return [
        Markup("<b>{}</b>: {}").format(
            label,
            Markup(", ").join(_difference(key, *values) for key, values in keys.items())
            or "the model and the data are the paper’s",
        )
        for label, keys in found.items()
    ]


def _difference(key: str, ours: object, theirs: Sequence[object]) -> Markup:
    papers = Markup(" or ").join(Markup("<code>{}</code>").format(value) for value in theirs)
    return Markup("<code>{}={}</code> (the paper: {})").format(key, without_folders(str(ours)), papers)


def _missing(exhibit: Exhibit) -> Markup:
    """A line about an exhibit that no run shows."""
    command = Markup(": <code>{}</code>").format(exhibit.how()) if exhibit.how() else ""
    return Markup("<b>{}</b>. {}{}").format(exhibit.exhibit, exhibit.title, command)


def _section(paper: str, exhibit: Exhibit, chosen: Sequence[Run], drawn: dict[str, Exhibit]) -> Section:
    """An exhibit: its published numbers beside ours, and our figures.

    Args:
        paper: Folder below `experiments/`.
        exhibit: The exhibit.
        chosen: The runs that show it.
        drawn: The exhibits of the figures that earlier sections show, by the name of the element; those of this one are added.
    """
    measures: list[Measure] = []
    links: list[Markup] = []
    for run in chosen:
        of_run = f" of {run.label}" if len(chosen) > 1 else ""
        for name in exhibit.figures_of(run.result):
            element = f"{name}-{run.label}" if run.report else name
            if element in drawn:
                links.append(_link(f"#{_id(drawn[element])}", f"the figure of {drawn[element].exhibit}"))
            else:
                drawn[element] = exhibit
                measures.append(Measure([run.result.figures[name]], title=run.label if of_run else "", id=element))
        for name in exhibit.tables:
            if name in run.result.tables:
                links.append(_link(f"{run.report}#{id_of_table(name)}", f"the table {in_words(name)}{of_run}"))
        if exhibit.maps and run.result.maps:
            links.append(_link(f"{run.report}#explorer", f"token maps{of_run}"))
    groups = closest(paper, exhibit.exhibit, chosen[0].result)
    form = exhibit.printed(groups)
    content = _printed(form, groups, exhibit, chosen) + _numbers(exhibit, chosen, form.to_numpy().ravel())
    drawn_here = any(exhibit.figures_of(run.result) for run in chosen)
    if not any(len(exhibit.rows_of(run.result)) for run in chosen) and not (form.empty and drawn_here):
        content += Markup().join(_own_table(name, run) for run in chosen for name in exhibit.tables)
    if links:
        content += Markup('<p class="faint">See also {}.</p>').format(Markup(", ").join(dict.fromkeys(links)))
    return Section(
        _id(exhibit),
        exhibit.exhibit,
        question=exhibit.title,
        content=content,
        measures=measures,
        shown=len(measures),
        remarks=[exhibit.needs] if exhibit.needs else [],
    )


def _id(exhibit: Exhibit) -> str:
    """The name of an exhibit's section."""
    return re.sub(r"\W+", "-", f"paper {exhibit.exhibit}".lower())


def _link(address: str, text: str) -> Markup:
    return Markup('<a href="{}">{}</a>').format(address, text)


def _numbers_of(exhibit: Exhibit, chosen: Sequence[Run], but: Collection[object] = ()) -> pd.DataFrame:
    """The published numbers of an exhibit beside ours: the columns source, measure and published, and one for each run.

    Args:
        exhibit: The exhibit.
        chosen: The runs that show it.
        but: Metrics to leave out.
    """
    of_runs = {run.label: rows[~rows["metric"].isin(but)] for run in chosen for rows in [exhibit.rows_of(run.result)]}
    keys = ["metric", "source"]
    rows = pd.concat(of_runs.values()).drop_duplicates(keys).set_index(keys)
    values = {label: found.set_index(keys)["value"].reindex(rows.index) for label, found in of_runs.items()}
    return rows[["measure", "published"]].assign(**values).reset_index("source").reset_index(drop=True)


def _printed(
    form: pd.DataFrame, groups: Sequence[Mapping[str, Any]], exhibit: Exhibit, chosen: Sequence[Run]
) -> Markup:
    """The paper's table in its own form, with lines in each row: as published, from each source, and of each run.

    Numbers have the decimals that were printed. A run of other weights, whose places are others, has no line.
    """
    if form.empty:
        return Markup()
    lines: dict[str, dict[str, float]] = {}
    named: dict[str, str] = {}
    for group in groups:
        numbers = printed(group)
        free = (line for line, known in lines.items() if not known.keys() & numbers)
        line = next(free, f"published{'′' * len(lines)}")
        lines[line] = lines.get(line, {}) | numbers
        named[group["source"]] = line
    of_papers = list(lines)
    for run in chosen:
        rows = exhibit.rows_of(run.result)
        if len(rows):
            lines[run.label] = {**run.result.metrics, **dict(zip(rows["metric"], rows["value"], strict=True))}
        if len(rows) and not rows["differs_in"].any():
            named[f"{int(rows['within'].sum())} of {len(rows)} within tolerance"] = run.label
    values = {line: form.map(numbers.get) for line, numbers in lines.items()}
    given = pd.DataFrame({line: values[line].apply(_decimals) for line in of_papers})
    finest = given.max(axis=1).fillna(3)
    cells = pd.concat(
        {line: found.apply(_written, digits=given.get(line, finest)) for line, found in values.items()}, names=[" "]
    )
    by_row = np.arange(len(cells)).reshape(len(lines), -1).T.ravel()
    places = list(form.index.names)
    shown = cells.iloc[by_row].reset_index()[[*places, *([" "] if len(lines) > 1 else []), *form]]
    numbered = [place for place in places if shown[place].str.isdecimal().all()]
    shown = shown[(shown[list(form)] != "").any(axis=1)]
    shown.loc[shown.duplicated(places), places] = ""  # said in the line above
    captions = [
        source if [line] == of_papers else f"{line}: {source}"
        for source, line in named.items()
        if not any(source != other and source.startswith(other) for other in named)
    ]
    if len(lines) == len(of_papers):
        captions.append("not compared, since these are places in the paper’s weights")
    return table(shown, "; ".join(captions), written=[*numbered, *form])


def _decimals(column: "pd.Series[Any]") -> float:
    """The decimals of the numbers in a column; NaN if it has none."""
    return max(map(decimals_of, column.dropna()), default=math.nan)


def _written(column: "pd.Series[Any]", digits: "pd.Series[float]") -> "pd.Series[str]":
    return column.map(lambda value: "" if pd.isna(value) else fixed(value, int(digits[column.name])))


def _numbers(exhibit: Exhibit, chosen: Sequence[Run], above: Collection[object]) -> Markup:
    """The published numbers beside those of each run, but for those above; nothing if the runs have none of them."""
    numbers = _numbers_of(exhibit, chosen, above)
    if numbers.empty:
        return Markup()
    sources = numbers.pop("source")
    if len(chosen) == 1:
        rows = exhibit.rows_of(chosen[0].result)
        rows = rows[~rows["metric"].isin(above)]
        numbers["difference"] = rows["difference"].to_numpy()
        if not rows["differs_in"].any():
            numbers["within tolerance"] = rows["within"].map({True: "yes", False: "no"}).to_numpy()
    if numbers["measure"].duplicated().any():  # published twice
        numbers["source"] = sources
    return _folded_if_long(numbers, "; ".join(sources.drop_duplicates()))


def _own_table(name: str, run: Run) -> Markup:
    """A table of ours as it is, where the paper's numbers are of other dimensions or layers."""
    rows = run.result.tables.get(name)
    if rows is None or len(rows) > SHOWN_ROWS:
        return Markup()
    return _folded_if_long(readable(name, rows).rename(columns=in_words), f"{run.label}: {in_words(name)}")


def _folded_if_long(rows: pd.DataFrame, caption: str) -> Markup:
    shown = table(rows, caption)
    if len(rows) <= _UNFOLDED:
        return shown
    return Markup("<details><summary>{}, {}</summary>{}</details>").format(caption, counted(len(rows), "row"), shown)
