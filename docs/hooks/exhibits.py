"""Tables and figures of papers, from `exhibits.yaml` in `experiments/`, and our numbers beside them, from `measured.csv`."""

import csv

from docs.hooks.markdown import ROOT, code, table
from normscope.reporting.exhibits import Exhibit, reproduction_of
from normscope.rounding import number

EXPERIMENTS = ROOT / "experiments"


def sections() -> str:
    """A section for each paper, in Markdown."""
    return "\n".join(_section(path.parent.name) for path in sorted(EXPERIMENTS.glob("*/exhibits.yaml")))


def _section(paper: str) -> str:
    reproduction = reproduction_of(paper)
    rows = [
        (
            exhibit.exhibit,
            " ".join(filter(None, (f"{exhibit.title}.", exhibit.needs))),
            _here(exhibit),
            code(exhibit.how()),
        )
        for exhibit in reproduction.exhibits
    ]
    shown = table(("in the paper", "what it shows", "here", "command"), rows)
    return f"### {reproduction.paper} {{#{paper}}}\n\n{reproduction.needs}\n\n{shown}\n{_measured(paper)}"


def _here(exhibit: Exhibit) -> str:
    """Our tables, figures and maps of an exhibit."""
    names = [*exhibit.tables, *(figure for figure in exhibit.figures if figure not in exhibit.tables)]
    return ", ".join([*map(code, names), *(["token maps"] if exhibit.maps else [])])


def _measured(paper: str) -> str:
    """The published numbers beside those of models that can be had offline; empty if there are none."""
    file = EXPERIMENTS / paper / "measured.csv"
    if not file.exists():
        return ""
    with file.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    models = header[3:]
    cells = [(*row[:2], *(number(float(value)) if value else "" for value in row[2:])) for row in rows]
    return (
        "\nMeasured by presets that `make papers` runs, on the first 40 texts of the sample corpus (`dataset.limit=40`), "
        f"with {' and '.join(models)}:\n\n"
        f"{table(('in the paper', 'number', 'published', *models), cells)}"
    )
