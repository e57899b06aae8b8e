"""What each part of the live page shows, computed by the Python interface."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normscope.api.answer_sources import SourcesCall, sources_with_progress
from normscope.api.attributed_maps import attribution_maps
from normscope.api.attributed_scores import attribute
from normscope.api.attribution import rounding
from normscope.api.decomposition import decompose
from normscope.api.first_position import of_position, scores_of_first_position
from normscope.api.similarities import Embedded, compared_texts, embedded_text, similarity
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.live.engine import Turn
from normscope.live.predictions import Prediction, prediction_of
from normscope.live.request import Side
from normscope.live.texts import Limit, Read, as_given, read, units_of
from normscope.maths.choices import AttentionRule
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import batch_from_texts
from normscope.models.stored.logit_meaning import LogitMeaning
from normscope.reporting.page.explorer import packed, packed_maps, pairs_payload
from normscope.reporting.page.source_view import sources_payload
from normscope.results.maps import TokenMap
from normscope.results.result import Result
from normscope.results.token_labels import label, labels
from normscope.rounding import begun, brief_share, counted, number, percentage
from normscope.streams import no_bar

_LARGEST = 1_500_000
"""Values of token maps in one answer, about 3 MB; single heads are left out beyond it."""
CHAINED = ("rollout", "norm_rollout", "alti")
"""Methods of maps from the input up to each layer that multiply the maps of single layers; one pass computes all of them."""
CARRIED = ("decompx",)
"""Those that carry a vector for each pair of tokens through every layer, which takes many times as long."""
_CHOICES = 8
"""Predictions that are shown."""
_STRONGEST = 8
"""Heads that are named."""
_SINK = 0.3
"""The share of the weight of later tokens from which the first token of a causal model is a sink."""
_FIRST_POSITION = "the first position, whatever the word"
_RULES = {
    AttentionRule.held: "Gradient × input, with the attention weights, the deviations of normalisations and the slopes of "
    "activation functions held at their values for this text: the scores of all tokens, with the biases, add up to the value.",
    AttentionRule.through: "Gradient × input, with the deviations of normalisations and the slopes of activation functions "
    "held at their values for this text; attention weights are followed to queries and keys as well. The scores of all tokens, "
    "with the biases and the remainder, which is what softmaxes absorb, add up to the value.",
}
"""How scores are made, by what they do with attention weights."""


class Answers:
    """What models make of texts.

    Args:
        models: The models of the page.
        limit: The longest text; longer ones are cut.
        attention: What scores do with attention weights; see `attribute`.
    """

    def __init__(
        self, models: Sequence[LoadedModel], limit: Limit, attention: AttentionRule = AttentionRule.held
    ) -> None:
        self.models = models
        self.limit = limit
        self.attention = attention

    def maps(self, side: Side, level: Level, turn: Turn) -> dict[str, Any]:
        """Tokens, where they lie in the text, their maps, and mixing ratios by layer.

        Raises:
            InputError: If the text is empty, or the model cannot read it.
        """
        model = self._model(side)
        typed = self._read(model, side)
        notes = [typed.note] if typed.note else []
        facts = model.facts
        heads = model.layers * self.limit.tokens**2 * (7 + facts.heads) <= _LARGEST
        heads = heads and not (facts.is_gated or facts.heads_differ)
        decomposed = decompose(model, typed.given, heads=heads, level=str(level))
        (maps,) = decomposed.maps
        if level is Level.token and model.causal:
            turn.kept(("sink", side), lambda: _weight_of_first(maps))
        units = model.exclusively(lambda: units_of(model, typed, level))
        fits = 7 * maps.maps["attn_w"].size <= _LARGEST
        if not fits:
            notes.append(f"{counted(len(maps.queries), str(level))} are too many for maps of all pairs on one page.")
        elif not heads:
            notes.append(f"{model.name} is shown without individual heads: {self._without_heads(model)}.")
        return {
            "text": typed.text,
            "notes": notes,
            "tokens": maps.queries,
            "labels": labels(maps.queries),
            "places": units.places,
            "roles": units.roles,
            "layers": maps.layers,
            "maps": packed(maps) if fits else None,
            "by_layer": _mixing(decomposed),
        }

    def _without_heads(self, model: LoadedModel) -> str:
        if model.facts.is_gated:
            return "its heads are gated"
        if model.facts.heads_differ:
            return "its layers differ in their number of heads"
        return f"{self.limit.name} is too large to show them"

    def chained(self, side: Side, level: Level, _turn: Turn) -> dict[str, Any]:
        """Maps from the input up to each layer, by those methods that multiply maps of layers.

        Raises:
            InputError: If the text is invalid.
        """
        return self._through(side, level, CHAINED)

    def carried(self, side: Side, level: Level, _turn: Turn) -> dict[str, Any]:
        """Maps from the input up to each layer, by those methods that carry vectors through the layers.

        Raises:
            InputError: If the text is invalid.
        """
        return self._through(side, level, CARRIED)

    def prediction(self, side: Side, target: str, against: str, level: Level, turn: Turn) -> dict[str, Any]:
        """What the model predicts, and what each token adds to the prediction that is asked for.

        Args:
            side: The text and the model.
            target: The answer that is attributed; empty for the most likely one.
            against: The answer that is subtracted; empty for the likeliest other one, where one answer excludes the others.
            level: Whether scores are those of tokens or words.

        Raises:
            InputError: If there is no such answer, or the text is invalid.
        """
        model = self._model(side)
        given = self._read(model, side).given
        found = prediction_of(model, given, _CHOICES, [name for name in (target, against) if name])
        answer: dict[str, Any] = {
            "what": found.what,
            "choices": found.choices,
            "labels": {name: label(name) for name, _ in found.choices},
            "meaning": str(found.meaning),
            "target": target or next((name for name, _ in found.choices), ""),
        }
        aim, against = aimed(found, target, against)
        answer["against"] = against
        try:
            parts = attribute(
                model, given, aim, against=found.answer(against), level=str(level), attention=str(self.attention)
            )
        except InputError as error:
            if target:  # which may be what is wrong
                raise
            return answer | {"note": str(error)}
        whole, tokens = _whole(parts, aim), parts.table["token"].tolist()
        value, bias, remainder = (parts.metrics[name] / whole for name in ("target", "bias", "remainder"))
        scores = parts.table["value"].to_numpy() / whole
        said = _said_of_shares(scores, bias, remainder) if callable(aim) else str(parts.sentences[0])
        first = self._first_position(side, parts, aim, found.answer(against), turn)
        if first is not None:
            scores[0] -= first["value"]
        return answer | {
            "sum": said,
            "rule": _RULES[self.attention],
            "value": value,
            "tokens": labels(tokens),
            "scores": _rounded(scores),
            "row": None if model.facts.reads_target else _row(model, given, level, found, scores),
            "is_read_there": found.position is not None,
            "bias": bias,
            "remainder": remainder,
            "first": first,
        }

    def heads(self, side: Side, target: str, against: str, _turn: Turn) -> dict[str, Any]:
        """What each head adds to a prediction, directly and through all later layers: layer, head.

        Raises:
            InputError: If it is not defined for the model, there is no such answer, or the text is invalid.
        """
        if self.attention is AttentionRule.through:
            raise InputError("attention=through: what heads add is defined for attention weights that are held")
        model = self._model(side)
        given = self._read(model, side).given
        found = prediction_of(model, given)
        aim, against = aimed(found, target, against)
        parts = attribute(model, given, aim, against=found.answer(against), by=["layer", "head"])
        heads = parts.tables["heads"].assign(value=parts.tables["heads"]["value"] / _whole(parts, aim))
        grid = heads.pivot_table(index="layer", columns="head", values="value").fillna(0.0)
        return {
            "layers": grid.index.tolist(),
            "values": [_rounded(row) for row in grid.to_numpy()],
            "strongest": heads.head(_STRONGEST).to_numpy(dtype=object).tolist(),
        }

    def pair(self, side: Side, other: str | None, compare: int | None, turn: Turn) -> dict[str, Any]:
        """What each pair of tokens of two texts adds to the similarity of their embeddings.

        The parts of a text's embedding are kept: of two texts, one is changed at a time.

        Args:
            side: The text and the model.
            other: The other text.
            compare: The model that the page compares with, if it is another one.

        Raises:
            InputError: If there is no other text, the model's embeddings cannot be followed, or a text is invalid.
        """
        if other is None or other == side.text or compare not in (None, side.model):
            raise InputError("part=pair: expected another text in the same model (before)")
        model = self._model(side)

        def parts_of(text: str, kind: str) -> Embedded:
            of_text = dataclasses.replace(side, text=text)
            given = self._read(model, of_text).given
            return turn.kept(("embedded", of_text, kind), lambda: embedded_text(model, given, kind))

        found = compared_texts(model, parts_of(side.text, "query"), parts_of(other, "document"))
        (shown,) = pairs_payload(found.explorer().pairs)
        return dict(shown)

    def sources(self, side: Side, _turn: Turn) -> dict[str, Any]:
        """The model's answer to a text, which is not truncated because questions come last, and what of the text it comes from.

        Raises:
            InputError: If the model gives no answer, or the text is empty or too long for the model.
        """
        model = self._model(side)
        given = as_given(model, side.text, chat=side.chat)
        found = sources_with_progress(model, given, SourcesCall(), no_bar)
        return {"findings": list(map(str, found.sentences)), **sources_payload(found)}

    def _first_position(
        self, side: Side, parts: Result, aim: Any, against: str | int | None, turn: Turn
    ) -> dict[str, Any] | None:
        """What the first position of a causal model adds whatever the word in it, as a row beside those of tokens.

        Args:
            parts: What each token of the text adds.
            aim: What is attributed.
            against: The number of what is subtracted.

        Returns:
            None if the position is no attention sink, or what neutral tokens add there is not known.
        """
        model = self._model(side)
        if not model.causal:
            return None
        given = self._read(model, side).given
        weight = turn.kept(("sink", side), lambda: _weight_of_first(*decompose(model, given, measures=["attn_w"]).maps))
        if weight < _SINK:
            return None
        token, score, whole = parts.table["token"].iloc[0], float(parts.table["value"].iloc[0]), _whole(parts, aim)
        found = scores_of_first_position(model, given, score, aim, against, str(self.attention))
        if not found:
            return None
        neutral = {name: each / whole for name, each in found.items()}
        return {
            "value": float(of_position(np.array(score / whole), np.array([*neutral.values()]))),
            "name": _FIRST_POSITION,
            "said": _said_of_first_position(token, score / whole, neutral, weight),
        }

    def _through(self, side: Side, level: Level, methods: Sequence[str]) -> dict[str, Any]:
        model = self._model(side)
        given = self._read(model, side).given
        if model.facts.reads_target:
            methods = [method for method in methods if method == "alti"]
        found, reasons = _maps_up_to(model, given, methods, level)
        return {"maps": found, "notes": reasons}

    def _read(self, model: LoadedModel, side: Side) -> Read:
        return model.exclusively(lambda: read(model, side.text, self.limit, chat=side.chat))

    def _model(self, side: Side) -> LoadedModel:
        return self.models[side.model - 1]


def _row(model: LoadedModel, given: Any, level: Level, found: Prediction, scores: np.ndarray) -> int:
    """The token (or word) that the answer is read from; if it is read from several, the one that adds most."""
    if found.position is None:
        return int(scores.argmax())
    return int(batch_from_texts(model, given, level).unit_numbers[found.position])


def aimed(found: Prediction, target: str, against: str) -> tuple[Any, str]:
    """What is attributed, and the answer that is subtracted; empty for none.

    Where one answer excludes the others, another is always subtracted, the likeliest unless one is asked for: all answers share
    most of a logit, which would seem to come from the first token of a causal model.
    """
    name = target or next((name for name, _ in found.choices), "")
    aim = found.aimed_at(name) if name else found.target
    if against or found.meaning is not LogitMeaning.softmax:
        return aim, against
    return aim, next((other for other, _ in found.choices if other != name), "")


def _whole(parts: Result, aim: Any) -> float:
    """What parts are shares of: an embedding's own length; 1 for anything else."""
    return float(parts.metrics["target"]) if callable(aim) else 1.0


