"""What a checkpoint predicts for a text: with which head, where its logits are, what they mean, how answers are called."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.data.token_texts import TokenTexts
from normscope.data.tokenization import continuation
from normscope.errors import InputError
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.task_heads import Head
from normscope.models.load.text_batches import require_unicode
from normscope.models.stored.logit_meaning import LogitMeaning

PREDICTED = (Head.CLASS, Head.NEXT_TOKEN, Head.MASKED_TOKEN)
"""What a checkpoint with several heads predicts: the first of these."""


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
    """A model with a head that predicts a class, the next token or a masked token."""

    kind: Head
    model: PreTrainedModel
    tokenizer: Any
    ending: Sequence[int] = ()
    """Special tokens that the tokenizer puts behind a text; a next token follows the text, not these."""

    @classmethod
    def of(cls, model: LoadedModel, kinds: Sequence[Head] = PREDICTED) -> "Predictor | None":
        """The first of some kinds for whose head the checkpoint has weights; None if it has them for none."""
        for kind in kinds:
            match kind:
                case Head.CLASS:
                    head = model.classifier
                case Head.NEXT_TOKEN:
                    head = model.next_token_head or model.prefix_head
                case _:
                    head = model.masked_language_head
            if head is not None:
                return cls(kind, head, model.tokenizer, model.ending if kind is Head.NEXT_TOKEN else ())
        return None

    @property
    def meaning(self) -> LogitMeaning:
        """What the logits mean."""
        return LogitMeaning.of(self.model.config) if self.kind is Head.CLASS else LogitMeaning.softmax

    @property
    def what(self) -> str:
        """What is predicted, in a few words."""
        if self.kind is Head.CLASS:
            return "value" if self.meaning is LogitMeaning.value else "class"
        return "next token" if self.kind is Head.NEXT_TOKEN else "masked token"

    def places(self, inputs: Mapping[str, Tensor]) -> Int[Tensor, " batch"] | None:
        """The position whose logits are the prediction, in each text: the last one of the text, or its first mask. None for
        classes, which have no position.
        """
        ids = inputs["input_ids"]
        match self.kind:
            case Head.NEXT_TOKEN:
                return last_of_text(ids, inputs["attention_mask"], self.ending)
            case Head.MASKED_TOKEN:
                return masks_in(self.tokenizer, ids).long().argmax(dim=1)
        return None

    def logits(self, output: Any, inputs: Mapping[str, Tensor]) -> Float[Tensor, "batch choice"]:
        """The logits of all answers, for each text."""
        logits: Tensor = output.logits
        places = self.places(inputs)
        if places is None:
            return logits
        return logits[torch.arange(len(logits), device=logits.device), places.to(logits.device)]

    def name(self, number: int) -> str:
        """The name of an answer: a class's, or a token as people read it."""
        if self.kind is Head.CLASS:
            return self._labels.get(number, str(number))
        return TokenTexts(self.tokenizer).of([number])[0]

    def number(self, answer: str | int | None, argument: str) -> int | None:
        """The number of an answer; None for None.

        Args:
            answer: Its name or number.
            argument: What it was given for, for messages.

        Raises:
            InputError: If there is no such answer, or a word is several tokens.
        """
        if self.kind is not Head.CLASS:
            return token_number(self.tokenizer, answer, argument)
        if answer is None or (isinstance(answer, int) and answer in self._labels):
            return answer
        numbers = [number for number, name in self._labels.items() if name == answer]
        if len(numbers) != 1:
            names = ", ".join(f"{name} ({number})" for number, name in self._labels.items())
            raise InputError(f"{argument}={answer!r}: expected one of {names}")
        return numbers[0]

    @property
    def _labels(self) -> Mapping[int, str]:
        return {int(number): str(label) for number, label in (self.model.config.id2label or {}).items()}


def token_number(
    tokenizer: Any, token: str | int | None, argument: str = "token", *, target: bool = False
) -> int | None:
    """The number of a token; None for None.

    Args:
        tokenizer: The tokenizer.
        token: A text that is one token, otherwise a token's name; or its number.
        argument: The name of the argument, for messages.
        target: Whether it belongs to the target of a translation.

    Raises:
        InputError: If there is no such token, or the word is several.
    """
    if token is None:
        return None
    if isinstance(token, int) and 0 <= token < len(tokenizer):
        return token
    if isinstance(token, str):
        require_unicode(token)
        pieces = continuation(tokenizer, token, target=target)
        if len(pieces) == 1 and pieces[0] != tokenizer.unk_token_id:
            return int(pieces[0])
        if (known := TokenTexts(tokenizer).token(token)) is not None:
            return int(tokenizer.get_vocab()[known])
        raise InputError(
            f"{argument}={token!r}: expected a single token, got {len(pieces)}: {TokenTexts(tokenizer).of(pieces)}"
        )
    raise InputError(f"{argument}={token!r}: expected a token, or its number from 0 to {len(tokenizer) - 1}")


def masks_in(tokenizer: Any, input_ids: Int[Tensor, "*axes"]) -> Bool[Tensor, "*axes"]:
    """Which tokens are masks; none for a tokenizer that has no mask token."""
    mask = tokenizer.mask_token_id
    return torch.zeros_like(input_ids, dtype=torch.bool) if mask is None else input_ids == mask


def last_of_text(
    input_ids: Int[Tensor, "batch token"], token_mask: Tensor, ending: Sequence[int]
) -> Int[Tensor, " batch"]:
    """The position of each text's last token before an ending, if the text has that and more.

    Args:
        token_mask: 1 at tokens, 0 at padding behind them.
        ending: Token ids.
    """
    last = token_mask.long().sum(dim=1) - 1
    count = len(ending)
    if not 0 < count < input_ids.shape[1]:
        return last
    places = last[:, None] + torch.arange(1 - count, 1, device=last.device)
    ends = (input_ids.gather(1, places.clamp(min=0)) == torch.tensor(ending, device=last.device)).all(dim=1)
    return torch.where(ends & (last >= count), last - count, last)
