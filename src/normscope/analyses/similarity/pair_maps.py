"""Token-by-token maps of a few pairs of texts."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.data.batching import Batch
from normscope.results.figures import TextPair
from normscope.rounding import number, numbered
from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError
from normscope.statistics.kept_tensors import KeptTensors


class PairMaps:
    """Keeps the maps of some rows of the corpus.

    Args:
        longest: Maximum number of tokens of a text; maps of longer ones would be illegible.
    """

    def __init__(self, rows: frozenset[int], longest: int) -> None:
        self._rows, self._longest = rows, longest
        self._matrices = KeptTensors(torch.float64)
        self._tokens = KeptTensors(torch.int64)
        self._too_long = KeptTensors(torch.int64)
        self.accumulators: Mapping[str, Accumulator] = {
            "matrices": self._matrices,
            "tokens": self._tokens,
            "too_long": self._too_long,
        }
        """Its state."""

    def update(self, batch: Batch, matrix: Float[Tensor, "pair a b"]) -> None:
        """Keep the maps of the chosen rows of a batch."""
        lengths = batch.token_mask.sum(dim=-1).tolist()
        for pair, row in enumerate(batch.rows[0::2]):
            if row not in self._rows:
                continue
            sides = (2 * pair, 2 * pair + 1)
            first, second = (lengths[side] for side in sides)
            if max(first, second) > self._longest:
                self._too_long.update([row], [torch.tensor([first, second])])
                continue
            # The bias is last, after the padding.
            kept = matrix[pair][[*range(first), -1]][:, [*range(second), -1]]
            self._matrices.update([row], [kept])
            self._tokens.update([row], [torch.cat([batch.input_ids[side, : lengths[side]] for side in sides])])

    def texts(self, token: Callable[[int], str]) -> tuple[dict[str, TextPair], list[str]]:
        """The maps by the names of their figures, and notes about rows without one.

        Args:
            token: Returns the text of a token id.
        """
        matrices, tokens, too_long = (_of(each) for each in (self._matrices, self._tokens, self._too_long))
        maps = {}
        for row, matrix in matrices.items():
            words, first = [token(identifier) for identifier in tokens[row].tolist()], len(matrix) - 1
            title = f"pair {row}: cosine {number(float(matrix.sum()))}"
            maps[f"pair_{row}"] = TextPair(title, words[:first], words[first:], matrix.numpy())
        if not too_long:
            return maps, []
        longest = max(int(lengths.max()) for lengths in too_long.values())
        which = f"pair {numbered(too_long)} is" if len(too_long) == 1 else f"pairs {numbered(too_long)} are"
        limit = f"{'' if len(too_long) == 1 else 'up to '}{longest} tokens (limit: {self._longest})"
        note = f"{which} too long to draw: {limit}"
        return maps, [note]


def _of(kept: KeptTensors) -> dict[int, Tensor]:
    try:
        return kept.compute().by_number()
    except EmptyAccumulatorError:
        return {}
