"""Targets of attribution: a class, a token, an answer, a similarity, or any function of the last hidden vectors."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import BatchEncoding
from transformers.modeling_utils import PreTrainedModel
from typing_extensions import TypeAliasType

from normscope.api.arguments import single_text
from normscope.api.types import Text
from normscope.attribution.embeddings import embedding, parts_of_embedding
from normscope.attribution.passes import HeldPass
from normscope.config.calls import Choice, checked
from normscope.config.rules import Expected
from normscope.data.batching import Batch
from normscope.errors import InputError, describe_type, one_line
from normscope.maths.choices import AnswerMeasure, Pooling
from normscope.maths.embedder import Embedder, pooled
from normscope.maths.tensors import wide
from normscope.models.blocks.block import full_precision
from normscope.models.load.any_module import returned_vectors
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.predictor import Predictor, last_of_text, masks_in
from normscope.models.load.task_heads import Head
from normscope.models.load.text_batches import tokens_of_prompt
from normscope.models.stored.logit_meaning import LogitMeaning
from normscope.results.token_labels import label
from normscope.rounding import number


@checked
@dataclasses.dataclass(frozen=True)
class Label:
    """The logit of a class from a text classifier, or the value of a regression model."""

    label: str | int | None = None
    """The class's name or number; the most likely one by default."""


@checked
@dataclasses.dataclass(frozen=True)
class NextToken:
    """The logit of a token as the next one after the text, from a causal or a translation model."""

    token: str | int | None = None
    """A text that is one token, otherwise the name of a token; or its number. The most likely one by default."""
    position: int | None = None
    """The position of the token that it follows, from 0; by default the text's last one, before any special tokens that the
    tokenizer puts behind a text."""


@checked
@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer that follows the text, from a causal language model: the sum over its tokens."""

    answer: str | list[int] | None = None
    """A text, including any leading space, or token ids; by default, the model's own answer: the most likely token at each
    step."""
    tokens: int = 20
    """Maximum length of the model's own answer, in tokens."""
    measure: Choice[AnswerMeasure] = "logit"
    """What is added up: `logit` or `log_probability`."""
    matrix: bool = False
    """Whether to attribute each of the answer's tokens as well as their sum."""


@checked
@dataclasses.dataclass(frozen=True)
class MaskedToken:
    """The logit of a token in place of a mask in the text, from a masked language model."""

    token: str | int | None = None
    """A text that is one token, otherwise the name of a token; or its number. The most likely one by default."""
    position: int | None = None
    """The position of the mask among the tokens, from 0; the first mask by default."""


@checked
@dataclasses.dataclass(frozen=True)
class SimilarityTo:
    """The cosine similarity of the text's embedding with that of another. Both norms are held fixed."""

    text: Text | BatchEncoding
    pooling: Choice[Pooling] | None = None
    """`mean`, `cls` or `last`. By default, what the model's sentence-transformers files say."""


Target = Label | NextToken | Answer | MaskedToken | SimilarityTo | Callable[[Float[Tensor, "token model"]], Tensor]

_EXPECTED = "a Label, NextToken, Answer, MaskedToken or SimilarityTo, a label, or a function of the last hidden vectors"

TokenTarget = TypeAliasType("TokenTarget", Annotated[Target | str | int, Expected(_EXPECTED)])
"""A target, or the name or number of a class."""

Targets = TypeAliasType(
    "Targets", Annotated[TokenTarget | list[TokenTarget], Expected(f"{_EXPECTED}; or a list of these")]
)
"""A target, or a list of targets of one kind."""


Against = TypeAliasType(
    "Against",
    Annotated[
        str | int | list[int] | tuple[str, str], Expected("a class, a token, an answer or a pair (a tuple of two str)")
    ],
)
"""The name or number of a class or of a token, an answer (a text or token ids), or a pair of texts."""


@dataclasses.dataclass(frozen=True)
class PreparedTarget:
    """A target that can be evaluated on a pass."""

    head: PreTrainedModel | None
    """The model to run, if it is not the base model."""
    evaluate: Callable[[HeldPass], tuple[Float[Tensor, " batch"], str]]
    """Returns the target's value for each text of the pass, of the same length, and its description."""
    constant: Callable[[HeldPass], Float[Tensor, "1"]] = lambda passed: torch.zeros(1, device=passed.hidden.device)
    """What biases outside the model and its head add to the value: those of the modules that make an embedding."""
    is_linear: bool = True
    """Whether the target is linear in the last hidden vectors, with what the head computes held fixed: no remainder."""


