"""The table of Kobayashi et al. 2021 that the mixing analysis reproduces."""

from normscope.analyses.paper_tables import PaperTable, Results, ratio_table


def paper_tables(results: Results) -> dict[str, PaperTable]:
    """Mixing ratios by method."""
    table = ratio_table(results.metrics, "over all tokens and layers, by method.")
    return {} if table is None else {"ratios": table}
