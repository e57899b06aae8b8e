"""Attribution of one number to the tokens of a text, and to the parts of the model."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from normscope.api.answers import AttributionCall, attributed_answer
from normscope.api.arguments import exclusive, single_text
from normscope.api.attribution import Attributed, result_of, table_of_effects
from normscope.api.one_text import described
from normscope.api.regions import OTHER_PAIR, PAIR, spans_of, sums_of_spans
from normscope.api.targets import Against, Answer, Label, NextToken, Targets, TokenTarget, check_linear, prepared
from normscope.api.types import Model, Spans, Texts
from normscope.attribution.methods import check_followed
from normscope.attribution.passes import held_pass, held_translation
from normscope.attribution.scalars import attribute_scalars
from normscope.config.calls import Choice, Several, checked
from normscope.data.batching import Batch
from normscope.data.options import Level
from normscope.data.token_texts import TokenTexts
from normscope.errors import InputError, describe_type
from normscope.maths.choices import AttentionRule, ValueBias
from normscope.maths.partition import Partition
from normscope.maths.tensors import wide
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.predictor import token_number
from normscope.models.load.text_batches import is_single, plain_ids
from normscope.results.result import Result
from normscope.results.token_labels import label
from normscope.running.token_maps import patched_image


@checked
@exclusive
def attribute(
    model: Model,
    text: Texts,
    target: Targets,
    *,
    against: Against | None = None,
    spans: Spans | None = None,
    by: Several[str] | None = None,
    direct: bool = False,
    bias: Choice[ValueBias] = "token",
    attention: Choice[AttentionRule] = "held",
    level: Choice[Level] = "token",
) -> Result:
    """Attribute a number that a model computes from a text to the text's tokens.

    Attention weights, deviations of norms and slopes of activations are held fixed, which makes the model affine. The score
    of a token is gradient × input of that model, from one forward and one backward pass; it equals what DecompX's vectors
    would give. Scores, biases and remainder add up to the target.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, a conversation (a list of dicts with `role` and `content`), or a BatchEncoding of
            one from the model's tokenizer; or a list of texts, each attributed by itself. A pair or a conversation may have
            images (see `decompose`). By a model loaded with `stack="cross"`: the source, and the target so far.
        target: What to attribute, or a list of targets of one kind, which share a pass. `Label`, or a class's name or number,
            is the logit of a class; `NextToken` and `MaskedToken` are the logit of a token; `Answer` is the sum over the tokens
            of an answer; `SimilarityTo` is the cosine similarity with another text. A function of the last hidden vectors
            (token, model) must return a scalar tensor; it is linearised at these vectors, and the `remainder` is the rest.
        against: A class, a token or an answer of the same kind as the target: its value is subtracted, so that scores say why
            the target and not this. For an `Answer`, it is attributed in a separate pass. If the text is a pair, such as the
            query and the document of a cross-encoder, and the target a class, another pair (tuple), such as the query with
            another document: its logit for the class is subtracted, so that scores say why one document ranks above the other.
        spans: Parts of the text by name, each as the numbers of its first character and of the first one after it; for a text
            of token ids, numbers of tokens: `{"cause": (0, 26), "effect": (28, 69)}`. Or `"sentences"`, which are numbered from
            1. A token belongs to the span that its first character other than a space lies in.
            Those of a conversation are its roles, and `template`; those of a pair are its texts. See the table `spans`.
        by: Also find what the parts of the model add, by `layer`, `head` and `token` or some of them: the table `effects`. The
            tokens of a head are those whose values it reads; those of a network are the ones whose vectors it changes.
        direct: Whether these effects are direct: what a part writes into the output by itself, along the residual connections
            and their norms (direct logit attribution). By default they are total: through all later layers.
        bias: Where the value biases go: to no token (`token`), or those of the first layer to the tokens whose values they
            belong to (`decompx`), as in the official code of DecompX.
        attention: `held`: weights are held fixed, and scores follow the values. `through`: half of what a weight times a value
            gives belongs to the weight, and is followed to queries and keys; what softmaxes absorb is part of the `remainder`.
        level: `token`, or `word` for the scores of whole words: the sums of their tokens' scores.

    Returns:
        A result: `.table` has the score of each token; `.metrics` the `target`, what all `tokens` and the `bias` add, and the
        `remainder`; other tables the spans, the effects of the model's parts, what each head adds (`heads`) and the `matrix` of
        an answer. For a list of texts or of targets, tables have a column `number`.

    Examples:
        >>> import normscope
        >>> target = normscope.SimilarityTo("Someone is making music.")
        >>> result = normscope.attribute(normscope.load(), "A man plays the guitar.", target)
        >>> result.table.nlargest(1, "value")["token"].item()
        'guitar'
        >>> parts = result.metrics
        >>> bool(abs(parts["tokens"] + parts["bias"] + parts["remainder"] - parts["target"]) < 1e-4)
        True

    Raises:
        InputError: If an argument is invalid, the model has no head for the target, or the text is too long.

    Sources: Modarressi et al. 2023, DecompX (arXiv:2306.02873); for `through`, Achtibat et al. 2024 (arXiv:2402.05602).
    """
    columns, of_level = _columns(by, direct=direct), Level(level)
    rules = _rules(bias, attention, by_part=columns is not None)
    found, single = _attributed(model, text, AttributionCall(target, against, spans, columns, direct, of_level, *rules))
    return dataclasses.replace(result_of(found, single=single), **_about(model, found, of_level, attention))


def _about(model: LoadedModel, found: Sequence[Attributed], level: Level, attention: str) -> dict[str, Any]:
    """The facts and the config."""
    texts, targets = [each.text for each in found], [each.what for each in found]
    return described(model, "attribute", texts, level=level, attention=attention, target=targets)


def _rules(bias: str, attention: str, *, by_part: bool) -> tuple[ValueBias, bool]:
    """Where the value biases go, and whether attention weights are followed as well.

    Args:
        by_part: Whether the parts of the model are told apart.
    """
    rule = ValueBias(bias)
    through = AttentionRule(attention) is AttentionRule.through
    for name, is_set in {"by": by_part, "bias=decompx": rule is ValueBias.decompx}.items():
        if through and is_set:
            raise InputError(f"{name}: not defined with attention=through; leave one of them out")
    return rule, through


def _attributed(model: LoadedModel, text: object, asked: AttributionCall) -> tuple[list[Attributed], bool]:
    """The parts of each target, and whether no list was given."""
    text, several = plain_ids(text), isinstance(asked.target, list)
    if is_single(text):
        found = _of_text(model, text, asked)
        return found, not several
    if several:
        raise InputError(
            "target: expected a single target for a list of texts, got a list; pass one of the two as a list"
        )
    if asked.spans is not None:
        raise InputError("spans: expected a single text, got a list; attribute the texts one by one")
    if not isinstance(text, list) or not text:
        raise InputError("expected at least one text, got none")
    return [_of_text(model, each, asked)[0] for each in text], False


def _of_text(model: LoadedModel, text: object, asked: AttributionCall) -> list[Attributed]:
    """The attributions of one text, one for each target."""
    targets = asked.target if isinstance(asked.target, list) else [asked.target]
    if not targets:
        raise InputError("target: expected at least one target, got an empty list")
    if len(targets) > 1 and (model.facts.reads_target or any(isinstance(each, Answer) for each in targets)):
        what = "the next token of a translation" if model.facts.reads_target else "an Answer"
        raise InputError(f"target: expected {what} by itself, got a list of {len(targets)}")
    if model.facts.reads_target:
        return [_next_of_translation(model, text, asked._replace(target=targets[0]))]
    check_followed(model.facts)
    batch = single_text(model, text, "attribute", asked.level)
    if isinstance(asked.against, tuple):
        return [_against_pair(model, text, target, asked.against, asked) for target in targets]
    spans = spans_of(model, text, batch, asked.spans)
    if isinstance(targets[0], Answer):
        found = [attributed_answer(model, text, batch, targets[0], asked, spans)]
    else:
        found = _of_scalars(model, batch, targets, spans, asked)
    return found if asked.columns is None else [_grouped(each, asked) for each in found]


def _of_scalars(
    model: LoadedModel,
    batch: Batch,
    targets: Sequence[TokenTarget],
    spans: Partition | None,
    asked: AttributionCall,
) -> list[Attributed]:
    """The attributions of numbers of a single stack, in one pass, with all effects if any were asked for."""
    assert not isinstance(asked.against, tuple)
    if isinstance(asked.against, list):
        raise InputError(f"against={asked.against!r}: expected a class or a token; token ids are for target=Answer(…)")
    ready = [prepared(model, batch, target, asked.against) for target in targets]
    if any(each.head is not ready[0].head for each in ready):
        raise InputError("target: expected a list of targets of one kind, such as several NextToken")
    _ = model.verification
    inputs, head, parts_wanted = batch.model_inputs(), ready[0].head, asked.columns is not None
    passed = held_pass(model.model, model.facts, inputs, head, parts=parts_wanted, through=asked.through)
    with torch.inference_mode(False), torch.enable_grad():
        values, names = zip(*(each.evaluate(passed) for each in ready), strict=True)
        constants = torch.cat([each.constant(passed) for each in ready])
        parts = attribute_scalars(passed, torch.cat(values), asked.bias, constants=constants)
        effects = [
            passed.effects(value[0], wide(constant).detach(), direct=asked.direct) if parts_wanted else None
            for value, constant in zip(values, constants, strict=True)
        ]
    for each, what, scores, remainder in zip(ready, names, parts.scores, parts.remainder, strict=True):
        if each.is_linear and not asked.through:
            check_linear(what, float(remainder), float(scores.abs().sum()), model.dtype)
    scores, tokens, numbers = parts.scores.cpu().numpy(), batch.unit_texts(model.tokenizer), batch.unit_numbers
    return [
        Attributed(
            tokens=tokens,
            scores=_of_units(scores[at], batch),
            bias=float(parts.bias[at]),
            remainder=float(parts.remainder[at]),
            target=float(parts.target[at]),
            what=what,
            error=float(parts.error[at]),
            spans=None if spans is None else sums_of_spans(scores[at], spans),
            effects=None if of_parts is None else table_of_effects(of_parts, tokens, numbers),
            image=patched_image(model, batch),
        )
        for at, (what, of_parts) in enumerate(zip(names, effects, strict=True))
    ]


def _against_pair(
    model: LoadedModel, text: object, target: TokenTarget, other: tuple[str, str], asked: AttributionCall
) -> Attributed:
    """A class of one pair of texts, minus the same class of another pair.

    A text that both pairs have is one span, whose sum is the difference.
    """
    label = Label(target) if isinstance(target, str | int) else target
    if not isinstance(text, tuple) or not isinstance(label, Label):
        what = describe_type(text) if isinstance(label, Label) else describe_type(target)
        raise InputError(
            f"against: to compare with another pair, expected a class of a pair (tuple) of texts, got {what}"
        )
    if asked.columns is not None or asked.spans is not None:
        name = "spans" if asked.columns is None else "by"
        raise InputError(f"{name}: not defined for the difference between two pairs of texts; leave it out")
    batches = [single_text(model, each, "attribute", asked.level) for each in (text, other)]
    if label.label is None and model.classifier is not None:  # the class that the first pair is put into
        with torch.inference_mode():
            label = Label(int(model.classifier(**batches[0].model_inputs()).logits[0].argmax()))
    alone = asked._replace(against=None)
    first, second = (
        _of_scalars(model, batch, [label], spans_of(model, each, batch, None), alone)[0]
        for each, batch in zip((text, other), batches, strict=True)
    )
    spans: dict[str, float] = {}
    same = {name for name, one, two in zip(PAIR, text, other, strict=True) if one == two}
    for sign, found, names in ((1, first, PAIR), (-1, second, OTHER_PAIR)):
        for span, value in (found.spans or {}).items():
            name = span if span not in PAIR or span in same else dict(zip(PAIR, names, strict=True))[span]
            spans[name] = spans.get(name, 0.0) + sign * value
    return Attributed(
        tokens=(*first.tokens, *second.tokens),
        scores=np.concatenate([first.scores, -second.scores]),
        bias=first.bias - second.bias,
        remainder=first.remainder - second.remainder,
        target=first.target - second.target,
        what=f"{first.what} minus that of the other pair",
        error=max(first.error, second.error),
        sides={"pair": len(first.tokens), "against": len(second.tokens)},
        spans=spans or None,
    )


_BY = ("layer", "head", "token")


def _columns(by: Iterable[str] | None, *, direct: bool) -> tuple[str, ...] | None:
    """The columns of the table of effects."""
    if by is None:
        return None
    names = list(by)
    if not names or any(name not in _BY for name in names):
        got = f"{', '.join(names)[:80]!r}" if names else "an empty list"
        raise InputError(f"by: expected some of {', '.join(_BY)}, got {got}")
    if not direct and "layer" not in names:
        raise InputError(
            "by: expected `layer` among them, because total effects of different layers do not add up; add it, or set "
            "direct=True"
        )
    of_tokens = ("position", "token") if "token" in names else ()
    return (*(["layer"] if "layer" in names else []), "part", *(["head"] if "head" in names else []), *of_tokens)


def _grouped(found: Attributed, asked: AttributionCall) -> Attributed:
    assert found.effects is not None
    assert asked.columns is not None
    table = found.effects.groupby(list(asked.columns), sort=False, dropna=False)["value"].sum().reset_index()
    return dataclasses.replace(found, effects=table, direct=asked.direct)


def _of_units(scores: Float[np.ndarray, " token"], *sides: Batch) -> Float[np.ndarray, " unit"]:
    """The scores of the tokens of batches of one, added up over words if these are measured."""
    added, start = [], 0
    for side in sides:
        of_side = scores[start : start + side.input_ids.shape[1]]
        start += len(of_side)
        added.append(np.bincount(side.unit_numbers, of_side))
    return np.concatenate(added)


def _next_of_translation(model: LoadedModel, text: object, asked: AttributionCall) -> Attributed:
    target = asked.target
    if not isinstance(target, NextToken):
        raise InputError(f"target: expected a NextToken of a translation, got {describe_type(target)}")
    if asked.bias is not ValueBias.token:
        raise InputError("bias=decompx is not defined for translations; use bias=token")
    refused = {"against": asked.against, "spans": asked.spans, "by": asked.columns, "position": target.position}
    for name, value in refused.items():
        if value is not None:
            raise InputError(f"{name}: not defined for translations; leave it out")
    head = model.translator
    if head is None:
        raise InputError(
            f"target=NextToken: {model.name} has no weights of a translator; load a checkpoint that has them"
        )
    batch = single_text(model, text, "attribute", asked.level)
    assert batch.source is not None
    number = token_number(model.tokenizer, target.token, target=True)
    passed = held_translation(head, batch.model_inputs(), through=asked.through)
    logits = passed.output.logits[0, -1]
    best = int(logits.argmax()) if number is None else number
    parts = attribute_scalars(passed, logits[best][None])
    source, tokens = batch.source.unit_texts(model.tokenizer), batch.unit_texts(model.tokenizer)
    return Attributed(
        tokens=(*source, *tokens),
        scores=_of_units(parts.scores[0].cpu().numpy(), batch.source, batch),
        bias=float(parts.bias),
        remainder=float(parts.remainder),
        target=float(parts.target),
        what=f"logit of {label(TokenTexts(model.tokenizer).of([best])[0])!r} as the next token",
        error=float(parts.error),
        sides={"source": len(source), "target": len(tokens)},
    )