def prepared(model: LoadedModel, batch: Batch, target: TokenTarget, against: str | int | None = None) -> PreparedTarget:
    """Check a target and prepare to evaluate it.

    Args:
        model: See `load`.
        batch: The text.
        target: See `attribute`; but for an `Answer`, which is more than one number.
        against: A class or token whose logit is subtracted.

    Raises:
        InputError: If the model has no head for it, or nothing can be subtracted from it.
    """
    assert not isinstance(target, Answer)
    match target:
        case Label():
            return _class(model, target, against)
        case NextToken():
            return _next_token(model, batch, target, against)
        case MaskedToken():
            return _masked_token(model, batch, target, against)
        case _ if against is not None and not isinstance(target, str | int):
            raise InputError(
                f"against={against!r}: expected a target that is a class, a token or an answer, got {describe_type(target)}"
            )
        case SimilarityTo():
            return _similarity(model, batch, target)
        case str() | int():
            return _class(model, Label(target), against)
        case _:
            own = target
            return PreparedTarget(
                None,
                lambda passed: (
                    torch.cat([_own_scalar(own, passed.returned, text) for text in range(len(passed.returned))]),
                    "the target",
                ),
                is_linear=False,
            )


def check_linear(what: str, remainder: float, size: float, dtype: torch.dtype) -> None:
    """Check that nothing is left of a target that is linear once everything is held fixed.

    Args:
        what: The target, in words.
        remainder: What is left.
        size: The sum of the sizes of its parts, from which they round.
        dtype: The precision of the model.

    Raises:
        InputError: If something is left: the head computes with a function that could not be held fixed.
    """
    allowed = min(_LEFT * torch.finfo(dtype).eps, _MOST_LEFT) * max(size, 1.0)
    if math.isfinite(remainder) and abs(remainder) > allowed:  # else the weights are to blame, which callers check
        raise InputError(
            f"target: {what} cannot be attributed exactly: {number(remainder)} of it comes from no token and no bias, because "
            "what the model computes after its last layer is not linear even with its activations and norms held fixed; "
            "attribute a function of the last hidden vectors instead, whose remainder is reported"
        )


_LEFT, _MOST_LEFT = 2000, 0.05
"""The remainder that rounding explains, in units of the precision and at most, relative to the size of the parts."""


def chosen_embedder(model: LoadedModel, pooling: str | None) -> Embedder:
    """What makes a model's embeddings: pooling alone if it is given, otherwise what its own files say."""
    return model.embedder if pooling is None else Embedder(Pooling(pooling))


def _class(model: LoadedModel, target: Label, against: str | int | None) -> PreparedTarget:
    predictor = required(model, Head.CLASS, "Label")
    numbers = predictor.number(target.label, "label"), predictor.number(against, "against")
    return _answer(predictor, numbers)


def _next_token(model: LoadedModel, batch: Batch, target: NextToken, against: str | int | None) -> PreparedTarget:
    predictor = required(model, Head.NEXT_TOKEN, "NextToken")
    numbers = predictor.number(target.token, "token"), predictor.number(against, "against")
    last = batch.input_ids.shape[1] - 1
    end = int(last_of_text(batch.input_ids, batch.token_mask, predictor.ending)[0])
    position = end if target.position is None else target.position
    if not 0 <= position <= last:
        raise InputError(f"NextToken: expected a position from 0 to {last}, the last token of the text, got {position}")
    return _answer(predictor, numbers, position, "as the next token" if position == end else f"after token {position}")


def _masked_token(model: LoadedModel, batch: Batch, target: MaskedToken, against: str | int | None) -> PreparedTarget:
    predictor = required(model, Head.MASKED_TOKEN, "MaskedToken")
    numbers = predictor.number(target.token, "token"), predictor.number(against, "against")
    masks = masks_in(model.tokenizer, batch.input_ids[0]).nonzero().flatten().tolist()
    if model.tokenizer.mask_token_id is None:
        raise InputError(f"MaskedToken: the tokenizer of {model.name} has no mask token; expected one that has")
    if not masks or (target.position is not None and target.position not in masks):
        found = ", ".join(map(str, masks)) or "none"
        raise InputError(
            f"MaskedToken: expected {model.tokenizer.mask_token} in the text"
            f"{'' if target.position is None else f' at token {target.position}'}; got masks at: {found}"
        )
    position = masks[0] if target.position is None else target.position
    where = "in place of the mask" if len(masks) == 1 else f"in place of the mask at token {position}"
    return _answer(predictor, numbers, position, where)


