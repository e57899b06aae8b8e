"""Attribution through all layers of every family, in float64, on a tiny random model with random biases and a padded batch."""

import pytest
import torch

from benchmarks.straightforward import decomposition
from normscope.attribution import vectors as vectors_of_sources
from normscope.attribution.passes import held_pass
from normscope.attribution.scalars import attribute_scalars
from normscope.attribution.vectors import Sources, carried, vector_maps
from normscope.linear.rules import HeldFixed, Kind, Stack, marked, parts_from, stack_of
from normscope.maths.choices import ValueBias
from tests.family_modules import final_norm_of
from tests.oracles.frozen_vectors import explicit_vectors, scaled
from tests.oracles.networks import norm_weights
from tests.tiny import FAMILY_CONFIGS, facts_for, rounds_inside, tiny_model, token_batch

pytestmark = pytest.mark.networks

LENGTHS = (9, 6, 3)
EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64 over sums of some thousand terms


@pytest.fixture
def inputs(family_model):
    return token_batch(family_model, LENGTHS)


@pytest.mark.parametrize("rule", ValueBias)
@pytest.mark.spread(1)
def test_vectors_add_up_to_the_hidden_vectors_and_scores_read_them_out(family, family_model, inputs, rule):
    """Σ_k x_{i⇐k} = h_i, and gradient × input gives what the vectors give, for any direction."""
    tokens = inputs["attention_mask"].bool()
    passed = held_pass(family_model, facts_for(family), inputs)
    vectors, hidden, _ = carried(family_model, facts_for(family), inputs, Sources(range(tokens.shape[1]), True), rule)
    size = hidden[tokens].norm(dim=-1).max()
    torch.testing.assert_close(vectors.sum(dim=0)[tokens] / size, hidden[tokens] / size, **EXACT)
    generator = torch.Generator().manual_seed(3)
    direction = torch.randn(hidden.shape, generator=generator, dtype=torch.float64) * tokens.unsqueeze(-1)
    found = attribute_scalars(passed, (passed.returned * direction).sum(dim=(1, 2)), rule)
    expected = torch.einsum("kbtm,btm->bk", vectors, direction)
    scale = expected.abs().max()
    torch.testing.assert_close(found.scores / scale, expected[:, :-1] / scale, **EXACT)
    torch.testing.assert_close(found.bias / scale, expected[:, -1] / scale, **EXACT)
    assert float(found.error.max()) < 1e-12
    assert float(found.remainder.abs().max() / scale) < 1e-12
    assert (found.scores[~tokens] == 0).all()
    _, shares = vector_maps(family_model, facts_for(family), inputs, rule)
    read = torch.einsum("kbtm,btm->btk", vectors, hidden / hidden.square().sum(dim=-1, keepdim=True))
    torch.testing.assert_close(shares[tokens], read[tokens], **EXACT)
    torch.testing.assert_close(shares.sum(dim=-1)[tokens], torch.ones(int(tokens.sum())).double(), rtol=0, atol=1e-10)


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["bert", "llama", "deberta"])
@pytest.mark.parametrize("rule", ValueBias)
def test_groups_of_sources_change_nothing(model_type, rule, monkeypatch):
    """Nine tokens and the bias: together, or at most three at a time."""
    model = tiny_model(FAMILY_CONFIGS[model_type], torch.float64)
    batch, facts = token_batch(model, LENGTHS), facts_for(model_type)
    norms, shares = vector_maps(model, facts, batch, rule, keep=True)
    monkeypatch.setitem(vectors_of_sources.ENTRIES_AT_ONCE, "cpu", 1)
    monkeypatch.setattr(vectors_of_sources, "_FEWEST", 3)
    norms_in_groups, shares_in_groups = vector_maps(model, facts, batch, rule, keep=True)
    for layer, expected in zip((*norms_in_groups, shares_in_groups), (*norms, shares), strict=True):
        torch.testing.assert_close(layer, expected, **EXACT)


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "model_type",
    ["bert", "albert", "gpt2", "llama", "gpt_neox", "olmo2", "modernbert", "deberta", "gemma2", "granite", "opt"],
)
def test_vectors_are_those_built_explicitly(model_type):
    model, facts = tiny_model(FAMILY_CONFIGS[model_type], torch.float64), facts_for(model_type)
    inputs = token_batch(model, LENGTHS)
    tokens = inputs["attention_mask"].bool()
    expected = explicit_vectors(model, facts, inputs)
    norm = final_norm_of(model)
    if norm is not None:
        last: list[torch.Tensor] = []
        handle = norm.register_forward_pre_hook(lambda _module, args: last.append(args[0]))
        with torch.inference_mode():
            model(**inputs)
        handle.remove()
        expected = scaled(norm_weights(norm, facts), expected, last[0])
    vectors = carried(model, facts, inputs, Sources(range(tokens.shape[1]), False), ValueBias.token).parts.permute(
        1, 2, 0, 3
    )
    exact = {"rtol": 1e-5, "atol": 1e-5} if rounds_inside(model) else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(vectors[tokens], expected[tokens], **exact)


