"""No analysis waits for the device between the first and the last layer of a batch.

Models run on torch's `meta` device, whose tensors have shapes but no numbers: whatever needs a number of one fails there.
"""

import dataclasses
from operator import itemgetter

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.commands import ANALYSES
from benchmarks.scenarios import analyses_of, context_of, random_batch
from normscope.alignment.analysis import REFERENCE
from normscope.alignment.links import Links
from normscope.alignment.reference import Reference, SentencePair
from normscope.analyses.declarations.norms import NormsOptions
from normscope.analyses.declarations.similarity import SimilarityOptions
from normscope.analyses.declarations.syntax import SyntaxOptions
from normscope.analyses.norms import NormsAnalysis
from normscope.analyses.registry import analyses
from normscope.analyses.similarity import SimilarityAnalysis
from normscope.analyses.syntax import TREEBANK, SyntaxAnalysis
from normscope.analyses.treebank import Treebank
from normscope.data.batching import Pairing
from normscope.data.categories import ALL
from normscope.data.examples import ROOT, Annotation
from normscope.data.token_sequence import AnnotatedSentence
from normscope.data.words import NO_WORD
from normscope.linear import projections
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import ObservedStack
from normscope.models.stored import stored_weights
from normscope.running.memory import run_batch
from tests.oracles.alignment_oracle import PAIRS
from tests.oracles.alignment_oracle import batch as translations
from tests.oracles.syntax_oracle import Sentences
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model, tiny_stack

META = torch.device("meta")
aten = torch.ops.aten
COPYING = {aten.to, aten._to_copy, aten.copy_}
INDEXING = {aten.index, aten.index_put, aten.index_put_}


class Refusal(TorchDispatchMode):
    """Refuses what `meta` tensors do without complaint, but what waits for a device."""

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        result, packet = func(*args, **(kwargs or {})), func.overloadpacket
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | (kwargs or {})
        on_device = {tensor.device == META for tensor in args if isinstance(tensor, Tensor)}
        if packet in COPYING and result.device == META and False in on_device and not given.get("non_blocking"):
            raise RuntimeError("a copy to the device waits for it")
        if packet in INDEXING and True in on_device:
            indices = [index for index in given["indices"] if index is not None]
            if any(index.dtype == torch.bool or index.device != META for index in indices):
                raise RuntimeError("an index is not known on the device")
        return result


def on_meta(value):
    if isinstance(value, Tensor):
        return value.to(META)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(on_meta, value))
    return value


def moved(weights):
    """What is known of the weights of a block. Factors of W_O are computed once, in float64 on the CPU."""
    fields = {field.name: on_meta(getattr(weights, field.name)) for field in dataclasses.fields(weights)}
    factors = on_meta(weights.norm_factors)
    return dataclasses.replace(weights, **fields | {"find_norm_factors": lambda: factors})


def run(monkeypatch, model, facts, measured, batch):
    """Run a batch through analyses of a model on the `meta` device, up to the last layer."""
    layers = facts.attends
    needs = [analysis.requirements(analysis.options, facts) for analysis in measured]
    hidden = [0, *layers] if any(each.hidden for each in needs) else ()
    observer = Observer(model, facts, layers, hidden, feed_forward=any(each.feed_forward for each in needs))
    with observer:  # what is learned once, such as whether a norm centres
        observer.run(
            batch.model_inputs(), lambda block: (block.parameters.key, block.key_map), None, lambda _network: None
        )
    before = [each for _, each in model.named_parameters(remove_duplicate=False)]
    model.to(META)
    now = dict(zip(map(id, before), map(itemgetter(1), model.named_parameters(remove_duplicate=False)), strict=True))
    for place, (read, _, weights) in observer._known._found.items():
        read = [now.get(id(each), each) for each in read]
        observer._known._found[place] = read, [(id(each), each._version) for each in read], moved(weights)
    for each in before:
        if each in projections._KNOWN:
            projections._KNOWN[now[id(each)]] = {key: on_meta(found) for key, found in projections._KNOWN[each].items()}
    monkeypatch.setattr(stored_weights, "is_offloaded", lambda _module: False)
    for analysis in measured:  # waiting is allowed after the last layer
        monkeypatch.setattr(analysis, "end_batch", lambda _batch: None)
        monkeypatch.setattr(analysis, "settle", lambda: None)
        monkeypatch.setattr(analysis, "layers_to_see_again", lambda _batch: ())
    with observer, Refusal():
        run_batch(observer, batch.to(META), measured)


