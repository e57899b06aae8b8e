"""The page of a checkup: what to leave alone, and the figures and tables behind it."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from normscope.checkup.findings import FORMATS, Line
from normscope.checkup.measuring import Measured
from normscope.reporting.page.elements import id_of_table, table_data, without_folders
from normscope.reporting.page.report import provenance, section_of_analysis
from normscope.reporting.page.sections import Folded, Measure, Section, render
from normscope.results.figures import Dots, Figure, Heatmaps, Lines
from normscope.rounding import begun, counted, duration

_TITLES = {
    "linear_inputs": ("Inputs of linear layers", "Which modules read values far beyond the usual ones?"),
    "rounding": ("What rounding costs", "What becomes of the model when its linear layers are rounded?"),
    "rounding_by_layer": ("What rounding costs by layer", "What becomes of it when one layer is rounded?"),
    "heads": ("Heads", "Which heads add the same vector to every token, or the same as another head?"),
    "against": ("Against {}", "Which layers differ, in weights and in what they return?"),
}


def page(measured: Measured, lines: Sequence[Line], command: str) -> str:
    """The page as self-contained HTML.

    Args:
        measured: What was measured.
        lines: What was found.
        command: What was typed.
    """
    result, against = measured.result, measured.against
    facts = result.facts
    figures = described(measured)
    shown = [line.sentence for line in lines]
    drawn = [*figures, *result.figures]
    own = [sentence.but(figure=sentence.figure if sentence.figure in drawn else "") for sentence in shown]
    other = "" if against is None else without_folders(against)
    sections = [
        Section(
            "leave", "What to leave alone", findings=own, ordered=True, remarks=[begun(note) for note in result.notes]
        ),
        *(
            Section(
                name,
                title.format(other),
                question=question,
                findings=[line.sentence for line in lines if line.about == name],
                measures=[Measure([figures[name]], id=name)],
                tables=[_folded(name, measured.tables[name])],
            )
            for name, (title, question) in _TITLES.items()
            if name in figures
        ),
        *(section_of_analysis(name, result) for name in result.analyses),
        provenance(result),
        Section(
            "again",
            "Run it again",
            content=Markup('<div class="code"><pre tabindex="0">{}</pre></div>').format(command),
        ),
    ]
    name = without_folders(measured.model.name)
    return render(
        f"Checkup of {name}{f' against {other}' if other else ''}",
        sections,
        subtitle="quantisation · pruning · serving",
        facts=[
            counted(facts["sequences"], "sequence"),
            counted(facts["tokens"], "token"),
            f"{facts['dtype']} on {facts['device']}",
            duration(float(facts["seconds"])),
        ],
    )


def described(measured: Measured) -> dict[str, Figure]:
    """The figures, by the names of their tables."""
    tables = measured.tables
    figures: dict[str, Figure] = {
        "linear_inputs": _inputs(tables["linear_inputs"]),
        "rounding": _rounding(tables["rounding"], has_loss=measured.has_loss),
        "rounding_by_layer": _by_layer(tables["rounding_by_layer"]),
        "heads": Heatmaps(
            table=tables["heads"],
            values={"share": "share of the variance", "correlation": "correlation with its twin"},
            row="layer",
            column="head",
            limits=(0.0, 1.0),
            value_label="share, correlation",
            caption=(
                "Left: the share of each head in the variance over tokens of what the heads of its layer add. A head without "
                "a share adds the same vector to every token. Right: how what a head adds correlates with what the most "
                "similar head of the same layer adds. Near 1, a head does what another one does."
            ),
        ),
    }
    if "against" in tables:
        figures["against"] = _against(tables["against"])
    return figures


def part_of(module: str) -> str:
    """The name of a module without the number of its layer: `mlp.down_proj`."""
    return re.split(r"\.\d+\.", module)[-1]


def _inputs(table: pd.DataFrame) -> Figure:
    rows = table.dropna(subset=["layer"])
    rows = rows.assign(
        part=rows["module"].map(part_of),
        layer=rows["layer"].astype(int),
        ratio=np.log10(rows["ratio"].replace([np.inf, 0.0], np.nan)),
    )
    rows = rows.groupby(["part", "layer"], sort=False)["ratio"].max().reset_index()
    return Heatmaps(
        table=rows,
        values={"ratio": "largest ÷ median"},
        row="part",
        column="layer",
        value_label="log₁₀ of the largest |x| ÷ the median |x|",
        caption=(
            "How far the largest input of each linear layer is from the median: 3 stands for 1,000 times. Where that is far, "
            "one scale for all inputs leaves hardly any of its 255 steps to most of them. Layers count from 1; names of "
            "modules count as the model's code does, mostly from 0."
        ),
    )


_ROUNDED = {str(target): title for target, title in FORMATS.items()} | {
    "without_skipped": "the same without the skip list"
}


def _rounding(table: pd.DataFrame, *, has_loss: bool) -> Figure:
    names = _ROUNDED | {
        name: f"int8, all but random list {name.rpartition('_')[2]}"
        for name in table["rounded"]
        if str(name).startswith("without_random")
    }
    order = ["bfloat16", "int8_per_token", "int8_per_tensor", "without_skipped"]
    sort: Mapping[str, int] = {name: place for place, name in enumerate(order)}
    rows = table.assign(place=[sort.get(name, len(order)) for name in table["rounded"]]).sort_values(
        "place", kind="stable"
    )
    value, low, high = ("loss_change", "loss_low", "loss_high") if has_loss else ("change", "change_low", "change_high")
    what = "change of the loss (nats per token)" if has_loss else "‖x̂ − x‖ ÷ ‖x‖ of the last hidden vectors"
    return Dots(
        table=rows.assign(all=what).rename(columns={value: "value", low: "low", high: "high"})[
            ["rounded", "all", "value", "low", "high"]
        ],
        row="rounded",
        row_titles=names,
        value="value",
        panel="all",
        panel_titles={what: ""},
        value_label=what,
        interval=("low", "high"),
        caption=(
            "What it costs to round the weights and inputs of all linear layers, on other texts than those on which the skip "
            "list was chosen: mean over texts with its 95% interval. “All but” is said of one scale per tensor."
        ),
    )


def _by_layer(table: pd.DataFrame) -> Figure:
    return Lines(
        table=table,
        x="layer",
        y="change",
        series="format",
        series_titles={str(target): title for target, title in FORMATS.items()},
        band=("change_low", "change_high"),
        y_label="‖x̂ − x‖ ÷ ‖x‖ after the last layer",
        log_y=True,
        caption=(
            "How much the last hidden vectors change when the linear layers of one layer are rounded, on a logarithmic scale: "
            "mean over texts with its 95% interval."
        ),
    )


def _against(table: pd.DataFrame) -> Figure:
    rows = table.melt("layer", ["weights", "vectors"], var_name="of", value_name="change")
    titles = {"weights": "weights", "vectors": "hidden vectors"}
    return Lines(
        table=rows,
        x="layer",
        y="change",
        series="of",
        series_titles=titles,
        y_label="relative difference",
        caption="‖W − W₀‖ ÷ ‖W₀‖ of each layer's weights, and ‖x − x₀‖ ÷ ‖x₀‖ of what leaves it, a mean over tokens and texts.",
    )


def _folded(name: str, rows: pd.DataFrame) -> Folded:
    data = table_data(rows, f"{counted(len(rows), 'row')}; checkup.json has all digits.")
    return Folded(id_of_table(name), name.replace("_", " "), data, counted(len(rows), "row"))