def test_the_straightforward_decomposition_gives_the_same():
    """The benchmark's own implementation, which shares nothing with ours, bias and all."""
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    inputs = token_batch(model, LENGTHS)
    vectors = carried(model, facts_for("bert"), inputs, Sources(range(max(LENGTHS)), True), ValueBias.token).parts
    for row, expected in enumerate(decomposition(model, inputs)):
        length = LENGTHS[row]
        sources = [*range(length), max(LENGTHS)]
        torch.testing.assert_close(vectors[sources, row, :length].transpose(0, 1), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", ValueBias)
def test_values_biases_of_the_first_layer_belong_to_the_bias_or_to_their_tokens(rule):
    """With zero vectors in place of the tokens', only biases are left: b_V of the first layer is the one that may move."""
    model, facts = tiny_model(FAMILY_CONFIGS["bert"], torch.float64), facts_for("bert")
    norm = model.embeddings.LayerNorm
    torch.nn.init.zeros_(norm.weight)
    torch.nn.init.zeros_(norm.bias)
    inputs = token_batch(model, (5,))
    passed = held_pass(model, facts, inputs)
    found = attribute_scalars(passed, passed.returned[:, 0, 3], rule)
    credited = rule is ValueBias.decompx
    assert bool((found.scores != 0).all()) is credited
    with_value_bias = float(found.scores.sum() + found.bias)
    torch.testing.assert_close(with_value_bias, float(found.target), rtol=1e-12, atol=0)


def test_value_biases_are_found_once_and_again_when_a_parameter_has_changed():
    model, facts = tiny_model(FAMILY_CONFIGS["bert"], torch.float64), facts_for("bert")
    own = model.encoder.layer[0].attention.self.value.bias
    passed = held_pass(model, facts, token_batch(model, (5,)))
    before = passed.value_bias()
    assert torch.equal(before.flatten(), own)
    assert passed.value_bias() is before
    with torch.no_grad():
        own *= 2
    assert torch.equal(passed.value_bias().flatten(), own)


@pytest.mark.spread(5)
@pytest.mark.kinds
def test_the_model_is_left_as_it_was(family, family_model, inputs):
    before = [parameter.requires_grad for parameter in family_model.parameters()]
    with torch.inference_mode():
        expected = family_model(**inputs).last_hidden_state
    held_pass(family_model, facts_for(family), inputs)
    assert [parameter.requires_grad for parameter in family_model.parameters()] == before
    assert torch.is_grad_enabled()
    with torch.inference_mode():
        torch.testing.assert_close(family_model(**inputs).last_hidden_state, expected, rtol=0, atol=0)


@pytest.mark.kinds
@pytest.mark.spread(4)
def test_scores_through_attention_weights_add_up(family, family_model, inputs):
    """With what softmaxes absorb, and for the texts of a batch as for one alone."""
    facts, tokens = facts_for(family), inputs["attention_mask"].bool()
    passed = held_pass(family_model, facts, inputs, through=True)
    generator = torch.Generator().manual_seed(3)
    direction = torch.randn(passed.hidden.shape, generator=generator, dtype=torch.float64) * tokens.unsqueeze(-1)
    together = attribute_scalars(passed, (passed.returned * direction).sum(dim=(1, 2)))
    first = {name: values[:1] for name, values in inputs.items()}
    passed = held_pass(family_model, facts, first, through=True)
    found = attribute_scalars(passed, (passed.returned * direction[:1]).sum()[None])
    torch.testing.assert_close(found.scores, together.scores[:1], **EXACT)
    assert max(float(found.error.max()), float(together.error.max())) < 1e-12
    assert float(found.remainder.abs()) > 0


def test_scores_through_attention_are_relevances_passed_back_by_hand():
    """One layer of one head, written out with the rules of AttnLRP: half of a product to each factor, and of a softmax
    R_i = s_i (R'_i − α_i Σ_j R'_j), where s are its scores and R' what its weights receive."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(5, 4, dtype=torch.float64) for _ in range(3))
    target = torch.randn(5, 4, dtype=torch.float64)
    vectors = torch.randn(1, 5, 4, dtype=torch.float64)

    class Attention(torch.nn.Module):
        def forward(self, x):
            q, k, v = x * query, x * key, x * value
            return torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v

    ones, absorbed = (torch.ones((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    leaf = vectors.clone().requires_grad_()
    module = Attention()
    with HeldFixed(module, ones, absorbed=absorbed):
        made = module(marked(leaf.clone(), Kind.LINEAR))
    gradient, of_softmax = torch.autograd.grad((made * target).sum(), [leaf, absorbed])
    x = vectors[0]
    q, k, v = x * query, x * key, x * value
    scores = q @ k.T
    weights = scores.softmax(dim=-1)
    of_values = (weights.T @ target) * v / 2
    of_weights = (target @ v.T) * weights / 2
    of_scores = of_weights - weights * of_weights.sum(dim=-1, keepdim=True)  # divided by the scores
    of_queries, of_keys = (of_scores @ k) * q / 2, (of_scores.T @ q) * k / 2
    expected = (of_values + of_queries + of_keys).sum(dim=-1)
    torch.testing.assert_close((gradient * vectors).sum(dim=-1)[0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(expected.sum() + of_softmax, (weights @ v * target).sum(), rtol=1e-12, atol=1e-12)


def test_what_is_written_over_is_made_again_for_a_late_reader():
    """A network writes its slopes over what it reads, unless something else reads that, in whatever order."""
    torch.manual_seed(0)
    given, weight, parts = torch.randn(2, 5, 4).double(), torch.randn(7, 4).double(), torch.randn(3, 2, 5, 4).double()
    marked(given, Kind.LINEAR)
    given._stack, before = (start := Stack(None)), parts.clone()
    with torch.inference_mode(), HeldFixed(torch.nn.Identity(), carries=True):
        inner = torch.nn.functional.linear(given, weight)
        activated = torch.nn.functional.gelu(inner)
        with torch._C.DisableTorchFunction():
            slope, expected = activated / inner, parts @ weight.T
            torch.testing.assert_close(_parts_of(activated, {start: parts}), expected * slope)
        late = inner + activated
        both = torch.nn.functional.layer_norm(late + inner, [7])
    deviation = (late + inner).var(dim=-1, correction=0, keepdim=True).add(1e-5).sqrt()
    sums = expected * (2 + slope)
    of_both = (sums - sums.mean(dim=-1, keepdim=True)) / deviation
    for tensor, made in ((both, of_both), (late, expected * (1 + slope)), (inner, expected)):
        torch.testing.assert_close(_parts_of(tensor, {start: parts}), made)
    together = parts_from({start: parts}, [stack_of(each) for each in (inner, both, late)], bias=False)
    for got, made in zip(together, (expected, of_both, expected * (1 + slope)), strict=True):
        torch.testing.assert_close(got, made)
    assert torch.equal(parts, before)


def _parts_of(vectors, known):
    return parts_from(known, [stack_of(vectors)], bias=False)[0]


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_module_that_moves_tokens_is_no_activation(tokens, shape):
    """A shift of tokens changes no dimension but its own, and is 0 at 0; a module first meets a text of one token."""
    torch.manual_seed(0)
    shift, given = torch.nn.ZeroPad2d((0, 0, 1, -1)), torch.randn(*shape, tokens, 4).double()
    parts = torch.randn(3, *given.shape).double()
    marked(given, Kind.LINEAR)
    given._stack = start = Stack(None)
    with torch.inference_mode(), HeldFixed(shift, carries=True):
        moved = shift(given)
    expected = torch.stack([shift(part) for part in parts])
    torch.testing.assert_close(_parts_of(moved, {start: parts}), expected, rtol=0, atol=0)
