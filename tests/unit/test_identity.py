"""What a run is follows from what it measured: weights, texts and seeds. Names of models, folders and texts only label it."""

import dataclasses
import functools
import itertools
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

import normscope
from normscope.analyses.translated_words import _by_position
from normscope.reporting.comparison import significance
from normscope.reporting.comparison.significance import over_seeds
from normscope.statistics.intervals import within_whole

TEXTS = [
    f"The {noun} saw {count} dogs{' and ran away' * (count % 3)}."
    for count, noun in enumerate(["cat", "man", "bird"] * 5)
]
OTHERS = [f"It rained for {count} days{' in spring' * (count % 4)}." for count in range(12)]


@pytest.fixture(scope="module")
def folders(saved_model, tokenizer, tmp_path_factory):
    """Two models in folders whose names say something else about them."""
    place = tmp_path_factory.mktemp("named")
    shutil.copytree(saved_model, place / "base")
    other = AutoModel.from_pretrained(saved_model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    for name in ("tuned", "step-0"):
        other.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    shutil.copytree(saved_model, place / "step-32")
    return place


def measured(model, texts=TEXTS, **options):
    return normscope.run("mixing", model=model, texts=texts, **options)


@pytest.fixture(scope="module")
def of_folder(folders):
    """A run of a model by the name of its folder, made once."""
    return functools.cache(lambda name: measured(folders / name))


def identity(result):
    return result.facts["model_sha256"], result.facts["texts_digest"]


def test_weights_and_texts_are_the_same_whichever_way_they_came(folders, of_folder, tokenizer):
    expected = identity(of_folder("base"))
    bare, headed = (kind.from_pretrained(folders / "base") for kind in (AutoModel, AutoModelForMaskedLM))
    assert identity(measured(bare, tokenizer=tokenizer)) == expected
    assert identity(measured(headed, TEXTS[::-1], tokenizer=tokenizer, batch_tokens=16)) == expected, "in another order"
    assert identity(of_folder("step-32")) == expected
    assert identity(of_folder("tuned"))[0] == identity(of_folder("step-0"))[0] != expected[0]
    assert identity(measured(bare, OTHERS, tokenizer=tokenizer))[0] == expected[0]
    assert identity(measured(bare, [*TEXTS, TEXTS[0]], tokenizer=tokenizer))[1] != expected[1], "a text twice"
    masked = measured(bare, tokenizer=tokenizer, mask_fraction=0.3)
    assert identity(masked) == expected, "which tokens are masked is a matter of the seed"
    assert masked.metrics != of_folder("base").metrics


@pytest.mark.spread(2)
@pytest.mark.parametrize("change", ["negated", "transposed", "swapped", "buffers"])
def test_every_change_of_weights_shows(saved_model, change):
    model = AutoModel.from_pretrained(saved_model).double()
    loaded = normscope.wrap(model, normscope.load(saved_model, device="cpu").tokenizer)
    (before,) = loaded.weights().values()
    weight = loaded.model.encoder.layer[0].output.dense.weight if change != "transposed" else None
    with torch.no_grad():
        if change == "negated":
            weight.neg_()
        elif change == "swapped":
            weight[[0, 1]] = weight[[1, 0]]
        elif change == "transposed":
            square = loaded.model.encoder.layer[0].attention.self.query.weight
            square.copy_(square.T.clone())
        else:
            loaded.model.register_buffer("scale", torch.ones(1))
    (after,) = loaded.weights().values()
    assert after != before


def test_a_head_counts_beside_the_model_that_it_is_on(saved_model, tokenizer):
    heads = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(saved_model).eval()
        loaded = normscope.wrap(model, tokenizer)
        _ = loaded.classifier
        heads.append(loaded.weights())
    first, second = heads
    assert first["model"] == second["model"]
    assert first["classifier"] != second["classifier"]


def test_random_weights_are_known_by_how_they_were_made(saved_model, tokenizer):
    drawn = normscope.load(saved_model, random_init=True, seed=3, device="cpu")
    facts = measured(drawn).facts
    assert (facts["weights_from"], facts["weights_seed"]) == ("seed", 3)
    with torch.no_grad():
        drawn.model.encoder.layer[0].output.dense.weight.add_(1)
    facts = measured(drawn).facts
    assert (facts["weights_from"], facts["weights_seed"]) == ("memory", None), "they are no longer those of the seed"
    in_memory = measured(AutoModel.from_pretrained(saved_model), tokenizer=tokenizer).facts
    assert (in_memory["weights_from"], in_memory["weights_seed"]) == ("memory", None), "trained or not, nobody knows"
    assert measured(saved_model).facts["weights_from"] == "files"


def test_folders_are_compared_by_their_weights_whatever_they_are_called(of_folder):
    plain, steps = ([of_folder(name) for name in pair] for pair in (("base", "tuned"), ("step-32", "step-0")))
    (sentence,), (same,) = (normscope.compare(runs).sentences for runs in (plain, steps))
    assert sentence.startswith("From base to tuned, ")
    assert same.replace("step 0", "tuned").replace("step 32", "base") == sentence
    assert "changes most in layer" in sentence


@pytest.mark.slow
def test_neither_other_texts_nor_other_weights_are_seeds(saved_model, tokenizer):
    model, other = (AutoModel.from_pretrained(saved_model) for _ in range(2))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    one, texts, weights = (
        measured(each, read, tokenizer=tokenizer) for each, read in ((model, TEXTS), (model, OTHERS), (other, TEXTS))
    )
    (sentence,) = normscope.compare([one, texts]).sentences
    assert re.match(
        r"From texts=\w{8} \(1st run\) to texts=\w{8} \(2nd run\), |No detectable difference between texts=", sentence
    )
    assert "over sequences that are not the same" in sentence
    (sentence,) = normscope.compare([one, weights]).sentences
    assert re.match(r"From weights=\w{8} \(1st run\) to weights=\w{8} \(2nd run\), ", sentence)
    told = normscope.compare([one, texts, weights]).sentences
    assert not any("seeds" in sentence for sentence in told)


@pytest.mark.slow
def test_the_same_run_under_other_names_counts_once(folders, of_folder, tokenizer):
    one, two = of_folder("base"), measured(AutoModel.from_pretrained(folders / "step-32"), tokenizer=tokenizer)
    told = "2 runs of base measured the same weights, texts and seeds in the same way: they count once."
    assert normscope.compare([one, two]).sentences == [told]
    tuned = of_folder("tuned")
    assert normscope.compare([one, two, tuned]).sentences[0] == told
    assert normscope.compare([one, two, tuned]).sentences[1] == normscope.compare([one, tuned]).sentences[0]
    changed = dataclasses.replace(two, metrics={name: value * 1.1 for name, value in two.metrics.items()})
    assert "they count once" not in normscope.compare([one, changed]).sentences[0], (
        "something differs that no fact shows"
    )


@pytest.mark.slow
def test_pairs_are_the_same_texts_whichever_analyses_read_them(saved_model):
    """As one sequence, as two, or both: what two runs have both read decides."""
    encoder = SentenceTransformer(modules=[Transformer(str(saved_model)), Pooling(24)], device="cpu")
    model = normscope.wrap(encoder)
    pairs, others = list(itertools.pairwise(TEXTS)), list(itertools.pairwise(OTHERS))
    read = {
        name: normscope.run(which, model=model, texts=texts)
        for name, which, texts in (
            ("mixing", "mixing", pairs),
            ("similarity", "similarity", pairs),
            ("both", ["mixing", "similarity"], pairs),
            ("others", ["mixing", "similarity"], others),
        )
    }
    assert read["both"].facts["compared"]["texts_digest"] == read["similarity"].facts["texts_digest"]
    name = saved_model.name
    told = f"2 runs of {name} measured the same weights, texts and seeds in the same way: they count once."
    assert normscope.compare([read["mixing"], read["both"]]).sentences == [told]
    assert normscope.compare([read["similarity"], read["both"]]).sentences == [told]
    assert normscope.compare([read["mixing"], read["similarity"]]).sentences == [], "two parts of one run"
    for name in ("mixing", "similarity", "both"):
        assert "texts=" in normscope.compare([read[name], read["others"]]).sentences[0]


@pytest.mark.slow
def test_seeds_are_those_from_which_weights_were_drawn(saved_model):
    drawn = [measured(normscope.load(saved_model, random_init=True, seed=seed, device="cpu")) for seed in (0, 1, 2, 2)]
    sentences = normscope.compare(drawn).sentences
    assert sentences[0].startswith("2 runs of model.seed=2 measured the same")
    assert " over 3 seeds (95% interval " in sentences[1]
    (sentence,) = normscope.compare([measured(saved_model), drawn[0]]).sentences
    assert sentence.startswith("Whether model.random_init=true differs from model.random_init=false cannot be tested")


@pytest.mark.slow
def test_a_sweep_of_layers_of_several_models_is_no_story(saved_model, tokenizer):
    """Nobody said that these are different models but their weights."""
    models = [AutoModel.from_pretrained(saved_model) for _ in range(3)]
    with torch.no_grad():
        for factor, model in enumerate(models, start=1):
            for parameter in model.parameters():
                parameter.mul_(factor)
    several = [measured(model, tokenizer=tokenizer, layers=[layer]) for layer, model in enumerate(models, start=1)]
    assert not normscope.compare(several).sentences[0].startswith("From layer 1")
    assert " at layer 1" not in normscope.compare(several).sentences[0]
    alone = [measured(models[0], tokenizer=tokenizer, layers=[layer]) for layer in (1, 2, 3)]
    assert re.search(r"at layer 1|From layer 1", normscope.compare(alone).sentences[0])


@pytest.mark.slow
def test_options_of_an_analysis_are_no_seeds(saved_model):
    runs = [normscope.run("outliers", model=saved_model, texts=TEXTS, threshold=value) for value in (1.0, 2.0)]
    assert not any("seeds (95%" in sentence for sentence in normscope.compare(runs).sentences)


def test_runs_without_these_facts_claim_nothing(of_folder):
    old = [of_folder("base")] * 2
    new = ("model_sha256", "texts_digest", "weights_from", "weights_seed", "heads_sha256", "config_sha256", "training")
    old = [
        dataclasses.replace(run, facts={name: value for name, value in run.facts.items() if name not in new})
        for run in old
    ]
    (sentence,) = normscope.compare(old).sentences
    assert "equal up to rounding" in sentence
    assert "seeds" not in sentence


def test_intervals_of_shares_stay_within_the_whole():
    """The transform by hand: log-odds of the mean, and the standard error divided by p (1 − p)."""
    shares = [0.02, 0.4]
    values = pd.DataFrame({"group": "a", "metric": "mixing/attn_n/mean", "value": shares})
    (row,) = over_seeds(values, ["group", "metric"]).itertuples()
    mean, error = np.mean(shares), scipy.stats.sem(shares)
    assert mean - scipy.stats.t.ppf(0.975, 1) * error < 0, "Student's interval itself goes beyond"
    ends = scipy.special.logit(mean) + np.array([-1, 1]) * scipy.stats.t.ppf(0.975, 1) * error / (mean * (1 - mean))
    assert (row.low, row.high) == pytest.approx(tuple(scipy.special.expit(ends)))
    assert 0 <= row.low < mean < row.high <= 1
    (plain,) = over_seeds(values.assign(metric="norms/f/cls"), ["group", "metric"]).itertuples()
    assert plain.low == pytest.approx(mean - scipy.stats.t.ppf(0.975, 1) * error)
    (signed,) = over_seeds(values.assign(metric="mixing/attn_n/share"), ["group", "metric"]).itertuples()
    assert signed.low < 0, "signed shares have no bounds"
    assert [float(end) for end in within_whole(np.array(0.0), np.array(0.0))] == [0, 0]
    two = pd.concat([values, values.assign(group="b", value=[0.5, 0.99])])
    (row,) = significance.tests(two, "a").itertuples()
    assert -1 <= row.low < row.difference < row.high <= 1


def test_the_share_of_the_source_stays_within_the_whole():
    words = pd.DataFrame({"method": "alti", "word": [1, 1, 2, 2], "row": [0, 1, 0, 1], "source": [1.0, 1.0, 0.9, 0.99]})
    sure, less = _by_position(words).table.itertuples()
    assert (sure.low, sure.source, sure.high) == (100, 100, 100)
    mean, error = 0.945, 0.045
    ends = scipy.special.logit(mean) + np.array([-1, 1]) * scipy.stats.t.ppf(0.975, 1) * error / (mean * (1 - mean))
    assert (less.low, less.high) == pytest.approx(tuple(100 * scipy.special.expit(ends)))
    assert 0 <= less.low < less.source < less.high <= 100 < 100 * (mean + scipy.stats.t.ppf(0.975, 1) * error)
