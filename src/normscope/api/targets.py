"""Targets of attribution: a class, a token, an answer, a similarity, or any function of the last hidden vectors."""

import dataclasses
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import BatchEncoding
from transformers.modeling_utils import PreTrainedModel

from normscope.api.arguments import checked, chosen, single_text
from normscope.attribution.embeddings import embedding, parts_of_embedding
from normscope.attribution.passes import HeldPass
from normscope.data.batching import Batch
from normscope.data.token_texts import TokenTexts
from normscope.errors import InputError, one_line
from normscope.maths.choices import Pooling
from normscope.maths.embedder import Embedder, pooled
from normscope.maths.tensors import wide
from normscope.models.blocks.block import full_precision
from normscope.models.load.any_module import returned_vectors
from normscope.models.load.loaded import LoadedModel, last_of_text
from normscope.models.load.text_batches import Text, describe_type, require_unicode
from normscope.models.stored.logit_meaning import LogitMeaning
from normscope.rounding import number


@checked
@dataclasses.dataclass(frozen=True)
class Label:
    """The logit of a class, from a text classifier; of a regression, its value."""

    label: str | int | None = None
    """The class's name or number; the most likely one by default."""


@checked
@dataclasses.dataclass(frozen=True)
class NextToken:
    """The logit of a token as the next one after the text, from a causal language model or a translation model."""

    token: str | int | None = None
    """A word that is one token, or a token's name or number; the most likely one by default."""
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
    measure: str = "logit"
    """What is added up: `logit` or `log_probability`."""
    matrix: bool = False
    """Whether to attribute each of the answer's tokens as well as their sum."""


@checked
@dataclasses.dataclass(frozen=True)
class MaskedToken:
    """The logit of a token in place of a mask in the text, from a masked language model."""

    token: str | int | None = None
    """A word that is one token, or a token's name or number; the most likely one by default."""
    position: int | None = None
    """The position of the mask among the tokens, from 0; the first mask by default."""


@checked
@dataclasses.dataclass(frozen=True)
class SimilarityTo:
    """The cosine similarity of the text's embedding with that of another. Both norms are held fixed."""

    text: Text | BatchEncoding
    pooling: str | None = None
    """`mean`, `cls` or `last`. By default, what the model's sentence-transformers files say."""


Target = Label | NextToken | Answer | MaskedToken | SimilarityTo | Callable[[Float[Tensor, "token model"]], Tensor]


@dataclasses.dataclass(frozen=True)
class PreparedTarget:
    """A target that can be evaluated on a pass."""

    head: PreTrainedModel | None
    """The model to run, if it is not the base model."""
    evaluate: Callable[[HeldPass], tuple[Float[Tensor, "1"], str]]
    """Returns the target's value and its description."""
    constant: Callable[[HeldPass], Float[Tensor, "1"]] = lambda passed: torch.zeros(1, device=passed.hidden.device)
    """What biases outside the model and its head add to the value: those of the modules that make an embedding."""
    is_linear: bool = True
    """Whether the target is linear in the last hidden vectors, with what the head computes held fixed: no remainder."""


