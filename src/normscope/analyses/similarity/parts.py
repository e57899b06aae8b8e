"""What tokens and spans of texts add to similarities, summed over a corpus in bounded memory."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.data.batching import Batch
from normscope.data.categories import CATEGORIES, FIRST
from normscope.data.token_texts import Vocabulary
from normscope.maths.tensors import to_device
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.mean import Mean

SPANS = ("special", "prompt", "text", "bias")
"""Special tokens, wherever they are; other tokens of a prompt; all other tokens; and the biases."""

FRIENDS = 3
"""Tokens that are kept for each pair."""

_NO_WORDS = (*CATEGORIES[:-1], FIRST)
"""Categories of tokens that are neither words nor parts of words."""


def prompt_lengths(batch: Batch) -> Int[Tensor, " batch"]:
    """Number of tokens at the start of each text that a prompt takes, on the batch's device."""
    assert batch.pairing is not None
    return to_device(batch.pairing.prompts, batch.input_ids.device)


class PairSpans:
    """Adds up what the spans of each text add to similarities."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._special = torch.tensor(sorted(vocabulary.special), dtype=torch.long)
        self.sums = Mean(1, 2 * len(SPANS))
        """By side and span; counts are numbers of tokens, or of biases."""

    def update(self, batch: Batch, added: Float[Tensor, "batch source"]) -> None:
        """Add a batch of pairs.

        Args:
            added: What each token of each text, and last its bias, adds.
        """
        mask = batch.token_mask
        special = torch.isin(batch.input_ids, to_device(self._special, mask.device)) & mask
        prompt = mask & (torch.arange(mask.shape[1], device=mask.device) < prompt_lengths(batch)[:, None]) & ~special
        spans = torch.stack([special, prompt, mask & ~special & ~prompt, torch.zeros_like(mask)], dim=1)
        members = torch.nn.functional.pad(spans, (0, 1)).to(added)
        members[:, -1, -1] = 1  # of the biases
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
        self.sums = KeyedMeans(1, 1)
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
        keys = torch.from_numpy(ids[mask])[:, None]
        self.sums.update(keys, torch.from_numpy(values[mask])[:, None], torch.ones(len(keys), dtype=torch.long))
        assert batch.pairing is not None
        words = self.words(host)
        words &= np.arange(mask.shape[1]) >= batch.pairing.prompts.numpy()[:, None]
        rows = np.full((len(ids) // 2, 2 * FRIENDS), np.nan)
        for pair, row in enumerate(rows):
            sides = slice(2 * pair, 2 * pair + 2)
            tokens, places = np.unique(ids[sides][words[sides]], return_inverse=True)
            totals = np.bincount(places, values[sides][words[sides]], minlength=len(tokens))
            most = np.argsort(-totals, kind="stable")[:FRIENDS]
            row[: len(most)], row[FRIENDS : FRIENDS + len(most)] = tokens[most], totals[most]
        return rows

    def words(self, batch: Batch) -> Bool[np.ndarray, "batch token"]:
        """Which tokens are words, or pieces of words."""
        host = batch.host
        kept: np.ndarray = host.token_mask.numpy() & ~np.isin(host.input_ids.numpy(), self._special)
        return kept & ~np.isin(host.categories.numpy(), self._no_words)
