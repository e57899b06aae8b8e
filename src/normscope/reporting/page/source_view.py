"""The section of a page that shows an answer, sentence by sentence, with its sources."""

from typing import Any

import numpy as np
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
    sources, sentences, parts, flow = (result.tables[name] for name in ("sources", "sentences", "parts", "flow"))
    by_sentence = parts[["value", "removal"]].to_numpy().reshape(len(sentences), -1, 2)
    kinds = parts["kind"].to_numpy()[: by_sentence.shape[1]]
    values = {kind: by_sentence[:, kinds == kind, 0] for kind in dict.fromkeys(kinds)}
    names = dict(zip(kinds, parts["source"], strict=False)) | {"answer": "words of the answer"}
    told = result.tables.get("instructions", pd.DataFrame({"source": []}))
    return {
        "sentences": sentences[["text", "log_probability"]].to_dict("records"),
        "sources": sources[["source", "text"]].to_dict("records"),
        "parts": values.pop("source").tolist(),
        "removals": np.nan_to_num(by_sentence[:, kinds == "source", 1]).tolist(),
        "removed": sources["removal"].notna().tolist(),
        "told": sources["source"].isin(told["source"]).tolist(),
        "names": [names[kind] for kind in values],
        "others": np.column_stack([each.sum(axis=1) for each in values.values()]).tolist(),
        "flow": [
            [way["value"].tolist() for _, way in of_sentence.groupby("through", sort=False)]
            for _, of_sentence in flow.groupby("sentence", sort=False)
        ],
        "warnings": [note for note in result.notes if note.startswith(WARNING)],
    }
