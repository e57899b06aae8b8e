"""Everything that the analyses publish is what an independent computation gives: names, numbers, curves and words."""

import dataclasses
import functools
from dataclasses import replace

import numpy as np
import pytest

from normscope.analyses.declarations.attribution import AttributionMethod, AttributionOptions, AttributionStage, Erasure
from normscope.analyses.declarations.feedforward import FeedForwardOptions
from normscope.analyses.declarations.frequency import FrequencyOptions
from normscope.analyses.declarations.mixing import MixingOptions
from normscope.analyses.declarations.norms import NormsOptions
from normscope.analyses.declarations.outliers import OutlierCriterion, OutliersOptions
from normscope.analyses.declarations.score import ScoreOptions
from normscope.analyses.declarations.similarity import SimilarityOptions
from normscope.analyses.declarations.sinks import SinkInput, SinksOptions
from normscope.analyses.declarations.syntax import SyntaxOptions
from normscope.analyses.frequency import FREQUENCIES
from normscope.analyses.samples import PAIRS, SampledPairs
from normscope.analyses.syntax import TREEBANK
from normscope.data.examples import Example
from normscope.data.token_frequencies import TokenFrequencies
from normscope.maths.choices import Pooling, ReadoutTarget, ValueBias
from normscope.results.figures import TextPair
from tests.oracles import (
    attribution_of_translations,
    attribution_oracle,
    attributions,
    feedforward_oracle,
    frequency_oracle,
    mixing_oracle,
    norms_oracle,
    outliers_oracle,
    score_oracle,
    similarity_oracle,
    sinks_oracle,
    specimens,
    syntax_oracle,
    words,
)
from tests.oracles.comparison import assert_published
from tests.oracles.specimens import Specimen
from tests.tiny import rounds_inside

SPECIMENS = {
    "bert": specimens.bert,
    "qwen2": specimens.qwen2,
    "marian": specimens.marian,
    "classifier": specimens.classifier,
    "massive": specimens.massive,
}

# Layers; categories, all of the specimen's where none are named.
CHOICES = {"everything": ((1, 2, 3), None), "some": ((2, 3), ["punctuation", "other"]), "all": ((2,), ["all"])}


@functools.cache
def made(name: str) -> Specimen:
    return SPECIMENS[name]()


@pytest.fixture(scope="module", params=["bert", "qwen2"])
def specimen(request) -> Specimen:
    return made(request.param)


@pytest.fixture(scope="module", params=["bert", "qwen2", "marian"])
def any_specimen(request) -> Specimen:
    """For analyses that support cross-attention."""
    return made(request.param)


def reported(specimen: Specimen, categories: list[str] | None) -> list[str]:
    return [*specimen.names, "all"] if categories is None else categories


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.spread(4)
def test_mixing(any_specimen, choice):
    layers, categories = CHOICES[choice]
    categories = reported(any_specimen, categories)
    findings = any_specimen.findings("mixing", MixingOptions(), layers, categories)
    assert findings.summaries["mixing"].digits == 1
    assert_published(findings, mixing_oracle.expected(any_specimen, layers, categories))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.spread(2)
def test_feedforward(specimen, choice):
    layers, categories = CHOICES[choice]
    categories = reported(specimen, categories)
    options = FeedForwardOptions(pairs=7, seed=2)
    findings = specimen.findings("feedforward", options, layers, categories)
    expected = feedforward_oracle.expected(specimen, layers, categories, options)
    # Qwen2's norms compute in float32, and what a first token takes from others is a remainder.
    assert_published(
        findings, expected, tolerance=2e-5 if rounds_inside(specimen.loaded.model, specimen.loaded.layout) else 1e-9
    )


@pytest.mark.parametrize(("name", "punctuation"), [("bert", False), ("qwen2", True)])
@pytest.mark.spread(1)
def test_syntax(name, punctuation):
    specimen = made(name)
    options = SyntaxOptions(punctuation=punctuation)
    annotated = syntax_oracle.annotated(specimen)
    findings = annotated.findings("syntax", options, [1, 3], ["all"], resources={TREEBANK: syntax_oracle.treebank()})
    assert_published(findings, syntax_oracle.expected(annotated, [1, 3], options))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.spread(2)
def test_norms(any_specimen, choice):
    layers, categories = CHOICES[choice]
    # The first layer of a rotary model gives equal tokens equal vectors, whose order is left to rounding.
    layers = [layer for layer in layers if layer > 1]
    # Where some layers are looked at, so are some queries of sequences with more than six.
    options = NormsOptions(seed=5, sampled_queries=6 if choice == "some" else 512)
    categories = reported(any_specimen, categories)
    findings = any_specimen.findings("norms", options, layers, categories)
    assert_published(findings, norms_oracle.expected(any_specimen, layers, categories, options))


