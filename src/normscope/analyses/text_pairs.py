"""Pairs of texts, for the analysis of similarity: the words that add most, and maps of a few pairs, token by token."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.attribution.similarities import cosine_parts
from normscope.data.batching import Batch
from normscope.data.categories import CATEGORIES, FIRST
from normscope.data.token_texts import Vocabulary
from normscope.models.load.interventions import InterventionRunner
from normscope.results.figures import TextPair
from normscope.rounding import counted, number
from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError
from normscope.statistics.kept_tensors import KeptTensors

LONGEST = 40
"""Maximum number of tokens of a text that are drawn one by one; a larger map would be illegible."""

PAIRS, DOCUMENTS = 3, 5
"""Pairs, or documents of a query, that are drawn unless they are chosen."""

_STRONGEST = 5

FRIENDS = 3
"""Number of words kept for each pair, and of words in a sentence."""

_NO_WORDS = (*CATEGORIES[:-1], FIRST)
"""Categories of tokens that are neither words nor parts of words."""

Embedded = tuple[Float[Tensor, "1 source made"], Float[Tensor, "1 made"]]


class Words:
    """The tokens of a vocabulary that are words, or pieces of words.

    Args:
        names: The token categories.
    """

    def __init__(self, vocabulary: Vocabulary, names: Sequence[str]) -> None:
        self.special = torch.tensor(sorted(vocabulary.special), dtype=torch.long)
        """The special tokens, in order."""
        self._no_words = [place for place, name in enumerate(names) if name in _NO_WORDS]

    def of(self, batch: Batch) -> Bool[np.ndarray, "batch token"]:
        """Which tokens of a batch are words, or pieces of words."""
        host = batch.host
        kept: np.ndarray = host.token_mask.numpy() & ~np.isin(host.input_ids.numpy(), self.special.numpy())
        return kept & ~np.isin(host.categories.numpy(), self._no_words)

    def that_add_most(self, batch: Batch, added: Float[np.ndarray, "batch token"]) -> Float[np.ndarray, "pair number"]:
        """The words of each pair of texts that add most, wherever they occur.

        Args:
            added: What each token of each text adds.

        Returns:
            For each pair, the ids of FRIENDS words, then what each adds; NaN where it has fewer.
        """
        assert batch.pairing is not None
        ids, words = batch.host.input_ids.numpy(), self.of(batch)
        words &= np.arange(words.shape[1]) >= batch.pairing.prompts.numpy()[:, None]
        rows = np.full((len(ids) // 2, 2 * FRIENDS), np.nan)
        for pair, row in enumerate(rows):
            sides = slice(2 * pair, 2 * pair + 2)
            tokens, places = np.unique(ids[sides][words[sides]], return_inverse=True)
            totals = np.bincount(places, added[sides][words[sides]], minlength=len(tokens))
            most = np.argsort(-totals, kind="stable")[:FRIENDS]
            row[: len(most)], row[FRIENDS : FRIENDS + len(most)] = tokens[most], totals[most]
        return rows


class DrawnPair(NamedTuple):
    """A pair of texts that is drawn."""

    texts: TextPair
    document: int
    """The number of the document, if it is one of those that are most similar to the first query; otherwise 0."""
    strongest: list[tuple[str, str, float]]
    """The pairs of words, or of their pieces, that add most, and what each adds."""


class _Side(NamedTuple):
    """One text of a pair that is drawn."""

    kinds: Int[Tensor, "kind token"]
    """The text, as a part of `Batch.packed`."""
    prompt: int
    """Number of its tokens that belong to a prompt."""
    start: int
    """The first token that is drawn by itself."""

    @property
    def length(self) -> int:
        """Number of its tokens."""
        return self.kinds.shape[1]

    @property
    def units(self) -> Int[Tensor, "1 token"]:
        """What is drawn as one: each token from `start`, all those before, and all those behind."""
        places = torch.arange(self.length) - self.start
        return (places.clamp(-1, LONGEST) + (self.start > 0))[None]

    def words(self, of_tokens: Bool[np.ndarray, " token"]) -> Bool[np.ndarray, " source"]:
        """The units, and last the bias, that are single tokens of words."""
        shown = slice(self.start, self.start + LONGEST)
        words = np.zeros(int(self.units.max()) + 2, dtype=bool)
        words[self.units[0, shown].numpy()] = of_tokens[shown]
        return words

    def labels(self, token: Callable[[int], str]) -> list[str]:
        """The names of the units."""
        drawn = [token(identifier) for identifier in self.kinds[0, self.start : self.start + LONGEST].tolist()]
        left_out = self.length - self.start - len(drawn)
        before, behind = ([f"[… {counted(count, 'token')}]"] if count else [] for count in (self.start, left_out))
        return [*before, *drawn, *behind]


class PairMaps:
    """Keeps a few pairs of the corpus, and draws them when it has been read: a map takes many passes of the model.

    Args:
        rows: The pairs to draw; None for the shortest or, if there are rankings, the first documents of the first query.
        words: Says which tokens are words.
    """

    def __init__(self, rows: frozenset[int] | None, words: Words) -> None:
        self._rows, self._words = rows, words
        size = max(PAIRS, DOCUMENTS) if rows is None else None
        self._texts, self._about = KeptTensors(torch.int64, size), KeptTensors(torch.int64, size)
        self.accumulators: Mapping[str, Accumulator] = {"drawn_texts": self._texts, "drawn_rows": self._about}
        """Its state."""

    def update(self, batch: Batch, values: Float[Tensor, " pair"], added: Float[Tensor, "batch token"]) -> None:
        """Keep the pairs of a batch that are to be drawn.

        Args:
            values: The similarities of the pairs.
            added: What each token of each text adds.
        """
        assert batch.pairing is not None
        texts, sums, similar = batch.by_sequence(), added.cpu().numpy(), values.tolist()
        prompts = batch.pairing.prompts.tolist()
        for pair, row in enumerate(batch.rows[0::2]):
            query, document = batch.pairing.ranked[pair]
            if query > 1 if self._rows is None else row not in self._rows:
                continue
            sides = slice(2 * pair, 2 * pair + 2)
            lengths = [text.shape[1] for text in texts[sides]]
            starts = [_start(of_text[:length]) for of_text, length in zip(sums[sides], lengths, strict=True)]
            # Rows tell equal ones apart, in whichever order they come.
            place = row if self._rows is not None else (-1 - similar[pair] if query else max(lengths)) + row * 2.0**-40
            self._texts.update([place], [np.concatenate(texts[sides], axis=1)])
            best = document if self._rows is None else 0
            self._about.update([place], [np.array([row, best, lengths[0], *prompts[sides], *starts])])

    def drawn(
        self,
        runner: InterventionRunner,
        embedded: Callable[[Batch, int, Int[Tensor, "1 token"]], Embedded],
        token: Callable[[int], str],
    ) -> dict[int, DrawnPair]:
        """The pairs by their rows; the first is the shortest one, or that of the most similar document.

        Args:
            runner: Makes batches of texts.
            embedded: Returns what the units of a text contribute to its embedding, and the embedding, given the length of its
                prompt.
            token: Returns the text of a token id.
        """
        try:
            kept = list(zip(self._about.compute().tensors, self._texts.compute().tensors, strict=True))
        except EmptyAccumulatorError:
            return {}
        if self._rows is None and not kept[0][0][1]:
            kept = kept[:PAIRS]
        drawn = {}
        for about, kinds in runner.progress(kept, len(kept), "maps of pairs"):
            row, document, length, *rest = about.tolist()
            texts = (kinds[:, :length], kinds[:, length:])
            sides = [_Side(*each) for each in zip(texts, rest[:2], rest[2:], strict=True)]
            parts: list[Tensor] = []
            words = []
            for side in sides:
                (batch,) = runner.batches([side.kinds])
                parts += embedded(batch, side.prompt, side.units.to(batch.input_ids.device))
                words.append(side.words(self._words.of(batch)[0]))
            matrix, value = (each[0].cpu().numpy() for each in cosine_parts(*parts))
            first, second = (side.labels(token) for side in sides)
            title = f"{f'document {document}' if document else f'pair {row}'}: cosine {number(float(value))}"
            drawn[row] = DrawnPair(
                TextPair(title, first, second, matrix, number=document),
                document,
                _strongest((first, second), matrix, *words),
            )
        return drawn


def _strongest(
    labels: Sequence[Sequence[str]],
    matrix: Float[np.ndarray, "a b"],
    words_a: Bool[np.ndarray, " a"],
    words_b: Bool[np.ndarray, " b"],
) -> list[tuple[str, str, float]]:
    """The pairs of words that add most."""
    of_words = np.where(words_a[:, None] & words_b, matrix, -np.inf)
    places = np.argsort(-of_words, axis=None, kind="stable")[:_STRONGEST]
    rows, columns = (each.tolist() for each in np.unravel_index(places, matrix.shape))
    pairs = zip(rows, columns, strict=True)
    return [(labels[0][a], labels[1][b], float(matrix[a, b])) for a, b in pairs if of_words[a, b] > 0]


def _start(added: Float[np.ndarray, " token"]) -> int:
    """Where those LONGEST tokens in a row begin that add most."""
    if len(added) <= LONGEST:
        return 0
    return int(np.convolve(added, np.ones(LONGEST), "valid").argmax())
