"""Models that are not from transformers are observed exactly, or refused in one line."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import normscope
from normscope.attribution.passes import held_pass
from normscope.data.token_sequence import Batching
from normscope.errors import InputError
from normscope.models.observe.observer import Observer, Replacement
from tests import own_models
from tests.contract.test_skipped_layers import compare
from tests.one_text import attribute, attribution_maps, decompose, similarity
from tests.own_models import MODELS

TEXTS = [[5, 7, 12, 3], [9, 1, 4, 8]]


def built(name):
    """A model in float64 whose norms and biases do something."""
    torch.manual_seed(3)
    model = MODELS[name][0]().double()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def hooked(model, path):
    """What the untouched model's attention gives in each layer, for both texts."""
    outputs = []

    def take(_module, _args, output):
        vectors = output[0] if isinstance(output, tuple) else output
        outputs.append(vectors if len(vectors) == len(TEXTS) else vectors.transpose(0, 1))

    handles = [
        model.get_submodule(path.format(layer, 2 * layer)).register_forward_hook(take) for layer in range(own_models.L)
    ]
    ids = torch.tensor(TEXTS)
    arguments = (ids, torch.ones_like(ids)) if "attention_mask" in model.forward.__code__.co_varnames else (ids,)
    with torch.no_grad():
        model.eval()(*arguments)
    for handle in handles:
        handle.remove()
    return outputs


@pytest.fixture(scope="module", params=MODELS)
def own(request):
    """A model's name, and the model wrapped."""
    return request.param, normscope.wrap(built(request.param))


@pytest.mark.spread(1)
def test_sums_equal_what_the_untouched_model_computes(own):
    name, wrapped = own
    expected = hooked(built(name), MODELS[name][1])
    blocks = list(normscope.observe(wrapped, TEXTS))
    assert len(blocks) == len(expected) == own_models.L
    for block, output in zip(blocks, expected, strict=True):
        weights = block.weights
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-12)
        gate = torch.ones_like(block.value[..., :1]) if block.gate is None else block.gate
        made = torch.einsum(
            "bhqk,bhkd,bhqd,hdm->bqm", weights, block.value, gate.expand_as(block.value), block.parameters.output_weight
        )
        if block.parameters.output_bias is not None:
            made = made + block.parameters.output_bias
        torch.testing.assert_close(made, output, rtol=1e-10, atol=1e-10)
    proof = wrapped.verification if name.startswith("attention-only") else wrapped.layers_verification
    assert proof.error < 1e-10


@pytest.mark.spread(1)
def test_whole_models_are_followed(own):
    """Vectors of whole models are rebuilt when maps are made; a difference would be an error."""
    name, wrapped = own
    if name.startswith("attention-only"):
        with pytest.raises(InputError, match="no feed-forward network"):
            attribution_maps(wrapped, TEXTS[0])
        return
    maps = attribution_maps(wrapped, TEXTS[0])
    gated = {"decompx", "rollout"}
    assert maps.keys() >= (gated if name.startswith("gated") else gated | {"alti", "norm_rollout"})


@pytest.mark.parametrize("name", ["gpt", "heads-as-modules", "einsum", "two-factors", "multi-head-attention"])
def test_one_vector_reads_the_direct_effects_of_all_heads(name):
    """In a pre-LN model, what every head of every layer takes from a token reaches the output along one path."""
    wrapped, ids = normscope.wrap(built(name)), torch.arange(9).unsqueeze(0)
    passed = held_pass(
        wrapped.model, wrapped.facts, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, parts=True
    )
    target = passed.returned[0, -1] @ torch.linspace(-1, 2, passed.returned.shape[-1], dtype=torch.float64)
    effects = passed.effects(target, direct=True).heads
    assert effects.shape == (own_models.L, own_models.H, 9)
    parts = [block.weights[0, :, -1, :, None] * block.transformed()[0] for block in normscope.observe(wrapped, ids)]
    parts = torch.stack(parts).flatten(0, 2)
    reader = torch.linalg.lstsq(parts, effects.flatten(), driver="gelsd").solution
    torch.testing.assert_close(parts @ reader, effects.flatten(), rtol=1e-8, atol=1e-8 * float(effects.abs().max()))