@pytest.mark.parametrize("name", ["bert", "qwen2"])
def test_mixing_of_words(name):
    layers, of_words = [2, 3], words.of_words(made(name))
    categories = reported(of_words, None)
    findings = of_words.findings("mixing", MixingOptions(), layers, categories)
    assert_published(findings, mixing_oracle.expected(of_words, layers, categories))


@pytest.mark.spread(1)
@pytest.mark.parametrize("sampled", [4, 512])
def test_cross_attention_of_words(sampled):
    """What target words take from source words, in padded batches."""
    layers, of_words, options = (
        [2, 3],
        words.of_translations(made("marian")),
        NormsOptions(seed=5, sampled_queries=sampled),
    )
    categories = reported(of_words, None)
    findings = of_words.findings("norms", options, layers, categories)
    assert_published(findings, norms_oracle.expected(of_words, layers, categories, options))
    if sampled == 512:
        findings = of_words.findings("mixing", MixingOptions(), layers, categories)
        assert_published(findings, mixing_oracle.expected(of_words, layers, categories))


@pytest.mark.spread(1)
@pytest.mark.parametrize("sampled", [4, 512])
def test_norms_of_words(sampled):
    # Not of a causal model, where the first word's α of 1 is a tie that rounding may break: unit tests compare its pairs.
    layers, of_words, options = [2, 3], words.of_words(made("bert")), NormsOptions(seed=5, sampled_queries=sampled)
    categories = reported(of_words, None)
    findings = of_words.findings("norms", options, layers, categories)
    assert_published(findings, norms_oracle.expected(of_words, layers, categories, options))


@pytest.mark.parametrize("erasure", [None, Erasure.remove])
@pytest.mark.slow
def test_attribution_of_words(erasure):
    of_words, options = words.of_words(made("bert")), AttributionOptions(seed=3, sequences=4, orders=2, erasure=erasure)
    categories = reported(of_words, None)
    findings = of_words.findings("attribution", options, [1, 3], categories)
    expected = attribution_oracle.expected(of_words, options, words.AttributedWords)
    assert_published(findings, expected)


LEFT_OUT = {"none": lambda _: False, "two words": lambda token: token in (6, 9), "all words": lambda token: token > 4}


@pytest.mark.parametrize("left_out", LEFT_OUT)
@pytest.mark.spread(2)
def test_frequency(specimen, left_out):
    layers = [2, 3]  # as in test_norms
    tokens = [token for token in range(specimen.loaded.vocabulary) if LEFT_OUT[left_out](token)]
    rank, count = frequency_oracle.counted(specimen, tokens)
    findings = specimen.findings(
        "frequency",
        FrequencyOptions(seed=0),
        layers,
        reported(specimen, None),
        resources={FREQUENCIES: TokenFrequencies(rank, count)},
    )
    assert_published(findings, frequency_oracle.expected(specimen, layers, rank, count))
    by_token = findings.tables["by_token"]
    assert by_token["count"].duplicated().any()
    assert by_token.sort_values(["count", "token_id"], ascending=[False, True]).index.equals(by_token.index)


OUTLIERS = {
    "sigma": OutliersOptions(threshold=1.5),
    "mad": OutliersOptions(criterion=OutlierCriterion.mad, threshold=2.5, share=0.3),
    "given": OutliersOptions(dimensions=[7, 2, 7]),
    "none": OutliersOptions(threshold=100.0),
}


@pytest.mark.parametrize("categories", [None, ["punctuation", "other"], ["all"]])
@pytest.mark.parametrize("options", OUTLIERS)
@pytest.mark.spread(8)
def test_outliers(any_specimen, options, categories):
    chosen = OUTLIERS[options]
    categories = reported(any_specimen, categories)
    findings = any_specimen.findings("outliers", chosen, [2], categories, options=[chosen])
    assert_published(findings, outliers_oracle.expected(any_specimen, categories, chosen))


def options_of_score(**more) -> ScoreOptions:
    return ScoreOptions(seed=3, controls=3, **more)


