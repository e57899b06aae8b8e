"""Words in a sound: which heads look at a word while it is predicted or read?

A speech model's decoder reads the transcript and attends to the frames of the sound. In the rows of a word's tokens, averaged,
a head has its largest weight α, or its largest norm ‖αf(x)‖, in one frame; the word is found if the middle of that frame lies
inside the time in which it is spoken.

Source: the row that predicts a token, and a list of heads that find words, are those of Whisper's own word times (`timing.py`
of openai-whisper), which are kept in generation configs as `alignment_heads`.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.alignment.word_maps import row_words
from normscope.alignment.words_in_sounds import best_heads, figures_of, sentences_of, summary_of
from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.alignment import ALIGNMENT, AlignmentOptions, Setting
from normscope.analyses.finite import require_finite
from normscope.data.batching import Batch
from normscope.data.words import NO_WORD
from normscope.errors import InputError
from normscope.maths.norms import weighted_norms
from normscope.maths.partition import Partition
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.results.figures import Figure
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.results.token_labels import labels
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.tidy import tidy

METHODS = ("attn_w", "attn_n")


class SpeechAlignment(Analysis):
    """The share of words that every head finds in a sound, and when the best heads say that they are spoken."""

    info = ALIGNMENT

    def __init__(self, options: AlignmentOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._frames = KeptTensors(torch.int16)
        """By row: the frame of largest value of each layer, setting, method, head and word; −1 without one."""
        self._times = KeptTensors(torch.float64)
        """By row: the seconds of a frame, twice, and when each word starts and ends."""
        self._tokens = KeptTensors(torch.int64)
        """By row: the tokens that are predicted, and their words."""
        self._maps, self._waves = KeptTensors(torch.float32, size=1), KeptTensors(torch.float64, size=1)
        """Of the recording that is drawn: values by layer, setting, method, head, word and frame; and its samples' extremes."""
        self._batch_frames: list[Tensor] = []
        self._batch_maps: list[Tensor] = []
        self.accumulators = {
            "frames": self._frames,
            "times": self._times,
            "tokens": self._tokens,
            "maps": self._maps,
            "waves": self._waves,
        }

    @classmethod
    def requirements(cls, _options: AlignmentOptions, _facts: ModelFacts) -> Requirements:
        """One vector for each frame."""
        return Requirements(vectors_of_keys=True)

    def start_batch(self, batch: Batch) -> None:
        """Look up the rows of words, and how many frames each recording has.

        Raises:
            InputError: If it is not known when the words of a recording are spoken.
        """
        assert batch.words is not None
        assert batch.source is not None
        assert batch.source.own is not None
        for row, sentence in zip(batch.rows, batch.sentences, strict=True):
            if sentence is None or sentence.annotation.times is None:
                raise InputError(
                    f"dataset.path: row {row}: expected word times for analysis=alignment, got none; use a .jsonl "
                    "file whose rows have times"
                )
        count = int(batch.host.words.max()) + 1 if batch.host.words is not None else 0
        device = batch.input_ids.device
        self._words = [Partition.of(row_words(batch.words, setting), count).to(device) for setting in Setting]
        self._heard = torch.tensor([sound.frames for sound in batch.source.own.sounds], device=device)
        self._drawn = [
            at for at, row in enumerate(batch.rows) if not self.options.sentences or row in self.options.sentences
        ]
        self._batch_frames, self._batch_maps = [], []

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:  # noqa: ARG002
        """Find the frame of largest value for each word, by both methods and in both rows."""
        norms = weighted_norms(block.weights, block.transformed_norms)
        maps = torch.stack([block.weights, norms], dim=1)[..., : int(self._heard.max())]
        require_finite(maps, f"the activations of layer {block.layer}")
        # Axes: recording, setting, method, head, word, frame.
        words = torch.stack([rows.means(maps) for rows in self._words], dim=1)
        heard = torch.arange(words.shape[-1], device=words.device) < self._heard[:, None]
        words = words * heard.to(words)[:, None, None, None, None]
        best = words.argmax(dim=-1).masked_fill(words.amax(dim=-1) <= 0, -1)
        self._batch_frames.append(best.to(torch.int16))
        self._batch_maps.append(words[self._drawn].float())

    def end_batch(self, batch: Batch) -> None:
        """Keep what was found, and what is drawn."""
        batch = batch.host
        assert batch.words is not None
        assert batch.source is not None
        assert batch.source.own is not None
        frames, maps = (torch.stack(found, dim=1).cpu() for found in (self._batch_frames, self._batch_maps))
        times = [sentence.annotation.times or () for sentence in batch.sentences if sentence is not None]
        sounds = batch.source.own.sounds
        self._frames.update(batch.rows, (own[..., : len(of)] for own, of in zip(frames, times, strict=True)))
        self._times.update(
            batch.rows,
            (np.array([[sound.seconds] * 2, *of]) for sound, of in zip(sounds, times, strict=True)),
        )
        predicted = torch.nn.functional.pad(batch.input_ids[:, 1:], (0, 1))
        self._tokens.update(batch.rows, torch.stack([predicted, batch.words], dim=1))
        drawn = [batch.rows[at] for at in self._drawn]
        cut = (own[..., : len(times[at]), : sounds[at].frames] for own, at in zip(maps, self._drawn, strict=True))
        self._maps.update(drawn, cut)
        self._waves.update(drawn, (sounds[at].extremes[: sounds[at].frames] for at in self._drawn))

    def result(self) -> Result:
        """The share of words that heads find, and when words are spoken by the best of them."""
        frames, times = (kept.compute().by_number() for kept in (self._frames, self._times))
        right = torch.cat([self._right(frames[row], times[row]) for row in frames], dim=-1)
        heads = tidy(
            {"right": right.double().mean(dim=-1).permute(0, 3, 2, 1), "words": np.array(right.shape[-1])},
            layer=self.context.layers,
            head=range(1, right.shape[3] + 1),
            method=METHODS,
            setting=list(map(str, Setting)),
        )
        heads = self.context.with_heads(heads)
        known = self._published()
        heads["published"] = [place in known for place in zip(heads["layer"], heads["head"], strict=True)]
        ranks = heads.groupby(["method", "setting"])["right"].rank(method="min", ascending=False)
        heads.insert(5, "rank", ranks.astype(int))
        found = self._times_by_best(heads, frames, times)
        tables = {"heads": heads, "times": found}
        rolled = roll_up(self.info.declared, tables)
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            sentences=sentences_of(heads, self.options.tolerance),
            figures=self._figures(heads, found),
            summaries={"alignment": summary_of(heads)},
        )

    def _right(
        self, frames: Int[Tensor, "layer setting method head word"], times: Float[Tensor, "_ 2"]
    ) -> Bool[Tensor, "layer setting method head word"]:
        """Whether the middle of a word's frame lies inside the word, give or take the tolerance."""
        (seconds, _), (start, end) = times[0], times[1:].T
        middle = (frames.double() + 0.5) * seconds
        tolerance = self.options.tolerance
        return (frames >= 0) & (middle > start - tolerance) & (middle < end + tolerance)

    def _published(self) -> set[tuple[int, int]]:
        """The heads that the model's generation config names, counted from 1."""
        model = None if self.context.observed is None else self.context.observed.model
        known = getattr(getattr(model, "generation_config", None), "alignment_heads", None) or []
        return {(layer + 1, head + 1) for layer, head in known}

    def _times_by_best(
        self, heads: pd.DataFrame, frames: Mapping[int, Tensor], times: Mapping[int, Tensor]
    ) -> pd.DataFrame:
        """When the best head of each method and setting says that words are spoken."""
        tokens = self._tokens.compute().by_number()
        tables = []
        for (method, setting), (layer, head) in best_heads(heads).items():
            place = self.context.index(layer), list(map(str, Setting)).index(setting), METHODS.index(method), head - 1
            for row, of_row in frames.items():
                middles = (of_row[place].double() + 0.5) * times[row][0, 0]
                table = tidy(
                    {
                        "text": np.array(self._texts(tokens[row], of_row.shape[-1]), dtype=object),
                        "start": times[row][1:, 0],
                        "end": times[row][1:, 1],
                        "layer": np.array(layer),
                        "head": np.array(head),
                        "seconds": middles.where(of_row[place] >= 0, torch.nan),
                        "right": self._right(of_row, times[row])[place],
                    },
                    word=range(1, of_row.shape[-1] + 1),
                )
                table.insert(0, "row", row)
                table.insert(2, "method", method)
                table.insert(3, "setting", setting)
                tables.append(table)
        return pd.concat(tables, ignore_index=True)

    def _texts(self, tokens: Int[Tensor, "2 token"], words: int) -> list[str]:
        """What words are, from the tokens that spell them."""
        spelt = [""] * words
        for token, word in tokens.T.tolist():
            if word != NO_WORD:
                spelt[word] += self.context.vocabulary.text(token)
        return labels(spelt)

    def _figures(self, heads: pd.DataFrame, found: pd.DataFrame) -> Mapping[str, Figure]:
        try:
            kept = self._maps.compute()
        except EmptyAccumulatorError as error:
            raise InputError(
                f"analysis.alignment.sentences={self.options.sentences}: expected the row of a recording with a transcript, "
                "counted from 1"
            ) from error
        (row,), (maps,) = map(int, kept.numbers), kept.tensors
        (wave,) = self._waves.compute().tensors
        best = best_heads(heads)
        values = {
            method: maps[self.context.index(layer), 0, METHODS.index(method), head - 1]
            for (method, setting), (layer, head) in best.items()
            if setting == Setting.awo
        }
        of_row = found[(found["row"] == row) & (found["setting"] == Setting.awo)]
        return figures_of(heads, of_row, values, wave.numpy(), float(self._times.compute().by_number()[row][0, 0]))
