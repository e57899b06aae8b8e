"""Lengths of the vectors of images before and after the model's last norm, and how many of them are far longer than others.

Published lengths of patches are of either kind, often without a word about which. High-norm patches are those of Darcet et al.
2024 (arXiv:2309.16588), whose cutoff is one number for one model; here it is a multiple of the median of the same image.
"""

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.results.codes import category_name
from normscope.results.findings import Sentence
from normscope.rounding import brief, brief_share, compared, enumeration
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.tidy import tidy

PLACES = ("before", "after")
"""What leaves the last layer, and what the model returns."""

HIGH = 2.0
"""High-norm tokens are longer than this multiple of the median of their image."""


def is_high(
    norms: Float[Tensor, "batch token"], token_mask: Bool[Tensor, "batch token"]
) -> Bool[Tensor, "batch token"]:
    """Which tokens are longer than `HIGH` times the median of all tokens of their input."""
    medians = norms.masked_fill(~token_mask, torch.nan).nanmedian(dim=-1, keepdim=True).values
    return (norms > HIGH * medians) & token_mask


class ReturnedNorms:
    """Adds up the lengths of vectors by place and category."""

    def __init__(self, context: AnalysisContext) -> None:
        self._context = context
        self.accumulator = GroupedMoments(len(PLACES), 2, len(context.categories))

    def update(self, place: str, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the vectors of a batch."""
        norms = torch.linalg.vector_norm(vectors.double(), dim=-1)
        values = torch.stack([norms, is_high(norms, batch.token_mask).double()])
        self.accumulator.update(PLACES.index(place), values, self._context.members(batch))

    def table(self) -> pd.DataFrame:
        """The table `returned`; no rows if nothing was added."""
        try:
            found = self.accumulator.compute()
        except EmptyAccumulatorError:
            return pd.DataFrame(columns=["place", "category", "mean", "max", "high", "count"])
        table = tidy(
            {"mean": found.mean[:, 0], "max": found.maximum[:, 0], "high": found.mean[:, 1], "count": found.count},
            place=PLACES,
            category=list(self._context.categories),
        )
        return table[table["count"] > 0].reset_index(drop=True)


def sentences(table: pd.DataFrame) -> list[Sentence]:
    """How long vectors are on either side of the last norm, and which categories have high norms."""
    if {*table["place"]} != {*PLACES}:  # some models return something else than tokens' vectors
        return []
    by_place = table.set_index(["place", "category"])
    before, after = (by_place.xs(place) for place in PLACES)
    category = str(before["count"].idxmax())
    first, second = compared(brief, *(float(each["mean"][category]) for each in (before, after)))
    whose = "all" if category == ALL else category_name(category)
    text = f"The vectors of {whose} tokens have a mean norm of {first} after the last layer, and "
    text += "are returned without a last norm" if first == second else f"of {second} after the model's last norm"
    high = [
        f"{brief_share(share)} of {category_name(str(name))} tokens"
        for name, share in before["high"].items()
        if share > 0 and name != ALL
    ]
    many = f"{enumeration(high)} are" if high else "no token is"
    text += f"; after the last layer, {many} longer than twice the median of the image."
    return [Sentence(text, table="returned")]
