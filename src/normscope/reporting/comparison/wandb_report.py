"""A Weights & Biases report that compares the runs of a group: configs, curves by layer, final numbers, tables and figures.

python -m normscope.reporting.comparison.wandb_report --entity ME --group SWEEP outputs/multirun/SWEEP

The folders say what the runs have measured; publishing needs `wandb login` and runs that have been synced. Needs the extra
`pip install 'normscope[reports]'`.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normscope.errors import InputError, one_line
from normscope.reporting.comparison import runs as run_folders
from normscope.reporting.comparison.runs import Run

_WIDTH, _HEIGHT = 12, 8
"""Of a panel; a grid is 24 wide."""


def report(entity: str, project: str, group: str, runs: Sequence[Run]) -> Any:
    """The report, not yet published: a `wandb_workspaces.reports.v2.Report`.

    Args:
        entity: User or team.
        project: Project of the runs.
        group: Their group: the name of the sweep's folder.
        runs: The same runs on disk.

    Raises:
        InputError: If the package is not installed.
    """
    try:
        wr: Any = importlib.import_module("wandb_workspaces.reports.v2")
    except ImportError as error:
        raise InputError("wandb-workspaces is not installed: pip install 'normscope[reports]'") from error
    runset = wr.Runset(entity=entity, project=project, name=group, filters=f"Group = '{group}'")
    curves = list(dict.fromkeys(str(name) for run in runs for name in run.curves["curve"]))
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    analyses = list(dict.fromkeys(name.split("/")[0] for name in metrics))
    tables, figures = (
        sorted({path.stem for run in runs for path in (run.folder / part).glob(pattern)})
        for part, pattern in (("tables", "*.csv"), ("figures", "*.png"))
    )

    def grid(panels: list[Any]) -> Any:
        for number, panel in enumerate(panels):
            place = {"x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panel.layout = wr.Layout(**place)
        return wr.PanelGrid(runsets=[runset], panels=panels)

    blocks: list[Any] = [
        wr.TableOfContents(),
        wr.P(f"The runs of group {group}: what differs between them, and what they found."),
        wr.H1("What differs"),
        grid([wr.RunComparer(diff_only="split")]),
    ]
    for analysis in analyses:
        blocks.append(wr.H1(analysis))
        lines = [
            wr.LinePlot(title=name, x="layer", y=[f"by_layer/{name}"], title_x="layer")
            for name in curves
            if name.startswith(f"{analysis}/")
        ]
        bars = [wr.BarPlot(title=name, metrics=[name]) for name in metrics if name.startswith(f"{analysis}/")]
        if lines:
            blocks += [wr.H2("By layer"), grid(lines)]
        blocks += [wr.H2("Numbers"), grid(bars)]
        pictures = [name for name in figures if name.startswith(f"{analysis}_")]
        if pictures:
            blocks += [
                wr.H2("Figures"),
                grid([wr.MediaBrowser(title=name, media_keys=[f"figures/{name}"]) for name in pictures]),
            ]
        found = [name for name in tables if name.startswith(f"{analysis}_")]
        if found:
            blocks += [
                wr.H2("Tables"),
                grid([wr.WeavePanelSummaryTable(table_name=f"tables/{name}") for name in found]),
            ]
    return wr.Report(
        entity=entity, project=project, title=f"normscope: {group}", description="Runs side by side", blocks=blocks
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the report and publish it as a draft, or say what is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m normscope.reporting.comparison.wandb_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="run folders, or folders of them")
    parser.add_argument("--entity", required=True)
    parser.add_argument("--project", default="normscope")
    parser.add_argument("--group", required=True)
    given = parser.parse_args(arguments)
    try:
        runs, _ = run_folders.read(given.folders)
        built = report(given.entity, given.project, given.group, runs)
        try:
            built.save(draft=True)
        except Exception as error:  # whatever the client raises without a login or a network
            raise InputError(
                f"the report is built but could not be published: {one_line(error)}; run `wandb login`"
            ) from error
        print(built.url)
    except InputError as error:
        print(f"normscope: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
