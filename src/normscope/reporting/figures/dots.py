"""Dots with intervals: a ranking, or what each row gains in each panel."""

from matplotlib.figure import Figure as Canvas

from normscope.reporting.figures.layout import fitted, panels_across, text_width
from normscope.reporting.figures.style import accent, line_colours, points
from normscope.results.figures import Dots

_ROW = 0.19
"""Height of a row in inches."""


def dots(figure: Dots, width: float) -> Canvas:
    """One panel per value of `panel`, with rows from top to bottom in the table's order."""
    panels = list(figure.panel_titles)
    names = list(dict.fromkeys(figure.table[figure.row]))
    labels = [figure.row_titles.get(name, str(name)) for name in names]
    label_width = min(0.45 * width, max(text_width(label, points("ytick.labelsize")) for label in labels) + 0.15)
    across = panels_across(len(panels), width - label_width, 1.3)
    down = -(-len(panels) // across)
    canvas = Canvas(figsize=(width, (len(names) * _ROW + 0.45) * down + 0.35), layout="constrained")
    grid = canvas.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    inches = (width - label_width) / across - 0.2
    for position, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        rows = figure.table[figure.table[figure.panel] == panel]
        places = [names.index(name) for name in rows[figure.row]]
        if figure.interval is not None:
            low, high = (rows[end] for end in figure.interval)
            axes.hlines(places, low, high, color=line_colours()[0], linewidth=1.2)
        axes.plot(rows[figure.value], places, linestyle="none", marker="o", markersize=4, color=line_colours()[0])
        if figure.reference is not None:
            axes.axvline(figure.reference, color=accent(), linewidth=0.8)
        axes.set_title(fitted(figure.panel_titles[panel], inches))
        axes.set_yticks(range(len(names)), labels)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        if position + across >= len(panels):
            axes.set_xlabel(fitted(figure.value_label, inches))
    return canvas
