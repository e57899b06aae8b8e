"""The HTML report of one run, and the papers it is based on."""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import yaml
from markupsafe import Markup

from normscope.analyses.registry import analyses
from normscope.distribution import VERSION
from normscope.errors import InputError, cut, one_line
from normscope.reporting.page.elements import SHOWN_ROWS, id_of_table, readable, table, table_data, without_folders
from normscope.reporting.page.explorer import (
    explorer_section,
    pairs_payload,
    payload,
    place_of_pairs,
    reads_as_text,
    row_payload,
    row_section,
    view_of,
    within_limit,
)
from normscope.reporting.page.paper import Run, sections_of_paper
from normscope.reporting.page.sections import Folded, Measure, Section, render
from normscope.reporting.page.source_view import shows_sources, sources_payload, sources_section
from normscope.reporting.tracking import layers_label
from normscope.results.codes import in_prose, in_words
from normscope.results.figures import Figure, WordMaps, pairs_of
from normscope.results.findings import Sentence, ranked
from normscope.results.maps import TokenMap
from normscope.results.measures import title
from normscope.results.result import Result
from normscope.results.run_tables import RUN_TABLES, described
from normscope.results.token_labels import label
from normscope.rounding import begun, counted, duration, number
from normscope.streams import Progress, no_bar, shell_word
from normscope.untrusted.writing import write_file

_OURS = f"""@software{{normscope,
  title = {{normscope: what the attention blocks of a Transformer really do}},
  author = {{{{The normscope authors}}}},
  version = {{{VERSION}}},
  year = {{2026}},
  month = nov
}}"""


def citations(names: Iterable[str]) -> str:
    """BibTeX of the papers that the analyses implement, and of normscope itself."""
    known = analyses()
    papers = dict.fromkeys(paper for name in names if name in known for paper in known[name].papers)
    return "\n\n".join([*(paper.bibtex for paper in papers), _OURS])


# Longer tables grow with the corpus: they are files only, not part of the page.
_LONGEST = 200_000


