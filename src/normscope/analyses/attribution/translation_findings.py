"""The findings about a sample of translations: figures and a summary, from the tables."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from normscope.analyses.attribution.published import OF_TRANSLATIONS, PUBLISHED
from normscope.analyses.attribution.sentences import sentences_of
from normscope.analyses.attribution.translated import DrawnTranslation
from normscope.analyses.finite import require_finite
from normscope.results.figures import Lines, WordMaps
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, roll_up
from normscope.rounding import counted
from normscope.statistics.tidy import tidy


def translation_findings(
    tables: Mapping[str, pd.DataFrame],
    drawn: Sequence[DrawnTranslation],
    without_rows: int,
) -> Result:
    """Tables, metrics, figures and sentences.

    Args:
        tables: See `TranslationSample.tables`.
        drawn: A few short translations.
        without_rows: Number of sampled translations that could not be attributed.
    """
    require_finite(tables["target_words"]["source"].to_numpy(dtype=float), "the shares of the source")
    rolled = roll_up(PUBLISHED, tables)
    notes = []
    if without_rows:
        notes.append(
            f"{counted(without_rows, 'sampled translation has', 'sampled translations have')} no words that can be attributed"
        )
    return Result(
        tables=tables,
        metrics=rolled.metrics,
        curves=rolled.curves,
        figures={"source_share": _by_position(tables["translation_positions"])}
        | {f"translation_{place}": _shares(each) for place, each in enumerate(drawn, start=1)},
        summaries={
            "attribution": Summary(
                _summary(rolled.metrics),
                digits=1,
                caption="how much of a target word comes from the source, in %; the rest comes from the target so far",
            )
        },
        sentences=sentences_of(rolled.metrics),
        notes=notes,
    )


def _summary(metrics: Mapping[str, float]) -> pd.DataFrame:
    of_methods = by_axes("translation/<method>/source", metrics)
    percent = {OF_TRANSLATIONS[method]: 100 * share for method, share in of_methods.items()}
    return pd.DataFrame({"from the source %": percent}).rename_axis("method")


def _by_position(positions: pd.DataFrame) -> Lines:
    percent = {column: positions[column] * 100 for column in ("source", "low", "high")}
    return Lines(
        table=positions.assign(**percent),
        x="word",
        y="source",
        series="method",
        series_titles={
            method: title for method, title in OF_TRANSLATIONS.items() if (positions["method"] == method).any()
        },
        y_label="share from the source (%)",
        x_label="target word",
        band=("low", "high"),
        caption=(
            "Share of each target word that comes from the source, by position; the rest comes from the target so far. "
            f"Means and 95% intervals over {counted(positions['count'].max(), 'translation')}, fewer for later words."
        ),
    )


def _shares(drawn: DrawnTranslation) -> WordMaps:
    tables = []
    for method, shares in drawn.shares.items():
        columns = [
            *(drawn.source[word] for word in shares.source),
            "…",
            *(drawn.target[word] for word in shares.read),
            "<s>",
        ]
        table = tidy(
            {
                "query_token": np.array([drawn.target[word] for word in shares.target], dtype=object)[:, None],
                "key_token": np.array(columns, dtype=object),
                "value": shares.shares,
            },
            query=range(len(shares.target)),
            key=range(len(columns)),
        )
        tables.append(table.assign(method=method))
    return WordMaps(
        table=pd.concat(tables, ignore_index=True).assign(frame="none"),
        panel="method",
        panel_titles={method: OF_TRANSLATIONS[method] for method in drawn.shares},
        caption=(
            "Where each target word (row) comes from: source words, the source's special tokens (…), the target words so far, "
            "and the target's start and special tokens (<s>). Rows add up to 100%."
        ),
    )
