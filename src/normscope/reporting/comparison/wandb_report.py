"""Weights & Biases report on a group of runs: differing configs, curves by layer, metrics, tables and figures.

python -m normscope.reporting.comparison.wandb_report --entity ME --group SWEEP outputs/multirun/SWEEP

The folders supply the names of metrics, tables and figures. Publishing needs `wandb login`, runs that are online or synced,
and `pip install wandb-workspaces`.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normscope.config.arguments import ArgumentParser
from normscope.errors import InputError, message, one_line
from normscope.reporting.comparison import runs as run_folders
from normscope.reporting.comparison.runs import Run

_WIDTH, _HEIGHT = 12, 8
"""Size of a panel; the grid is 24 wide."""


def report(entity: str, project: str, group: str, runs: Sequence[Run]) -> Any:
    """The report, not yet published: a `wandb_workspaces.reports.v2.Report`.

    Args:
        entity: User or team.
        project: Project of the runs.
        group: Group of the runs: the name of the sweep's folder.
        runs: The same runs, read from their folders.

    Raises:
        InputError: If wandb-workspaces is not installed.
    """
    try:
        wr: Any = importlib.import_module("wandb_workspaces.reports.v2")
    except ImportError as error:
        raise InputError("wandb-workspaces is not installed; run `pip install wandb-workspaces`") from error
    runset = wr.Runset(entity=entity, project=project, name=group, filters=f"Group = '{group}'")
    blocks: list[Any] = [
        wr.TableOfContents(),
        wr.P(f"Runs of group {group}: how their configs differ, and their results."),
        wr.H1("Differences between configs"),
        _grid(wr, runset, [wr.RunComparer(diff_only="split")]),
    ]
    analyses = dict.fromkeys(name.partition("/")[0] for run in runs for name in run.metrics)
    for analysis in analyses:
        blocks.append(wr.H1(analysis))
        for title, panels in _panels(wr, analysis, runs).items():
            if panels:
                blocks += [wr.H2(title), _grid(wr, runset, panels)]
    return wr.Report(
        entity=entity, project=project, title=f"normscope: {group}", description="Comparison of runs", blocks=blocks
    )


def _grid(wr: Any, runset: Any, panels: Sequence[Any]) -> Any:
    """Panels of a set of runs, two per row."""
    for number, panel in enumerate(panels):
        panel.layout = wr.Layout(x=number % 2 * _WIDTH, y=number // 2 * _HEIGHT, w=_WIDTH, h=_HEIGHT)
    return wr.PanelGrid(runsets=[runset], panels=list(panels))


def _panels(wr: Any, analysis: str, runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The panels of one analysis, by section title."""
    curves = dict.fromkeys(str(name) for run in runs for name in run.curves["curve"])
    metrics = dict.fromkeys(name for run in runs for name in run.metrics)
    tables, figures = (
        sorted({path.stem for run in runs for path in (run.folder / kind).glob(f"{analysis}_*.{suffix}")})
        for kind, suffix in (("tables", "csv"), ("figures", "png"))
    )
    return {
        "By layer": [
            wr.LinePlot(title=name, x="layer", y=[f"by_layer/{name}"], title_x="layer")
            for name in curves
            if name.startswith(f"{analysis}/")
        ],
        "Metrics": [wr.BarPlot(title=name, metrics=[name]) for name in metrics if name.startswith(f"{analysis}/")],
        "Figures": [wr.MediaBrowser(title=name, media_keys=[f"figures/{name}"]) for name in figures],
        "Tables": [wr.WeavePanelSummaryTable(table_name=f"tables/{name}") for name in tables],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the report and publish it as a draft."""
    parser = ArgumentParser(
        prog="python -m normscope.reporting.comparison.wandb_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="run folders, or folders that contain run folders"
    )
    parser.add_argument("--entity", required=True)
    parser.add_argument("--project", default="normscope")
    parser.add_argument("--group", required=True)
    parsed = parser.parse_args(arguments)
    try:
        runs, _ = run_folders.read(parsed.folders)
        built = report(parsed.entity, parsed.project, parsed.group, runs)
        try:
            built.save(draft=True)
        except Exception as error:  # the client raises many kinds of error without a login or a network
            raise InputError(f"the report could not be published: {one_line(error)}; run `wandb login`") from error
        print(built.url)
    except InputError as error:
        print(message(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