def with_words(batch):
    """The batch with words of two tokens."""
    units = (
        (torch.arange(batch.token_mask.shape[1]) // 2).expand_as(batch.token_mask).masked_fill(~batch.token_mask, -1)
    )
    source = None if batch.source is None else with_words(batch.source)
    return dataclasses.replace(batch, units=units, source=source)


EVERY = [name for name in ANALYSES if name != "attribution"]  # which makes passes of its own


def prepared(model_type, dtype=torch.float32):
    torch.manual_seed(0)
    model = tiny_model(FAMILY_CONFIGS[model_type], dtype)
    return model, facts_for(model_type), random_batch((3, 6), model.config.vocab_size)


@pytest.mark.parametrize("name", ["norms", ", ".join(EVERY)])
@pytest.mark.parametrize("model_type", ["bert", "llama", "mistral"])
@pytest.mark.spread(1)
def test_no_analysis_waits(monkeypatch, model_type, name):
    model, facts, batch = prepared(model_type)
    run(monkeypatch, model, facts, analyses_of(model, name.split(", ")), batch)


@pytest.mark.parametrize("model_type", ["bert", "llama"])
@pytest.mark.slow
def test_reading_the_weights_of_half_precision_does_not_wait(monkeypatch, model_type):
    model, facts, batch = prepared(model_type, torch.bfloat16)
    run(monkeypatch, model, facts, analyses_of(model, EVERY), batch)


@pytest.mark.parametrize("name", ["mixing", "norms"])
@pytest.mark.parametrize("model_type", ["bert", "llama", "mistral"])
@pytest.mark.spread(1)
def test_nothing_waits_to_learn_which_tokens_are_words(monkeypatch, model_type, name):
    model, facts, batch = prepared(model_type)
    run(monkeypatch, model, facts, analyses_of(model, name.split(", ")), with_words(batch))


@pytest.mark.parametrize("name", ["alignment", "norms", "mixing"])
@pytest.mark.parametrize("of_words", [False, True])
@pytest.mark.spread(1)
def test_no_analysis_of_cross_attention_waits(monkeypatch, name, of_words):
    model, facts = tiny_stack("marian", "cross", torch.float32), facts_for("marian", "cross")
    references = {
        row: SentencePair(own.source, own.target, Links(own.sure, own.possible)) for row, own in PAIRS.items()
    }
    context = dataclasses.replace(context_of(model, facts), resources={REFERENCE: Reference(references, {})})
    info = analyses()[name]
    options = info.options(**({"seed": 0} if name == "norms" else {}))
    run(
        monkeypatch,
        model,
        facts,
        [info.load()(options, context)],
        with_words(translations(1, 3)) if of_words else translations(1, 3),
    )


@pytest.mark.parametrize("model_type", ["bert", "llama"])
@pytest.mark.slow
def test_syntax_does_not_wait(monkeypatch, model_type):
    model, facts, batch = prepared(model_type)
    words = torch.tensor([[NO_WORD, 0, 1, 1, 2, NO_WORD]] * 3)
    annotation = Annotation(((0, 1), (2, 3), (4, 5)), {"deprel": ("det", "root", "punct")}, (1, ROOT, 1))
    batch = dataclasses.replace(
        batch, words=words, rows=(1, 2, 3), sentences=(AnnotatedSentence(annotation, (0, 1, 2)),) * 3
    )
    treebank = Treebank((ALL, "det", "punct"), Sentences)
    context = dataclasses.replace(context_of(model), has_feed_forward=True, resources={TREEBANK: treebank})
    run(monkeypatch, model, facts, [SyntaxAnalysis(SyntaxOptions(), context)], batch)


@pytest.mark.parametrize("sums", [False, True])
def test_similarity_does_not_wait(monkeypatch, sums):
    model, facts, _ = prepared("bert")
    context = dataclasses.replace(context_of(model), observed=ObservedStack(model, facts))
    pairing = Pairing((None, None), ((0, 0), (0, 0)), torch.zeros(4, dtype=torch.long))
    batch = dataclasses.replace(random_batch((4, 6), 99), rows=(1, 1, 2, 2), pairing=pairing)
    run(monkeypatch, model, facts, [SimilarityAnalysis(SimilarityOptions(sums=sums), context)], batch)


@pytest.mark.slow
def test_looking_for_massive_activations_does_not_wait_where_there_have_been_some(monkeypatch):
    model, facts, batch = prepared("llama")
    (sinks,) = analyses_of(model, ["sinks"])
    massive = sinks._massive
    massive._watched.add(1)
    run(monkeypatch, model, facts, [sinks], batch)
    assert [kept.layer for kept in massive._kept] == [1]


@pytest.mark.slow
def test_sampled_queries_are_known_on_the_host(monkeypatch):
    model, facts, batch = prepared("llama")
    norms = NormsAnalysis(NormsOptions(seed=0, sampled_queries=2), context_of(model))
    run(monkeypatch, model, facts, [norms], batch)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("waits", "message"),
    [
        (lambda block: float(block.received.sum()), "meta"),
        (lambda block: block.received.cpu(), "meta"),
        (lambda block: block.received[block.received > 0.5], "data-independent"),
        (lambda block: (block.received > 0.5).nonzero(), "data-independent"),
        (lambda block: block.received.unique(), "no fake impl"),
        (lambda block: block.received[torch.tensor([0, 1])], "not known"),
        (lambda block: block.received * torch.ones(1).to(block.received), "a copy to the device"),
    ],
)
def test_an_analysis_that_waits_is_refused(monkeypatch, waits, message):
    model, facts, batch = prepared("bert")
    (mixing,) = analyses_of(model, ["mixing"])
    monkeypatch.setattr(mixing, "update_attention", lambda block, _batch: waits(block))
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        run(monkeypatch, model, facts, [mixing], batch)
