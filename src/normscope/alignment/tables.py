"""What word alignments amount to: error rates, links, maps, and two directions in one."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from normscope.alignment.figures import describe_figures
from normscope.alignment.gold import Reference
from normscope.alignment.links import pharaoh
from normscope.alignment.sentences import sentences_of
from normscope.alignment.symmetrisation import Heuristic, symmetrised
from normscope.alignment.word_maps import Agreement, Setting, agreement
from normscope.analyses.findings import Findings
from normscope.data.examples import Link
from normscope.maths.mixing import Method

METHODS = (Method.ATTN_W, Method.ATTN_N)
SETTINGS = tuple(Setting)

OTHER = "none"
"""The setting of aligners that have none."""

_RATES = ("aer", "precision", "recall")


@dataclasses.dataclass(frozen=True)
class AlignmentReport:
    """Everything that an alignment analysis has counted and kept.

    Axes: method and setting as in METHODS and SETTINGS; `map` is the layer as a whole, then its heads.
    """

    layers: Sequence[int]
    reference: Reference
    counts: Int[Tensor, "layer method setting map 3"]
    """Links, and how many of them are sure and possible."""
    norms: Float[Tensor, "layer method map"]
    """Mean α and ‖αf(x)‖ over pairs of tokens."""
    links: Mapping[int, Int[Tensor, "layer method setting target_word"]]
    """By row, the source word of each target word, −1 for none."""
    maps: Mapping[int, Float[Tensor, "layer method setting map target_word source_word"]]
    """By row, for those that are shown; the last source word is the end of the sentence."""
    lost: Int[Tensor, " side"]
    """Words of sources and targets that the tokenizer has left no token of."""

    def findings(self) -> Findings:
        """Tables, metrics and figures."""
        rates, baselines, symmetrised_rates = self._rates(), self._baselines(), self._symmetrised()
        links, maps = self._link_table(), self._map_table()
        tables = {"aer": pd.concat([rates, baselines], ignore_index=True), "links": links}
        if len(maps):
            tables["maps"] = maps
        if len(symmetrised_rates):
            tables["symmetrised"] = symmetrised_rates
        layers = rates[rates["head"] == 0]
        metrics = self._metrics(rates, baselines, symmetrised_rates)
        return Findings(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(metrics),
            curves={
                f"{method}/{setting}/aer": rows.set_index("layer")["aer"]
                for (method, setting), rows in layers.groupby(["method", "setting"], sort=False)
            },
            figures=describe_figures(rates, maps),
            summary=_summary(layers, baselines, symmetrised_rates),
            summary_digits=1,
            notes=self._notes(),
        )

    def _rates(self) -> pd.DataFrame:
        """Every layer and head, by method and setting."""
        maps = range(self.counts.shape[3])
        axes = enumerate(self.layers), enumerate(METHODS), enumerate(SETTINGS), maps
        return pd.DataFrame(
            {
                "layer": layer,
                "head": head,
                "method": str(method),
                "setting": str(setting),
                **self._rate(*self.counts[i, m, s, head].tolist()),
                "mean_norm": self.norms[i, m, head].item(),
            }
            for (i, layer), (m, method), (s, setting), head in itertools.product(*axes)
        )

    def _rate(self, links: int, in_sure: int, in_possible: int) -> dict[str, float]:
        sure = sum(len(self.reference.pairs[row].links.sure) for row in self.links)
        return self._told(Agreement(links, in_sure, in_possible, sure))

    def _rate_of(self, alignments: Mapping[int, frozenset[Link]]) -> dict[str, float]:
        gold = [self.reference.pairs[row].links for row in self.links]
        found = [alignments[row] for row in self.links]
        return self._told(agreement(found, [links.sure for links in gold], [links.possible for links in gold]))

    def _told(self, found: Agreement) -> dict[str, float]:
        return {
            "aer": found.error_rate,
            "precision": found.precision,
            "recall": found.recall,
            "sentences": len(self.links),
        }

    def _baselines(self) -> pd.DataFrame:
        """Other aligners, on the pairs that the model has read."""
        return pd.DataFrame(
            {"layer": 0, "head": 0, "method": name, "setting": OTHER, **self._rate_of(alignments)}
            for name, alignments in self.reference.baselines.items()
        )

    def _links_of(self, row: int, layer: int, method: int, setting: int) -> frozenset[Link]:
        chosen = self.links[row][layer, method, setting].tolist()
        return frozenset((source, target) for target, source in enumerate(chosen) if source >= 0)

    def _symmetrised(self) -> pd.DataFrame:
        """The best layer of both directions as one alignment, by every heuristic."""
        rows = []
        for (m, method), (s, setting) in itertools.product(enumerate(METHODS), enumerate(SETTINGS)):
            backward = self.reference.reverse.get((str(method), str(setting)))
            if backward is None:
                continue
            rates = [self._rate(*self.counts[i, m, s, 0].tolist())["aer"] for i in range(len(self.layers))]
            best = int(np.argmin(rates))
            for heuristic in Heuristic:
                joined = {
                    row: symmetrised(self._links_of(row, best, m, s), backward.links[row], heuristic)
                    for row in self.links
                }
                rows.append(
                    {
                        "method": str(method),
                        "setting": str(setting),
                        "heuristic": str(heuristic),
                        "layer": self.layers[best],
                        "reverse_layer": backward.layer,
                        **self._rate_of(joined),
                    }
                )
        return pd.DataFrame(rows)

    def _link_table(self) -> pd.DataFrame:
        axes = self.links, enumerate(self.layers), enumerate(METHODS), enumerate(SETTINGS)
        return pd.DataFrame(
            {
                "row": row,
                "layer": layer,
                "method": str(method),
                "setting": str(setting),
                "links": pharaoh(self._links_of(row, i, m, s)),
            }
            for row, (i, layer), (m, method), (s, setting) in itertools.product(*axes)
        )

    def _map_table(self) -> pd.DataFrame:
        tables: list[pd.DataFrame] = []
        for row, values in self.maps.items():
            pair = self.reference.pairs[row]
            axes: list[Sequence[int | str]] = [
                list(self.layers),
                [str(method) for method in METHODS],
                [str(setting) for setting in SETTINGS],
                list(range(values.shape[3])),
                list(range(len(pair.target))),
                list(range(len(pair.source) + 1)),
            ]
            names = ["layer", "method", "setting", "head", "target", "source"]
            cells = list(itertools.product(*axes))
            table = pd.DataFrame(cells, columns=names)
            sources = [*pair.source, "</s>"]
            table.insert(0, "row", row)
            table["target_word"] = table["target"].map(dict(enumerate(pair.target)))
            table["source_word"] = table["source"].map(dict(enumerate(sources)))
            table["value"] = values.flatten().numpy()
            table["gold"] = [
                "sure" if link in pair.links.sure else "possible" if link in pair.links.possible else "none"
                for link in zip(table["source"], table["target"], strict=True)
            ]
            tables.append(table)
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def _metrics(
        self, rates: pd.DataFrame, baselines: pd.DataFrame, symmetrised_rates: pd.DataFrame
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for (method, setting), rows in rates.groupby(["method", "setting"], sort=False):
            layers, heads = rows[rows["head"] == 0], rows[rows["head"] > 0]
            best, best_head = layers.iloc[layers["aer"].argmin()], heads.iloc[heads["aer"].argmin()]
            found = {
                "layer_mean/aer": layers["aer"].mean(),
                "best_layer/layer": best["layer"],
                "best_head/layer": best_head["layer"],
                "best_head/head": best_head["head"],
                "best_head/aer": best_head["aer"],
                **{f"best_layer/{rate}": best[rate] for rate in _RATES},
            }
            if method == Method.ATTN_N:
                found |= _of_largest_norm(layers, heads)
            metrics |= {f"{method}/{setting}/{name}": float(value) for name, value in found.items()}
        for _, row in baselines.iterrows():
            metrics |= {f"{row['method']}/{rate}": float(row[rate]) for rate in _RATES}
        for _, row in symmetrised_rates.iterrows():
            metrics[f"{row['method']}/{row['setting']}/{row['heuristic']}/aer"] = float(row["aer"])
        return metrics

    def _notes(self) -> list[str]:
        notes = []
        for side, number in zip(("source", "target"), self.lost.tolist(), strict=True):
            if number:
                notes.append(f"the tokenizer has no token of {number:,} {side} words: they are never aligned")
        if len(self.links) < len(self.reference.pairs):
            notes.append(
                f"error rates are of the {len(self.links):,} of {len(self.reference.pairs):,} pairs that were read"
            )
        return notes


def _of_largest_norm(layers: pd.DataFrame, heads: pd.DataFrame) -> dict[str, float]:
    """The layer and the head that hand over most, and whether heads that do so align well (K20, section 5)."""
    layer, head = layers.iloc[layers["mean_norm"].argmax()], heads.iloc[heads["mean_norm"].argmax()]
    found = {
        "largest_norm_layer/layer": layer["layer"],
        "largest_norm_layer/aer": layer["aer"],
        "largest_norm_head/layer": head["layer"],
        "largest_norm_head/head": head["head"],
        "largest_norm_head/aer": head["aer"],
    }
    if heads["aer"].nunique() > 1:
        found["heads/spearman_norm_aer"] = heads["mean_norm"].rank().corr(heads["aer"].rank())
    return {name: float(value) for name, value in found.items()}


def _summary(layers: pd.DataFrame, baselines: pd.DataFrame, both: pd.DataFrame) -> pd.DataFrame:
    rows = {}
    for (method, setting), group in layers.groupby(["method", "setting"], sort=False):
        best = group.iloc[group["aer"].argmin()]
        rows[f"{method} {setting}"] = {
            "layer mean AER %": group["aer"].mean() * 100,
            "best layer": str(best["layer"]),
            **{f"{rate.replace('aer', 'AER')} %": best[rate] * 100 for rate in _RATES},
        }
    for _, row in baselines.iterrows():
        rows[row["method"]] = {
            "best layer": "",
            **{f"{rate.replace('aer', 'AER')} %": row[rate] * 100 for rate in _RATES},
        }
    for _, row in both.iterrows():
        rows[f"{row['method']} {row['setting']}, {row['heuristic']}"] = {
            "best layer": f"{row['layer']} and {row['reverse_layer']}",
            **{f"{rate.replace('aer', 'AER')} %": row[rate] * 100 for rate in _RATES},
        }
    return pd.DataFrame.from_dict(rows, orient="index")
