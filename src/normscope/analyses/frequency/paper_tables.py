"""The correlations with token frequency of Kobayashi et al. 2020 and 2021 as a table."""

from normscope.analyses.paper_tables import METHOD_NAMES, Column, PaperTable, Results

_SPECIALS = {"With special tokens": "with", "Without": "without"}


def paper_tables(results: Results) -> dict[str, PaperTable]:
    """Spearman's ρ between the frequency rank and every measure."""
    metrics = results.metrics
    values = {
        measure: [metrics.get(f"spearman/{measure}/{specials}_specials") for specials in _SPECIALS.values()]
        for measure in METHOD_NAMES
    }
    shown = {measure: pair for measure, pair in values.items() if any(value is not None for value in pair)}
    if not shown:
        return {}
    caption = "Spearman's ρ between a token's frequency rank and each measure, averaged over heads and layers"
    table = PaperTable(
        caption=f"{caption}. Positive: rarer tokens have larger values.",
        columns=[Column("Measure", text=True), *(Column(header) for header in _SPECIALS)],
        rows=[[METHOD_NAMES[measure], *pair] for measure, pair in shown.items()],
        headline={METHOD_NAMES[measure]: pair[0] for measure, pair in shown.items() if pair[0] is not None},
        headline_caption=f"{caption}, with special tokens. Positive: rarer tokens have larger values.",
    )
    return {"correlation": table}
