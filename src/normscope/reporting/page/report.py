"""The page of one run."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from normscope.analyses.findings import Findings
from normscope.analyses.registry import analyses
from normscope.config.schema import RunOptions, plain
from normscope.reporting.citations import citations
from normscope.reporting.explorer import TokenMaps, payload
from normscope.reporting.page.elements import SHOWN_ROWS, asset, environment, picture, script_data, table
from normscope.reporting.published import Comparison

# Tables that are as long as the corpus are files, not reading.
_LONGEST = 200_000


@dataclasses.dataclass(frozen=True)
class Report:
    """What a run found, ready to be put on a page."""

    options: RunOptions
    findings: Mapping[str, Findings]
    provenance: Mapping[str, Any]
    comparison: Comparison | None
    sentences: Sequence[TokenMaps]
    not_shown: Sequence[str] = ()
    """What of the texts the explorer does not show."""


def page(report: Report, folder: Path) -> str:
    """The page as HTML, with everything that it shows inside it.

    Args:
        report: What was found.
        folder: The run folder, whose figures are already drawn.
    """
    facts, options = report.provenance, report.options
    explorer = payload(report.sentences) if report.sentences else None
    config = plain(options)
    comparison = report.comparison and {
        "refusal": report.comparison.refusal,
        "table": table(report.comparison.table),
    }
    return (
        environment()
        .get_template("report.html")
        .render(
            title=f"{', '.join(_title(name) for name in report.findings)}: {_name(facts['model'])}",
            subtitle=f"normscope, {facts['finished']}"
            + (f", experiment={options.recipe.name}" if options.recipe.name else ""),
            css=asset("page.css"),
            script=asset("tables.js") + asset("explorer.js"),
            sections=[_section(name, found, folder) for name, found in report.findings.items()],
            notes=list(dict.fromkeys(note for found in report.findings.values() for note in found.notes)),
            facts={
                "model": _name(facts["model"]),
                "data": config["dataset"]["name"] or config["dataset"]["path"] or config["dataset"]["kind"],
                "sequences": f"{facts['sequences']:,}",
                "tokens": f"{facts['tokens']:,}",
                "layers": str(options.layers),
                "device": f"{facts['device']}, {facts['dtype']}",
                "largest error of what was observed": f"{facts['verification_error']:.1e}",
                "time": f"{facts['seconds']:.0f} s",
            },
            comparison=comparison,
            explorer=explorer and script_data(explorer),
            is_cross_attention=any(sentence.is_cross_attention for sentence in report.sentences),
            not_shown="; ".join(report.not_shown),
            provenance=table(pd.DataFrame(_flat(facts), columns=["what", "value"])),
            config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
            command=facts["command"],
            citations=citations(report.findings),
        )
    )


def _name(model: str) -> str:
    """A Hub name as it is; of a folder its own name, since pages are shared."""
    return Path(model).name if Path(model).is_absolute() else model


def _title(name: str) -> str:
    return analyses()[name].title


def _section(name: str, found: Findings, folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "title": _title(name),
        "sentences": found.sentences,
        "figures": [
            {
                "caption": figure.caption,
                "source": picture(folder / "figures" / f"{name}_{figure_name}.png"),
                "wide": len(found.figures) == 1
                or type(figure).__name__ in ("HeatmapPanels", "Profiles", "HeatmapGrid"),
            }
            for figure_name, figure in found.figures.items()
        ],
        "tables": [
            {
                "name": f"{name}_{table_name}",
                "extent": _extent(len(rows), f"tables/{name}_{table_name}.parquet"),
                "html": table(rows),
            }
            for table_name, rows in found.tables.items()
            if len(rows) <= _LONGEST
        ],
    }


def _extent(rows: int, file: str) -> str:
    return f"{rows:,} rows" if rows <= SHOWN_ROWS else f"the first {SHOWN_ROWS:,} of {rows:,} rows; all of them: {file}"


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, "" if value is None else str(value)))
    return rows