@pytest.mark.spread(1)
def test_passes_begin_in_the_middle(own):
    wrapped, ids = own[1], torch.tensor(TEXTS)
    compare(wrapped.model, wrapped.facts, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


@pytest.mark.parametrize("name", ["layers-in-separate-lists", "layers-as-pairs"])
def test_inputs_of_layers_that_no_module_runs_can_be_replaced(name):
    model = built(name).eval()
    wrapped = normscope.wrap(model)
    inputs = {"input_ids": torch.tensor(TEXTS), "attention_mask": torch.ones(2, 4, dtype=torch.long)}
    replaced = Replacement(torch.arange(own_models.D), torch.full((own_models.D,), 0.25, dtype=torch.float64))
    hidden = {}
    with Observer(wrapped.model, wrapped.facts, hidden=[own_models.L]) as observer:
        observer.run(inputs, lambda _block: None, hidden.__setitem__, replacements={1: replaced})
    with torch.no_grad():
        model.emb.weight.fill_(0.25)
        if name == "layers-as-pairs":
            model.to_logits = nn.Identity()
        expected = model(*([inputs["input_ids"], inputs["attention_mask"]][: 2 if name.endswith("lists") else 1]))
    torch.testing.assert_close(hidden[own_models.L], expected)


@pytest.mark.slow
def test_vectors_that_the_model_changes_in_place_are_kept():
    """`x += attention(x)` and `x = x + attention(x)` give the same results."""
    wrapped = [normscope.wrap(built(name)) for name in ("layers-as-pairs", "pairs-in-place")]
    one, other = (decompose(model, TEXTS[0]) for model in wrapped)
    torch.testing.assert_close(one.maps["attn_n"], other.maps["attn_n"])
    maps = [attribution_maps(model, TEXTS[0]) for model in wrapped]
    for method, expected in maps[0].items():
        np.testing.assert_allclose(maps[1][method].total, expected.total, atol=1e-12)


def test_the_model_stays_as_it_is():
    model = built("multi-head-attention").train()
    model.requires_grad_(True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modules = [name for name, _ in model.named_modules()]
    decompose(normscope.wrap(model), TEXTS[0])
    assert [name for name, _ in model.named_modules()] == modules
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.slow
def test_a_text_is_ids_or_names_of_tokens():
    model = built("gpt")
    by_number = normscope.wrap(model)
    by_name = normscope.wrap(model, tokens=[f"t{number}" for number in range(own_models.V)])
    results = [
        decompose(by_number, [5, 7, 12]),
        decompose(by_number, "5 7 12"),
        decompose(by_name, [5, 7, 12]),
        decompose(by_name, "t5 t7 t12"),
    ]
    assert [result.tokens for result in results] == [("5", "7", "12")] * 2 + [("t5", "t7", "t12")] * 2
    assert all(torch.equal(result.maps["attn_n"], results[0].maps["attn_n"]) for result in results)
    assert len(decompose(by_number, TEXTS)) == 2


@pytest.mark.slow
def test_how_a_module_is_called_can_be_given():
    class Reversed(own_models.TorchEncoder):
        def forward(self, padding, words):
            return super().forward(words, ~padding)

    torch.manual_seed(3)
    wrapped = normscope.wrap(Reversed().double(), inputs=lambda ids, mask: {"words": ids, "padding": mask == 0})
    assert wrapped.batching is Batching.PADDED
    expected = normscope.wrap(built_like(wrapped))
    got, wanted = (decompose(model, TEXTS[0]) for model in (wrapped, expected))
    torch.testing.assert_close(got.ratios, wanted.ratios)


def built_like(wrapped):
    """The same model with the usual arguments."""
    model = own_models.TorchEncoder().double()
    model.load_state_dict({name: value for name, value in wrapped.model.model.state_dict().items() if "[" not in name})
    return model


@pytest.mark.slow
def test_modules_may_take_and_return_the_axis_of_tokens_first():
    class Tutorial(own_models.TorchEncoder):
        def __init__(self):
            super().__init__(batch_first=False)
            self.decoder = nn.Linear(own_models.D, own_models.V)

        def forward(self, src):
            mask = torch.full((len(src), len(src)), float("-inf")).triu(1)
            return self.decoder(self.encoder(self.embed(src) + self.position.weight[: len(src), None], mask))

    torch.manual_seed(3)
    tutorial = Tutorial().double()
    wrapped = normscope.wrap(tutorial, inputs=lambda ids, _mask: ids.T)
    got = decompose(wrapped, TEXTS[0])
    with torch.no_grad(), Observer(wrapped.model, wrapped.facts, hidden=[own_models.L]) as observer:
        hidden = {}
        ids = torch.tensor(TEXTS)
        observer.run(
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, lambda _block: None, hidden.__setitem__
        )
        torch.testing.assert_close(tutorial.decoder(hidden[own_models.L]).transpose(0, 1), tutorial.eval()(ids.T))
    assert got.tokens == tuple(map(str, TEXTS[0]))
    assert attribution_maps(wrapped, TEXTS[0])["decompx"] is not None


@pytest.mark.slow
def test_models_that_take_padding_for_tokens_read_texts_of_one_length():
    wrapped = normscope.wrap(built("without-mask"))
    assert wrapped.batching is Batching.EQUAL_LENGTHS
    texts = [[1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11]]
    together, *alone = (
        normscope.run("mixing", model=wrapped, texts=some).tables["mixing_by_layer"].query("category == 'all'")
        for some in (texts, *([text] for text in texts))
    )
    assert len(together)
    sums = sum(table["mean"].to_numpy() * table["count"].to_numpy() for table in alone)
    np.testing.assert_allclose(together["mean"] * together["count"], sums, rtol=1e-10)
    with pytest.raises(InputError, match="expected texts of the same length in a batch"):
        decompose(wrapped, texts)


class Changed(own_models.CausalSelfAttention):
    """Attention with something that is no rule of attention."""

    def __init__(self, what):
        super().__init__(flash=False, bias=True)
        self.what = what

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, own_models.H, -1).transpose(1, 2) for z in self.c_attn(x).chunk(3, dim=-1))
        if self.what == "clipped values":
            v = v.clamp(-0.5, 0.5)
        a = ((q @ k.mT) / 3).masked_fill(self.mask[:, :, :t, :t] == 0, -torch.inf).softmax(-1)
        if self.what == "smoothed weights":
            a = 0.9 * a + 0.1 / t
        if self.what == "other values":
            v = v.roll(1, dims=2)
        y = (a @ v).transpose(1, 2).reshape(b, t, -1)
        if self.what == "gate":
            y = y * torch.sigmoid(x)
        if self.what == "dropout":
            y = nn.functional.dropout(y, 0.5)
        return self.c_proj(y)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("smoothed weights", "multiply no values"),
        ("other values", "values are made of several tokens' vectors each"),
        ("dropout", "dropout is active"),
    ],
)
def test_sabotaged_attention_is_refused_with_the_line_of_the_code(what, reason):
    model = own_models.NanoGPT().double()
    for block in model.transformer.h:
        block.attn = Changed(what).double()
    refused(model, rf"NanoGPT is refused because .*{reason}.* \(test_own_models.py, line \d+, in forward\)")


