"""Attribution of one number to the tokens of a text."""

import dataclasses
import html

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from transformers import BatchEncoding

from normscope.api.arguments import chosen, single_text
from normscope.api.calls import checked, in_turn
from normscope.api.coloured_tokens import LEGEND, coloured, signed
from normscope.api.targets import NextToken, Target, prepared, token_number
from normscope.attribution.methods import check_supported
from normscope.attribution.scalars import attribute_scalars
from normscope.attribution.translations import attribute_translation
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.maths.choices import ValueBias
from normscope.models.frozen_pass import frozen_pass
from normscope.models.frozen_translation import frozen_translation
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import Text, describe_type
from normscope.running.token_maps import texts_of


@dataclasses.dataclass(frozen=True, eq=False)
class Attribution:
    """The parts of a target: the scores of the tokens, the biases and a remainder, which add up to it."""

    tokens: tuple[str, ...]
    """The tokens of the text; for a translation, those of the source, then those of the target so far."""
    scores: Float[np.ndarray, " token"]
    """How much each token adds to the target."""
    bias: float
    """What the model's biases add."""
    remainder: float
    """What remains if the target is not linear in the last hidden vectors; otherwise 0 up to rounding."""
    target: float
    """The target's value."""
    what: str
    """What the target is, in words."""
    error: float
    """How far the parts miss the target, relative to the sum of their sizes: rounding error only."""
    sources: int | None = None
    """How many of the tokens are the source's; None if the text is not a translation."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per token; tokens are numbered from 0, in a translation on each `side`."""
        table = pd.DataFrame({"position": range(len(self.tokens)), "token": self.tokens, "value": self.scores})
        if self.sources is not None:
            table.insert(0, "side", ["source"] * self.sources + ["target"] * (len(self.tokens) - self.sources))
            table["position"] = [*range(self.sources), *range(len(self.tokens) - self.sources)]
        return table

    @property
    def _sum(self) -> str:
        rounding = 1e-5 * (np.abs(self.scores).sum() + abs(self.bias))
        rest = "" if abs(self.remainder) <= rounding else f" + remainder {signed(self.remainder)}"
        scores = float(self.scores.sum())
        what = f"{self.what[0].upper()}{self.what[1:]}"
        return f"{what} {signed(self.target)} = tokens {signed(scores)} + biases {signed(self.bias)}{rest}"

    def _repr_html_(self) -> str:
        largest = float(np.abs(self.scores).max(initial=0))
        parts = [slice(None)] if self.sources is None else [slice(self.sources), slice(self.sources, None)]
        texts = "".join(coloured(self.tokens[part], self.scores[part], largest) for part in parts)
        return (
            '<div style="font-family:system-ui,sans-serif;max-width:50em">'
            f"<p>{html.escape(self._sum)}</p>{texts}{LEGEND}</div>"
        )

    def __repr__(self) -> str:
        return f"{self._sum}\n{self.table.to_string(index=False, float_format='{:.4f}'.format)}"


@checked
@in_turn
def attribute(
    model: LoadedModel,
    text: Text | BatchEncoding,
    target: Target | str | int,
    *,
    bias: str = "token",
    level: str = "token",
) -> Attribution:
    """Attribute a number that a model computes from a text to the text's tokens.

    Attention weights, deviations of norms and slopes of activations are held fixed, which makes the model affine. The score
    of a token is gradient × input of that model, from one forward and one backward pass; it equals what DecompX's vectors
    would give. Scores, biases and remainder add up to the target.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer. For the next token of a
            translation, by a model loaded with `stack="cross"`: the source, and the target so far.
        target: What to attribute. `Label`, or a class's name or number, is the logit of a class; `NextToken` and `MaskedToken`
            are the logit of a token; `SimilarityTo` is the cosine similarity with another text. A function of the last hidden
            vectors (token, model) must return a scalar tensor; it is linearised at these vectors, and `.remainder` holds the
            rest.
        bias: Where the value biases go: to no token (`token`), or those of the first layer to the tokens whose values they
            belong to (`decompx`), as in the official code of DecompX.
        level: `token`, or `word` for the scores of whole words: the sums of their tokens' scores.

    Raises:
        InputError: If an argument is invalid, the model has no head for the target, or the text is too long.

    Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873).
    """
    rule, of_level = chosen("bias", bias, ValueBias), chosen("level", level, Level)
    if model.layout.reads_target:
        return _next_of_translation(model, text, target, rule, of_level)
    check_supported(model.layout)
    batch = single_text(model, text, "attribute", of_level)
    ready = prepared(model, batch, target)
    _ = model.layers_verification
    with (
        frozen_pass(model.model, model.layout, batch.model_inputs(), ready.head) as passed,
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        value, what = ready.evaluate(passed)
        parts = attribute_scalars(passed, value, rule)
    return Attribution(
        tokens=texts_of(model, batch),
        scores=_of_units(parts.scores[0].cpu().numpy(), batch),
        bias=float(parts.bias),
        remainder=float(parts.remainder),
        target=float(parts.target),
        what=what,
        error=float(parts.error),
    )


def _of_units(scores: Float[np.ndarray, " token"], *sides: Batch) -> Float[np.ndarray, " unit"]:
    """The scores of the tokens of batches of one, added up over words if these are measured."""
    added, start = [], 0
    for side in sides:
        of_side = scores[start : start + side.input_ids.shape[1]]
        start += len(of_side)
        added.append(of_side if side.units is None else np.bincount(side.units[0].cpu().numpy(), of_side))
    return np.concatenate(added)


def _next_of_translation(
    model: LoadedModel, text: object, target: object, bias: ValueBias, level: Level
) -> Attribution:
    if not isinstance(target, NextToken):
        raise InputError(f"target: expected a NextToken of a translation, got {describe_type(target)}")
    if bias is not ValueBias.token:
        raise InputError("bias=decompx is not defined for translations; use bias=token")
    head = model.translator
    if head is None:
        raise InputError(
            f"target=NextToken: {model.name} has no weights of a translator; load a checkpoint that has them"
        )
    batch = single_text(model, text, "attribute", level)
    assert batch.source is not None
    number = token_number(model, target.token)
    with frozen_translation(head, batch.model_inputs()) as passed:
        logits = passed.logits[0, -1]
        best = int(logits.argmax()) if number is None else number
        parts = attribute_translation(passed, logits[best][None])
    source = texts_of(model, batch.source)
    return Attribution(
        tokens=(*source, *texts_of(model, batch)),
        scores=_of_units(parts.scores[0].cpu().numpy(), batch.source, batch),
        bias=float(parts.bias),
        remainder=0.0,
        target=float(parts.target),
        what=f"logit of {model.tokenizer.convert_ids_to_tokens(best)!r} as the next token",
        error=float(parts.error),
        sources=len(source),
    )
