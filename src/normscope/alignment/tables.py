"""The results of the alignment analysis as tables and metrics: error rates, links, maps and symmetrised alignments."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from normscope.alignment.error_rates import RATES, error_rates, evaluate
from normscope.alignment.figures import describe_figures
from normscope.alignment.gold import Reference, SentencePair
from normscope.alignment.links import pharaoh
from normscope.alignment.published import PUBLISHED
from normscope.alignment.sentences import sentences_of
from normscope.alignment.symmetrisation import Heuristic, symmetrised
from normscope.alignment.word_maps import Setting
from normscope.data.examples import Link
from normscope.maths.mixing import Method
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import counted
from normscope.statistics.tidy import tidy

METHODS = (Method.ATTN_W, Method.ATTN_N)
SETTINGS = tuple(Setting)

OTHER = "none"
"""The setting of other aligners, which have none."""


@dataclasses.dataclass(frozen=True)
class AlignmentReport:
    """Turns what the alignment analysis counted and kept into findings.

    Axes: method and setting as in METHODS and SETTINGS; `map` is the layer as a whole, then its heads.
    """

    layers: Sequence[int]
    reference: Reference
    counts: Int[Tensor, "layer method setting map 3"]
    """Links, and how many of them are in the sure and in the possible ones."""
    norms: Float[Tensor, "layer method map"]
    """Mean α and ‖αf(x)‖ over pairs of tokens."""
    links: Mapping[int, Int[Tensor, "layer method setting target_word"]]
    """By row, the source word of each target word, −1 for none."""
    maps: Mapping[int, Float[Tensor, "layer method setting map target_word source_word"]]
    """By row, for the selected rows; the last source word is the end of the sentence."""
    dropped: Int[Tensor, " side"]
    """Words of sources and targets that the tokenizer dropped."""

    def findings(self) -> Result:
        """Tables, metrics and figures."""
        rates, baselines = self._rates(), self._baselines()
        layers = rates[rates["head"] == 0]
        symmetrised_rates = self._symmetrised(layers)
        links, maps = self._link_table(), self._map_table()
        tables = {"aer": pd.concat([rates, baselines], ignore_index=True), "links": links}
        if len(maps):
            tables["maps"] = maps
        if len(symmetrised_rates):
            tables["symmetrised"] = symmetrised_rates
        rolled = roll_up(PUBLISHED, tables)
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics),
            curves=rolled.curves,
            figures=describe_figures(rates, maps),
            summaries={
                "alignment": Summary(
                    _summary(layers, baselines, symmetrised_rates),
                    digits=1,
                    caption="alignment error rate (AER, lower is better), precision and recall (higher is better) of the best "
                    "layer, by weights and by vectors, from the row that predicts a target word (output) or reads it (input)",
                )
            },
            notes=self._notes(),
        )

    def _rates(self) -> pd.DataFrame:
        """Error rates of every layer and head, by method and setting."""
        links, in_sure, in_possible = self.counts.numpy().transpose(4, 0, 1, 2, 3)
        sure = sum(len(self.reference.pairs[row].links.sure) for row in self.links)
        table = tidy(
            {
                **error_rates(links, in_sure, in_possible, sure),
                "sentences": np.array(len(self.links)),
                "mean_norm": self.norms[:, :, None],
            },
            **self._axes,
            head=range(self.counts.shape[3]),
        )
        return table[["layer", "head", "method", "setting", *RATES, "sentences", "mean_norm"]]

    def _evaluate(self, alignments: Mapping[int, frozenset[Link]]) -> dict[str, float]:
        """Error rates of alignments by row, on the pairs that the model has read."""
        gold = (self.reference.pairs[row].links for row in self.links)
        return evaluate((alignments[row] for row in self.links), gold) | {"sentences": len(self.links)}

    def _baselines(self) -> pd.DataFrame:
        """Error rates of other aligners."""
        return pd.DataFrame(
            {"layer": 0, "head": 0, "method": name, "setting": OTHER, **self._evaluate(alignments)}
            for name, alignments in self.reference.baselines.items()
        )

    def _symmetrised(self, layers: pd.DataFrame) -> pd.DataFrame:
        """The best layer of each direction, combined by every heuristic.

        Args:
            layers: Error rates of whole layers.
        """
        rows = []
        for (method, setting), rates in layers.groupby(["method", "setting"], sort=False):
            backward = self.reference.reverse.get((str(method), str(setting)))
            if backward is None:
                continue
            best = int(rates["aer"].argmin())
            m, s = METHODS.index(Method(str(method))), SETTINGS.index(Setting(str(setting)))
            forward = {row: _as_links(targets[best, m, s]) for row, targets in self.links.items()}
            for heuristic in Heuristic:
                combined = {row: symmetrised(links, backward.links[row], heuristic) for row, links in forward.items()}
                rows.append(
                    {
                        "method": method,
                        "setting": setting,
                        "heuristic": str(heuristic),
                        "layer": self.layers[best],
                        "reverse_layer": backward.layer,
                        **self._evaluate(combined),
                    }
                )
        return pd.DataFrame(rows)

    def _link_table(self) -> pd.DataFrame:
        table = tidy({}, row=list(self.links), **self._axes)
        # Sentences differ in length, so the links are no one tensor.
        alignments = (targets for by_layer in self.links.values() for targets in by_layer.flatten(0, 2))
        return table.assign(links=[pharaoh(_as_links(targets)) for targets in alignments])

    def _map_table(self) -> pd.DataFrame:
        tables = [self._maps_of(row, maps) for row, maps in self.maps.items()]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def _maps_of(
        self, row: int, maps: Float[Tensor, "layer method setting map target_word source_word"]
    ) -> pd.DataFrame:
        """Every cell of the maps of one sentence pair."""
        pair = self.reference.pairs[row]
        sources = [*pair.source, "</s>"]
        heads, targets = range(maps.shape[3]), range(len(pair.target))
        table = tidy({"value": maps}, **self._axes, head=heads, target=targets, source=range(len(sources)))
        values = table.pop("value")
        table.insert(0, "row", row)
        return table.assign(
            target_word=table["target"].map(dict(enumerate(pair.target))),
            source_word=table["source"].map(dict(enumerate(sources))),
            value=values,
            gold=[_gold(pair, link) for link in zip(table["source"], table["target"], strict=True)],
        )

    @property
    def _axes(self) -> dict[str, Sequence[int | str]]:
        """Labels of the axes that counts, links and maps begin with."""
        return {
            "layer": self.layers,
            "method": [str(method) for method in METHODS],
            "setting": [str(setting) for setting in SETTINGS],
        }

    def _notes(self) -> list[str]:
        notes = []
        for side, number in zip(("source", "target"), self.dropped.tolist(), strict=True):
            if number:
                notes.append(
                    f"the tokenizer drops {counted(number, f'{side} word: it is', f'{side} words: they are')} never aligned"
                )
        if len(self.links) < len(self.reference.pairs):
            notes.append(
                f"error rates cover only the {len(self.links):,} of {len(self.reference.pairs):,} pairs that were read"
            )
        return notes


def _summary(layers: pd.DataFrame, baselines: pd.DataFrame, symmetrised_rates: pd.DataFrame) -> pd.DataFrame:
    rows = {}
    for (method, setting), group in layers.groupby(["method", "setting"], sort=False):
        best = group.iloc[group["aer"].argmin()]
        rows[_label(str(method), str(setting))] = {
            "layer mean AER %": group["aer"].mean() * 100,
            "best layer": str(best["layer"]),
            **{f"{rate.replace('aer', 'AER')} %": best[rate] * 100 for rate in RATES},
        }
    for _, row in baselines.iterrows():
        rows[row["method"]] = {
            "best layer": "",
            **{f"{rate.replace('aer', 'AER')} %": row[rate] * 100 for rate in RATES},
        }
    for _, row in symmetrised_rates.iterrows():
        rows[f"{_label(row['method'], row['setting'])}, {row['heuristic']}"] = {
            "best layer": f"{row['layer']} and {row['reverse_layer']}",
            **{f"{rate.replace('aer', 'AER')} %": row[rate] * 100 for rate in RATES},
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _label(method: str, setting: str) -> str:
    """A method and a setting in words."""
    return f"{PUBLISHED.title('method', method)} {PUBLISHED.title('setting', setting)}"


def _as_links(targets: Int[Tensor, " target_word"]) -> frozenset[Link]:
    """Links from the source word of each target word, −1 for none."""
    return frozenset((source, target) for target, source in enumerate(targets.tolist()) if source >= 0)


def _gold(pair: SentencePair, link: Link) -> str:
    if link in pair.links.sure:
        return "sure"
    return "possible" if link in pair.links.possible else "none"
