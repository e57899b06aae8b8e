"""The HTML report of one run."""

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
from normscope.reporting.page.elements import SHOWN_ROWS, asset, environment, image_url, script_data, table
from normscope.reporting.published import Comparison

# Longer tables grow with the corpus: they are files only, not part of the page.
_LONGEST = 200_000


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of a report."""

    options: RunOptions
    findings: Mapping[str, Findings]
    provenance: Mapping[str, Any]
    comparison: Comparison | None
    sentences: Sequence[TokenMaps]
    not_shown: Sequence[str] = ()
    """Notes on texts that the explorer cuts or leaves out."""


def page(report: Report, folder: Path) -> str:
    """The report as self-contained HTML.

    Args:
        report: The content.
        folder: The run folder, in which the figures have been drawn.
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
            sections=[_section(name, findings, folder) for name, findings in report.findings.items()],
            notes=list(dict.fromkeys(note for findings in report.findings.values() for note in findings.notes)),
            facts={
                "model": _name(facts["model"]),
                "data": config["dataset"]["name"] or config["dataset"]["path"] or config["dataset"]["kind"],
                "sequences": f"{facts['sequences']:,}",
                "tokens": f"{facts['tokens']:,}",
                "layers": str(options.layers),
                "device": f"{facts['device']}, {facts['dtype']}",
                "largest verification error": f"{facts['verification_error']:.1e}",
                "time": f"{facts['seconds']:.0f} s",
            },
            comparison=comparison,
            explorer=explorer and script_data(explorer),
            is_cross_attention=any(sentence.is_cross_attention for sentence in report.sentences),
            not_shown="; ".join(report.not_shown),
            provenance=table(pd.DataFrame(_flat(facts), columns=["key", "value"])),
            config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
            command=facts["command"],
            citations=citations(report.findings),
        )
    )


def _name(model: str) -> str:
    """A Hub name as given; for a local folder only its last part, since reports are shared."""
    return Path(model).name if Path(model).is_absolute() else model


def _title(name: str) -> str:
    return analyses()[name].title


def _section(name: str, findings: Findings, folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "title": _title(name),
        "sentences": findings.sentences,
        "figures": [
            {
                "caption": figure.caption,
                "source": image_url(folder / "figures" / f"{name}_{figure_name}.png"),
                "wide": len(findings.figures) == 1
                or type(figure).__name__ in ("HeatmapPanels", "Profiles", "HeatmapGrid"),
            }
            for figure_name, figure in findings.figures.items()
        ],
        "tables": [
            {
                "name": f"{name}_{table_name}",
                "extent": _extent(len(rows), f"tables/{name}_{table_name}.parquet"),
                "html": table(rows),
            }
            for table_name, rows in findings.tables.items()
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
