"""What each part of the live page shows, computed by the Python interface."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from normscope.api.attributed_maps import attribution_maps
from normscope.api.attributed_scores import attribute
from normscope.api.attribution import rounding
from normscope.api.decomposition import decompose
from normscope.api.similarities import Embedded, compared_texts, embedded_text
from normscope.data.options import Level
from normscope.errors import InputError
from normscope.live.engine import Turn
from normscope.live.predictions import Prediction, prediction_of
from normscope.live.request import Side
from normscope.live.texts import Limit, Read, read, units_of
from normscope.maths.choices import AttentionRule
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import batch_from_texts
from normscope.reporting.page.explorer import packed, packed_maps, pairs_payload
from normscope.results.maps import TokenMap
from normscope.results.result import Result
from normscope.results.token_labels import label, labels
from normscope.rounding import brief_share, counted, number, percentage

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
_RULES = {
    AttentionRule.held: "Gradient × input of the model with its attention weights, norms and slopes held fixed: the scores of "
    "all tokens, with the biases, add up to the value.",
    AttentionRule.through: "Norms and slopes are held fixed; attention weights are followed to queries and keys as well. The "
    "scores of all tokens, with the biases and the remainder, which is what softmaxes absorb, add up to the value.",
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
            against: The answer that is subtracted; empty for none, or for the second one if there is no target either.
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
        aim, against = _aimed(found, target, against)
        answer["against"] = against
        try:
            parts = attribute(
                model, given, aim, against=found.answer(against), level=str(level), attention=str(self.attention)
            )
        except InputError as error:
            if target:  # which may be what is wrong
                raise
            return answer | {"note": str(error)}
        said, of_tokens = str(parts.sentences[0]), parts.table
        whole = parts.metrics["target"] if callable(aim) else 1.0
        value, bias, remainder = (parts.metrics[name] / whole for name in ("target", "bias", "remainder"))
        scores = of_tokens["value"].to_numpy() / whole
        if callable(aim):  # along the direction of an embedding, as shares of its length
            said = _said_of_shares(scores, bias, remainder)

        def weight_of_first() -> float:
            return turn.kept(
                ("sink", side), lambda: _weight_of_first(*decompose(model, given, measures=["attn_w"]).maps)
            )

        return answer | {
            "sum": said,
            "rule": _RULES[self.attention],
            "value": value,
            "tokens": labels(of_tokens["token"].tolist()),
            "scores": _rounded(scores),
            "row": None if model.facts.reads_target else _row(model, given, level, found, scores),
            "is_read_there": found.position is not None,
            "bias": bias,
            "remainder": remainder,
            "sink": _said_of_sink(label(of_tokens["token"].iloc[0]), float(scores[0]), weight_of_first)
            if level is Level.token and model.causal
            else "",
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
        aim, against = _aimed(found, target, against)
        parts = attribute(model, given, aim, against=found.answer(against), by=["layer", "head"])
        whole = parts.metrics["target"] if callable(aim) else 1.0
        heads = parts.tables["heads"].assign(value=parts.tables["heads"]["value"] / whole)
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


def _aimed(found: Prediction, target: str, against: str) -> tuple[Any, str]:
    """What is attributed, and the answer that is subtracted; empty for none."""
    return found.aimed_at(target) if target else found.target, against or _unless_asked(found, target)


def _unless_asked(found: Prediction, target: str) -> str:
    """What an answer is compared with if none was asked for, as in `explain`: the second, where one excludes the other."""
    return "" if target or found.runner_up is None else found.choices[1][0]


def _said_of_shares(scores: np.ndarray, bias: float, remainder: float) -> str:
    tokens, biases = percentage(float(scores.sum())), percentage(bias)
    rest = "" if abs(remainder) <= rounding(scores, bias) else f", and {percentage(remainder)} is a remainder"
    return f"Along its own direction, {tokens} of the embedding comes from tokens and {biases} from biases{rest}."


def _weight_of_first(maps: TokenMap) -> float:
    """The share of their attention weight that later tokens give to the first one; 0 if there are none."""
    weights = maps.maps["attn_w"][:, 1:, 0]
    return float(weights.mean()) if weights.size else 0.0


def _said_of_sink(token: str, score: float, weight_of_first: Callable[[], float]) -> str:
    """Why the first token of a causal model stands apart; empty unless later tokens give it much of their attention weight."""
    weight = weight_of_first()
    if weight < _SINK:
        return ""
    return (
        f"The first token, {token}, adds {number(score, signed=True)}. It stands apart because it is an attention sink: "
        f"later tokens give it {brief_share(weight)} of their attention weight."
    )


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
