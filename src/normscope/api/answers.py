"""Attribution of a whole answer: the sum of what a causal language model gives each of its tokens."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import BatchEncoding
from transformers.modeling_utils import PreTrainedModel

from normscope.api.arguments import chosen, single_text
from normscope.api.targets import Answer, next_token_head
from normscope.attribution.scalars import ScalarAttribution, attribute_scalars
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.maths.choices import AnswerMeasure, ValueBias
from normscope.models.frozen_pass import FrozenPass, frozen_pass
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import require_unicode
from normscope.rounding import counted


class AttributedAnswer(NamedTuple):
    """An answer, and what its tokens come from."""

    batch: Batch
    """The prompt and all tokens of the answer but the last, which no prediction reads."""
    answer: tuple[int, ...]
    """The tokens of the answer."""
    parts: ScalarAttribution
    """Those of the sum."""
    by_token: Float[Tensor, "answer token"] | None
    """The scores for each token of the answer; None unless `Answer.matrix`."""


def attribute_answer(
    model: LoadedModel, prompt: Batch, target: Answer, bias: ValueBias, level: Level
) -> AttributedAnswer:
    """Attribute an answer, in one pass over the prompt and the answer.

    Args:
        prompt: What the answer follows.

    Raises:
        InputError: If the answer is empty, invalid or too long, or the model predicts no tokens.
    """
    head = next_token_head(model, "Answer")
    measure = chosen("measure", target.measure, AnswerMeasure)
    asked: list[int] = prompt.input_ids[0].tolist()
    answer = _continued(model, head, prompt, target.tokens) if target.answer is None else _given(model, target.answer)
    ids = [*asked, *answer[:-1]]
    if model.max_length is not None and len(ids) > model.max_length:
        raise InputError(
            f"answer: {counted(len(asked), 'token')} of the text and {len(answer)} of the answer are more than "
            f"{model.max_length}, the limit of {model.name}"
        )
    encoding = BatchEncoding({"input_ids": [ids], "attention_mask": [[1] * len(ids)]})
    batch = single_text(model, encoding, "attribute", level)
    with (
        frozen_pass(model.model, model.layout, batch.model_inputs(), head) as passed,
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        values = _values(passed, len(asked) - 1, answer, measure)
        if not target.matrix:
            return AttributedAnswer(batch, answer, attribute_scalars(passed, values.sum()[None], bias), None)
        each = [attribute_scalars(passed, value[None], bias) for value in values]
    parts = ScalarAttribution(
        *(
            torch.stack([getattr(one, field.name) for one in each]).sum(dim=0)
            for field in dataclasses.fields(ScalarAttribution)
        )
    )
    return AttributedAnswer(batch, answer, parts, torch.cat([one.scores for one in each]))


def _values(
    passed: FrozenPass, position: int, answer: Sequence[int], measure: AnswerMeasure
) -> Float[Tensor, " answer"]:
    """What is attributed, for each token of the answer.

    A log-probability is linearised where it is, with the probabilities p of all tokens held:

        log p_t = ℓ_t − Σ_v p_v ℓ_v − H(p)

    so that the remainder is −H(p), the entropy of the prediction, and everything else adds up to ℓ_t − Σ_v p_v ℓ_v.

    Args:
        position: That of the last token of the prompt.
    """
    logits = passed.output.logits[0, position : position + len(answer)]
    if measure is AnswerMeasure.log_probability:
        logits = logits.log_softmax(dim=-1)
    return logits.gather(-1, torch.tensor(answer, device=logits.device)[:, None])[:, 0]


def _given(model: LoadedModel, answer: str | list[int]) -> tuple[int, ...]:
    if isinstance(answer, str):
        require_unicode(answer)
        answer = list(map(int, model.tokenizer.encode(answer, add_special_tokens=False)))
    if not answer:
        raise InputError("answer: expected at least one token, got none")
    if any(not 0 <= number < model.vocabulary for number in answer):
        raise InputError(f"answer: expected token ids from 0 to {model.vocabulary - 1}, got {answer}")
    return tuple(answer)


def _continued(model: LoadedModel, head: PreTrainedModel, prompt: Batch, longest: int) -> tuple[int, ...]:
    """The most likely token after the prompt, and so on, up to a token that ends the text."""
    if longest < 1:
        raise InputError(f"tokens={longest}: expected at least 1")
    inputs = dict(prompt.model_inputs())
    length = prompt.input_ids.shape[1]
    limit = longest if model.max_length is None else min(longest, model.max_length - length + 1)
    ends = head.generation_config.eos_token_id if head.generation_config is not None else model.tokenizer.eos_token_id
    last = set(ends) if isinstance(ends, list) else {ends}
    answer: list[int] = []
    with torch.inference_mode():
        while len(answer) < limit and (not answer or answer[-1] not in last):
            answer.append(int(head(**inputs).logits[0, -1].argmax()))
            added = {"input_ids": answer[-1], "attention_mask": 1}
            inputs = {
                name: torch.cat([values, values.new_full((1, 1), added.get(name, 0))], dim=1)
                for name, values in inputs.items()
            }
    return tuple(answer)