def prepared(model: LoadedModel, batch: Batch, target: object, against: str | int | None = None) -> PreparedTarget:
    """Check a target and prepare to evaluate it.

    Args:
        model: See `load`.
        batch: The text.
        target: See `attribute`; but for an `Answer`, which is more than one number.
        against: A class or token whose logit is subtracted.

    Raises:
        InputError: If `target` is not a target, the model has no head for it, or nothing can be subtracted from it.
    """
    match target:
        case Label():
            return _class(model, target, against)
        case NextToken():
            return _next_token(model, batch, target, against)
        case MaskedToken():
            return _masked_token(model, batch, target, against)
        case _ if against is not None and not (isinstance(target, str | int) and not isinstance(target, bool)):
            raise InputError(
                f"against={against!r}: expected a target that is a class, a token or an answer, got {describe_type(target)}"
            )
        case SimilarityTo():
            return _similarity(model, target)
        case str() | int() if not isinstance(target, bool):
            return _class(model, Label(target), against)
        case _ if callable(target):
            own = target
            return PreparedTarget(
                None, lambda passed: (_own_scalar(own, passed.returned), "the target"), is_linear=False
            )
    raise InputError(
        "target: expected a Label, NextToken, Answer, MaskedToken or SimilarityTo, a label, or a function of the last hidden "
        f"vectors; got {describe_type(target)}"
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
    """What makes a model's embeddings: pooling alone if it is given, otherwise what its own files say.

    Raises:
        InputError: If it is unknown.
    """
    return model.embedder if pooling is None else Embedder(chosen("pooling", pooling, Pooling))


def _class(model: LoadedModel, target: Label, against: str | int | None) -> PreparedTarget:
    head = _required(model.classifier, model, "text classifier", "Label")
    labels = {int(number): str(label) for number, label in (head.config.id2label or {}).items()}
    number = _class_number("label", target.label, labels)
    other = _class_number("against", against, labels)

    is_value = LogitMeaning.of(head.config) is LogitMeaning.value

    def name(each: int) -> str:
        return f"{'' if is_value else 'the class '}{labels.get(each, each)}"

    def evaluate(passed: HeldPass) -> tuple[Tensor, str]:
        return _chosen_logit(passed.output.logits[0], number, other, name, what="value" if is_value else "logit")

    return PreparedTarget(head, evaluate)


def _chosen_logit(
    logits: Float[Tensor, " choice"],
    number: int | None,
    against: int | None,
    name: Callable[[int], str],
    where: str = "",
    what: str = "logit",
) -> tuple[Float[Tensor, "1"], str]:
    """One logit, or by how much it exceeds another, and its description.

    Args:
        logits: Those of all classes or tokens.
        number: Which one; None for the largest.
        against: The one that is subtracted; None for none.
        name: The name of each.
        where: What follows its name.
        what: What it is.
    """
    best = int(logits.argmax()) if number is None else number
    if against is None:
        return logits[best][None], f"{what} of {name(best)}{where}"
    return (logits[best] - logits[against])[None], f"{what} of {name(best)} minus that of {name(against)}{where}"


def _class_number(argument: str, label: str | int | None, labels: dict[int, str]) -> int | None:
    if label is None or (isinstance(label, int) and label in labels):
        return label
    numbers = [number for number, name in labels.items() if name == label]
    if len(numbers) != 1:
        names = ", ".join(f"{name} ({number})" for number, name in labels.items())
        raise InputError(f"{argument}={label!r}: expected one of {names}")
    return numbers[0]


def _next_token(model: LoadedModel, batch: Batch, target: NextToken, against: str | int | None) -> PreparedTarget:
    head = next_token_head(model, "NextToken")
    number, other = token_number(model, target.token), token_number(model, against, "against")
    last = batch.input_ids.shape[1] - 1
    end = int(last_of_text(batch.input_ids, batch.token_mask, model.ending)[0])
    position = end if target.position is None else target.position
    if not 0 <= position <= last:
        raise InputError(f"NextToken: expected a position from 0 to {last}, the last token of the text, got {position}")
    where = "as the next token" if position == end else f"after token {position}"
    return PreparedTarget(head, lambda passed: _logit(model, passed, position, (number, other), where))


def next_token_head(model: LoadedModel, target: str) -> PreTrainedModel:
    """The causal language model around a base model.

    Raises:
        InputError: If there is none.
    """
    if model.translates:
        raise InputError(
            f"target={target}: the encoder of {model.name} predicts no token; load the model with stack='cross', and pass the "
            "source and the target so far as a pair (tuple)"
        )
    return _required(model.next_token_head, model, "causal language model", target)


def _masked_token(model: LoadedModel, batch: Batch, target: MaskedToken, against: str | int | None) -> PreparedTarget:
    head = _required(model.masked_language_head, model, "masked language model", "MaskedToken")
    number, other = token_number(model, target.token), token_number(model, against, "against")
    masks = (batch.input_ids[0] == model.tokenizer.mask_token_id).nonzero().flatten().tolist()
    if not masks or (target.position is not None and target.position not in masks):
        found = ", ".join(map(str, masks)) or "none"
        raise InputError(
            f"MaskedToken: expected {model.tokenizer.mask_token} in the text"
            f"{'' if target.position is None else f' at token {target.position}'}; got masks at: {found}"
        )
    position = masks[0] if target.position is None else target.position
    where = "in place of the mask" if len(masks) == 1 else f"in place of the mask at token {position}"
    return PreparedTarget(head, lambda passed: _logit(model, passed, position, (number, other), where))


def _logit(
    model: LoadedModel, passed: HeldPass, position: int, numbers: tuple[int | None, int | None], where: str
) -> tuple[Tensor, str]:
    def name(number: int) -> str:
        return repr(TokenTexts(model.tokenizer).of([number])[0])

    return _chosen_logit(passed.output.logits[0, position], *numbers, name, f" {where}")


def token_number(model: LoadedModel, token: str | int | None, argument: str = "token") -> int | None:
    """The number of a token; None for None.

    Args:
        argument: The name of the argument, for messages.

    Raises:
        InputError: If there is no such token, or the word is several.
    """
    tokenizer = model.tokenizer
    if token is None:
        return None
    if isinstance(token, int) and 0 <= token < len(tokenizer):
        return token
    if isinstance(token, str):
        require_unicode(token)
        if (known := TokenTexts(tokenizer).token(token)) is not None:
            return int(tokenizer.get_vocab()[known])
        pieces = tokenizer.encode(token, add_special_tokens=False)
        if len(pieces) == 1:
            return int(pieces[0])
        raise InputError(
            f"{argument}={token!r}: expected a single token, got {len(pieces)}: {TokenTexts(tokenizer).of(pieces)}"
        )
    raise InputError(f"{argument}={token!r}: expected a token, or its number from 0 to {len(tokenizer) - 1}")


def _similarity(model: LoadedModel, target: SimilarityTo) -> PreparedTarget:
    embedder = chosen_embedder(model, target.pooling)
    other = single_text(model, target.text, "SimilarityTo")
    with torch.inference_mode():
        returned = returned_vectors(model.model(**other.model_inputs()))
        assert returned is not None
        theirs = embedding(embedder, full_precision(returned), other.token_mask)
    direction = torch.nn.functional.normalize(theirs.clone(), dim=-1)

    def cosine(vectors: Tensor, norm: Tensor) -> Tensor:
        return (vectors * direction).sum(dim=-1) / norm

    def evaluate(passed: HeldPass) -> tuple[Tensor, str]:
        embedded = embedding(embedder, passed.returned, passed.token_mask)
        return cosine(embedded, torch.linalg.vector_norm(embedded.detach(), dim=-1)), "cosine similarity"

    def constant(passed: HeldPass) -> Tensor:
        hidden = passed.returned.detach()
        whole = pooled(embedder.weights(hidden, passed.token_mask), hidden)
        parts, embedded = parts_of_embedding(embedder, wide(torch.zeros_like(whole).unsqueeze(1)), wide(whole))
        return cosine(parts[:, -1], torch.linalg.vector_norm(embedded, dim=-1))

    return PreparedTarget(None, evaluate, constant)


def _own_scalar(target: Callable[[Tensor], object], hidden: Float[Tensor, "batch token model"]) -> Float[Tensor, "1"]:
    """What a function of the user's returns for the last hidden vectors.

    Raises:
        InputError: If it fails, or returns anything but a scalar that depends on them.
    """
    expected = "target: expected a function from the last hidden vectors (token, model) to a scalar tensor that depends on them"
    try:
        value = target(hidden[0].clone())  # which it may change
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


def _required(head: PreTrainedModel | None, model: LoadedModel, what: str, target: str) -> PreTrainedModel:
    if head is None:
        heads = {
            "Label": model.classifier,
            "NextToken": model.next_token_head,
            "MaskedToken": model.masked_language_head,
        }
        found = next((name for name, other in heads.items() if other is not None), None)
        instead = "" if found is None else f"use {found}, whose weights it has, or "
        raise InputError(
            f"target={target}: {model.name} has no weights of a {what}; {instead}load a checkpoint that has them"
        )
    return head
