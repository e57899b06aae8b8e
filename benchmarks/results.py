"""Output of measurements: tables and a figure."""

import os
import platform
import textwrap
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from benchmarks import commands
from benchmarks.growth import OVER
from benchmarks.scenarios import BARE
from normscope.reporting.palette import LINE_COLOURS, MARKERS, STYLE


def machine() -> str:
    """A description of the machine."""
    processor = platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        names = [
            line.split(":")[1].strip() for line in information.read_text().splitlines() if line.startswith("model name")
        ]
        processor = names[0] if names else processor
    accelerator = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    cores = f"{os.cpu_count()} logical cores{accelerator}"
    return f"{processor}, {cores}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def show(rows: list[dict[str, object]]) -> bool:
    """Print rows as a table, and again in red what has failed, with the reason; return whether everything was measured."""
    print(pd.DataFrame(rows).to_string(index=False), flush=True)
    failed = [row for row in rows if row.get("note")]
    for row in failed:
        about = ", ".join(str(row[key]) for key in ("shape", "length", "way") if key in row)
        print(f"\033[31m{about}: {row['note']}\033[0m", flush=True)
    return not failed


def write(folder: Path, suite: str, rows: list[dict[str, object]]) -> None:
    """Write the measurements of a suite.

    Args:
        folder: Output folder, created if missing.
        suite: Name of the suite.
        rows: Its measurements.
    """
    if not rows:
        return
    folder.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows).assign(machine=machine())
    table.to_csv(folder / f"{suite}.csv", index=False)
    if suite in OVER:
        _draw_growth(table, OVER[suite], folder / f"{suite}.png")
    if suite == "commands":
        _draw_commands(table, folder / "commands.png")


_SIZES = {"length": "tokens per sequence", "layers": "layers", "examples": "sequences"}


def _draw_growth(table: pd.DataFrame, over: str, path: Path) -> None:
    """Time and memory by size: relative to the bare pass, or in seconds and MiB where none is measured."""
    relative = "time_ratio" in table
    columns = {"time_ratio": "time", "memory_ratio": "peak memory"}
    if not relative:
        columns = {"seconds": "seconds of the pass", "mebibytes": "peak memory in MiB"}
    with mpl.rc_context(STYLE):
        shapes = [shape for shape, rows in table.groupby("shape", sort=False) if rows[over].nunique() > 1]
        if not shapes:
            return
        figure, axes = plt.subplots(
            len(shapes), 2, figsize=(7.5, 2.7 * len(shapes)), squeeze=False, layout="constrained"
        )
        for row, shape in zip(axes, shapes, strict=True):
            rows = table[(table["shape"] == shape) & (table["way"] != BARE)]
            for axis, (column, title) in zip(row, columns.items(), strict=True):
                for number, (way, values) in enumerate(rows.groupby("way", sort=False)):
                    axis.plot(
                        values[over], values[column], color=LINE_COLOURS[number], marker=MARKERS[number], label=way
                    )
                axis.set_xscale("log", base=2)
                axis.set_xticks(sorted(rows[over].unique()), [f"{n:,}" for n in sorted(rows[over].unique())])
                if relative:
                    axis.axhline(1, color="grey", linewidth=0.8)
                    axis.set_ylabel("relative to the bare pass")
                if column == "seconds":
                    axis.set_yscale("log")
                else:
                    axis.set_ylim(bottom=0)
                axis.set_title(f"{shape!s}: {title}")
                axis.set_xlabel(_SIZES[over])
        axes[0][0].legend(frameon=False, fontsize=8)
        figure.supxlabel("\n".join(textwrap.wrap(table["machine"][0], 100)), fontsize=7, color="grey")
        figure.savefig(path, dpi=160)
        plt.close(figure)


def _draw_commands(table: pd.DataFrame, path: Path) -> None:
    """Draw the phases of commands, one after the other, as multiples of the bare pass."""
    cells = list(table.groupby(["shape", "examples"], sort=False))
    with mpl.rc_context(STYLE):
        height = 0.9 + 0.25 * max(len(rows) for _, rows in cells)
        figure, axes = plt.subplots(
            (len(cells) + 1) // 2,
            2,
            figsize=(7.5, height * ((len(cells) + 1) // 2)),
            squeeze=False,
            layout="constrained",
        )
        for axis, ((shape, examples), rows) in zip(axes.flat, cells, strict=False):
            rows = rows[::-1]  # from the top down, as they were measured
            names = ["all of them" if "+" in way else way for way in rows["way"]]
            end = np.zeros(len(rows))
            for number, phase in enumerate(commands.PHASES):
                width = rows[f"{phase}_ratio"].to_numpy()
                axis.barh(names, width, left=end, color=LINE_COLOURS[number], label=phase)
                end += width
            axis.axvline(1, color="grey", linewidth=0.8)
            axis.set_title(f"{shape}, {examples:,} examples")
            axis.set_xlabel("× the bare pass")
        for axis in axes.flat[len(cells) :]:
            axis.set_axis_off()
        figure.legend(
            *axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False, fontsize=8
        )
        figure.supxlabel("\n".join(textwrap.wrap(table["machine"].iloc[0], 100)), fontsize=7, color="grey")
        figure.savefig(path, dpi=160)
        plt.close(figure)