@pytest.mark.parametrize("what", ["clipped values", "gate"])
def test_attention_may_clip_its_values_or_have_a_gate(what):
    torch.manual_seed(3)
    model = own_models.NanoGPT().double()
    for block in model.transformer.h:
        block.attn = Changed(what).double()
    assert normscope.wrap(model).layers_verification.error < 1e-12


@pytest.mark.parametrize(
    "build", [lambda: Hybrid(), lambda: own_models.Stack(own_models.MultipliedResidual)], ids=["hybrid", "multiplied"]
)
def test_networks_may_come_first_and_residual_connections_carry_multiples(build):
    torch.manual_seed(3)
    wrapped = normscope.wrap(build().double())
    assert wrapped.layers_verification.error < 1e-12
    assert wrapped.facts.layers == own_models.L


class Scripted(nn.Module):
    """Not a module of a model, but something near it."""

    def __init__(self, result):
        super().__init__()
        self.table, self.result = nn.Embedding(8, 4), result

    def forward(self, ids):
        return self.result(self.table(ids))


class Hybrid(own_models.Pairs):
    """A layer without attention comes first."""

    def __init__(self):
        super().__init__()
        self.layers.insert(0, nn.ModuleList([own_models.MLP(), own_models.MLP()]))


class NormsOutside(own_models.NanoGPT):
    """Layers are given what the norms before attention make, which run outside them."""

    class Block(own_models.Block):
        def forward(self, x, normed):
            x = x + self.attn(normed)
            return x + self.mlp(self.ln_2(x))

    def __init__(self):
        super().__init__()
        self.transformer.h = nn.ModuleList(self.Block(flash=True, bias=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(own_models.D) for _ in range(2))

    def forward(self, idx):
        x = self.transformer.wte(idx)
        for norm, block in zip(self.norms, self.transformer.h, strict=True):
            x = block(x, norm(x))
        return x


class Needs(own_models.NoMask):
    """A model that needs a second argument."""

    def forward(self, x, language):
        return super().forward(x) + language


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(2, 2), "Linear fails on token ids of shape"),
        (lambda: Scripted(lambda _: None), "to return a vector for each token, of shape .2, 5, .., got no tensor"),
        (
            lambda: Scripted(lambda vectors: vectors),
            "Scripted is refused because no softmax attention was found",
        ),
        (lambda: NormsOutside(), r"the attention of 1 layer \(2\) cannot be observed"),
        (lambda: own_models.LinearAttention(), "no softmax attention was found"),
        (lambda: torch.compile(own_models.NanoGPT()), "expected a module that runs its own code, got a compiled one"),
        (lambda: Needs(), "Needs fails on token ids of shape .2, 5.: .* pass inputs="),
    ],
)
def test_what_is_no_such_model_is_refused(model, message):
    refused(model(), message)


