"""What tokens and spans of texts add to similarities, summed over a corpus in bounded memory."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.data.batching import Batch
from normscope.data.categories import CATEGORIES, FIRST
from normscope.data.vocabulary import Vocabulary
from normscope.statistics.mean import Mean

SPANS = ("special", "prompt", "text", "bias")
"""Special tokens, wherever they are; other tokens of a prompt; all other tokens; and the biases."""

FRIENDS = 3
"""Tokens that are kept for each pair."""

_NO_WORDS = (*CATEGORIES[:-1], FIRST)
"""Categories of tokens that are no words, or no parts of them."""


class PairSpans:
    """Adds up what the spans of either text add to similarities."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._special = torch.tensor(sorted(vocabulary.special), dtype=torch.long)
        self.sums = Mean(1, 2 * len(SPANS))
        """By side and span; the counts are of tokens, or of biases."""

    def update(self, batch: Batch, added: Float[Tensor, "batch source"]) -> None:
        """Add a batch of pairs.

        Args:
            added: What each token of each text, and last its bias, adds.
        """
        mask = batch.token_mask
        special = torch.isin(batch.input_ids, self._special.to(mask.device)) & mask
        prompt = torch.zeros_like(mask)
        if batch.prompts is not None:
            prompt = mask & (torch.arange(mask.shape[1], device=mask.device) < batch.prompts[:, None]) & ~special
        spans = torch.stack([special, prompt, mask & ~special & ~prompt, torch.zeros_like(mask)], dim=1)
        bias = spans.new_tensor([span == "bias" for span in SPANS]).expand(len(mask), -1)
        members = torch.cat([spans, bias.unsqueeze(-1)], dim=-1).to(added)
        sides = torch.einsum("nsk,nk->ns", members, added).unflatten(0, (-1, 2)).sum(dim=0)
        counts = members.sum(dim=-1).unflatten(0, (-1, 2)).sum(dim=0)
        self.sums.update(0, sides.flatten(), counts.round().long().flatten())


class PairTokens:
    """Adds up what each token of the vocabulary adds to similarities, and finds those that add most to a pair.

    Args:
        names: The token categories.
    """

    def __init__(self, vocabulary: Vocabulary, names: Sequence[str]) -> None:
        self._special = np.array(sorted(vocabulary.special), dtype=np.int64)
        self._no_words = [number for number, name in enumerate(names) if name in _NO_WORDS]
        self.sums = Mean(1, max(vocabulary.size, 1))
        """By token."""

    def update(self, batch: Batch, added: Float[Tensor, "batch token"]) -> Float[np.ndarray, "pair number"]:
        """Add a batch of pairs.

        Args:
            added: What each token of each text adds.

        Returns:
            For each pair, the ids of the tokens of words that add most, wherever they stand, then what each adds; NaN where it
            has fewer.
        """
        host = batch.host
        mask, ids, values = host.token_mask.numpy(), host.input_ids.numpy(), added.cpu().numpy()
        size = self.sums.groups
        sums = np.bincount(ids[mask], values[mask], minlength=size)
        self.sums.update(0, torch.from_numpy(sums), torch.from_numpy(np.bincount(ids[mask], minlength=size)))
        words = mask & ~np.isin(ids, self._special) & ~np.isin(host.categories.numpy(), self._no_words)
        if host.prompts is not None:
            words &= np.arange(mask.shape[1]) >= host.prompts.numpy()[:, None]
        rows = np.full((len(ids) // 2, 2 * FRIENDS), np.nan)
        for pair, row in enumerate(rows):
            sides = slice(2 * pair, 2 * pair + 2)
            tokens, places = np.unique(ids[sides][words[sides]], return_inverse=True)
            totals = np.bincount(places, values[sides][words[sides]], minlength=len(tokens))
            most = np.argsort(-totals, kind="stable")[:FRIENDS]
            row[: len(most)], row[FRIENDS : FRIENDS + len(most)] = tokens[most], totals[most]
        return rows
