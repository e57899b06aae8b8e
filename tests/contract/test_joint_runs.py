"""What one analysis needs changes no other: the tables of a joint run are those of each analysis by itself."""

import itertools

import pandas as pd
import pytest
import torch

from normscope.analyses.registry import analyses
from normscope.api.models import wrap
from normscope.data.conllu_file import ConlluFile
from normscope.data.examples import Example
from normscope.data.given_texts import GivenTexts
from normscope.errors import InputError
from normscope.running.memory import BatchRunner
from normscope.running.options import run_options
from normscope.running.pipeline import analyse
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model
from tests.treebank import TREEBANK

EXAMPLES = (
    Example("The cat sat on the mat, and slept.", "A cat was asleep.", row=1, score=4.2),
    Example("The river is old.", row=2),
    Example("Rain fell, and the cat sat under the tree.", "Rain fell.", row=3, score=3.5),
    Example("", "An empty first text.", row=4),
    Example("A dog barked; nobody heard it, of course.", "It walks, it sees, and it is cold today.", row=5, score=1.0),
)
TRANSLATIONS = (
    Example("the cat slept", "die katze schlief", row=1),
    Example("a red dog saw the old river", "ein roter hund sah den fluss", row=2),
)
QUICK = {
    "sinks": {"length": 8, "sequences": 2},
    "score": {"controls": 1},
    "attribution": {"sequences": 2, "orders": 1, "methods": ["rollout", "decompx"]},
    "similarity": {"pooling": "mean"},
}
CROSS = sorted(name for name, info in analyses().items() if info.supports_cross_attention)
"""Those that measure cross-attention."""
OF_PAIRS = sorted(
    name for name, info in analyses().items() if not (info.requires_cross_attention or info.requires_annotation)
)
OF_TREEBANKS = sorted(
    name for name, info in analyses().items() if not (info.requires_cross_attention or info.requires_pairs)
)


OWN = object()  # stands for the stack of the model


def run(model, corpus, kind, names, stack=OWN, **options):
    """A run of some analyses over a corpus: their tables, their metrics, and what the run counted."""
    settings = {
        "model": {"name": model.name, "stack": model.facts.stack if stack is OWN else stack},
        "device": {"name": "cpu", "batch_tokens": 48},
        "dataset": {"kind": kind},
        "analysis": {name: {"enabled": True} | QUICK.get(name, {}) | options.get(name, {}) for name in names},
        "report": {"enabled": False},
    }
    result = analyse(run_options(settings), model, corpus, progress=False)
    found = {
        name: (
            {table: result.tables[table] for table in result.owned_by(name, result.tables)},
            {metric: value for metric, value in result.metrics.items() if metric.startswith(f"{name}/")},
        )
        for name in result.analyses
    }
    return found, result.facts


def assert_alone_and_together(model, corpus, kind, groups, **options):
    """Every analysis of every group finds what it finds by itself."""
    alone = {name: run(model, corpus, kind, [name], **options)[0][name] for name in sorted({*itertools.chain(*groups)})}
    for group in groups:
        together, _ = run(model, corpus, kind, group, **options)
        assert set(together) == set(group)
        for name, (tables, metrics) in together.items():
            expected_tables, expected_metrics = alone[name]
            assert set(tables) == set(expected_tables)
            for table, rows in tables.items():
                # Analyses that build α add it up in another order than those that need not.
                label = f"{name}_{table} of {group}"
                pd.testing.assert_frame_equal(rows, expected_tables[table], rtol=1e-4, atol=1e-5, obj=label)
            assert metrics == pytest.approx(expected_metrics, rel=1e-4, abs=1e-5), (name, group)


@pytest.fixture(scope="module")
def bert(tokenizer):
    config = FAMILY_CONFIGS["bert"] | {"vocab_size": len(tokenizer), "max_position_embeddings": 160}
    return wrap(tiny_model(config, torch.float32), tokenizer)


@pytest.mark.slow
def test_analyses_of_pairs(bert):
    """Those that read a pair as one sequence, and the one that compares its texts."""
    groups = [OF_PAIRS, *(["similarity", name] for name in OF_PAIRS if name != "similarity")]
    assert_alone_and_together(bert, GivenTexts(EXAMPLES), "text", groups)


@pytest.mark.slow
def test_analyses_of_treebanks(bert, tmp_path):
    (tmp_path / "bank.conllu").write_text(TREEBANK)
    corpus = ConlluFile(tmp_path / "bank.conllu")
    assert_alone_and_together(bert, corpus, "conllu", [OF_TREEBANKS])


@pytest.mark.slow
def test_analyses_of_cross_attention(tokenizer, tmp_path):
    """Alignment needs the words of both texts."""
    config = STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer)}
    model = wrap(tiny_model(config, torch.float32), tokenizer, stack="cross")
    (tmp_path / "gold").write_text("0-0 1-1 2-2\n0-0 1p1 2-2\n")
    options = {"alignment": {"gold": {"path": str(tmp_path / "gold")}}, "attribution": {"methods": ["alti"]}}
    assert "alignment" in CROSS
    assert_alone_and_together(model, GivenTexts(TRANSLATIONS), "text", [CROSS], **options)


@pytest.mark.slow
def test_cross_attention_is_observed_for_all_or_for_none(tokenizer):
    """A stack that only one analysis needs would be another's without a word."""
    config = STACK_CONFIGS["bart"] | {"vocab_size": len(tokenizer)}
    model = wrap(tiny_model(config, torch.float32), tokenizer, stack="cross")
    gold = {"alignment": {"gold": {"path": "gold"}}}
    with pytest.raises(InputError, match="mixing the encoder unless model.stack is set; set model.stack=cross"):
        run(model, GivenTexts(TRANSLATIONS), "text", ["alignment", "mixing"], stack=None, **gold)


def test_counts_are_those_of_the_sequences_that_most_analyses_read(bert):
    facts = {group: run(bert, GivenTexts(EXAMPLES), "text", list(group))[1] for group in _GROUPS}
    mixing, similarity, both = (facts[group] for group in _GROUPS)
    for name in ("examples", "examples_used", "skipped", "sequences", "cut", "tokens", "tokens_by_category"):
        assert both[name] == mixing[name], name
    assert (both["examples"], both["sequences"], both["skipped"]) == (5, 4, {"empty": 1})
    compared = both["compared"]
    assert compared == {name: similarity[name] for name in compared}
    assert (compared["sequences"], compared["examples_used"]) == (6, 3)
    assert compared["skipped"] == {"empty": 1, "without a second text (dataset.pair_column)": 1}
    assert mixing["compared"] is None
    assert similarity["compared"] is None


_GROUPS = ("mixing",), ("similarity",), ("mixing", "similarity")


@pytest.mark.parametrize("group", [["similarity"], ["mixing", "similarity"]])
def test_an_analysis_without_a_usable_example_stops_the_run_before_its_first_batch(bert, group, monkeypatch):
    monkeypatch.setattr(BatchRunner, "run", pytest.fail)
    for_whom = " for analysis=similarity" if len(group) > 1 else ""
    with pytest.raises(
        InputError, match=rf"no usable text{for_whom} \(2 without a second text \(dataset.pair_column\)\)"
    ):
        run(bert, GivenTexts((Example("One text."), Example("Another."))), "text", group)
