"""The results of analyses, for notebooks and scripts."""

import dataclasses
import html
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pandas as pd

from normscope.analyses.findings import Findings
from normscope.analyses.registry import analyses
from normscope.api.picture import Picture
from normscope.errors import escaped
from normscope.reporting.run_facts import lost
from normscope.running.conclusions import metrics_of, tables_of, tables_of_all


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """The results of one analysis or several. Tables, metrics and figures have the same names as in a run directory."""

    findings: Mapping[str, Findings]
    """The findings of each analysis, by its name."""
    provenance: Mapping[str, object]
    """Where the numbers come from: software, model, device, counts of texts and tokens, verification error."""
    depth: int
    """Number of layers of the model."""

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Tidy tables by name, such as `norms_by_layer`; `curves` has the values by layer of all analyses."""
        return tables_of(self.findings) | tables_of_all(self.findings, self.depth)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Single numbers by name."""
        return metrics_of(self.findings)

    @cached_property
    def figures(self) -> dict[str, Picture]:
        """Figures by name, which notebooks display and `save` writes to a file. Each is drawn on demand."""
        return {
            f"{name}_{figure}": Picture(description)
            for name, result in self.findings.items()
            for figure, description in result.figures.items()
        }

    @cached_property
    def summaries(self) -> dict[str, pd.DataFrame]:
        """The main numbers of each analysis, as a command prints them."""
        return {name: result.summary for name, result in self.findings.items()}

    @property
    def sentences(self) -> list[str]:
        """The findings in plain words."""
        return [sentence for result in self.findings.values() for sentence in result.sentences]

    @property
    def notes(self) -> list[str]:
        """Caveats to read with the numbers, and how many texts were truncated or skipped."""
        facts: Mapping[str, Any] = self.provenance
        of_corpus = lost(facts, "the maximum number of tokens (max_length)")
        return list(dict.fromkeys([*of_corpus, *(note for result in self.findings.values() for note in result.notes)]))

    @property
    def _source(self) -> str:
        facts = self.provenance
        return f"{facts['model']}: {_count(facts['sequences'], 'sequence')}, {_count(facts['tokens'], 'token')}"

    def __repr__(self) -> str:
        parts = [self._source]
        for name, result in self.findings.items():
            parts += ["", _title(name), *(f"  {sentence}" for sentence in result.sentences)]
            if not result.summary.empty:
                number = f"{{:.{result.summary_digits}f}}".format
                parts.append(result.summary.to_string(float_format=number, na_rep=""))
        parts += ["", *self.notes, f"tables: {', '.join(self.tables)}"]
        if self.figures:
            parts.append(f"figures: {', '.join(self.figures)}")
        return escaped("\n".join(parts), keep="\n")

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(self._source)}</p>"]
        for name, result in self.findings.items():
            sentences = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in result.sentences)
            parts += [f"<h4>{html.escape(_title(name))}</h4>", f"<ul>{sentences}</ul>" if sentences else ""]
            if not result.summary.empty:
                style = result.summary.style.format(f"{{:.{result.summary_digits}f}}", na_rep="", escape="html")
                parts.append(str(style.to_html()))
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        for title, names in (("tables", self.tables), ("figures", self.figures)):
            if names:
                listed = ", ".join(f"<code>{html.escape(name)}</code>" for name in names)
                parts.append(f"<p><code>.{title}</code>: {listed}</p>")
        return "".join(parts)


def _title(name: str) -> str:
    return analyses()[name].title


def _count(number: object, noun: str) -> str:
    assert isinstance(number, int)
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