def _answer(
    predictor: Predictor, numbers: tuple[int | None, int | None], position: int | None = None, where: str = ""
) -> PreparedTarget:
    """The logit of an answer, or by how much it exceeds another.

    Args:
        numbers: Which answer, None for the one with the largest logit, and which is subtracted, None for none.
        position: Where the logits are; None for classes.
        where: The same in words.
    """
    is_value = predictor.meaning is LogitMeaning.value

    def name(number: int) -> str:
        if predictor.kind is not Head.CLASS:
            return repr(label(predictor.name(number)))
        return f"{'' if is_value else 'the class '}{predictor.name(number)}"

    def evaluate(passed: HeldPass) -> tuple[Tensor, str]:
        logits = passed.output.logits if position is None else passed.output.logits[:, position]
        answer, against = numbers
        best = int(logits[0].argmax()) if answer is None else answer
        described = f"{'value' if is_value else 'logit'} of {name(best)}"
        if against is None:
            return logits[:, best], f"{described} {where}".rstrip()
        return logits[:, best] - logits[:, against], f"{described} minus that of {name(against)} {where}".rstrip()

    return PreparedTarget(predictor.model, evaluate)


_NAMED = {
    Head.CLASS: ("Label", "text classifier"),
    Head.NEXT_TOKEN: ("NextToken", "causal language model"),
    Head.MASKED_TOKEN: ("MaskedToken", "masked language model"),
}
"""Targets and models, by what they predict."""


def required(model: LoadedModel, kind: Head, target: str) -> Predictor:
    """What predicts a target.

    Args:
        target: Its name, for messages.

    Raises:
        InputError: If the checkpoint has no weights of the head.
    """
    if model.translates and kind is Head.NEXT_TOKEN:
        raise InputError(
            f"target={target}: the encoder of {model.name} predicts no token; load the model with stack='cross', and pass the "
            "source and the target so far as a pair (tuple)"
        )
    predictor = Predictor.of(model, [kind])
    if predictor is None:
        other = Predictor.of(model)
        instead = "" if other is None else f"use {_NAMED[other.kind][0]}, whose weights it has, or "
        raise InputError(
            f"target={target}: {model.name} has no weights of a {_NAMED[kind][1]}; {instead}load a checkpoint that has them"
        )
    return predictor


def _similarity(model: LoadedModel, batch: Batch, target: SimilarityTo) -> PreparedTarget:
    embedder = chosen_embedder(model, target.pooling)
    other = single_text(model, target.text, "SimilarityTo")
    prompt, of_other = (tokens_of_prompt(model, each.input_ids[0].tolist()) for each in (batch, other))
    with torch.inference_mode():
        returned = returned_vectors(model.model(**other.model_inputs()))
        assert returned is not None
        theirs = embedding(embedder, full_precision(returned), other.token_mask, of_other)
    direction = torch.nn.functional.normalize(theirs.clone(), dim=-1)

    def cosine(vectors: Tensor, norm: Tensor) -> Tensor:
        return (vectors * direction).sum(dim=-1) / norm

    def evaluate(passed: HeldPass) -> tuple[Tensor, str]:
        embedded = embedding(embedder, passed.returned, passed.token_mask, prompt)
        return cosine(embedded, torch.linalg.vector_norm(embedded.detach(), dim=-1)), "cosine similarity"

    def constant(passed: HeldPass) -> Tensor:
        hidden = passed.returned.detach()
        whole = pooled(embedder.weights(hidden, passed.token_mask, prompt), hidden)
        parts, embedded = parts_of_embedding(embedder, wide(torch.zeros_like(whole).unsqueeze(1)), wide(whole))
        return cosine(parts[:, -1], torch.linalg.vector_norm(embedded, dim=-1))

    return PreparedTarget(None, evaluate, constant)


def _own_scalar(
    target: Callable[[Tensor], object], hidden: Float[Tensor, "batch token model"], text: int
) -> Float[Tensor, "1"]:
    """What a function of the user's returns for the last hidden vectors of a text.

    Raises:
        InputError: If it fails, or returns anything but a scalar that depends on them.
    """
    expected = "target: expected a function from the last hidden vectors (token, model) to a scalar tensor that depends on them"
    try:
        value = target(hidden[text].clone())  # which it may change
        scalar = depends = False
        if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
            scalar = True
            depends = torch.autograd.grad(value, hidden, retain_graph=True, allow_unused=True)[0] is not None
    except Exception as error:
        raise InputError(f"{expected}; it raised {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(value, Tensor) or not scalar:
        gradients = "" if not isinstance(value, Tensor) or value.requires_grad else " without gradients"
        returned = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else describe_type(value)
        raise InputError(f"{expected}; it returned {returned}{gradients}")
    if not depends:
        raise InputError(f"{expected}; it returned a scalar that does not")
    if not value.isfinite().all() and hidden.isfinite().all():
        raise InputError(f"{expected}; it returned {float(value)}")
    return value.reshape(1)