def _said_of_shares(scores: np.ndarray, bias: float, remainder: float) -> str:
    tokens, biases = percentage(float(scores.sum())), percentage(bias)
    rest = "" if abs(remainder) <= rounding(scores, bias) else f", and {percentage(remainder)} is a remainder"
    return f"Along its own direction, {tokens} of the embedding comes from tokens and {biases} from biases{rest}."


def _weight_of_first(maps: TokenMap) -> float:
    """The share of their attention weight that later tokens give to the first one; 0 if there are none."""
    weights = maps.maps["attn_w"][:, 1:, 0]
    return float(weights.mean()) if weights.size else 0.0


def _said_of_first_position(token: str, score: float, neutral: Mapping[str, float], weight: float) -> str:
    """What of the first token's score is its position's and what the word's, and why the position adds anything.

    Args:
        token: The first token.
        score: What it adds.
        neutral: What neutral tokens add there; see `scores_of_first_position`.
        weight: The share of their attention weight that later tokens give to it.
    """
    value = float(of_position(np.array(score), np.array([*neutral.values()])))
    if token in neutral and len(neutral) == 1:
        parts = f"{begun(_FIRST_POSITION)}, adds {number(value, signed=True)}: {token} is not a word."
    else:
        measured = " and ".join(f"{number(each, signed=True)} with “{label(name)}”" for name, each in neutral.items())
        parts = (
            f"Of the {number(score, signed=True)} that the first token adds, {number(value, signed=True)} comes from its "
            f"position, whatever the word ({measured} in its place), and {number(score - value, signed=True)} from "
            f"“{label(token)}” itself."
        )
    return f"{parts} The position is an attention sink: later tokens give it {brief_share(weight)} of their attention weight."