def refused(model, message):
    with pytest.raises(InputError, match=message) as caught:
        normscope.wrap(model)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_wrong_texts_and_names_are_explained():
    wrapped = normscope.wrap(built("gpt"))
    for text, message in (
        ("5 river", r"expected token names separated by spaces \(0, 1, 2, …\), got 'river'"),
        ([5, 61], "expected token ids from 0 to 60, got 61"),
        ([1] * 65, "fails on 1 text of 65 tokens|longer than 64 tokens"),
    ):
        with pytest.raises(InputError, match=message):
            decompose(wrapped, text)
    for tokens, message in (
        (["a", "a"], "expected distinct names, got 'a' twice"),
        (["a b"], "expected a name without spaces for each token id, got 'a b' for id 0"),
        ([str(number) for number in range(62)], "expected at most 61 names"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            normscope.wrap(built("gpt"), tokens=tokens)


class Skipping(own_models.NanoGPT):
    """Something else writes to the hidden vectors, but only in texts with token 60 three times or of more than 12 tokens."""

    def forward(self, idx):
        x = self.transformer.wte(idx)
        for block in self.transformer.h:
            x = block(x)
            if idx.shape[1] > 12 or bool((idx == 60).sum() > 2):
                x = x + self.transformer.wte(idx)
        return self.transformer.ln_f(x)


@pytest.mark.parametrize("text", [[60, 60, 3, 60], list(range(13))])
def test_what_a_probe_cannot_show_is_noticed_when_the_model_runs(text):
    torch.manual_seed(3)
    wrapped = normscope.wrap(Skipping().double())
    decompose(wrapped, [1, 2, 3])
    with pytest.raises(InputError, match="layer 2 does not read what layer 1 returns"):
        decompose(wrapped, text)


class Convolved(own_models.Block):
    """A network that mixes tokens."""

    def __init__(self):
        super().__init__(flash=True, bias=True)
        self.mlp = nn.Conv1d(own_models.D, own_models.D, 3, padding=1)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x).transpose(1, 2)).transpose(1, 2)


def test_only_blocks_of_layers_whose_networks_mix_tokens_are_observed():
    model = own_models.NanoGPT()
    model.transformer.h = nn.ModuleList(Convolved() for _ in range(2))
    wrapped = normscope.wrap(model.double())
    decompose(wrapped, TEXTS[0])
    with pytest.raises(InputError, match="layer 1 of this NanoGPT does more than add what feed-forward networks give"):
        attribution_maps(wrapped, TEXTS[0])


