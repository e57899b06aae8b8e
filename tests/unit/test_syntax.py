"""The syntax analysis as a user runs it; its numbers are compared with brute force in tests/oracles."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from normscope.statistics.share_moments import ShareMoments
from tests.end_to_end.shell import draw_nothing, run_here


def run(capsys, monkeypatch, folder, saved_model, *arguments):
    draw_nothing(monkeypatch)
    given = [f"model.name={saved_model}", "analysis=syntax", "tracking=disabled", "report.enabled=false"]
    return run_here(capsys, monkeypatch, *given, f"output_dir={folder}", *arguments)


@pytest.mark.slow
def test_what_is_missing_is_named(capsys, monkeypatch, tmp_path, saved_model):
    outcome = run(capsys, monkeypatch, tmp_path / "run", saved_model)
    assert outcome.status == 2
    assert "analysis=syntax needs sentences with heads and relations; set dataset=conllu" in outcome.err


def sentence(*words: tuple[str, int, str], text: str = "") -> str:
    """Forms, heads and relations in CoNLL-U."""
    rows = [f"{n}\t{form}" + "\t_" * 4 + f"\t{head}\t{of}\t_\t_" for n, (form, head, of) in enumerate(words, 1)]
    return "\n".join(([f"# text = {text}"] if text else []) + rows) + "\n\n"


WORLD = (
    sentence(("我", 2, "nsubj"), ("喜欢", 0, "root"), ("河流", 2, "obj"), ("。", 2, "punct"), text="我喜欢河流。")
    + sentence(("猫", 3, "nsubj"), ("が", 1, "case"), ("寝た", 0, "root"), text="猫が寝た")
    + "1-2\tوالكتاب" + "\t_" * 8 + "\n"
    + sentence(("و", 3, "cc"), ("الكتاب", 3, "nsubj"), ("جديد", 0, "root"))
    + sentence(("मैं", 3, "nsubj"), ("किताब", 3, "obj"), ("पढ़ता", 0, "root"), ("हूँ", 3, "aux"))
    + sentence(("I", 2, "nsubj"), ("❤️", 0, "root"), ("👩‍👩‍👧‍👦", 2, "obj"))
)  # fmt: skip


@pytest.mark.slow
def test_treebanks_of_any_script(capsys, monkeypatch, tmp_path, saved_model):
    """Without spaces, right to left, with vowel signs, with joined characters; and a tree of several roots."""
    path = tmp_path / "world.conllu"
    several = sentence(("Dogs", 2, "nsubj"), ("bark", 0, "root"), ("and", 0, "root"), ("cats", 3, "nsubj"))
    path.write_text(WORLD + several, encoding="utf-8")
    outcome = run(
        capsys, monkeypatch, tmp_path / "run", saved_model, f"dataset.path={path}", "dataset=conllu", "layers=[1]"
    )
    assert outcome.status == 0, outcome.err
    heads = pd.read_parquet(tmp_path / "run/tables/syntax_heads.parquet").query("half == 'both' and relation == 'all'")
    assert heads["count"].unique().tolist() == [2 + 2 + 2 + 3 + 2 + 2]


@pytest.mark.slow
def test_sentences_and_batches_without_arcs(capsys, monkeypatch, tmp_path, saved_model):
    path = tmp_path / "short.conllu"
    arcs = sentence(("Dogs", 2, "nsubj"), ("bark", 0, "root"), ("!", 2, "punct"))
    without_heads = sentence(("Cats", 0, "root"), ("meow", 0, "x")).replace("\t0\t", "\t_\t")
    path.write_text(2 * arcs + 3 * sentence(("Yes", 0, "root")) + without_heads)
    given = [f"dataset.path={path}", "dataset=conllu", "layers=[1]", "device.batch_tokens=4"]
    outcome = run(capsys, monkeypatch, tmp_path / "run", saved_model, *given)
    assert outcome.status == 0, outcome.err
    assert "1 sentence without heads is excluded from analysis=syntax" in outcome.err
    heads = pd.read_parquet(tmp_path / "run/tables/syntax_heads.parquet").query("half == 'both' and relation == 'all'")
    assert heads["count"].unique().tolist() == [2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            sentence(("Yes", 0, "root")),
            "dataset.path=.*: analysis=syntax needs heads other than 0, but no word has one",
        ),
        (
            sentence(("a", 0, "x")).replace("\t0\t", "\t_\t"),
            "analysis=syntax needs heads .column 7., but no sentence has any",
        ),
        (sentence(("a", 2, "all"), ("b", 0, "root")), "expected no relation named 'all', the name of their union"),
        (
            "1-2\tcannot" + "\t_" * 8 + "\n" + sentence(("can", 0, "root"), ("not", 1, "advmod")),
            "expected arcs between words with different tokens, got none",
        ),
        (sentence((".", 0, "root"), (",", 1, "punct")), ""),
    ],
)
@pytest.mark.spread(1)
def test_treebanks_that_show_little(content, message, capsys, monkeypatch, tmp_path, saved_model):
    """Punctuation alone is no fault: it counts under its own relation."""
    path = tmp_path / "little.conllu"
    path.write_text(content)
    given = [f"dataset.path={path}", "dataset=conllu", "layers=[1]"]
    outcome = run(capsys, monkeypatch, tmp_path / "run", saved_model, *given)
    assert outcome.status == (2 if message else 0), outcome.err
    if message:
        assert re.search(message, outcome.err.strip().splitlines()[-1])
    else:
        heads = pd.read_parquet(tmp_path / "run/tables/syntax_heads.parquet").query("layer == 1")
        assert heads["relation"].unique().tolist() == ["punct"]


def _interval(correct, arcs):
    """Share and interval from the correct arcs and all arcs of each sentence, the last axis."""
    correct, arcs = np.asarray(correct), np.asarray(arcs)
    sums = (correct, correct**2, correct * arcs, arcs, arcs**2, arcs > 0)
    moments = ShareMoments(*(values.sum(axis=-1) for values in sums))
    return (moments.share, *moments.interval())


@pytest.mark.parametrize(("right", "sentences"), [(3, 3), (0, 3), (17, 20), (1, 40), (40, 40)])
def test_intervals_of_single_arcs_are_exact(right, sentences):
    """Sentences with one arc each are independent trials, up to S/(S − 1)."""
    share, low, high = _interval([1] * right + [0] * (sentences - right), [1] * sentences)
    exact = scipy.stats.binomtest(right, sentences).proportion_ci(method="exact")
    assert share == right / sentences
    assert (float(low), float(high)) == pytest.approx((exact.low, exact.high), abs=0.5 / sentences**2)
    if right in (0, sentences):
        assert (float(low), float(high)) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize(
    ("correct", "arcs", "trials"),
    [
        ([2, 2, 2], [2, 2, 2], 3),  # nothing shows how the arcs of a sentence depend on each other
        ([4, 0, 4, 0], [4, 4, 4, 4], 4),  # 0.25 / (4/3 · 4 · 2² / 16²) = 3 is less than there are sentences
        ([1, 1, 1, 1], [2, 2, 2, 2], 8),  # no more than there are arcs
        ([3, 1, 4, 2], [4, 4, 4, 4], 0.234375 / (4 / 3 * (0.5**2 + 1.5**2 + 1.5**2 + 0.5**2) / 16**2)),
        ([0, 0, 0, 0], [1, 1, 1, 5], 64 / 28),
    ],
    ids=["all right", "together", "apart", "between", "unequal"],
)
def test_arcs_of_a_sentence_count_as_fewer(correct, arcs, trials):
    share, low, high = _interval(correct, arcs)
    right, wrong = share * trials, (1 - share) * trials
    assert low == pytest.approx(scipy.stats.beta.ppf(0.025, right, wrong + 1) if right else 0.0)
    assert high == pytest.approx(scipy.stats.beta.ppf(0.975, right + 1, wrong) if wrong else 1.0)


def test_a_single_sentence_has_no_interval():
    share, low, high = _interval([[1, 0], [2, 0], [0, 0]], [[2, 0], [2, 0], [0, 0]])
    assert share.tolist()[:2] == [0.5, 1.0]
    assert np.isnan(low).all()
    assert np.isnan(high).all()


@pytest.mark.parametrize("sentences", [2, 5, 30])
@pytest.mark.parametrize("dependence", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rate", [0.5, 0.9, 0.98])
@pytest.mark.spread(8)
def test_intervals_have_a_width_and_hold_the_rate(rate, dependence, sentences):
    """In at least 95% of simulated treebanks, less three standard errors of 1,000 of them."""
    generator = np.random.default_rng([sentences, int(10 * dependence), int(100 * rate)])
    arcs = 1 + generator.poisson(2, size=(1_000, sentences))
    own = np.full(arcs.shape, rate)
    if dependence == 1:
        own = (generator.random(arcs.shape) < rate).astype(float)
    elif dependence:
        own = generator.beta(rate * (1 / dependence - 1), (1 - rate) * (1 / dependence - 1), size=arcs.shape)
    _, low, high = _interval(generator.binomial(arcs, own), arcs)
    assert (high - low).min() > 0.01
    assert ((low <= rate) & (rate <= high)).mean() >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 1_000)


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
@pytest.mark.spread(8)
def test_intervals_of_gains_hold_the_rate_however_two_heads_depend_on_each_other(shared):
    """As in the figure of gains: from the lower end of one interval minus the upper end of the other, to the reverse."""
    generator = np.random.default_rng(int(10 * shared))
    arcs = 1 + generator.poisson(2, size=(1_000, 30))
    weights = generator.binomial(arcs, 0.5)
    # What the other head finds: the same arcs, all others, or some of both.
    same = generator.binomial(weights, shared)
    vectors = np.where(shared == 1, weights, same + generator.binomial(arcs - weights, 1 - shared))
    (_, low, high), (_, least, most) = _interval(weights, arcs), _interval(vectors, arcs)
    assert ((least - high <= 0) & (most - low >= 0)).mean() >= 0.95
