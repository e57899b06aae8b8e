"""The section of a page that shows an answer, sentence by sentence, with its sources."""

from typing import Any

import pandas as pd
from markupsafe import Markup

from normscope.reporting.page.sections import Section
from normscope.results.result import Result
from normscope.results.run_files import FUNCTION

WARNING = "Warning: "
"""How a note begins that the page shows above the answer."""


def shows_sources(result: Result) -> bool:
    """Whether a result has the sources of an answer."""
    return result.config.get(FUNCTION) == "sources"


def sources_section() -> Section:
    """The section, whose data is `sources_payload`."""
    how = (
        "Click a sentence of the answer: its sources light up, orange where they raise its log-probability, purple where they "
        "lower it. Parts add up, with the rows below them, to the log-probability of the untouched model, in nats. “Fall "
        "without it” is how far that falls if attention no longer sees the source. The bars of parts share one scale, and "
        "those of falls another. Click a passage to read all of it."
    )
    return Section("answer", "The answer and its sources", note=how, content=Markup('<div id="sources-root"></div>'))


def sources_payload(result: Result) -> dict[str, Any]:
    """The JSON content that the script of the section reads: a row for each sentence, a column for each source."""
    sources, parts, flow = (result.tables[name] for name in ("sources", "parts", "flow"))
    kinds = {name: _by_sentence(rows) for name, rows in parts.groupby("kind", sort=False)}
    # Those of the answer's own sentences are one number.
    own = kinds.get("answer", pd.DataFrame()).sum(axis=1)
    others = {"rest of the prompt": kinds["rest"].iloc[:, 0], "words of the answer": own}
    if "against" in kinds:
        others["words of the other answer"] = kinds["against"].iloc[:, 0]
    others["constants and the first position"] = kinds["constants"].iloc[:, 0]
    told = result.tables.get("instructions", pd.DataFrame({"source": []}))
    return {
        "sentences": [
            {"text": text, "value": value}
            for text, value in result.tables["sentences"][["text", "log_probability"]].itertuples(index=False)
        ],
        "sources": [{"name": name, "text": text} for name, text in sources[["source", "text"]].itertuples(index=False)],
        "parts": kinds["source"].to_numpy().tolist(),
        "removals": _by_sentence(parts[parts["kind"] == "source"], "removal").fillna(0.0).to_numpy().tolist(),
        "removed": sources["removal"].notna().tolist(),
        "told": sources["source"].isin(told["source"]).tolist(),
        "names": list(others),
        "others": pd.DataFrame(others).to_numpy().tolist(),
        "flow": [
            [way["value"].tolist() for _, way in of_sentence.groupby("through", sort=False)]
            for _, of_sentence in flow.groupby("sentence", sort=False)
        ],
        "warnings": [note for note in result.notes if note.startswith(WARNING)],
    }


def _by_sentence(rows: pd.DataFrame, values: str = "value") -> pd.DataFrame:
    """A row for each sentence, and a column for each place; names of sources may repeat."""
    places = rows.groupby("sentence").cumcount()
    return rows.assign(place=places).pivot_table(index="sentence", columns="place", values=values, dropna=False)
