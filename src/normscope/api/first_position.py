"""What the first position of a causal model adds to a target, whatever the word in it: its part as an attention sink."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.api.arguments import single_text
from normscope.api.targets import TokenTarget, prepared
from normscope.attribution.passes import held_pass
from normscope.attribution.scalars import attribute_scalars
from normscope.data.tokenization import encoded
from normscope.maths.choices import AttentionRule
from normscope.models.load.loaded import LoadedModel

_MARKS = (",", ".")
"""Marks that say nothing of what follows them. Nearly every vocabulary has them; those of a script would name its languages."""


def scores_of_first_position(
    model: LoadedModel,
    text: object,
    score: float,
    target: TokenTarget,
    against: str | int | None = None,
    attention: str = "held",
) -> dict[str, float]:
    """How much neutral tokens would add to a target in place of a text's first token, all others as they are, in one pass.

    The first token of a causal model sees only itself, and heads that look for nothing rest on it. Part of its score
    belongs to the position, because any token there would add about as much; see `of_position`.

    Neutral are a comma and a period, as the tokenizer begins a text with them; where the vocabulary has neither, the tokens
    that begin or end texts. Measured on SmolLM2-135M-Instruct, as the difference between the logits of the two likeliest tokens
    after eight prompts: the mean of eight words that open sentences (The, It, When, …) is 0.29 away from that of the two marks,
    0.32 from a line break, 0.47 from three Chinese marks, and 0.83 from the model's special tokens, which announce a
    conversation. The eight words have a standard deviation of 0.46, and the two marks differ by 0.34: the split is known to
    about a third of a logit.

    Args:
        model: A causal model; see `load`.
        text: See `attribute`.
        score: s(w), what the text's own first token adds.
        target: What is attributed: a class or token by number, since the likeliest may be another after a neutral token.
        against: The number of what is subtracted.
        attention: See `attribute`.

    Returns:
        The score of each neutral token, in units of the target, by its text. Of a special token, which is no word, the whole
        score is the position's: it is returned alone. Empty if the vocabulary has no neutral token.

    Source: Gu et al. 2025 (arXiv:2410.10781), for the sink as a matter of position.
    """
    return model.exclusively(lambda: _scores(model, text, score, target, against, AttentionRule(attention)))


def of_position(
    scores: Float[np.ndarray, "*target"], neutral: Float[np.ndarray, "*target mark"]
) -> Float[np.ndarray, "*target"]:
    """What of the first token's scores belongs to its position: as much as lies within the range of what neutral tokens add.

    They differ, and within their range a word cannot be told from them. The rest is what this word adds.
    """
    return np.asarray(np.clip(scores, neutral.min(axis=-1), neutral.max(axis=-1)))


def _scores(
    model: LoadedModel,
    text: object,
    score: float,
    target: TokenTarget,
    against: str | int | None,
    rule: AttentionRule,
) -> dict[str, float]:
    batch = single_text(model, text, "attribute")
    own = int(batch.input_ids[0, 0])
    if own in model.tokenizer.all_special_ids:
        return {str(model.tokenizer.decode([own])): score}
    neutral = neutral_tokens(model)
    if not neutral:
        return {}
    aim = prepared(model, batch, target, against)
    inputs = with_first(batch.model_inputs(), neutral)
    passed = held_pass(model.model, model.facts, inputs, aim.head, through=rule is AttentionRule.through)
    with torch.inference_mode(False), torch.enable_grad():
        values, _ = aim.evaluate(passed)
        scores = attribute_scalars(passed, values).scores[:, 0].tolist()
    return {str(model.tokenizer.decode([each])).strip(): value for each, value in zip(neutral, scores, strict=True)}


def with_first(inputs: Mapping[str, Tensor], tokens: Sequence[int]) -> dict[str, Tensor]:
    """A text once for each of some tokens, with that token in the place of its first."""
    texts = {name: values.repeat(len(tokens), 1) for name, values in inputs.items()}
    texts["input_ids"][:, 0] = torch.tensor(list(tokens), device=texts["input_ids"].device)
    return texts


def neutral_tokens(model: LoadedModel) -> list[int]:
    """The numbers of tokens that say nothing of what follows them."""
    tokenizer = model.tokenizer
    alone = [(mark, encoded(tokenizer, mark, special=False)["input_ids"]) for mark in _MARKS]
    marks = [ids[0] for mark, ids in alone if len(ids) == 1 and str(tokenizer.decode(ids)).strip() == mark]
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return marks or [*dict.fromkeys(number for number in ends if number is not None)]
