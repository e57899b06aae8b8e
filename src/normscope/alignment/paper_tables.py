"""Table 3 of Kobayashi et al. 2020: error rates of weights, of norms and of other aligners."""

from collections.abc import Mapping

from normscope.analyses.paper_tables import Cell, Column, PaperTable, Results
from normscope.results.rollups import by_axes

_METHODS = {"attn_w": "Attention weights α", "attn_n": "Vector norms ‖αf(x)‖"}
_SYMBOLS = {"attn_w": "α", "attn_n": "‖αf(x)‖"}
_SETTINGS = {"awo": "with output", "awi": "with input"}
_RATES = ("aer", "precision", "recall")


def paper_tables(results: Results) -> dict[str, PaperTable]:
    """Alignment error rates: mean over layers and best layer of each method, then other aligners."""
    metrics = results.metrics
    rows: list[list[Cell]] = []
    headline: dict[str, float] = {}
    for method, title in _METHODS.items():
        for setting, words in _SETTINGS.items():
            prefix = f"{method}/{setting}"
            if f"{prefix}/layer_mean/aer" not in metrics:
                continue
            best = {rate: 100 * metrics[f"{prefix}/best_layer/{rate}"] for rate in _RATES}
            mean, layer = 100 * metrics[f"{prefix}/layer_mean/aer"], int(metrics[f"{prefix}/best_layer/layer"])
            rows.append([title, f"{words}, mean over layers", mean, None, None])
            rows.append([title, f"{words}, best layer ({layer})", *best.values()])
            headline[f"{_SYMBOLS[method]} {words}, mean"] = mean
            headline[f"{_SYMBOLS[method]} {words}, best"] = best["aer"]
    if not rows:
        return {}
    rows += _aligners(metrics)
    table = PaperTable(
        caption="Alignment error rate (AER, %; lower is better), precision (%) and recall (%) of links by attention weights, "
        "by vector norms and by other aligners.",
        columns=[
            Column("Links by", text=True),
            Column("Alignment", text=True),
            *(Column(header, 1) for header in ("AER", "Precision", "Recall")),
        ],
        rows=rows,
        headline=headline,
        headline_caption="Alignment error rate (%; lower is better) of links by attention weights α and by vector norms "
        "‖αf(x)‖: mean over layers, and best layer.",
        headline_digits=1,
        grouped=True,
    )
    return {"error_rates": table}


def _aligners(metrics: Mapping[str, float]) -> list[list[Cell]]:
    """Other aligners are those that have an error rate and no setting."""
    names = by_axes("<aligner>/aer", metrics)
    return [["Other aligners", name, *(100 * metrics[f"{name}/{rate}"] for rate in _RATES)] for name in names]
