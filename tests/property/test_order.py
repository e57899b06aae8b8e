"""Neither the order of examples nor the way they are batched can change what is measured."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from normscope.analyses.base import AnalysisContext
from normscope.analyses.declarations.mixing import MixingOptions
from normscope.analyses.mixing import MixingAnalysis
from normscope.data.batching import batches
from normscope.data.categories import ALL, CATEGORIES
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.models.observe.observer import Observer
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model
from tests.unit.test_data import Reader

WORDS = ["cat", "river", ",", ".", "[MASK]", "walks", "old", "unbelievably"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
corpora = st.lists(st.tuples(texts, st.none() | texts), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_model(FAMILY_CONFIGS["bert"] | {"vocab_size": len(tokenizer)}, torch.float64)


def summary(model, tokenizer, examples, batch_tokens):
    encoder = Encoder(Reader(tokenizer), DatasetOptions(kind=DatasetKind.sample, mask_fraction=0.2, seed=0))
    analysis = MixingAnalysis(MixingOptions(), AnalysisContext([1, 2, 3], [*CATEGORIES, ALL], {}))
    with Observer(model, facts_for("bert")) as observer:
        for batch in batches(examples, encoder, batch_tokens, CorpusCounts()):
            observer.run(batch.model_inputs(), lambda block, batch=batch: analysis.update_attention(block, batch))
    return analysis.result().tables["by_layer"]


@given(corpora=corpora, seed=st.randoms(use_true_random=False), batch_tokens=st.integers(1, 100))
@settings(max_examples=8)
def test_order_and_batches_change_nothing(model, tokenizer, corpora, seed, batch_tokens):
    corpora = [Example(*pair) for pair in corpora]
    shuffled = corpora.copy()
    seed.shuffle(shuffled)
    first = summary(model, tokenizer, corpora, 4096)
    second = summary(model, tokenizer, shuffled, batch_tokens)
    numbers = list(first.select_dtypes("floating"))
    assert first.drop(columns=numbers).equals(second.drop(columns=numbers))
    torch.testing.assert_close(torch.tensor(first[numbers].values), torch.tensor(second[numbers].values))
    assert first[numbers].min().min() >= 0
    assert first[numbers].max().max() <= 1