def _maps_up_to(
    model: LoadedModel, given: Any, methods: Sequence[str], level: Level
) -> tuple[dict[str, Any], list[str]]:
    """The maps of some methods, and why others are not defined."""
    if not methods:
        return {}, []
    try:
        maps = attribution_maps(model, given, methods, level=str(level))
    except InputError as error:
        if len(methods) == 1:
            return {}, [f"{methods[0]}: {error}"]
        alone = [_maps_up_to(model, given, [method], level) for method in methods]
        return {name: each for found, _ in alone for name, each in found.items()}, [
            reason for _, reasons in alone for reason in reasons
        ]
    return packed_maps(maps.maps[0]), []


def _mixing(decomposed: Result) -> dict[str, Any]:
    """Mixing ratios by method, layer and token."""
    by_method = dict(iter(decomposed.tables["ratios"].groupby("method", sort=False)))
    return {
        "methods": list(by_method),
        "ratios": [
            [_rounded(layer) for layer in rows.pivot(index="layer", columns="position", values="ratio").to_numpy()]
            for rows in by_method.values()
        ],
    }


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def image_explained(model: LoadedModel, image: Any, text: str = "") -> Result:
    """Which patches a classifier's answer comes from; without one, what tokens take from patches; beside a text, what patches
    and words add to their similarity.
    """
    if text:
        return similarity(model, image, text)
    predicted = prediction_of(model, image)
    if not predicted.choices:
        return decompose(model, image)
    target, against = aimed(predicted, "", "")
    return attribute(model, image, target, against=against or None)
