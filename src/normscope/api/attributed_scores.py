"""Attribution of one number to the tokens of a text."""

import dataclasses
import html

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from transformers import BatchEncoding

from normscope.api.choices import chosen, single_text, tokens_of
from normscope.api.coloured_tokens import LEGEND, coloured, signed
from normscope.api.targets import Target, prepared
from normscope.attribution.methods import BiasRule, check_supported
from normscope.attribution.scalars import attribute_scalars
from normscope.models.frozen_pass import frozen_pass
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import Text


@dataclasses.dataclass(frozen=True, eq=False)
class Attribution:
    """The parts of a target: the scores of the tokens, the biases and a remainder, which add up to it."""

    tokens: tuple[str, ...]
    scores: Float[np.ndarray, " token"]
    """How much each token adds to the target."""
    bias: float
    """What the model's biases add."""
    remainder: float
    """What is left if the target is not linear in the last hidden vectors; otherwise 0 up to rounding."""
    target: float
    """The target's value."""
    what: str
    """What the target is, in words."""
    error: float
    """How far the parts miss the target, relative to the sum of their sizes: rounding error only."""

    @property
    def table(self) -> pd.DataFrame:
        """One row per token; tokens are numbered from 0."""
        return pd.DataFrame({"position": range(len(self.tokens)), "token": self.tokens, "value": self.scores})

    @property
    def _sum(self) -> str:
        rest = (
            ""
            if abs(self.remainder) < 1e-6 * max(abs(self.target), 1e-300)
            else f" + remainder {signed(self.remainder)}"
        )
        scores = float(self.scores.sum())
        what = f"{self.what[0].upper()}{self.what[1:]}"
        return f"{what} {signed(self.target)} = tokens {signed(scores)} + biases {signed(self.bias)}{rest}"

    def _repr_html_(self) -> str:
        largest = float(np.abs(self.scores).max(initial=0))
        return (
            '<div style="font-family:system-ui,sans-serif;max-width:50em">'
            f"<p>{html.escape(self._sum)}</p>{coloured(self.tokens, self.scores, largest)}{LEGEND}</div>"
        )

    def __repr__(self) -> str:
        return f"{self._sum}\n{self.table.to_string(index=False, float_format='{:.4f}'.format)}"


def attribute(
    model: LoadedModel, text: Text | BatchEncoding, target: Target | str | int, *, bias: str = "token"
) -> Attribution:
    """Attribute a number that a model computes from a text to the text's tokens.

    Attention weights, deviations of norms and slopes of activations are held fixed, which makes the model affine. The score
    of a token is gradient × input of that model, from one forward and one backward pass; it equals what DecompX's vectors
    would give. Scores, biases and remainder add up to the target.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer.
        target: What to attribute. `Label`, or a class's name or number, is a class's logit; `NextToken` and `MaskedToken`
            are a token's; `SimilarityTo` is the cosine similarity with another text. A function of the last hidden vectors
            (token, model) must return a scalar tensor; it is linearised at these vectors, and `.remainder` holds the rest.
        bias: Where the value biases go: to no token (`token`), or those of the first layer to the tokens whose values they
            belong to (`decompx`), as in the official code of DecompX.

    Raises:
        InputError: If an argument is invalid, the model has no head for the target, or the text is too long.

    Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873).
    """
    rule = chosen("bias", bias, BiasRule)
    check_supported(model.layout)
    batch = single_text(model, text, "attribute")
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
        tokens=tokens_of(model, batch),
        scores=parts.scores[0].cpu().numpy(),
        bias=float(parts.bias),
        remainder=float(parts.remainder),
        target=float(parts.target),
        what=what,
        error=float(parts.error),
    )
