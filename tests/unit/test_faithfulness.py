"""What is erased to test scores, what the model's answer is worth without it, and what the analysis refuses."""

import importlib.util
import re

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from normscope.analyses.attribution import AttributionAnalysis, _how_many, methods_of
from normscope.analyses.base import AnalysisContext
from normscope.analyses.declarations.attribution import AttributionMethod, AttributionOptions, AttributionStage, Erasure
from normscope.analyses.faithfulness import by_score, trials, without
from normscope.attribution.baselines import Baseline
from normscope.attribution.methods import MapMethod
from normscope.attribution.readouts import (
    ContinuationReadout,
    EmbeddingReadout,
    LossReadout,
    PredictionReadout,
    readout_of,
)
from normscope.errors import InputError
from normscope.maths.choices import AttentionRule, Pooling, ReadoutTarget, ValueBias
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.predictor import Predictor
from normscope.models.load.task_heads import Head
from normscope.running.options import RunOptions
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model


def test_shares_are_rounded_up_but_not_because_of_floating_point():
    order = np.arange(100)
    sizes = [len(each.erased) for each in trials([("alti", order)], [7.0, 7.5]) if each.measure == "comprehensiveness"]
    assert 0.07 * 100 > 7
    assert sizes == [7, 8]


def test_the_most_important_tokens_are_never_all_of_them():
    erased = {
        len(each.erased) for each in trials([("alti", np.arange(3))], [100.0]) if each.measure == "comprehensiveness"
    }
    assert erased == {2}


@pytest.mark.parametrize(
    ("some", "methods", "said"),
    [
        (1, 1, "The method is"),
        (0, 1, "The method is not"),
        (6, 6, "All 6 methods are"),
        (5, 6, "5 of the 6 methods are"),
        (1, 6, "1 of the 6 methods is"),
        (0, 6, "None of the 6 methods is"),
    ],
)
def test_how_many_methods_are_better_than_random(some, methods, said):
    assert _how_many(some, methods) == said


def test_of_equal_scores_the_first_is_ranked_higher():
    scores = np.array([9.0, 1.0, -2.0, 1.0, 3.0])
    assert by_score(scores, np.array([1, 2, 3, 4])).tolist() == [4, 1, 3, 2]


def test_tokens_are_masked_or_taken_out_with_their_segments():
    kinds = torch.tensor([[3, 8, 9, 2], [0, 0, 1, 1], [-1, -1, -1, -1]])
    assert without(kinds, frozenset({1}), 4).tolist() == [[3, 4, 9, 2], [0, 0, 1, 1], [-1] * 4]
    assert without(kinds, frozenset({1, 3}), None).tolist() == [[3, 9], [0, 1], [-1, -1]]
    assert kinds[0].tolist() == [3, 8, 9, 2]


def classifier(**config) -> PredictionReadout:
    tiny = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    head = BertForSequenceClassification(BertConfig(**tiny, **config))
    return PredictionReadout(Predictor(Head.CLASS, head, None))


def test_a_classifier_takes_padding_if_it_has_a_token_for_it():
    assert classifier().takes_padding
    assert not classifier(pad_token_id=None).takes_padding


@pytest.mark.parametrize(("untouched", "sign"), [(2.0, 1), (-2.0, -1)])
def test_of_a_single_logit_the_side_of_the_whole_text_counts(untouched, sign):
    readout, left = classifier(num_labels=1), torch.tensor([[0.5]])
    assert readout.scalars(left, torch.tensor([[untouched]])).tolist() == [sign * 0.5]
    expected = 1 / (1 + np.exp(-sign * 0.5))
    assert readout.values(left, torch.tensor([[untouched]])).tolist() == pytest.approx([expected])


def test_what_is_read_out_is_what_the_checkpoint_has_weights_for():
    model = tiny_model(FAMILY_CONFIGS["gpt2"], torch.float64)

    def loaded(*kinds):
        heads = dict.fromkeys(kinds, model)
        return LoadedModel(model, None, facts_for("gpt2"), "tiny", None, 9, load_head=heads.get)

    both = loaded(Head.CLASS, Head.NEXT_TOKEN)
    assert readout_of(both, None)[0].predictor.kind is Head.CLASS
    assert readout_of(loaded(Head.NEXT_TOKEN), None)[0].predictor.kind is Head.NEXT_TOKEN
    assert readout_of(both, None, ReadoutTarget.next)[0].predictor.kind is Head.NEXT_TOKEN
    assert isinstance(readout_of(both, None, ReadoutTarget.embedding)[0], EmbeddingReadout)
    assert isinstance(readout_of(both, Pooling.cls)[0], EmbeddingReadout)
    assert isinstance(readout_of(both, None, ReadoutTarget.loss)[0], LossReadout)
    assert type(readout_of(both, None, ReadoutTarget.answer, 2)[0]) is ContinuationReadout
    for target in (ReadoutTarget.next, ReadoutTarget.answer, ReadoutTarget.loss):
        assert readout_of(loaded(), None, target) is None
    assert readout_of(loaded(Head.NEXT_TOKEN), None, ReadoutTarget.label) is None
    options = AttributionOptions(enabled=True, pooling=Pooling.mean, target=ReadoutTarget.label)
    with pytest.raises(InputError, match=r"pooling=mean: it applies to embeddings only, got .*target=label"):
        options.validate(None)


