"""The similarity analysis by brute force: every vector x_{i⇐k} is built, pooled, and multiplied pair by pair."""

import copy
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

from normscope.analyses.declarations.similarity import SimilarityOptions
from normscope.analyses.similarity import by_similarity
from normscope.analyses.text_pairs import DrawnPair
from normscope.data.batching import Batch, batches
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.maths.choices import Pooling, ValueBias
from normscope.maths.embedder import Embedder
from normscope.models.observe.reading import ObservedStack
from normscope.results.figures import TextPair
from normscope.results.result import Result
from normscope.statistics.intervals import Interval
from tests.oracles.comparison import (
    Expected,
    Picture,
    assert_expected,
    interval,
    spoken,
    table,
    three_digits,
    visibly_apart,
)
from tests.oracles.frozen_vectors import explicit_vectors, scaled
from tests.oracles.networks import norm_weights
from tests.oracles.specimens import Specimen, made, reported
from tests.tiny import rounds_inside

GOLD = [4.0, None, 1.5, 0.5, 3.0]
"""The gold scores of the specimens' pairs."""
RANKED = [(1, 1), (1, 2), (0, 0), (2, 1), (1, 3)]
"""The query and the document of each pair, where pairs are ranked."""

SPECIAL = ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]")


@dataclasses.dataclass(frozen=True, eq=False)
class PairSpecimen(Specimen):
    """A specimen whose texts are read in pairs, each text as a sequence of its own."""

    gold: Sequence[float | None] = ()
    ranked: Sequence[tuple[int, int]] = ()
    """The query and the document of each pair, from 1, or zeros; empty if no pair is ranked."""

    @classmethod
    def of(cls, specimen: Specimen, gold: Sequence[float | None] = GOLD) -> "PairSpecimen":
        """The specimen with pairs made of its texts: neighbours, whose lengths differ."""
        texts = [text.replace(" [MASK]", "") for text, _ in specimen.texts]
        pairs = list(zip(texts, [*texts[1:], texts[0]], strict=True))
        fields = {field.name: getattr(specimen, field.name) for field in dataclasses.fields(specimen)}
        loaded = dataclasses.replace(specimen.loaded, model=_telling_apart(specimen.loaded.model))
        return cls(**fields | {"loaded": loaded, "texts": pairs, "gold": gold})

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.loaded, DatasetOptions(kind=DatasetKind.text, seed=0), separate=True)

    @cached_property
    def batches(self) -> list[Batch]:
        examples = [
            Example(*text, row=row, score=score, query=query, document=document)
            for row, (text, score, (query, document)) in enumerate(
                zip(self.texts, self.gold, self.ranked or [(0, 0)] * len(self.texts), strict=True), start=1
            )
        ]
        return list(batches(examples, self.encoder, 45, CorpusCounts()))

    def result(self, options: SimilarityOptions, categories: Sequence[str], own: Pooling = Pooling.mean) -> Result:
        """What the analysis returns."""
        loaded = self.loaded
        observed = ObservedStack(loaded.model, loaded.facts)
        layers = range(1, loaded.layers + 1)
        return self.findings(
            "similarity", options, layers, categories, observed=observed, own_embedder=lambda: Embedder(own)
        )


