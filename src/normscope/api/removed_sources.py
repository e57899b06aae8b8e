"""An answer's log-probability without some tokens of its prompt: attention no longer sees them, others keep their places."""

import inspect
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.api.answers import predicting
from normscope.api.first_position import neutral_tokens, with_first
from normscope.data.batching import Batch
from normscope.maths.log_probabilities import log_probabilities
from normscope.models.load.loaded import LoadedModel
from normscope.models.observe.cancelling import check_cancelled

_POSITIONS = "position_ids"


def why_not_removed(model: LoadedModel) -> str:
    """Why tokens of a model cannot be removed; empty if they can."""
    assert model.next_token_head is not None
    if _POSITIONS not in inspect.signature(model.next_token_head.forward).parameters:
        return f"{model.name} takes no positions, so that the tokens after removed ones would move"
    if model.facts.not_measured:
        return f"some layers of {model.name} pass tokens on without attention, from which nothing can be removed"
    return ""


def answer_without(
    model: LoadedModel, batch: Batch, answer: Sequence[int], removed: Collection[int] = ()
) -> Float[Tensor, " answer"]:
    """The log-probability of each token of an answer, in float64, from one pass of the untouched model.

    The first token of a text is where heads rest that look for nothing, so it stays where it is and becomes a comma, or another
    token that says nothing; see `neutral_tokens`.

    Args:
        model: A causal language model.
        batch: The prompt and all tokens of the answer but the last.
        answer: The tokens of the answer.
        removed: Positions that are masked out of attention.
    """
    check_cancelled()
    head = model.next_token_head
    assert head is not None
    inputs = dict(batch.model_inputs())
    hidden = sorted({*removed} - {0})
    if hidden:
        inputs["attention_mask"] = inputs["attention_mask"].index_fill(1, torch.tensor(hidden, device=model.device), 0)
        inputs[_POSITIONS] = torch.arange(inputs["input_ids"].shape[1], device=model.device)[None]
    if 0 in removed and (neutral := neutral_tokens(model)):
        inputs = with_first(inputs, neutral[:1])
    with torch.inference_mode():
        logits = head(**predicting(head, inputs, len(answer))).logits[0, -len(answer) :]
        return log_probabilities(logits, torch.tensor(list(answer), device=logits.device))