SCORES = {
    "two outliers": (OUTLIERS["given"], options_of_score(), CHOICES["everything"]),
    "part": (OUTLIERS["given"], options_of_score(sequences=1000), CHOICES["some"]),
    "all": (OUTLIERS["given"], options_of_score(), CHOICES["all"]),
    "no outliers": (OUTLIERS["none"], options_of_score(), CHOICES["some"]),
    "nothing is run again": (OUTLIERS["given"], options_of_score(interventions=False), CHOICES["some"]),
    "nine outliers and nothing is run again": (
        OutliersOptions(dimensions=list(range(9))),
        options_of_score(interventions=False),
        ((2,), ["punctuation", "other"]),
    ),
    "nine outliers": (
        OutliersOptions(dimensions=list(range(9))),
        options_of_score(),
        ((2,), ["punctuation", "other"]),
    ),
}


@pytest.mark.parametrize("choice", SCORES)
@pytest.mark.spread(1)
def test_score(specimen, choice):
    outliers, options, (layers, categories) = SCORES[choice]
    categories = reported(specimen, categories)
    findings = specimen.findings("score", options, layers, categories, options=[outliers])
    expected = score_oracle.expected(specimen, layers, categories, options, outliers)
    assert_published(findings, expected, tolerance=1e-6)  # logits are in float32


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("bias", ValueBias)
@pytest.mark.parametrize("pooling", [None, *Pooling])
@pytest.mark.spread(2)
def test_similarity(specimen, pooling, bias, sums):
    pairs = similarity_oracle.PairSpecimen.of(specimen)
    options = SimilarityOptions(pooling=pooling, bias=bias, rows=[2, 5, 9], sums=sums)
    categories = [*specimen.names, "all"] if pooling is None else ["cls", "other"]
    findings = pairs.published(options, categories, Pooling.last)
    # Qwen2's norms compute in float32.
    rounds = rounds_inside(specimen.loaded.model, specimen.loaded.layout)
    assert_published(findings, similarity_oracle.expected(pairs, options, categories, "last"), 2e-5 if rounds else 1e-9)
    of_pairs = {name for name, figure in findings.figures.items() if getattr(figure, "measure", "")}
    assert of_pairs == {name for name in findings.figures if name.startswith("pair_")}
    for name, pair in {name: TextPair.of(findings.figures[name]) for name in of_pairs}.items():
        drawn = findings.figures[name].table.pivot(index="a", columns="b", values="value")
        np.testing.assert_array_equal(pair.matrix, drawn)
        assert [*pair.tokens_a, "bias"] == list(dict(zip(*_labels(findings.figures[name], "a"), strict=True)).values())
        assert [*pair.tokens_b, "bias"] == list(dict(zip(*_labels(findings.figures[name], "b"), strict=True)).values())


def _labels(figure, side):
    return figure.table[side], figure.table[f"token_{side}"]


@pytest.mark.parametrize("sums", [False, True])
def test_the_similarity_of_queries_and_documents(specimen, sums):
    pairs = similarity_oracle.PairSpecimen.of(specimen)
    pairs = dataclasses.replace(pairs, ranked=[(1, 1), (1, 2), (0, 0), (2, 1), (1, 3)])
    options = SimilarityOptions(sums=sums)
    findings = pairs.published(options, specimen.names)
    rounds = rounds_inside(specimen.loaded.model, specimen.loaded.layout)
    assert_published(findings, similarity_oracle.expected(pairs, options, specimen.names), 2e-5 if rounds else 1e-9)


@pytest.mark.parametrize("rows", [None, []])
def test_similarity_without_gold_scores(specimen, rows):
    pairs = similarity_oracle.PairSpecimen.of(specimen, [None] * 5)
    options = SimilarityOptions(rows=rows)
    findings = pairs.published(options, specimen.names)
    rounds = rounds_inside(specimen.loaded.model, specimen.loaded.layout)
    assert_published(findings, similarity_oracle.expected(pairs, options, specimen.names), 2e-5 if rounds else 1e-9)
    assert not any(name.startswith("gold/") for name in findings.metrics)


ATTRIBUTIONS = {
    "encoder": ("bert", AttributionOptions(seed=2, orders=2), CHOICES["everything"]),
    "classifier": (
        "classifier",
        AttributionOptions(seed=3, methods=list(AttributionMethod), sequences=2, orders=2, steps=7),
        CHOICES["some"],
    ),
    "causal": ("qwen2", AttributionOptions(seed=4, orders=2, shares=[10.0, 60.0]), CHOICES["everything"]),
    "embedding of a classifier": (
        "classifier",
        AttributionOptions(
            seed=5,
            sequences=3,
            methods=[AttributionMethod.norm_rollout, AttributionMethod.integrated_gradients],
            stage=AttributionStage.attnres_n,
            pooling=Pooling.cls,
            erasure=Erasure.remove,
            orders=1,
            steps=5,
        ),
        CHOICES["all"],
    ),
    "one method of one sequence": (
        "bert",
        AttributionOptions(seed=6, sequences=1, methods=[AttributionMethod.decompx], pooling=Pooling.last),
        CHOICES["all"],
    ),
    "no maps": (
        "bert",
        AttributionOptions(seed=7, methods=[AttributionMethod.gradient_x_input], sequences=2, orders=2),
        CHOICES["all"],
    ),
}