def test_losses_are_those_of_tokens_that_remain():
    options = AttributionOptions(enabled=True, target=ReadoutTarget.loss, erasure=Erasure.mask)
    with pytest.raises(
        InputError,
        match=r"erasure=mask: target=loss measures the loss of the tokens that remain, so tokens are removed; leave",
    ):
        options.validate(None)


@pytest.mark.parametrize(
    ("family", "stack", "options", "message"),
    [
        (
            "gpt2",
            None,
            {"methods": [AttributionMethod.globenc]},
            "globenc is not defined for this gpt2: it needs layer normalisations",
        ),
        ("gpt2", None, {"stage": AttributionStage.attnresln_n}, "stage=attnresln_n is not defined for gpt2"),
        (
            "marian",
            "decoder",
            {},
            "stack=decoder of marian alternates self-attention and cross-attention; set stack=encoder, or "
            "attribute translations with stack=cross",
        ),
    ],
)
def test_what_is_not_defined_says_so_before_anything_is_loaded(family, stack, options, message):
    with pytest.raises(InputError, match=re.escape(message)) as error:
        AttributionAnalysis.requirements(AttributionOptions(seed=0, **options), facts_for(family, stack))
    assert str(error.value).startswith("analysis=attribution: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": [AttributionMethod.alti, AttributionMethod.rollout]}, "methods: rollout is not defined for trans"),
        ({"target": ReadoutTarget.next}, "target=next: not defined for translations"),
        ({"pooling": Pooling.mean}, "pooling=mean: not defined for translations"),
        ({"erasure": Erasure.remove}, "erasure=remove: not defined for translations"),
        ({"bias": ValueBias.decompx}, "bias=decompx: not defined for translations"),
    ],
)
def test_what_translations_do_not_have_is_refused(options, message):
    facts = facts_for("marian", "cross")
    with pytest.raises(InputError, match=re.escape(f"analysis.attribution.{message}")) as error:
        AttributionAnalysis.requirements(AttributionOptions(seed=0, **options), facts)
    assert "model.stack=encoder" in str(error.value)
    assert AttributionAnalysis.requirements(AttributionOptions(seed=0), facts).resources


@pytest.mark.parametrize(("family", "maps"), [("bert", 6), ("gpt2", 5), ("deberta-v2", 1), ("marian", 6)])
def test_by_default_all_maps_that_a_family_defines(family, maps):
    facts = facts_for(family, "encoder" if family == "marian" else None)
    assert AttributionAnalysis.requirements(AttributionOptions(seed=0), facts).token_maps == maps


def test_scores_that_follow_attention_weights_join_the_default_methods():
    through = AttributionOptions(seed=0, attention=AttentionRule.through)
    assert methods_of(AttributionOptions(seed=0)) == (None, [])
    assert methods_of(through) == (None, [Baseline.THROUGH_ATTENTION])
    through.methods = [AttributionMethod.rollout]
    assert methods_of(through) == ([MapMethod.ROLLOUT], [])


def test_integrated_gradients_need_captum(monkeypatch):
    wanted = AttributionOptions(enabled=True, seed=0, methods=[AttributionMethod.integrated_gradients])
    wanted.validate(RunOptions())
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(
        InputError, match=r"integrated_gradients needs Captum, which is not installed; run `pip install captum`"
    ):
        wanted.validate(RunOptions())
    AttributionOptions(enabled=True, seed=0, methods=[AttributionMethod.gradient_x_input]).validate(RunOptions())


def test_masking_needs_a_mask_token():
    context = AnalysisContext(layers=[1], categories=[], parameters={})
    with pytest.raises(InputError, match=r"analysis.attribution.erasure=mask: the tokenizer has no mask token"):
        AttributionAnalysis(AttributionOptions(seed=0, erasure=Erasure.mask), context)
    for erasure in (None, Erasure.remove):
        AttributionAnalysis(AttributionOptions(seed=0, erasure=erasure), context)
