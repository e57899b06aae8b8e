"""Weights & Biases report on a group of runs: the verdict, and the curves, metrics, figures and tables of each analysis.

Run folders supply the names of metrics, tables and figures. Publishing needs `wandb login`, runs that are online or synced, and
`pip install wandb-workspaces`.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from normscope.analyses.registry import analyses as known_analyses
from normscope.errors import InputError, one_line
from normscope.reporting.layer_charts import figure_key, layer_charts
from normscope.results.codes import in_prose
from normscope.results.declare import Published, Rollup, declared
from normscope.results.measures import panel_of
from normscope.results.result import Result

_WIDTH, _HEIGHT = 12, 8
"""Size of a panel; the grid is 24 wide."""


def published(entity: str, project: str, group: str, runs: Mapping[Path, Result], sentences: Sequence[str]) -> str:
    """Publish the report as a draft, and return its address; see `report`.

    Raises:
        InputError: If the report cannot be published.
    """
    built = report(entity, project, group, runs, sentences)
    try:
        built.save(draft=True)
    except Exception as error:  # the client raises many kinds of error without a login or a network
        raise InputError(f"the report could not be published: {one_line(error)}; run `wandb login`") from error
    return str(built.url)


def report(entity: str, project: str, group: str, runs: Mapping[Path, Result], sentences: Sequence[str]) -> Any:
    """The report, not yet published: a `wandb_workspaces.reports.v2.Report`.

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
        info = known_analyses().get(analysis)
        blocks.append(wr.H1(analysis if info is None else info.title))
        for title, panels, meanings in _sections(wr, analysis, Published() if info is None else info.published, runs):
            if panels:
                text = [wr.MarkdownBlock("\n".join(meanings))] if meanings else []
                blocks += [wr.H2(title), *text, _grid(wr, runset, panels)]
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


def _sections(wr: Any, analysis: str, published: Published, runs: Mapping[Path, Result]) -> list[_Section]:
    """The sections on one analysis. All curves of a measure share a panel, and likewise all metrics of a family."""
    curves = _families(analysis, (name for result in runs.values() for name in result.curves), published.curves)
    metrics = _families(analysis, (name for result in runs.values() for name in result.metrics), published.metrics)
    tables, figures = (
        sorted({path.stem for folder in runs for path in (folder / kind).glob(f"{analysis}_*.{suffix}")})
        for kind, suffix in (
            ("tables", "csv"),
            ("figures", "[ps][nvd][gf]"),
        )  # .png, .svg or .pdf: W&B itself has a .png
    )
    every = {name: values for result in runs.values() for name, values in result.curves.items()}
    lines = [
        wr.CustomChart(
            query={"summaryTable": {"tableKey": f"Custom Chart Tables/{chart.key}_table"}},
            chart_name="wandb/lineseries/v0",
            chart_fields={name: name for name in ("step", "lineKey", "lineVal")},
            chart_strings={"title": chart.title, "xname": "layer"},
        )
        for chart in layer_charts({name: every[name] for names in curves.values() for name in names})
    ]
    bars = [wr.BarPlot(title=_label(names), metrics=names, title_x=_label(names)) for names in metrics.values()]
    media = [
        wr.MediaBrowser(title=key.removeprefix(f"{analysis}/"), media_keys=[key])
        for key in (figure_key(analysis, name) for name in figures)
    ]
    rows = {name: published.tables.get(name.removeprefix(f"{analysis}_")) for name in tables}
    return [
        ("By layer", lines, _meanings(curves, published.curves)),
        ("Metrics", bars, _meanings(metrics, published.metrics)),
        ("Figures", media, []),
        (
            "Tables",
            [wr.WeavePanelSummaryTable(table_name=f"tables/{name}") for name in tables],
            [f"- `{name}`: one row per {in_prose(info.row)}" for name, info in rows.items() if info is not None],
        ),
    ]


def _families(analysis: str, names: Iterable[str], rollups: Sequence[Rollup]) -> dict[str, list[str]]:
    """Full names of metrics or curves, by the name under which the analysis declares them, such as `<method>/mean`.

    Names that it does not declare, as those of other packages' analyses may be, are families of their own.
    """
    families: dict[str, list[str]] = {}
    for full in dict.fromkeys(names):
        owner, _, name = full.partition("/")
        if owner == analysis:
            found = declared(rollups, name)
            families.setdefault(name if found is None else found[0].name, []).append(full)
    return families


def _meanings(families: Mapping[str, Sequence[str]], rollups: Sequence[Rollup]) -> list[str]:
    meanings = {rollup.name: rollup.meaning for rollup in rollups}
    return [
        f"- {_label(names)}: {in_prose(meanings[family])}" for family, names in families.items() if family in meanings
    ]


def _label(names: Sequence[str]) -> str:
    """The label of a family's numbers or curves."""
    panel = panel_of(names[0])
    return panel.label or panel.words
