"""Weights & Biases report on a group of runs: the verdict, and the curves, metrics, figures and tables of each analysis.

Run folders supply the names of metrics, tables and figures. Uploading needs `wandb login`, runs that are online or synced, and
`pip install wandb-workspaces`.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.analyses.registry import analyses as known_analyses
from normscope.errors import InputError, one_line
from normscope.reporting.tracking import chart_key, chart_title, figure_key
from normscope.results.codes import in_prose
from normscope.results.measures import Family, families, title
from normscope.results.result import Result
from normscope.results.run_tables import tables_of

_WIDTH, _HEIGHT = 12, 8
"""Size of a panel; the grid is 24 wide."""


def uploaded(entity: str, project: str, group: str, runs: Mapping[Path, Result], sentences: Sequence[str]) -> str:
    """Upload the report as a draft, and return its address; see `report`.

    Raises:
        InputError: If the report cannot be uploaded.
    """
    built = report(entity, project, group, runs, sentences)
    try:
        built.save(draft=True)
    except Exception as error:  # the client raises many kinds of error without a login or a network
        raise InputError(f"the report could not be uploaded: {one_line(error)}; run `wandb login`") from error
    return str(built.url)


def report(entity: str, project: str, group: str, runs: Mapping[Path, Result], sentences: Sequence[str]) -> Any:
    """The report, not yet uploaded: a `wandb_workspaces.reports.v2.Report`.

    Args:
        entity: User or team.
        project: Project of the runs.
        group: Group of the runs: the name of the sweep's folder.
        runs: The same runs, by the folders that they were read from.
        sentences: The verdict of their comparison.

    Raises:
        InputError: If wandb-workspaces is not installed.
    """
    try:
        wr: Any = importlib.import_module("wandb_workspaces.reports.v2")
    except ImportError as error:
        raise InputError("wandb-workspaces is not installed; run `pip install wandb-workspaces`") from error
    runset = wr.Runset(entity=entity, project=project, name=group, filters=f"Group = '{group}'")
    blocks: list[Any] = [
        wr.MarkdownBlock("\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences, start=1))),
        wr.TableOfContents(),
        wr.H1("Differences between configs"),
        _grid(wr, runset, [wr.RunComparer(diff_only="split")]),
    ]
    for analysis in dict.fromkeys(name.partition("/")[0] for result in runs.values() for name in result.metrics):
        blocks.append(wr.H1(title(analysis)))
        for heading, panels, meanings in _sections(wr, analysis, runs):
            if panels:
                text = [wr.MarkdownBlock("\n".join(meanings))] if meanings else []
                blocks += [wr.H2(heading), *text, _grid(wr, runset, panels)]
    return wr.Report(
        entity=entity, project=project, title=f"normscope: {group}", description="Comparison of runs", blocks=blocks
    )


def _grid(wr: Any, runset: Any, panels: Sequence[Any]) -> Any:
    """Panels of a set of runs, two per row."""
    for number, panel in enumerate(panels):
        panel.layout = wr.Layout(x=number % 2 * _WIDTH, y=number // 2 * _HEIGHT, w=_WIDTH, h=_HEIGHT)
    return wr.PanelGrid(runsets=[runset], panels=list(panels))


_Section = tuple[str, list[Any], list[str]]
"""Title, panels, and what they show as items of a list in Markdown."""


def _sections(wr: Any, analysis: str, runs: Mapping[Path, Result]) -> list[_Section]:
    """The sections on one analysis. All curves of a family share a panel, and likewise all metrics."""
    curves = families(_own(analysis, (result.curves for result in runs.values())))
    metrics = families(_own(analysis, (result.metrics for result in runs.values())), of_numbers=True)
    tables, figures = (
        sorted({path.stem for folder in runs for path in (folder / kind).glob(f"{analysis}_*.{suffix}")})
        for kind, suffix in (
            ("tables", "csv"),
            ("figures", "[ps][nvd][gf]"),
        )  # .png, .svg or .pdf: W&B itself has a .png
    )
    lines = [
        wr.CustomChart(
            query={"summaryTable": {"tableKey": f"Custom Chart Tables/{chart_key(family)}_table"}},
            chart_name="wandb/lineseries/v0",
            chart_fields={name: name for name in ("step", "lineKey", "lineVal")},
            chart_strings={"title": chart_title(family), "xname": "layer"},
        )
        for family in curves
    ]
    bars = [wr.BarPlot(title=family.measure, metrics=list(family.panels), title_x=family.measure) for family in metrics]
    media = [
        wr.MediaBrowser(title=key.removeprefix(f"{analysis}/"), media_keys=[key])
        for key in (figure_key(analysis, name) for name in figures)
    ]
    rows = {name: tables_of(known_analyses().values()).get(name) for name in tables}
    return [
        ("By layer", lines, _meanings(curves)),
        ("Metrics", bars, _meanings(metrics)),
        ("Figures", media, []),
        (
            "Tables",
            [wr.WeavePanelSummaryTable(table_name=f"tables/{name}") for name in tables],
            [f"- `{name}`: one row per {in_prose(info.row)}" for name, info in rows.items() if info is not None],
        ),
    ]


def _own(analysis: str, of_runs: Iterable[Iterable[str]]) -> list[str]:
    """The names that are those of an analysis."""
    return [name for names in of_runs for name in names if name.partition("/")[0] == analysis]


def _meanings(several: Sequence[Family]) -> list[str]:
    return [f"- {family.measure}: {family.meaning}" for family in several if family.meaning]
