"""The results of a run, to which each analysis contributes a part: what Python returns and what a run folder holds."""

import dataclasses
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from normscope.config.calls import checked
from normscope.errors import InputError, escaped, one_line, printable
from normscope.results.figures import Figure, pairs_of, read_figure, write_figure
from normscope.results.findings import Sentence, Summary
from normscope.results.maps import TokenMap, read_maps, write_maps
from normscope.results.measures import title
from normscope.results.pictures import Explorer, Picture
from normscope.results.run_files import (
    CONFIG,
    MAPS,
    RESULTS,
    Status,
    read_config,
    read_results,
    require_run,
    results_content,
)
from normscope.results.table_files import LazyItems, lazy_files, read_table, write_table
from normscope.rounding import counted
from normscope.streams import wrapped
from normscope.untrusted.writing import new_file, write_file


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The results of a run, or of one of its analyses.

    An analysis names its tables, metrics, curves and figures without a prefix. In the results of a run, names start with the
    name of the analysis: `mixing_by_layer`, `mixing/attnresln_n/mean`.
    """

    tables: Mapping[str, pd.DataFrame] = dataclasses.field(default_factory=dict)
    """Tidy tables: one row per observation. When a run is read from its folder, each table is read on first access."""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Finite values by name. An analysis that returns none has its declared metrics rolled up from its tables."""
    curves: "Mapping[str, pd.Series[float]]" = dataclasses.field(default_factory=dict)
    """Values by layer, likewise."""
    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    maps: Sequence[TokenMap] = ()
    """The token maps of the run's texts."""
    sentences: Sequence[str] = ()
    """The findings in plain words, with their numbers; a `Sentence` also names the figure and the table that show it."""
    notes: Sequence[str] = ()
    """Caveats to read with the numbers."""
    summaries: Mapping[str, Summary] = dataclasses.field(default_factory=dict)
    """The main numbers, by analysis."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Where the numbers come from: software, model, device, counts of texts and tokens, verification error."""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The resolved config, nested by section."""
    status: str = Status.COMPLETED
    """How the run ended: `completed`, `interrupted` or `failed`. Only a completed run has numbers."""
    error: str = ""
    """Why the run failed; empty if it did not."""

    @property
    def analyses(self) -> list[str]:
        """Names of the analyses that were run, in order."""
        options = self.config.get("analysis", {}).items()
        return [
            name for name, of_analysis in options if isinstance(of_analysis, Mapping) and of_analysis.get("enabled")
        ]

    def owned_by(self, analysis: str, names: Iterable[str]) -> list[str]:
        """The names of the tables or figures of an analysis: those that start with its name, but not with a longer one."""
        longer = [f"{name}_" for name in self.analyses if name.startswith(f"{analysis}_")]
        return [name for name in names if name.startswith(f"{analysis}_") and not name.startswith(tuple(longer))]

    @property
    def table(self) -> pd.DataFrame:
        """The first of the tables."""
        return next(iter(self.tables.values()), pd.DataFrame())

    @checked
    def figure(
        self, name: str | None = None, *, text: int | None = None, layer: int | None = None, measure: str | None = None
    ) -> Picture:
        """Draw a figure, which notebooks display and `save` writes to a file.

        Args:
            name: One of `figures`; by default the first. Without figures, the maps of the first text are drawn.
            text: The text whose token maps are drawn instead of a figure, from 1.
            layer: A layer of these maps, from 1.
            measure: The only measure to draw, such as `attn_n`.

        Examples:
            >>> import normscope
            >>> result = normscope.run("mixing", texts=["A short text."])
            >>> result.figure("mixing_by_layer").save("by_layer.pdf")

        Raises:
            InputError: If there is no such figure, text, layer or measure.
        """
        if text is None and layer is None and measure is None and (name is not None or self.figures):
            known = list(self.figures)
            if name is not None and name not in known:
                instead = "but a layer of the token maps" if _has_maps(self.maps) else "as there are no figures"
                expected = f"one of {', '.join(known)}" if known else f"no name, {instead}"
                raise InputError(f"figure: expected {expected}, got {printable(repr(name), 60)}")
            return Picture(self.figures[name or known[0]])
        if not self.maps:
            raise InputError("figure: expected a result with figures or token maps, got one without")
        number = 1 if text is None else text
        if not 1 <= number <= len(self.maps):
            last = f" to {len(self.maps)}" if len(self.maps) > 1 else ""
            raise InputError(f"text: expected 1{last}, got {number}")
        return Picture(self.maps[number - 1].figure(layer, measure))

    def explorer(self) -> Explorer:
        """The token maps or pairs of texts as an interactive page, which notebooks display and `save` writes to a file.

        Raises:
            InputError: If there are none, or too many values for one page.
        """
        if self.maps:
            return Explorer(Picture(self.maps[0].figure()) if not self.figures else self.figure(), self.maps)
        pairs = pairs_of(self.figures.values())
        if not pairs:
            raise InputError("explorer: expected a result with token maps or pairs of texts, got one without")
        return Explorer(self.figure(), pairs=pairs)

    @checked
    def save(self, folder: str | Path) -> None:
        """Write the results into a folder, from which `read` gives them back.

        Raises:
            InputError: If the folder cannot be written to.
        """
        try:
            self.write(Path(folder).expanduser())
        except OSError as error:
            raise InputError(f"{folder}: cannot be written to: {one_line(error)}") from error

    def write(self, folder: Path) -> None:
        """Write the results into a folder. `results.json` comes last: a folder that has this file is complete.

        Raises:
            InputError: If something other than a file is where a file should go.
            OSError: If a file cannot be written.
        """
        for part in ("tables", "figures"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        config = yaml.safe_dump(dict(self.config), sort_keys=False, allow_unicode=True)
        write_file(folder, CONFIG, config.encode())
        for name, rows in self.tables.items():
            write_table(folder, name, rows, self._identity)
        for name, figure in self.figures.items():
            with new_file(folder, f"figures/{name}.parquet") as stream:
                write_figure(stream, figure)
        if self.maps:
            with new_file(folder, MAPS) as stream:
                write_maps(stream, self.maps, self._identity)
        self.save_facts(folder)

    def save_facts(self, folder: Path) -> None:
        """Write only `results.json`: metrics, words and facts."""
        words: dict[str, Sequence[object]] = {
            "tables": list(self.tables),
            "figures": list(self.figures),
            "sentences": [{"text": str(sentence), **vars(sentence)} for sentence in map(Sentence.of, self.sentences)],
            "notes": list(self.notes),
            "summaries": [{"analysis": name, **summary.plain()} for name, summary in self.summaries.items()],
        }
        write_file(folder, RESULTS, results_content(self.status, self.metrics, self.facts, self.error, words))

    @classmethod
    @checked
    def read(cls, folder: str | Path) -> "Result":
        """Read the folder of a finished run: its tables, metrics, figures, token maps, config and facts.

        Nothing in a folder is executed, and damaged files are rejected.

        Args:
            folder: The folder, such as `outputs/first`, or `DIR/0` for the first job of a sweep.

        Examples:
            >>> import normscope
            >>> result = normscope.read("outputs/first")  # normscope output_dir=outputs/first
            >>> result.status, list(result.tables)[0]
            ('completed', 'mixing_by_layer')

        Raises:
            InputError: If this is not the folder of a finished run, a file is damaged, or another version of normscope wrote
                the run. A damaged table, figure or file of maps is rejected when it is first read.
        """
        folder = Path(folder).expanduser()
        require_run(folder)
        results = read_results(folder)
        tables = lazy_files(folder / "tables", read_table, results.get("tables") or ())
        has_maps = (folder / MAPS).exists()
        return cls(
            tables=tables,
            metrics=results["metrics"],
            curves=_curves(tables["curves"]) if "curves" in tables else {},
            figures=lazy_files(folder / "figures", lambda _name, path: read_figure(path), results.get("figures") or ()),
            maps=LazyItems(lambda: read_maps(folder / MAPS)) if has_maps else (),
            sentences=[Sentence.read(folder / RESULTS, content) for content in results.get("sentences") or ()],
            notes=[str(note) for note in results.get("notes") or ()],
            summaries=dict(_summary(folder / RESULTS, content) for content in results.get("summaries") or ()),
            facts=results["facts"],
            config=read_config(folder),
            status=results["status"],
            error=str(results.get("error", "")),
        )

    @property
    def _identity(self) -> dict[str, object]:
        """What distinguishes the numbers of this run from those of others, the same in every repetition of the run."""
        facts, dataset = self.facts, self.config.get("dataset", {})
        same = ("git_commit", "model", "model_revision", "model_sha256", "seed", "sequences", "tokens")
        names = [dataset.get("name"), Path(str(dataset.get("path") or "")).name, dataset.get("kind")]
        return {
            "normscope": facts.get("versions", {}).get("normscope"),
            **{name: facts.get(name) for name in same},
            "dataset": next((str(name) for name in names if name), None),
        }

    @property
    def _source(self) -> str:
        counts = [
            counted(self.facts[name], noun) for name, noun in _COUNTED.items() if self.facts.get(name) is not None
        ]
        ended = f"{self.status}{f' ({self.error})' if self.error else ''}" if self.status != Status.COMPLETED else ""
        return ": ".join(filter(None, [str(self.facts.get("model") or ""), ended or ", ".join(counts)]))

    def _parts(self) -> Iterator[tuple[str, list[Sentence], Summary | None]]:
        """The sentences and the summary of each analysis; of a result that no analysis made, all sentences."""
        for name in self.analyses or [""]:
            sentences = [each for each in map(Sentence.of, self.sentences) if each.analysis in (name, "")]
            yield name, sentences, self.summaries.get(name)

    def __repr__(self) -> str:
        parts = [wrapped(self._source)]
        for name, sentences, summary in self._parts():
            parts += (
                ["", title(name), *(f"  {sentence}" for sentence in sentences)] if name else map(wrapped, sentences)
            )
            parts += [str(summary)] if summary is not None else []
        parts += ["", *map(wrapped, self.notes), f"tables: {', '.join(self.tables) or 'none'}"]
        parts += [f"figures: {', '.join(self.figures)}"] if self.figures else []
        parts += ["maps: arrays by layer; .maps[0].pairs() is a table of the first"] if _has_maps(self.maps) else []
        return escaped("\n".join(parts), keep="\n")

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(self._source)}</p>"]
        for name, sentences, summary in self._parts():
            listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
            parts += [f"<h4>{html.escape(title(name))}</h4>" if name else "", f"<ul>{listed}</ul>" if listed else ""]
            parts += [self.figure()._repr_html_()] if not name and (self.figures or self.maps) else []
            parts += [summary._repr_html_()] if summary is not None else []
        parts += [f"<p>{html.escape(note)}</p>" for note in self.notes]
        for kind, names in (("tables", self.tables), ("figures", self.figures)):
            if names:
                listed = ", ".join(f"<code>{html.escape(name)}</code>" for name in names)
                parts.append(f"<p><code>.{kind}</code>: {listed}</p>")
        return "".join(parts)


def _has_maps(maps: Sequence[TokenMap]) -> bool:
    """Whether there are token maps, without reading their file, which may be large or damaged: a run writes none without."""
    return isinstance(maps, LazyItems) or len(maps) > 0


_COUNTED = {"sequences": "sequence", "tokens": "token"}


def _curves(table: pd.DataFrame) -> "dict[str, pd.Series[float]]":
    return {str(name): rows.set_index("layer")["value"] for name, rows in table.groupby("curve", sort=False)}


def _summary(path: Path, content: Any) -> tuple[str, Summary]:
    try:
        return str(content["analysis"]), Summary.of(content)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
        raise InputError(f"{path}: expected the summary of an analysis: {one_line(error)}") from error