class Pointwise(own_models.Block):
    """A network of convolutions of width 1, which are linear layers."""

    def __init__(self):
        super().__init__(flash=True, bias=True)
        size = own_models.D
        self.mlp = nn.Sequential(nn.Conv1d(size, 2 * size, 1), nn.GELU(), nn.Conv1d(2 * size, size, 1))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x).transpose(1, 2)).transpose(1, 2)


def test_the_convolutions_of_a_wrapped_model_stay_its_own():
    """Only the copy has linear layers in their place."""
    model = own_models.NanoGPT()
    model.transformer.h = nn.ModuleList(Pointwise() for _ in range(2))
    model = model.double().eval()
    names = list(model.state_dict())
    assert normscope.wrap(model).layers_verification.error < 1e-9
    assert list(model.state_dict()) == names


class OwnNorm(nn.Module):
    """A norm with names of its own, which adds ε to the standard deviation, as in the Annotated Transformer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = own_models.weight(own_models.D), own_models.weight(own_models.D)

    def forward(self, x):
        return self.a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-4) + self.b


class UnbiasedNorm(OwnNorm):
    """A norm with the unbiased variance."""

    def forward(self, x):
        return (1 + self.a) * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-6).sqrt()


class QueryNorm(own_models.CausalSelfAttention):
    """Norms of queries and keys, keys and values in one layer, and a window."""

    def __init__(self):
        super().__init__(flash=True, bias=False)
        self.to_q, self.to_kv = nn.Linear(own_models.D, own_models.D), nn.Linear(own_models.D, 2 * own_models.D)
        self.of_q, self.of_k = (nn.LayerNorm(own_models.D // own_models.H) for _ in range(2))

    def forward(self, x):
        b, t, _ = x.shape
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (z.view(b, t, own_models.H, -1) for z in (self.to_q(x), k, v))
        seen = torch.ones(t, t, dtype=torch.bool).tril().triu(-2)
        y = nn.functional.scaled_dot_product_attention(
            self.of_q(q).transpose(1, 2), self.of_k(k).transpose(1, 2), v.transpose(1, 2), attn_mask=seen
        )
        return self.c_proj(y.transpose(1, 2).reshape(b, t, -1))


@pytest.mark.spread(1)
@pytest.mark.parametrize("change", [OwnNorm, UnbiasedNorm, QueryNorm])
def test_norms_windows_and_orders_of_heads(change):
    torch.manual_seed(3)
    model = own_models.NanoGPT()
    for block in model.transformer.h:
        if change is QueryNorm:
            block.attn = QueryNorm()
        else:
            block.ln_1, block.ln_2 = change(), change()
    wrapped = normscope.wrap(model.double())
    assert wrapped.verification.error < 1e-10
    assert wrapped.layers_verification.error < 1e-10


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("name", "output", "factor"),
    [
        ("layer-scale", "blocks.{}.attn.c_proj", "blocks.{}.ls1.gamma"),
        ("layer-scale-post", "blocks.{}.attn.c_proj", "blocks.{}.ls1.gamma"),
        ("layer-scale-parameters", "blocks.{}.attn.inner.c_proj", "blocks.{}.attn.gamma"),
        ("layer-scale-in-lists", "attentions.{}.inner.c_proj", "attentions.{}.gamma"),
    ],
)
def test_factors_of_dimensions_are_part_of_the_weights(name, output, factor):
    """diag(γ) is folded into W_O and b_O, and what a network is multiplied by is left out."""
    model = built(name)
    for number, block in enumerate(normscope.observe(normscope.wrap(model), TEXTS)):
        written, scale = model.get_submodule(output.format(number)), model.get_parameter(factor.format(number))
        assert scale.std() > 0.1
        torch.testing.assert_close(block.parameters.output_weight.flatten(0, 1), written.weight.T * scale)
        torch.testing.assert_close(block.parameters.output_bias, written.bias * scale)


def test_closures_over_modules_are_those_of_the_copy():
    """minGPT keeps its network as a lambda over a `ModuleDict`."""

    class Closed(own_models.Block):
        def __init__(self):
            super().__init__(flash=True, bias=True)
            network = self.mlp
            self.of_network = lambda x: network.c_proj(network.gelu(network.c_fc(x)))

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.of_network(self.ln_2(x))

    model = own_models.NanoGPT()
    model.transformer.h = nn.ModuleList(Closed() for _ in range(2))
    assert normscope.wrap(model.double()).layers_verification.error < 1e-10


class ChangedAtTheEnd(torch.nn.Module):
    """What follows the last layer, in several ways."""

    def __init__(self, how):
        super().__init__()
        self.inner, self.norm = own_models.TorchEncoder(norm_first=True), torch.nn.LayerNorm(own_models.D)
        self.last, self.how = torch.nn.Linear(own_models.D, own_models.D), how

    def forward(self, input_ids, attention_mask):
        x, mask = self.inner(input_ids, attention_mask), attention_mask[..., None]
        match self.how:
            case "mask":
                return self.norm(x * mask)
            case "filled":
                return self.norm(x.masked_fill(mask == 0, 0.0))
            case "doubled":
                return self.norm(x * 2)
            case "projected":
                return self.norm(self.last(x))
            case "activated":
                return torch.nn.functional.gelu(self.norm(x))
        raise AssertionError(self.how)


@pytest.mark.spread(1)
@pytest.mark.parametrize("how", ["mask", "filled", "doubled", "projected", "activated"])
def test_targets_read_the_vectors_that_a_module_returns(how):
    torch.manual_seed(0)
    module = ChangedAtTheEnd(how).double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    texts = [[5, 6, 7, 8, 9], [5, 6, 30, 8]]
    with torch.no_grad():
        returned = [module(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long))[0] for ids in texts]
    model = normscope.wrap(module)
    seen = []

    def target(hidden):
        seen.append(hidden.detach())
        return hidden[2, 3] + hidden[0, 1]

    found = attribute(model, texts[0], target)
    torch.testing.assert_close(seen[0], returned[0], rtol=1e-7, atol=1e-7)
    similar = attribute(model, texts[0], normscope.SimilarityTo(texts[1], pooling="mean"))
    cosine = torch.cosine_similarity(*(vectors.mean(dim=0) for vectors in returned), dim=0)
    for each, expected in ((found, returned[0][2, 3] + returned[0][0, 1]), (similar, cosine)):
        assert each.target == pytest.approx(float(expected), rel=1e-6)
        assert abs(each.remainder) < 1e-9
        assert each.error < 1e-9
    pairs = similarity(model, *texts, pooling="mean")
    assert pairs.value == pytest.approx(float(cosine), rel=1e-6)
    assert pairs.matrix.sum() == pytest.approx(pairs.value, rel=1e-9)


@pytest.mark.parametrize("batch_first", [True, False])
def test_as_many_texts_as_tokens_are_measured_like_each_text_alone(batch_first):
    """`nn.MultiheadAttention` moves tokens to the first axis, whatever the layers around it do."""
    torch.manual_seed(0)
    model = normscope.wrap(own_models.TorchEncoder(norm_first=True, batch_first=batch_first).double().eval())
    ids = torch.randint(own_models.V, (5, 5))

    def measured(ids):
        found, weights = {}, {}

        def visit(block):
            weights[block.layer] = block.parameters.key_weight
            found["inputs", block.layer], found["read", block.layer] = block.inputs, block.attention_inputs

        def visit_hidden(layer, vectors):
            found["hidden", layer] = vectors

        def visit_layer(layer):
            found["left", layer.layer] = layer.vectors(layer.stages[-1])

        observer = Observer(model.model, model.facts, hidden=range(own_models.L + 1), feed_forward=True)
        with observer:
            observer.run({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, visit, visit_hidden, visit_layer)
        return found, weights

    together, weights = measured(ids)
    alone = [measured(ids[text : text + 1]) for text in range(len(ids))]
    assert all(torch.equal(weights[layer], weight) for layer, weight in alone[0][1].items())
    for what, vectors in together.items():
        torch.testing.assert_close(vectors, torch.cat([found[what] for found, _ in alone]), rtol=0, atol=1e-12)