def write_page(
    folder: Path,
    name: str,
    made: Callable[[], str],
    result: Result | None = None,
    others: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write the page of a command, after the result that it shows and other files; return the path of the page.

    Args:
        folder: Where they go; it is created.
        name: The name of the page.
        made: Makes the page, when the result has been written.
        result: The result, if it is kept as well.
        others: The contents of other files by name.

    Raises:
        InputError: If the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if result is not None:
            result.write(folder)
        for other, text in others.items():
            write_file(folder, other, text.encode())
        return write_file(folder, name, made().encode())
    except OSError as error:
        raise InputError(f"output_dir={folder}: cannot be written: {one_line(error)}") from error


def page(result: Result, progress: Progress = no_bar) -> str:
    """The report of one run, or the page of a text's result, as self-contained HTML."""
    if not result.analyses:
        return _page_of_texts(result)
    facts, config = result.facts, result.config
    sentences = list(map(Sentence.of, result.sentences))
    top = [sentence for sentence in sentences if not sentence.analysis] or ranked(sentences)
    names = [name for name in result.tables if name not in RUN_TABLES]
    shown = {name: rows for name in names if len(rows := result.tables[name]) <= _LONGEST}
    weights = " with random weights" if config["model"]["random_init"] else ""
    paper = sections_of_paper([Run("this run", "", result)]) if config["recipe"]["paper"] else []
    drawn = {measure.id for section in paper for measure in section.measures}
    sections = [
        *paper,
        Section(
            "findings",
            "Findings",
            findings=_linked(top, result, shown),
            ordered=True,
            remarks=list(dict.fromkeys(map(begun, result.notes))),
        ),
        *([explorer_section(result.maps, _not_shown(result))] if result.maps else []),
        *_of_no_analysis(top, result, shown),
        *(_section(name, result, shown, drawn) for name in progress(result.analyses, len(result.analyses), "report")),
        *_about(result),
    ]
    return render(
        facts.get("title") or f"{without_folders(facts['model'])}{weights} on {_corpus(config['dataset'])}",
        sections,
        subtitle=" · ".join(map(title, result.analyses)),
        facts=_facts(facts, config),
        explorer=payload(result.maps, next(iter(top), None)) if result.maps else None,
        pairs={name: pairs_payload(pairs_of(_figures(name, result).values())) for name in result.analyses},
    )


_TITLE = 80
"""Maximum number of characters of a text in the title of a page."""


def _page_of_texts(result: Result) -> str:
    """The page of what no analysis has made: the result of single texts."""
    shown = {name: rows for name, rows in result.tables.items() if len(rows) <= _LONGEST}
    said = [Sentence.of(sentence) for sentence in result.sentences]
    maps, notes = within_limit(result.maps)
    read = reads_as_text(maps)
    findings = _linked(said, result, shown, [] if read else maps)
    drawn = {name: figure for name, figure in result.figures.items() if not _is_pair(figure)}
    pairs = pairs_of(result.figures.values())
    facts = table(pd.DataFrame(_flat(result.facts), columns=["key", "value"]), "Facts of the result")
    sections = [
        Section("findings", "Findings", findings=findings, ordered=True, remarks=list(map(begun, result.notes))),
        *([sources_section()] if shows_sources(result) else []),
        *([row_section(" ".join(notes)) if read else explorer_section(maps, " ".join(notes))] if maps else []),
        Section(
            "results",
            "Results",
            content=place_of_pairs(pairs, "pairs", "pairs-root") if pairs else Markup(),
            measures=[Measure([figure], id=name) for name, figure in drawn.items()],
            tables=[_folded("", name, rows) for name, rows in shown.items()],
        ),
        Section("provenance", "Provenance", content=facts),
    ]
    text, model = str(result.config.get("text", "")), without_folders(result.facts["model"])
    about = f"Sources of “{cut(str(result.config['answer']).strip(), _TITLE)}”" if shows_sources(result) else ""
    about = about or (_title_of_row(maps[0], result.facts) if read else "")
    return render(
        about or f"{cut(text, _TITLE)} in {model}",
        sections,
        subtitle=f"{cut(text, _TITLE)} · {model}" if about else "",
        explorer=payload(maps, next(iter(said), None)) if maps and not read else None,
        pairs={"pairs": pairs_payload(pairs)} if pairs else {},
        row=row_payload(maps[0]) if read else None,
        sources=sources_payload(result) if shows_sources(result) else None,
    )


def _title_of_row(of: TokenMap, facts: Mapping[str, Any]) -> str:
    """Which query of what text a page is about."""
    place, tokens = of.query_places[0], facts.get("tokens", 0)  # that of an older version has none
    which = f"the last of {tokens:,} tokens" if place == tokens - 1 else f"token {place:,}"
    if tokens and place < tokens - 1:
        which += f" of {tokens:,}"
    return f"What “{label(of.queries[0])}” ({which}) receives"


def _not_shown(result: Result) -> str:
    left_out = "; ".join(result.facts.get("not_shown") or ())
    return left_out and f"To keep the page small: {left_out}."


def _about(result: Result) -> list[Section]:
    """Where the numbers come from, how to repeat the run, and what to cite."""
    fold = Markup("<details><summary>{}</summary>{}</details>")
    code = Markup('<div class="code"><pre tabindex="0">{}</pre></div>')
    return [
        _provenance(result),
        Section("again", "Run it again", content=code.format(repeated(result.facts["command"]))),
        Section("cite", "How to cite", content=fold.format("BibTeX", code.format(citations(result.analyses)))),
    ]


def _provenance(result: Result) -> Section:
    """Where the numbers come from."""
    facts = table(pd.DataFrame(_flat(result.facts), columns=["key", "value"]), "Facts of the run")
    config = yaml.safe_dump(dict(result.config), sort_keys=False, allow_unicode=True)
    fold = Markup("<details><summary>{}</summary>{}</details>")
    pre = Markup("<pre>{}</pre>").format(config)
    return Section(
        "provenance", "Provenance", content=fold.format("Facts of the run", facts) + fold.format("Full config", pre)
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


def _facts(facts: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """What was run, as the header says it."""
    experiment = [f"experiment={name}"] if (name := config["recipe"]["name"]) else []
    return [
        *([f"{facts['tower']} tower"] if "tower" in facts else []),
        counted(facts["sequences"], "sequence"),
        counted(facts["tokens"], "token"),
        layers_label(config["layers"]),
        f"{facts['dtype']} on {facts['device']}",
        duration(float(facts["seconds"])),
        f"matches the untouched model to {number(facts['verification_error'], digits=2)}",
        *experiment,
        f"{facts['finished']}",
    ]


def _corpus(dataset: Mapping[str, Any]) -> str:
    name = str(dataset["name"] or dataset["path"] or dataset["kind"])
    return f"the {name} corpus" if name in ("sample", "toy") else without_folders(name)


def _section(name: str, result: Result, shown: Mapping[str, pd.DataFrame], above: Collection[str]) -> Section:
    """The section of an analysis: its question, its first finding and one figure; the rest is folded away.

    Maps of two texts take the figure's place. Figures that are drawn above, as a paper's, are not drawn again.
    """
    info = analyses().get(name)
    sentences = [sentence for sentence in map(Sentence.of, result.sentences) if sentence.analysis == name]
    findings = _linked(sentences, result, shown)
    figures = _figures(name, result)
    pair = any(map(_is_pair, figures.values()))
    drawn = {full: figure for full, figure in figures.items() if not _is_pair(figure) and full not in above}
    answer = findings[0].figure if findings else ""
    order = sorted(drawn, key=lambda full: full != answer)  # that of the finding, if it has one
    return Section(
        name,
        title(name),
        question="" if info is None else info.question,
        # What shows the first is below it.
        findings=[
            sentence if place or sentence.figure in above else sentence.but(figure="")
            for place, sentence in enumerate(findings)
        ],
        content=_place(name, result) if pair else Markup(),
        measures=[Measure([drawn[full]], id=full) for full in order],
        shown=0 if pair else 1,
        tables=[_folded(name, full, shown[full]) for full in result.owned_by(name, shown)],
    )


def _of_no_analysis(said: Sequence[Sentence], result: Result, shown: Mapping[str, pd.DataFrame]) -> list[Section]:
    """A section for each figure that no analysis owns: what is said of it, the figure, and its table."""
    owned = {full for name in result.analyses for full in _figures(name, result)}
    return [
        Section(
            name,
            begun(in_words(name)),
            findings=[sentence.but(figure="") for sentence in _linked(said, result, shown) if sentence.figure == name],
            measures=[Measure([figure], id=name)],
            tables=[_folded("", name, shown[name])] if name in shown else [],
        )
        for name, figure in result.figures.items()
        if name not in owned
    ]


def _is_pair(figure: Figure) -> bool:
    """Whether the page shows a figure as an interactive map of two texts."""
    return isinstance(figure, WordMaps) and bool(figure.measure)


def _place(name: str, result: Result) -> Markup:
    """Where the page shows the maps of two texts; links to the first lead there."""
    first = next(full for full, figure in _figures(name, result).items() if _is_pair(figure))
    return place_of_pairs(pairs_of(_figures(name, result).values()), name, first)


def _figures(name: str, result: Result) -> dict[str, Figure]:
    return {full: result.figures[full] for full in result.owned_by(name, result.figures)}


def _linked(
    sentences: Sequence[Sentence],
    result: Result,
    shown: Mapping[str, pd.DataFrame],
    maps: Sequence[TokenMap] | None = None,
) -> list[Sentence]:
    """Findings with the names of the elements that show them, and what the explorer shows of them, as far as the page has both.

    Args:
        maps: Those of the explorer; all of the result by default.
    """
    explored = result.maps if maps is None else maps
    return [
        sentence.but(
            figure=sentence.figure if sentence.figure in result.figures else "",
            table=id_of_table(sentence.table) if sentence.table in shown else "",
            place=view_of(sentence, explored) if sentence.place and explored else {},
        )
        for sentence in sentences
    ]


def _folded(analysis: str, name: str, rows: pd.DataFrame) -> Folded:
    """A table of an analysis, with what there is a row for, and which file has all rows and digits."""
    about = described(name)
    per = f"per {in_prose(about.row)}" if about else ""
    count = counted(len(rows), "row")
    extent = count if len(rows) <= SHOWN_ROWS else f"The first {SHOWN_ROWS:,} of {len(rows):,} rows"
    data = table_data(
        readable(name, rows),
        f"{f'One row {per}. ' if per else ''}{extent}; the full table is in tables/{name}.parquet.",
        about.ranked_by if about else (),
        meanings=about.columns if about else {},
    )
    title = name.removeprefix(f"{analysis}_").replace("_", " ")
    return Folded(id_of_table(name), title, data, f"{count}, one {per}" if per else count)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{in_words(name)}: ")
        else:
            rows.append((prefix + in_words(name), "" if value is None else str(value)))
    return rows