@pytest.mark.parametrize("choice", ATTRIBUTIONS)
@pytest.mark.spread(1)
def test_attribution(choice):
    name, options, (layers, categories) = ATTRIBUTIONS[choice]
    specimen = made(name)
    categories = reported(specimen, categories)
    findings = specimen.findings("attribution", options, layers, categories)
    expected = attribution_oracle.expected(specimen, options)
    # Qwen2's norms compute in float32.
    assert_published(findings, expected, tolerance={"qwen2": 2e-5, "classifier": 1e-7}.get(name, 1e-9))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"methods": list(AttributionMethod), "steps": 5, "sequences": 3}])
@pytest.mark.spread(1)
def test_attribution_of_losses(options):
    methods = [method for method in options.pop("methods", []) if method is not AttributionMethod.globenc] or None
    specimen, wanted = (
        made("qwen2"),
        AttributionOptions(seed=2, orders=2, methods=methods, target=ReadoutTarget.loss, **options),
    )
    findings = specimen.findings("attribution", wanted, [1, 3], reported(specimen, None))
    expected = attribution_oracle.expected(specimen, wanted, attributions.AttributedLoss)
    assert_published(findings, expected, tolerance=2e-5)  # Qwen2's norms compute in float32


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"sequences": 3}, {"methods": list(AttributionMethod), "steps": 5}])
@pytest.mark.spread(1)
def test_attribution_of_answers(options):
    methods = [method for method in options.pop("methods", []) if method is not AttributionMethod.globenc] or None
    specimen = specimens.answered()
    wanted = AttributionOptions(seed=2, orders=2, methods=methods, target=ReadoutTarget.answer, **options)
    resource = SampledPairs(wanted.sequences, wanted.seed, "expected pairs")
    resource.start(None)
    resource.read([Example(*texts) for texts in specimen.texts])
    resources = {PAIRS: resource.finish()}
    findings = specimen.findings("attribution", wanted, [1, 3], reported(specimen, None), resources=resources)
    expected = attribution_oracle.expected(specimen, wanted, attributions.AttributedAnswer)
    assert_published(findings, expected, tolerance=2e-5)  # as above


TRANSLATED = {
    "both methods": AttributionOptions(seed=2),
    "DecompX of some": AttributionOptions(seed=5, sequences=3, methods=[AttributionMethod.decompx]),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("choice", TRANSLATED)
@pytest.mark.spread(2)
def test_attribution_of_translations(choice):
    specimen, options = specimens.translations(), TRANSLATED[choice]
    examples = [Example(*texts, row=row) for row, texts in enumerate(specimen.texts, start=1)]
    resource = SampledPairs(options.sequences, options.seed, "expected pairs")
    resource.start(None)
    corpus = [*examples[:2], "empty", Example("a text without a translation"), *examples[2:]]
    rows = [row for row, example in enumerate(corpus, start=1) if example in examples]
    for part in (corpus[:3], corpus[3:]):
        resource.read([replace(each, row=0) if isinstance(each, Example) else each for each in part])
    resource.add(resource.state())
    findings = specimen.findings("attribution", options, [3], ["all"], resources={PAIRS: resource.finish()})
    numbered = [replace(example, row=row) for example, row in zip(examples, rows, strict=True)]
    assert_published(findings, attribution_of_translations.expected(specimen, numbered, options))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", ["bert", "qwen2", "massive"])
@pytest.mark.spread(2)
def test_sinks(name, choice):
    specimen, (layers, categories) = made(name), CHOICES[choice]
    categories = reported(specimen, categories)
    options = {
        "everything": SinksOptions(length=6, epsilon=0.2, controls=2, seed=3),
        "some": SinksOptions(inputs=[SinkInput.random, SinkInput.text], length=4, epsilon=0.35, controls=1, seed=4),
        "all": SinksOptions(length=30, ablation=False, seed=5),  # no sequence is long enough
    }[choice]
    findings = specimen.findings("sinks", options, layers, categories)
    assert_published(findings, sinks_oracle.expected(specimen, layers, categories, options))
