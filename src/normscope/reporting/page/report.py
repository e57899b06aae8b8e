"""The HTML report of one run."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from normscope.analyses.findings import Findings, ranked
from normscope.analyses.registry import analyses
from normscope.reporting import text_pairs
from normscope.reporting.citations import citations
from normscope.reporting.explorer import TokenMaps, payload
from normscope.reporting.page.elements import (
    EXPLORER_SCRIPTS,
    SHOWN_ROWS,
    asset,
    environment,
    packed_data,
    script,
    script_data,
    table,
    table_data,
)
from normscope.reporting.page.inline_svg import figure_element
from normscope.reporting.published import Comparison
from normscope.reporting.run_description import layers_label
from normscope.reporting.run_facts import lost
from normscope.rounding import counted, duration
from normscope.shell import shell_word

# Longer tables grow with the corpus: they are files only, not part of the page.
_LONGEST = 200_000


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of a report."""

    config: Mapping[str, Any]
    """As in the run folder's `config.yaml`."""
    findings: Mapping[str, Findings]
    provenance: Mapping[str, Any]
    comparison: Comparison | None
    sentences: Sequence[TokenMaps]
    not_shown: Sequence[str] = ()
    """Notes on texts that the explorer truncates or leaves out."""


def page(report: Report) -> str:
    """The report as self-contained HTML."""
    facts, config = report.provenance, report.config
    sections = [_section(name, findings) for name, findings in report.findings.items()]
    top, others = ranked({name: findings.sentences for name, findings in report.findings.items()})
    measure = getattr(top[0][1], "measure", "") if top else ""
    pairs = {name: text_pairs.payload(findings.text_pairs.values()) for name, findings in report.findings.items()}
    tables = {
        _table_id(name, table_name): _table_data(name, table_name, rows)
        for name, findings in report.findings.items()
        for table_name, rows in findings.tables.items()
        if len(rows) <= _LONGEST
    }
    return (
        environment()
        .get_template("report.html")
        .render(
            title=f"{_name(facts['model'])} on {_corpus(config['dataset'])}",
            analyses=" · ".join(_title(name) for name in report.findings),
            facts=_facts(facts, config),
            css=asset("page.css") + asset("explorer.css") + asset("pairs.css"),
            script=script(*EXPLORER_SCRIPTS, "tables.js", "report.js"),
            sections=sections,
            top=[_linked(name, sentence, report.findings[name]) for name, sentence in top],
            others=[_linked(name, sentence, report.findings[name]) for name, sentence in others],
            pairs=script_data(pairs),
            tables=packed_data(tables),
            notes=list(dict.fromkeys(map(_begun, [*_of_corpus(facts), *_of_analyses(report.findings)]))),
            comparison=report.comparison and _published(report.comparison),
            unit=config["level"],
            explorer=script_data(payload(report.sentences, measure)) if report.sentences else None,
            is_cross_attention=any(sentence.is_cross_attention for sentence in report.sentences),
            of_targets=False,
            not_shown="; ".join(report.not_shown),
            provenance=table(pd.DataFrame(_flat(facts), columns=["key", "value"]), "Facts of the run"),
            config=yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True),
            command=repeated(facts["command"]),
            citations=citations(report.findings),
        )
    )


def repeated(command: str) -> str:
    """The command that repeats the run.

    It leaves out the run's own folder, which already holds results. A resumed run is repeated from its folder.
    """
    words = [text for text in shlex.split(command) if not text.startswith(_FOLDERS)]
    return " ".join(
        shell_word(f"reproduce={text.removeprefix('resume=')}" if text.startswith("resume=") else text)
        for text in words
    )


_FOLDERS = ("output_dir=", "hydra.run.dir=", "hydra.sweep.dir=", "hydra.sweep.subdir=")


def _published(comparison: Comparison) -> dict[str, Any]:
    return {
        "refusal": comparison.refusal,
        "table": table(comparison.table, "Measured and published values"),
    }


def _facts(facts: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """What was run, as the header says it."""
    error = f"{facts['verification_error']:.0e}".replace("e-0", "e−").replace("e-", "e−")
    experiment = [f"experiment={name}"] if (name := config["recipe"]["name"]) else []
    return [
        counted(facts["sequences"], "sequence"),
        counted(facts["tokens"], "token"),
        layers_label(config["layers"]),
        f"{facts['dtype']} on {facts['device']}",
        duration(float(facts["seconds"])),
        f"matches the untouched model to {error}",
        *experiment,
        f"{facts['finished']}",
    ]


def _corpus(dataset: Mapping[str, Any]) -> str:
    name = str(dataset["name"] or dataset["path"] or dataset["kind"])
    return f"the {name} corpus" if name in ("sample", "toy") else _name(name)


def _name(model: str) -> str:
    """A Hub name as given; for a local folder only its last part, since reports are shared."""
    return Path(model).name if Path(model).is_absolute() else model


def _title(name: str) -> str:
    return analyses()[name].title


def _section(name: str, findings: Findings) -> dict[str, Any]:
    tables = {table_name: len(rows) for table_name, rows in findings.tables.items() if len(rows) <= _LONGEST}
    return {
        "name": name,
        "title": _title(name),
        "figures": [
            figure_element(figure, f"{name}_{figure_name}")
            for figure_name, figure in findings.figures.items()
            if figure_name not in findings.text_pairs
        ],
        "has_pairs": bool(findings.text_pairs),
        "tables": [
            {
                "id": _table_id(name, table_name),
                "title": table_name.replace("_", " "),
                "extent": _extent(name, table_name, rows),
            }
            for table_name, rows in tables.items()
        ],
    }


def _extent(name: str, table_name: str, rows: int) -> str:
    """How many rows a table has, and what there is a row for."""
    count = f"{rows:,} {'row' if rows == 1 else 'rows'}"
    about = analyses()[name].published.tables.get(table_name)
    return f"{count}, one per {about.row}" if about else count


def _linked(name: str, sentence: str, findings: Findings) -> dict[str, str]:
    """A finding, and the parts of the page that show it."""
    figure, table_name = getattr(sentence, "figure", ""), getattr(sentence, "table", "")
    has_table = table_name in findings.tables and len(findings.tables[table_name]) <= _LONGEST
    return {
        "text": str(sentence),
        "figure": f"{name}_{figure}" if figure in findings.figures else "",
        "table": _table_id(name, table_name) if has_table else "",
    }


def _of_corpus(facts: Mapping[str, Any]) -> list[str]:
    """What was lost of the corpus, also as the analyses read it that compare the texts of pairs."""
    return [*lost(facts), *lost(facts.get("compared") or {})]


def _of_analyses(findings: Mapping[str, Findings]) -> list[str]:
    return [note for found in findings.values() for note in found.notes]


def _begun(note: str) -> str:
    """A note as a line of its own."""
    return note[:1].upper() + note[1:]


def _table_id(name: str, table_name: str) -> str:
    """Figures and tables may have the same name."""
    return f"table_{name}_{table_name}"


def _table_data(name: str, table_name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """A table with its caption: what there is a row for, and which file has all rows and digits."""
    about = analyses()[name].published.tables.get(table_name)
    row = f"One row per {about.row}. " if about else ""
    file = f"tables/{name}_{table_name}.parquet"
    extent = counted(len(rows), "row") if len(rows) <= SHOWN_ROWS else f"The first {SHOWN_ROWS:,} of {len(rows):,} rows"
    return table_data(
        rows,
        f"{row}{extent}; the full table is in {file}.",
        about.ranked_by if about else (),
        meanings=about.columns if about else {},
    )


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, "" if value is None else str(value)))
    return rows