def _telling_apart(model: Any) -> Any:
    """A copy of a random model that mixes tokens less, so that not all texts have much the same embedding."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "position_embeddings" in name or "token_type" in name:
                parameter *= 0.1
            elif "embed" not in name and "norm" not in name.lower():
                parameter *= 0.4
    return model


@dataclasses.dataclass(frozen=True)
class Text:
    """One text: what its tokens, and last the bias, contribute to its embedding."""

    tokens: list[str]
    categories: list[str]
    parts: np.ndarray  # source model
    embedding: np.ndarray


def expected(
    specimen: PairSpecimen, options: SimilarityOptions, categories: Sequence[str], own: str = "mean"
) -> Expected:
    """Everything that the analysis returns."""
    pooling = own if options.pooling is None else str(options.pooling.value)
    pairs = [
        tuple(_text(specimen, text, pooling, str(options.bias.value)) for text in texts) for texts in specimen.texts
    ]
    matrices = [_matrix(*pair) for pair in pairs]
    values = [_cosine(*pair) for pair in pairs]
    names = [*specimen.names, "bias"]
    cells = _cells(pairs, matrices, values, names)
    reported = [*(category for category in categories if category != "all"), "bias"]
    shown = {cell: row for cell, row in cells.items() if set(cell) <= set(reported)}
    with_bias = [matrix[-1].sum() + matrix[:-1, -1].sum() for matrix in matrices]
    parts = {name: [_part(*pair, matrix, name) for pair, matrix in zip(pairs, matrices, strict=True)] for name in names}
    parts = {name: values_of for name, values_of in parts.items() if any(values_of)}
    scored = [(value, gold) for value, gold in zip(values, specimen.gold, strict=True) if gold is not None]
    metrics = {"pairs": len(pairs), "cosine": np.mean(values), "with_bias": np.mean(with_bias)}
    metrics["with_bias_share"] = metrics["with_bias"] / metrics["cosine"]
    metrics |= {f"category/{name}": np.mean(values_of) for name, values_of in parts.items()}
    if scored:
        metrics["gold/count"] = len(scored)
    if len(scored) >= 3:
        metrics["gold/spearman"] = scipy.stats.spearmanr(*zip(*scored, strict=True)).statistic
    metrics |= _gold_parts(parts, specimen.gold)
    friends = _false_friends(specimen, pairs, matrices)
    for name, added in _spans(pairs, matrices).items():
        metrics |= {f"span/{name}": added / len(pairs), f"span_share/{name}": added / sum(values)}
    ranked = _rankings(specimen, values)
    rows = [
        {"row": number, "value": value, "bias_share": bias / value, "gold": np.nan if gold is None else gold}
        | ranked.get(number, dict.fromkeys(("query", "document", "rank"), np.nan))
        for number, (value, bias, gold) in enumerate(zip(values, with_bias, specimen.gold, strict=True), start=1)
    ]
    by_category = table(
        ["category_a", "category_b"],
        [{"category_a": a, "category_b": b, **row} for (a, b), row in shown.items()],
    )
    tables = {
        "pairs": table(["row"], rows),
        "by_token": table(["token", "token_id"], _tokens(specimen, pairs, matrices, friends)),
    }
    drawn = _drawn(specimen, pairs, values, options)
    documents = {row: specimen.ranked[row - 1][1] for row in drawn} if specimen.ranked and options.rows is None else {}
    figures = _figures(pairs, matrices, values, parts, shown, {row: documents.get(row, 0) for row in drawn})
    sentences = _sentences(metrics, friends, parts)
    if options.sums:
        figures = {name: figure for name, figure in figures.items() if name == "by_similarity"}
        of_categories = {spoken(name): {"contribution": np.mean(values_of)} for name, values_of in parts.items()}
        summary = table(["category"], [{"category": name, **row} for name, row in of_categories.items()])
    else:
        tables["by_category"] = by_category
        summary = by_category.reset_index().pivot(index="category_a", columns="category_b", values="contribution")
        summary = summary.rename(index=spoken, columns=spoken)
        of_query = specimen.ranked if options.rows is None else ()
        examples = [_similar(of_query, row, pairs, matrices, values) for row in drawn[:1]]
        after = 0 if of_query or len(pairs) == 1 else 1
        sentences[after:after] = examples
    if specimen.ranked:
        first = tables["pairs"].query("query == 1").sort_values("rank")
        summary = first.set_index("rank")[["document", "value"]].rename(columns={"value": "cosine"})
    return Expected(tables, metrics, {}, figures, summary, sentences)


def _drawn(specimen, pairs, values, options) -> list[int]:
    """The rows that are drawn: the chosen ones; the five best documents of the first query; or the three shortest pairs."""
    rows = range(1, len(pairs) + 1)
    if options.rows is not None:
        return sorted(set(options.rows) & set(rows))
    query = dict(zip(rows, (query for query, _ in specimen.ranked), strict=True)) if specimen.ranked else {}
    documents = sorted((row for row in rows if query.get(row) == 1), key=lambda row: -values[row - 1])
    others = [row for row in rows if not query.get(row)]
    shortest = sorted(others, key=lambda row: max(len(text.tokens) for text in pairs[row - 1]))
    return [*documents, *shortest][: 5 if documents else 3]


def _similar(ranked, row, pairs, matrices, values) -> str:
    """Why the texts of a pair are similar, in words."""
    (a, b), matrix = pairs[row - 1], matrices[row - 1]
    words = [
        (matrix[k, m], a.tokens[k], b.tokens[m])
        for k, m in itertools.product(range(len(a.tokens)), range(len(b.tokens)))
        if not {a.tokens[k], b.tokens[m]} & set(SPECIAL)
        and not {a.categories[k], b.categories[m]} & {"punctuation", "first"}
        and matrix[k, m] > 0
    ]
    listed = [
        f"{one}–{other} ({three_digits(value)})" for value, one, other in sorted(words, key=lambda word: -word[0])[:5]
    ]
    document = ranked[row - 1][1] if ranked else 0
    name = f"query 1 and document {document}, the most similar one," if document else f"pair {row}"
    most = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}" if listed else ""
    why = f"the pairs of words that add most are {most}." if most else "no pair of words adds to it."
    return f"The cosine similarity of {name} is {_digits(values[row - 1])}; {why}"


def _rankings(specimen, values) -> dict[int, dict[str, float]]:
    return {
        row: {
            "query": query,
            "document": document,
            "rank": 1
            + sum(other > value for other, (of, _) in zip(values, specimen.ranked, strict=True) if of == query),
        }
        for row, (value, (query, document)) in enumerate(zip(values, specimen.ranked, strict=False), start=1)
        if query
    }


def _gold_parts(parts, gold) -> dict[str, float]:
    chosen = [number for number, score in enumerate(gold) if score is not None]
    if len(chosen) < 3:
        return {}
    return {
        f"gold/category/{name}": scipy.stats.spearmanr(
            [values[number] for number in chosen], [gold[number] for number in chosen]
        ).statistic
        for name, values in parts.items()
        if len({values[number] for number in chosen}) > 1
    }


def _occurrences(pairs, matrices):
    """Every token and bias of every text: the number of the pair, the token, its category, and half its sum."""
    for number, (pair, matrix) in enumerate(zip(pairs, matrices, strict=True)):
        for text, sums in zip(pair, (matrix.sum(axis=1), matrix.sum(axis=0)), strict=True):
            for token, category, added in zip([*text.tokens, None], text.categories, sums, strict=True):
                yield number, token, category, added / 2


def _spans(pairs, matrices) -> dict[str, float]:
    found: dict[str, float] = {}
    for _, token, _, added in _occurrences(pairs, matrices):
        span = "bias" if token is None else "special" if token in SPECIAL else "text"
        found[span] = found.get(span, 0.0) + added
    return found


def _tokens(specimen, pairs, matrices, friends: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {}
    for _, token, _, added in _occurrences(pairs, matrices):
        if token is not None:
            found.setdefault(token, []).append(added)
    ids = specimen.loaded.tokenizer.get_vocab()
    return [
        {
            "token": token,
            "token_id": ids[token],
            "contribution": sum(added) / len(pairs),
            "mean": np.mean(added),
            "count": len(added),
            "low_gold": sum(friends[token]) if token in friends else np.nan,
            "low_gold_pairs": len(friends[token]) if token in friends else np.nan,
        }
        for token, added in found.items()
    ]


def _false_friends(specimen, pairs, matrices) -> dict[str, list[float]]:
    """What the three words add that add most to a pair, for each pair with a gold score in the lowest quarter."""
    scored = [score for score in specimen.gold if score is not None]
    if len(scored) < 3:
        return {}
    low = {n for n, score in enumerate(specimen.gold) if score is not None and score <= np.quantile(scored, 0.25)}
    words: dict[int, dict[str, float]] = {}
    for number, token, category, added in _occurrences(pairs, matrices):
        if number in low and token is not None and token not in SPECIAL and category not in ("punctuation", "first"):
            of_pair = words.setdefault(number, {})
            of_pair[token] = of_pair.get(token, 0.0) + added
    found: dict[str, list[float]] = {}
    for of_pair in words.values():
        for token in sorted(of_pair, key=lambda each: -of_pair[each])[:3]:
            if of_pair[token] > 0:
                found.setdefault(token, []).append(of_pair[token])
    return found


def _text(specimen: PairSpecimen, text: str, pooling: str, bias: str) -> Text:
    model, facts = specimen.loaded.model, specimen.loaded.facts
    inputs = specimen.loaded.tokenizer(text, return_tensors="pt")
    tokens = specimen.loaded.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    last: list[torch.Tensor] = []
    vectors = explicit_vectors(model, facts, inputs, value_bias=bias == "decompx")
    with torch.inference_mode():
        norm = getattr(model, "norm", None)  # of Qwen2's last hidden vectors
        handle = None if norm is None else norm.register_forward_pre_hook(lambda _module, args: last.append(args[0]))
        hidden = model(**inputs).last_hidden_state[0]
        if norm is not None:
            handle.remove()
            vectors = scaled(norm_weights(norm, facts), vectors, last[0])
    weights = _weights(pooling, hidden.numpy())
    embedding = (weights * hidden.numpy()).sum(axis=0)
    parts = (weights[:, None] * vectors[0].numpy()).sum(axis=0)
    # What no token has contributed comes from biases.
    parts = np.concatenate([parts, (embedding - parts.sum(axis=0))[None]])
    categories = [specimen.category_of(position, token) for position, token in enumerate(tokens)]
    return Text(tokens, [*categories, "bias"], parts, embedding)


def _weights(pooling: str, hidden: np.ndarray) -> np.ndarray:
    """The weight of each token (row) in each dimension of the embedding."""
    count = len(hidden)
    weights = np.zeros_like(hidden)
    match pooling:
        case "cls":
            weights[0] = 1
        case "last":
            weights[-1] = 1
        case "max":
            for dimension, largest in enumerate(hidden.argmax(axis=0)):
                weights[largest, dimension] = 1
        case "weighted_mean":
            weights[:] = (np.arange(1, count + 1) / sum(range(1, count + 1)))[:, None]
        case _:
            weights[:] = {"mean": 1 / count, "mean_sqrt": count**-0.5}[pooling]
    return weights


def _matrix(a: Text, b: Text) -> np.ndarray:
    return a.parts @ b.parts.T / (np.linalg.norm(a.embedding) * np.linalg.norm(b.embedding))


def _cosine(a: Text, b: Text) -> float:
    return float(a.embedding @ b.embedding / (np.linalg.norm(a.embedding) * np.linalg.norm(b.embedding)))


def _cells(pairs, matrices, values, names) -> dict[tuple[str, str], dict[str, float]]:
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for cell in itertools.product(names, names):
        found = [
            matrix[k, m]
            for (a, b), matrix in zip(pairs, matrices, strict=True)
            for k, m in itertools.product(range(len(a.categories)), range(len(b.categories)))
            if (a.categories[k], b.categories[m]) == cell
        ]
        if found:
            contribution = sum(found) / len(pairs)
            share = contribution / np.mean(values)
            cells[cell] = {"contribution": contribution, "share": share, "mean": np.mean(found), "count": len(found)}
    return cells


def _part(a: Text, b: Text, matrix: np.ndarray, name: str) -> float:
    """Half of what every pair adds, for each of its sides that is of the category."""
    rows = np.array(a.categories) == name
    columns = np.array(b.categories) == name
    return float((matrix[rows].sum() + matrix[:, columns].sum()) / 2)


def _figures(pairs, matrices, values, parts, shown, drawn) -> dict[str, Picture]:
    title = f"mean cosine {_digits(np.mean(values))}"
    order = list(dict.fromkeys([*(a for a, _ in shown), *(b for _, b in shown)]))
    names = {"cls": "[CLS]", "sep": "[SEP]"}
    cells = {
        (title, order.index(a), names.get(a, a), order.index(b), names.get(b, b), "none"): row["contribution"]
        for (a, b), row in shown.items()
    }
    ranked = np.argsort(values)
    groups = np.array_split(ranked, min(5, len(ranked)))
    lines = {
        (None, name, float(np.mean([values[number] for number in group]).round(3))): float(
            np.mean([values_of[number] for number in group])
        )
        for name, values_of in parts.items()
        for group in groups
    }
    figures = {"by_category": Picture(cells), "by_similarity": Picture(lines)}
    for row, document in drawn.items():
        (a, b), matrix = pairs[row - 1], matrices[row - 1]
        title = f"{f'document {document}' if document else f'pair {row}'}: cosine {_digits(values[row - 1])}"
        sides = [[*text.tokens, "bias"] for text in (a, b)]
        figures[f"pair_{row}"] = Picture(
            {
                (title, k, sides[0][k], m, sides[1][m], "none"): matrix[k, m]
                for k, m in itertools.product(*(range(len(side)) for side in sides))
            }
        )
    return figures


def _sentences(
    metrics: Mapping[str, Any], friends: Mapping[str, list[float]], parts: Mapping[str, Sequence[float]]
) -> list[str]:
    with_bias, cosine = metrics["with_bias"], metrics["cosine"]
    verbs = ["subtract" if part < 0 else "add" for part in (cosine - with_bias, with_bias)]
    categories = {name[len("category/") :]: value for name, value in metrics.items() if name.startswith("category/")}
    del categories["bias"]
    first = max(categories, key=categories.__getitem__)
    made = (
        f"The mean cosine similarity of {metrics['pairs']} pairs of texts is {_digits(cosine)}: pairs of tokens {verbs[0]} "
        f"{_digits(abs(cosine - with_bias))}, and pairs with the model's biases on at least one side {verbs[1]} "
        f"{_digits(abs(with_bias))}."
    )
    if len(categories) > 1 and categories[first] > 0:
        most = [name for name in categories if name == first or not visibly_apart(categories[name], categories[first])]
        kinds = " and ".join({"other": "ordinary"}.get(name, spoken(name)) for name in most)
        amount = f"about {_digits(categories[first])} each"
        if len(most) == 1:
            _, low, high = interval(parts[first])
            known = f" (95% interval {_digits(low)} to {_digits(high)})" if len(parts[first]) >= 5 else ""
            amount = f"{_digits(categories[first])}{known}"
        made += f" {kinds[0].upper()}{kinds[1:]} tokens add most to it: {amount}."
    if "gold/spearman" not in metrics:
        return [made]
    beside = (
        f"Spearman's ρ between the cosines and the gold scores of {metrics['gold/count']} pairs is "
        f"{three_digits(metrics['gold/spearman'])}"
    )
    if friends:
        words = [f"“{word}”" for word in sorted(friends, key=lambda word: -sum(friends[word]))[:3]]
        listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
        beside += f"; in the quarter with the lowest gold scores, these words add most: {listed}"
    return [made, f"{beside}."]


def _digits(value: float) -> str:
    return three_digits(value).removeprefix("+")


INSIDE = {"token_a", "token_b"}
"""Names within the analysis that it does not return."""


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    pairs = dataclasses.replace(PairSpecimen.of(made("bert")), ranked=RANKED)
    return pairs.result(SimilarityOptions(), reported(pairs))


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("bias", ValueBias)
@pytest.mark.parametrize("pooling", [None, *Pooling])
@pytest.mark.spread(1)
def test_similarity(specimen, pooling, bias, sums):
    pairs = PairSpecimen.of(specimen)
    options = SimilarityOptions(pooling=pooling, bias=bias, rows=[2, 5, 9], sums=sums)
    categories = [*specimen.names, "all"] if pooling is None else ["cls", "other"]
    findings = pairs.result(options, categories, Pooling.last)
    # Qwen2's norms compute in float32.
    rounds = rounds_inside(specimen.loaded.model)
    assert_expected(findings, expected(pairs, options, categories, "last"), 2e-5 if rounds else 1e-9)
    of_pairs = {name for name, figure in findings.figures.items() if getattr(figure, "measure", "")}
    assert of_pairs == {name for name in findings.figures if name.startswith("pair_")}
    for name, pair in {name: TextPair.of(findings.figures[name]) for name in of_pairs}.items():
        drawn = findings.figures[name].table.pivot(index="a", columns="b", values="value")
        np.testing.assert_array_equal(pair.matrix, drawn)
        assert [*pair.tokens_a, "bias"] == list(dict(zip(*_labels(findings.figures[name], "a"), strict=True)).values())
        assert [*pair.tokens_b, "bias"] == list(dict(zip(*_labels(findings.figures[name], "b"), strict=True)).values())


def _labels(figure, side):
    return figure.table[side], figure.table[f"token_{side}"]


@pytest.mark.spread(1)
@pytest.mark.parametrize("sums", [False, True])
def test_the_similarity_of_queries_and_documents(specimen, sums):
    pairs = dataclasses.replace(PairSpecimen.of(specimen), ranked=RANKED)
    options = SimilarityOptions(sums=sums)
    findings = pairs.result(options, specimen.names)
    rounds = rounds_inside(specimen.loaded.model)
    assert_expected(findings, expected(pairs, options, specimen.names), 2e-5 if rounds else 1e-9)


@pytest.mark.spread(1)
@pytest.mark.parametrize("rows", [None, []])
def test_similarity_without_gold_scores(specimen, rows):
    pairs = PairSpecimen.of(specimen, [None] * 5)
    options = SimilarityOptions(rows=rows)
    findings = pairs.result(options, specimen.names)
    rounds = rounds_inside(specimen.loaded.model)
    assert_expected(findings, expected(pairs, options, specimen.names), 2e-5 if rounds else 1e-9)
    assert not any(name.startswith("gold/") for name in findings.metrics)


SIMILAR = TextPair("", ["guitar"], ["music"], np.array([[0.227, 0.0], [0.0, 0.073]]))

CASES = [
    ({}, []),
    (
        {"pairs": 1500.0, "cosine": 0.5, "with_bias": -0.1, "category/cls": 0.2, "category/bias": 0.4},
        [
            "The mean cosine similarity of 1,500 pairs of texts is 0.50: pairs of tokens add 0.60, and pairs with the "
            "model's biases on at least one side subtract 0.10.",
        ],
    ),
    *(
        (
            {"pairs": 2.0, "cosine": 0.5, "with_bias": -0.1, "category/bias": 0.4} | categories,
            [
                "The mean cosine similarity of 2 pairs of texts is 0.50: pairs of tokens add 0.60, and pairs with the "
                f"model's biases on at least one side subtract 0.10.{most}"
            ],
        )
        for categories, most in (
            ({"category/cls": 0.2}, ""),  # the only category of tokens is not the first of several
            ({"category/cls": 0.2, "category/other": 0.1}, " [CLS] tokens add most to it: 0.20."),
            (
                {"category/cls": 0.2, "category/punctuation": 0.2001},
                " [CLS] and punctuation tokens add most to it: about 0.20 each.",
            ),
            ({"category/cls": 0.2, "category/punctuation": 0.2011}, " Punctuation tokens add most to it: 0.20."),
            ({"category/cls": 0.2, "category/other": 0.3}, " Ordinary tokens add most to it: 0.30."),
            ({"category/cls": 0.001, "category/other": -0.1}, " [CLS] tokens add most to it: 0.0010."),
            ({"category/cls": 0.0, "category/other": -0.1}, ""),
        )
    ),
    (
        {"pairs": 40.0, "cosine": 0.5, "with_bias": 0.0, "category/cls": 0.2, "category/other": 0.3},
        {"added": {"cls": Interval(0.2, 0.1, 0.3), "other": Interval(0.3, 0.28, 0.32)}},
        [
            "The mean cosine similarity of 40 pairs of texts is 0.50: pairs of tokens add 0.50, and pairs with the model's "
            "biases on at least one side add 0. Ordinary tokens add most to it: 0.30 (95% interval 0.28 to 0.32)."
        ],
    ),
    (
        {"pairs": 2.0, "cosine": -0.25, "with_bias": -0.2, "gold/count": 2.0},
        [
            "The mean cosine similarity of 2 pairs of texts is −0.25: pairs of tokens subtract 0.050, and pairs with "
            "the model's biases on at least one side subtract 0.20.",
        ],
    ),
    (
        {"pairs": 2.0, "cosine": 0.5, "with_bias": 0.0, "gold/spearman": 0.8123, "gold/count": 1234.0},
        [
            "The mean cosine similarity of 2 pairs of texts is 0.50: pairs of tokens add 0.50, and pairs with the "
            "model's biases on at least one side add 0.",
            "Spearman's ρ between the cosines and the gold scores of 1,234 pairs is +0.81.",
        ],
    ),
    (
        {},
        {"drawn": {4: DrawnPair(SIMILAR, 0, [("guitar", "music", 0.227), ("man", "someone", 0.05)])}},
        [
            "The cosine similarity of pair 4 is 0.300; the pairs of words that add most are guitar–music (+0.227) and "
            "man–someone (+0.0500)."
        ],
    ),
    (
        {},
        {"drawn": {4: DrawnPair(SIMILAR, 2, []), 5: DrawnPair(SIMILAR, 0, [])}},
        [
            "The cosine similarity of query 1 and document 2, the most similar one, is 0.300; no pair of words adds to it."
        ],
    ),
    (
        {"pairs": 2.0, "cosine": 0.5, "with_bias": 0.0},
        {"drawn": {4: DrawnPair(SIMILAR, 0, [])}},
        [
            "The mean cosine similarity of 2 pairs of texts is 0.50: pairs of tokens add 0.50, and pairs with the "
            "model's biases on at least one side add 0.",
            "The cosine similarity of pair 4 is 0.300; no pair of words adds to it.",
        ],
    ),
    (
        {"gold/spearman": 0.8123, "gold/count": 12.0},
        {"friends": ["dog", "man", "cut", "cat"]},
        [
            "Spearman's ρ between the cosines and the gold scores of 12 pairs is +0.81; in the quarter with the lowest "
            "gold scores, these words add most: “dog”, “man” and “cut”."
        ],
    ),
]

EFFECTS = [
    ({"pairs": 2.0, "cosine": 0.5, "with_bias": -0.1, "category/cls": 0.2, "category/other": 0.3}, {}, 0.3),
    (
        {"pairs": 9.0, "cosine": 0.5, "with_bias": -0.1, "category/cls": 0.2, "category/other": 0.3},
        {"added": {"other": Interval(0.3, -0.1, 0.7)}},
        0.0,
    ),
]


def test_groups_of_pairs_show_their_means():
    """Seven pairs are five groups, of two pairs and of one."""
    values = np.array([0.7, 0.1, 0.5, 0.3, 0.6, 0.2, 0.4])
    parts = pd.DataFrame({"other": values / 2, "bias": 1 - values})
    shown = by_similarity(pd.DataFrame({"value": values}), parts).set_index(["group", "category"])
    groups = [(0.1, 0.2), (0.3, 0.4), (0.5,), (0.6,), (0.7,)]
    for number, members in enumerate(groups):
        mean = np.mean(members)
        assert shown.loc[(number, "other"), ["cosine", "contribution"]].tolist() == pytest.approx([mean, mean / 2])
        assert shown.loc[(number, "bias"), "contribution"] == pytest.approx(1 - mean)
