"""How well four scores of keys tell which can be dropped from the cache of a head."""

from collections.abc import Sequence

import pandas as pd
import torch

from normscope.analyses.findings import Lines
from normscope.data.batching import Batch
from normscope.maths.pruning import FRACTIONS, SCORES, pruning_errors
from normscope.models.block import AttentionBlock
from normscope.statistics.sequence_means import SequenceMeans
from normscope.statistics.tidy import tidy

TITLES = {
    "alpha": "Σα: weight",
    "alpha_v": "Σα‖v‖: weight × value norm",
    "alpha_f": "Σα‖f(x)‖: weight × vector norm",
    "share": "signed share of the output",
}
"""The scores in figures."""

ALL_HEADS = 0
"""The head number of rows where all heads are pruned together."""


class Pruning:
    """Errors of attention outputs without the keys that score lowest, by layer and head.

    Args:
        layers: Number of layers.
        heads: Number of heads of a layer.
    """

    def __init__(self, layers: int, heads: int) -> None:
        self._shape = (len(SCORES), len(FRACTIONS), 2, heads + 1)
        self.accumulator = SequenceMeans(layers, len(SCORES) * len(FRACTIONS) * 2 * (heads + 1), 1)

    def update(self, layer: int, block: AttentionBlock, batch: Batch) -> None:
        """Add the sequences of a block.

        Args:
            layer: Index of the layer, from 0.
        """
        received, parameters = block.received, block.parameters
        scores = {
            "alpha": received,
            "alpha_v": received * torch.linalg.vector_norm(block.value, dim=-1),
            "alpha_f": received * block.transformed_norms,
            "share": block.received_shares(),
        }
        errors = []
        queries, keys = (mask.host.token_mask.sum(dim=1).tolist() for mask in (batch, batch.keys))
        for row, (length, sources) in enumerate(zip(queries, keys, strict=True)):
            # Padding comes last; tokens of a sequence are counted on the host, so that nothing waits for a device.
            chosen = slice(0, int(length)), slice(0, int(sources))
            weights = block.alpha.rows(chosen[0], slice(row, row + 1))[0, :, :, chosen[1]].to(block.value.dtype)
            own = torch.zeros(weights.shape[1:], dtype=torch.bool, device=weights.device)
            if not block.is_cross_attention:
                own.fill_diagonal_(True)
            errors.append(
                pruning_errors(
                    weights,
                    block.value[row, :, chosen[1]],
                    parameters.output_weight.to(block.value.dtype),
                    block.attention_output[row, chosen[0]],
                    {name: score[row, :, chosen[1]] for name, score in scores.items()},
                    own,
                )
            )
        lengths = batch.token_mask.sum(dim=-1)
        self.accumulator.update(layer, torch.stack(errors, dim=-1).flatten(0, 3).unsqueeze(-1), lengths)

    def table(self, layers: Sequence[int]) -> pd.DataFrame:
        """One row per layer, score, fraction of dropped keys, kind of weights, and head."""
        means = self.accumulator.compute().sequence_mean.squeeze(-1).unflatten(1, self._shape)
        return tidy(
            {"error": means},
            layer=layers,
            score=SCORES,
            dropped=[f"{fraction:.0%}" for fraction in FRACTIONS],
            weights=["unchanged", "renormalised"],
            head=range(ALL_HEADS, self._shape[-1]),
        )


def pruning_figure(table: pd.DataFrame) -> Lines:
    """The errors of all heads pruned together, by layer."""
    shown = table[table["head"] == ALL_HEADS]
    panel = shown["dropped"] + " dropped, " + shown["weights"]
    return Lines(
        table=shown.assign(error=shown["error"] * 100, panel=panel),
        x="layer",
        y="error",
        series="score",
        series_titles=TITLES,
        panel="panel",
        panel_titles={name: name for name in dict.fromkeys(panel)},
        y_label="relative error of the attention output (%)",
        caption=(
            "How much the attention output changes when every head drops the keys that score lowest, by layer; the weights of "
            "the remaining keys are left unchanged or renormalised. The lower the line, the better the score tells which keys "
            "do not matter."
        ),
    )
