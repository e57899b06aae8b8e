"""The words that tokens spell, so that words can be measured: the units of a sequence."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from transformers.tokenization_utils_base import BatchEncoding, PreTrainedTokenizerBase

from normscope.data.token_sequence import TokenSequence
from normscope.data.words import mark_of, marked_words, unit_numbers, written_words
from normscope.errors import InputError


@dataclasses.dataclass(frozen=True)
class Units:
    """Assigns tokens to words: by the text that was tokenised, or by the marks of the tokenizer where that is not known."""

    tokenizer: PreTrainedTokenizerBase
    model: str
    """The model's name, for messages."""

    def completed(self, sequence: TokenSequence) -> TokenSequence:
        """A sequence with the unit of each token.

        Raises:
            InputError: If the tokenizer does not show where words begin.
        """
        source = sequence.source_ids
        return dataclasses.replace(
            sequence,
            units=self._marked(sequence.input_ids) if sequence.units is None else sequence.units,
            source_units=None if source is None else self._marked(source),
            second=None if sequence.second is None else self.completed(sequence.second),
        )

    def written(self, encoding: BatchEncoding, index: int, texts: Sequence[str]) -> np.ndarray | None:
        """The unit of each token of a text or pair that was just tokenized; None if the tokenizer does not know."""
        if not self.tokenizer.is_fast:
            return None
        return unit_numbers(written_words(encoding.encodings[index], texts).tolist())

    def _marked(self, ids: np.ndarray) -> np.ndarray:
        if self._mark is None:
            raise InputError(
                f"level=word: the tokenizer of {self.model} does not show where words begin; set level=token, or use a "
                "corpus of annotated words (dataset=conllu)"
            )
        tokenizer = self.tokenizer
        unknown = str(tokenizer.unk_token)
        tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids.tolist())]
        tokens = ["x" if token == unknown else token for token in tokens]  # counts as a letter
        special = set(map(str, tokenizer.all_special_tokens)) - {unknown}
        return unit_numbers(marked_words(tokens, special, self._mark).tolist())

    @cached_property
    def _mark(self) -> str | None:
        return mark_of(dict(self.tokenizer.get_vocab()))
