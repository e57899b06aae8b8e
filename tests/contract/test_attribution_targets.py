"""Targets of attribution: heads with slopes held fixed, similarities, and functions, in float64 on tiny random models."""

import dataclasses

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

import normscope
from normscope.api.arguments import single_text
from normscope.attribution.passes import held_pass
from normscope.attribution.readouts import readout_of
from normscope.attribution.scalars import attribute_scalars
from normscope.errors import InputError
from normscope.live.predictions import prediction_of
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.task_heads import Head, has_head
from normscope.models.stored.embedder_files import embedder_of
from normscope.rounding import number
from tests.one_text import attribute, attribution_maps, similarity
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, facts_for, rounds_inside, token_batch

TEXT = "a lovely film about onions"
OTHER = "the lady cracked three eggs"


def with_head(auto, model_type, **changes):
    settings = dict(FAMILY_CONFIGS[model_type]) | changes
    torch.manual_seed(0)
    model = auto.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    model.config.use_cache = False
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval().requires_grad_(False)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("auto", "model_type"),
    [
        (AutoModelForSequenceClassification, "bert"),  # tanh, a module
        (AutoModelForSequenceClassification, "roberta"),  # tanh, a function
        (AutoModelForSequenceClassification, "distilbert"),  # ReLU
        (AutoModelForSequenceClassification, "electra"),  # GELU
        (AutoModelForSequenceClassification, "deberta"),
        (AutoModelForMaskedLM, "bert"),  # GELU and a norm
        (AutoModelForMaskedLM, "roberta"),
        (AutoModelForMaskedLM, "modernbert"),
        (AutoModelForCausalLM, "gpt2"),
        (AutoModelForCausalLM, "llama"),
    ],
)
def test_heads_are_linear_once_their_slopes_are_fixed(auto, model_type):
    """The parts of a logit add up to it, without a remainder, for every sequence of a padded batch."""
    head = with_head(auto, model_type, pad_token_id=1)
    facts = facts_for(model_type, config=head.config)
    inputs = token_batch(head, (6, 4))
    with torch.inference_mode():
        expected = head(**inputs).logits
    passed = held_pass(head.base_model, facts, inputs, head)
    logits = passed.output.logits
    targets = logits[:, 1] if logits.ndim == 2 else logits[:, 2, 5]
    found = attribute_scalars(passed, targets)
    rounded = 1e-5 if rounds_inside(head) else 1e-10
    if logits.ndim == 3:
        logits, expected = (each[inputs["attention_mask"].bool()] for each in (logits, expected))
    torch.testing.assert_close(logits, expected, rtol=rounded, atol=rounded)
    size = found.scores.abs().sum(dim=-1)
    assert float((found.remainder.abs() / size).max()) < 1e-12
    assert float(found.error.max()) < 1e-10
    assert float(found.bias.abs().min()) > 0 or model_type == "llama"


def test_the_head_of_bert_by_hand():
    """w_c · (tanh(u)/u ⊙ (W h + b)) + b_c, with u = W h + b."""
    head = with_head(AutoModelForSequenceClassification, "bert")
    inputs = token_batch(head, (5,))
    passed = held_pass(head.base_model, facts_for("bert", config=head.config), inputs, head)
    found = attribute_scalars(passed, passed.output.logits[:, 0])
    pooler, classifier = head.bert.pooler.dense, head.classifier
    alone = held_pass(head.base_model, facts_for("bert", config=head.config), inputs)
    u = pooler(alone.returned[:, 0]).detach()
    direction = (classifier.weight[0] * torch.tanh(u) / u) @ pooler.weight
    bias = classifier.bias[0] + (classifier.weight[0] * torch.tanh(u) / u * pooler.bias).sum()
    by_hand = attribute_scalars(alone, (alone.returned[:, 0] * direction.detach()).sum(dim=-1))
    torch.testing.assert_close(found.scores, by_hand.scores, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.bias, by_hand.bias + bias.detach(), rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def encoder(tokenizer) -> LoadedModel:
    head = with_head(
        AutoModelForMaskedLM, "bert", vocab_size=len(tokenizer), num_hidden_layers=2, max_position_embeddings=40
    )
    return LoadedModel(
        head.base_model,
        tokenizer,
        facts_for("bert", config=head.config),
        "tiny",
        None,
        40,
        load_head=lambda kind: head if has_head(head, kind) else None,
    )


@pytest.fixture(scope="module")
def classifier(tokenizer, encoder) -> LoadedModel:
    head = with_head(
        AutoModelForSequenceClassification, "bert", vocab_size=len(tokenizer), id2label={0: "good", 1: "bad"}
    )
    return dataclasses.replace(
        encoder,
        model=head.base_model,
        facts=facts_for("bert", config=head.config),
        load_head=lambda kind: head if has_head(head, kind) else None,
    )


@pytest.mark.spread(1)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("bias", ["token", "decompx"])
def test_a_similarity_adds_up_over_pairs_and_over_tokens(encoder, pooling, bias):
    whole = similarity(encoder, TEXT, OTHER, pooling=pooling, bias=bias)
    with torch.inference_mode():
        hidden = [
            encoder.model(**encoder.tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in (TEXT, OTHER)
        ]
    pooled = [{"mean": h.mean(0), "cls": h[0], "last": h[-1]}[pooling] for h in hidden]
    expected = float(torch.cosine_similarity(*pooled, dim=0))
    assert whole.value == pytest.approx(expected, abs=1e-12)
    assert whole.matrix.sum() == pytest.approx(expected, abs=1e-12)
    assert whole.matrix.shape == (len(whole.tokens_a) + 1, len(whole.tokens_b) + 1)
    reversed_ = similarity(encoder, OTHER, TEXT, pooling=pooling, bias=bias)
    assert pytest.approx(whole.matrix, abs=1e-12) == reversed_.matrix.T
    one = attribute(encoder, TEXT, normscope.SimilarityTo(OTHER, pooling), bias=bias)
    assert one.scores == pytest.approx(whole.matrix.sum(axis=1)[:-1], abs=1e-12)
    assert one.bias == pytest.approx(whole.matrix.sum(axis=1)[-1], abs=1e-12)
    assert one.target == pytest.approx(expected, abs=1e-12)
    assert abs(one.remainder) < 1e-12


def test_a_function_that_is_not_linear_leaves_a_remainder(encoder):
    """‖h‖² has the gradient 2h, so its linear part is twice itself, and the remainder minus itself."""
    found = attribute(encoder, TEXT, target=lambda hidden: hidden.square().sum())
    assert found.remainder == pytest.approx(-found.target, rel=1e-12)
    assert found.scores.sum() + found.bias + found.remainder == pytest.approx(found.target, rel=1e-12)
    assert "remainder" in found.sentence
    affine = attribute(encoder, TEXT, target=lambda hidden: hidden[0, 3] + 5)
    assert affine.remainder == pytest.approx(5, rel=1e-12)


def test_labels_by_name_number_and_by_default(classifier):
    logits = {name: attribute(classifier, TEXT, name) for name in ("good", "bad")}
    number = attribute(classifier, TEXT, 1)
    assert number.scores == pytest.approx(logits["bad"].scores)
    best = attribute(classifier, TEXT, normscope.Label())
    assert best.target == max(found.target for found in logits.values())
    assert logits["good"].what == "logit of the class good"
    with pytest.raises(InputError, match=r"label='ugly': expected one of good \(0\), bad \(1\)"):
        attribute(classifier, TEXT, "ugly")


def test_masked_tokens(encoder):
    text = "a lovely [MASK] about [MASK]"
    with torch.inference_mode():
        logits = encoder.masked_language_head(**encoder.tokenizer(text, return_tensors="pt")).logits[0]
    first = attribute(encoder, text, normscope.MaskedToken("film"))
    film = encoder.tokenizer.convert_tokens_to_ids("film")
    assert first.target == pytest.approx(float(logits[3, film]))
    assert first.what == "logit of 'film' in place of the mask at token 3"
    assert first.sentence.startswith(
        f"Logit of 'film' in place of the mask at token 3: {number(first.target)} = tokens "
    )
    alone = attribute(encoder, "a lovely [MASK]", normscope.MaskedToken("film"))
    assert alone.what == "logit of 'film' in place of the mask"
    second = attribute(encoder, text, normscope.MaskedToken(position=5))
    assert second.target == pytest.approx(float(logits[5].max()))
    for target, message in [
        (normscope.MaskedToken("unbelievable onions"), "expected a single token"),
        (normscope.MaskedToken(position=1), r"got masks at: 3, 5"),
        (normscope.MaskedToken(10**9), "or its number from 0 to"),
        *(
            (
                target,
                "has no weights of a causal language model; use MaskedToken, whose weights it has, or load a checkpoint "
                "that has them",
            )
            for target in (normscope.NextToken(), normscope.Answer())
        ),
        (normscope.Label(), "has no weights of a text classifier; use MaskedToken, whose weights it has"),
    ]:
        with pytest.raises(InputError, match=message):
            attribute(encoder, text, target)
    with pytest.raises(InputError, match=r"expected \[MASK\] in the text; got masks at: none"):
        attribute(encoder, TEXT, normscope.MaskedToken())


def test_next_tokens(tokenizer):
    head = with_head(AutoModelForCausalLM, "gpt2", vocab_size=len(tokenizer))
    model = LoadedModel(
        head.base_model,
        tokenizer,
        facts_for("gpt2", config=head.config),
        "tiny",
        None,
        40,
        load_head=lambda kind: head if kind is Head.NEXT_TOKEN else None,
    )
    found = attribute(model, TEXT, normscope.NextToken("film"))
    with torch.inference_mode():
        logits = head(**tokenizer(TEXT, return_tensors="pt")).logits[0, -2]  # before [SEP]
    assert found.target == pytest.approx(float(logits[tokenizer.convert_tokens_to_ids("film")]))
    assert abs(found.remainder) < 1e-10
    assert attribute(model, TEXT, normscope.NextToken()).target == pytest.approx(float(logits.max()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("attribute", TEXT, lambda hidden: hidden), r"to a scalar tensor .* shape \(7, 24\)"),
        (("attribute", TEXT, lambda _hidden: 3.0), "it returned float"),
        (("similarity", TEXT, OTHER), r"pooling: tiny has no modules.json .* expected one of mean, cls, last"),
        (("attribution_maps", TEXT, []), "methods: expected at least one method, got none"),
        (
            ("attribution_maps", TEXT, ["alti", "attention"]),
            "methods='attention': expected one of rollout, norm_rollout",
        ),
    ],
)
def test_arguments_that_make_no_sense(encoder, arguments, message):
    name, *rest = arguments
    with pytest.raises(InputError, match=message):
        getattr(normscope, name)(encoder, *rest)


def test_types_that_are_refused(encoder):
    for target in (None, True, 1.5, [None]):
        with pytest.raises(InputError, match="target: expected a Label"):
            normscope.attribute(encoder, TEXT, target)
    with pytest.raises(InputError, match="attribute takes one text or one pair"):
        single_text(encoder, [TEXT], "attribute")


def test_maps_of_one_text(encoder):
    maps = attribution_maps(encoder, TEXT, ["rollout", "decompx"])
    assert list(maps) == ["rollout", "decompx"]
    rollout, decompx = maps.values()
    tokens = len(rollout.tokens)
    assert rollout.layers.shape == (2, tokens, tokens)
    assert rollout.total == pytest.approx(rollout.layers[1] @ rollout.layers[0])
    assert decompx.layers is None
    assert decompx.total.shape == (tokens, tokens + 1)
    assert decompx.sources[-1] == "bias"
    assert decompx.table["value"].to_numpy() == pytest.approx(decompx.total.ravel())
    assert "data:image/png" in rollout.result._repr_html_()


@pytest.mark.slow
def test_what_a_notebook_shows(encoder):
    found = attribute(encoder, "<b> & film", normscope.SimilarityTo(OTHER, "mean"))
    page = found.result._repr_html_()
    assert "&lt;" in page
    assert "<b>" not in page
    assert page.index("<li>Cosine similarity") < page.index("data:image/png") < page.index("<table")
    whole = similarity(encoder, TEXT, OTHER, pooling="mean")
    assert whole.table["value"].tolist() == sorted(whole.matrix.ravel(), reverse=True)
    row, column = np.unravel_index(whole.matrix[:-1, :-1].argmax(), whole.matrix[:-1, :-1].shape)
    best = f"{whole.tokens_a[row]}–{whole.tokens_b[column]} {number(float(whole.matrix[row, column]))}"
    (said,) = whole.result.sentences
    assert f"The pairs that add most: {best}," in said
    assert f"pairs of tokens add {number(float(whole.matrix[:-1, :-1].sum()))}," in said
    assert "data:image/png" in whole.result._repr_html_()


def test_pooling_is_read_from_the_files_of_the_model(minilm_folder, tmp_path):
    assert embedder_of(minilm_folder, "minilm").pooling == "mean"
    modules, pooling = tmp_path / "modules.json", tmp_path / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    kinds = (
        '[{"type": "sentence_transformers.models.Transformer", "path": ""}, '
        '{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}'
    )
    for text, expected in [
        ('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}', "cls"),
        ('{"pooling_mode": "lasttoken", "include_prompt": true}', "last"),
        ('{"pooling_mode_mean_sqrt_len_tokens": true}', "mean_sqrt"),
        ('{"pooling_mode": "weightedmean"}', "weighted_mean"),
        ('{"pooling_mode_max_tokens": true}', "max"),
        ("{}", "mean"),  # as the library reads it
    ]:
        modules.write_text(kinds + "]")
        pooling.write_text(text)
        assert embedder_of(tmp_path, "x").pooling == expected
    for text, rest, message in [
        ('{"pooling_mode": ["mean", "max"]}', "]", "x pools by mean, max; expected one way"),
        ('{"pooling_mode": []}', "]", "x pools by nothing"),
        ("[", "]", "config.json of x cannot be read"),
        (
            "{}",
            ', {"type": "sentence_transformers.models.LSTM", "path": "2"}]',
            "x has a LSTM module, expected a Transf",
        ),
        (
            "{}",
            ', {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]',
            "weights of 2_Dense of x cannot be",
        ),
        ("{}", ", 3]", "not a list of modules"),
    ]:
        modules.write_text(kinds + rest)
        pooling.write_text(text)
        with pytest.raises(InputError, match=message):
            embedder_of(tmp_path, "x")


@pytest.fixture(scope="module")
def translator(tokenizer) -> LoadedModel:
    settings = dict(STACK_CONFIGS["t5"]) | {"vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    head = AutoModelForSeq2SeqLM.from_config(config).double().eval().requires_grad_(False)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return normscope.wrap(head, tokenizer, stack="cross")


@pytest.mark.slow
def test_the_next_token_of_a_translation(translator):
    found = attribute(translator, (TEXT, OTHER), normscope.NextToken(7))
    batch = single_text(translator, (TEXT, OTHER), "a test")
    expected = translator.translator(**batch.model_inputs()).logits[0, -1, 7]
    assert found.target == pytest.approx(float(expected), rel=1e-5)
    assert found.error < 1e-10
    assert found.scores.sum() + found.bias == pytest.approx(found.target, rel=1e-9)
    sources, targets = batch.source.input_ids.shape[1], batch.input_ids.shape[1]
    assert found.sides == {"source": sources, "target": targets}
    assert found.table["side"].tolist() == ["source"] * sources + ["target"] * targets
    assert found.table["position"].tolist() == [*range(sources), *range(targets)]


@pytest.mark.slow
def test_maps_of_a_translation(translator):
    (found,) = attribution_maps(translator, (TEXT, OTHER)).values()
    batch = single_text(translator, (TEXT, OTHER), "a test")
    sources, targets = batch.source.input_ids.shape[1], batch.input_ids.shape[1]
    assert found.method == "alti"
    assert found.sources == (*found.source_tokens, *found.tokens)
    assert (len(found.source_tokens), len(found.tokens)) == (sources, targets)
    assert found.total == pytest.approx(found.cumulative[-1])
    assert found.layers.sum(axis=-1) == pytest.approx(np.ones((2, targets)))
    assert found.total.sum(axis=-1) == pytest.approx(np.ones(targets))
    table = found.table
    assert table["value"].to_numpy() == pytest.approx(found.total.ravel())
    assert table["side"].tolist() == (["source"] * sources + ["target"] * targets) * targets
    assert table["key"].tolist() == [*range(sources), *range(targets)] * targets
    assert table["key_token"].tolist() == list(found.sources) * targets
    assert table["query_token"].tolist() == [token for token in found.tokens for _ in found.sources]
    row, column = np.unravel_index(found.total.argmax(), found.total.shape)
    names = f"{found.tokens[row]} takes the most from {found.sources[column]}: {number(found.total.max())}"
    assert found.result.sentences == [f"Through all layers, {names} (alti)."]


def test_what_is_not_defined_for_translations_is_refused(translator):
    with pytest.raises(InputError, match="rollout is not defined for translations; use alti"):
        attribution_maps(translator, (TEXT, OTHER), ["alti", "rollout"])
    with pytest.raises(InputError, match="needs a source and a target: pass a pair"):
        attribution_maps(translator, TEXT)
    with pytest.raises(InputError, match="expected a NextToken of a translation, got function"):
        attribute(translator, (TEXT, OTHER), lambda hidden: hidden.sum())
    with pytest.raises(InputError, match="bias=decompx is not defined for translations"):
        attribute(translator, (TEXT, OTHER), normscope.NextToken(), bias="decompx")
    alone = dataclasses.replace(translator, load_head=lambda _head: None)
    with pytest.raises(InputError, match="has no weights of a translator"):
        attribute(alone, (TEXT, OTHER), normscope.NextToken())


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", ["big_bird", "openai-gpt", "bert", "deberta-v2", "xlm"])
def test_heads_of_other_architectures_are_followed_exactly(family):
    """big_bird makes its activation as it runs, and layers of openai-gpt return lists."""
    sizes = {"n_embd": 24, "n_layer": 2, "n_head": 4, "emb_dim": 24, "n_layers": 2, "n_heads": 4}
    common = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    plain = {} if family not in ("openai-gpt", "xlm") else sizes
    of_family = {"attention_type": "original_full"} if family == "big_bird" else {"pad_token_id": 0}
    config = AutoConfig.for_model(family, vocab_size=50, num_labels=3, **(plain or common), **of_family)
    torch.manual_seed(0)
    whole = AutoModelForSequenceClassification.from_config(config).double().eval()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = [5, 6, 7, 8, 9]
    with torch.no_grad():
        logits = whole(torch.tensor([ids])).logits[0]
    model = normscope.wrap(whole)
    found = attribute(model, ids, normscope.Label(1), by="layer")
    assert found.target == pytest.approx(float(logits[1]), rel=1e-9)
    assert abs(found.remainder) < 1e-9 * (abs(found.scores).sum() + abs(found.bias))
    assert found.error < 1e-9
    maps = attribution_maps(model, ids, ["decompx"])["decompx"]
    assert np.isfinite(maps.cumulative).all()


class Squared(torch.nn.Module):
    """A head that nothing can hold fixed."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, vectors):
        return self.head(vectors) ** 2


def test_a_head_that_is_not_linear_is_refused():
    config = AutoConfig.for_model(
        "bert", vocab_size=50, hidden_size=24, num_hidden_layers=1, num_attention_heads=4, intermediate_size=40
    )
    whole = AutoModelForSequenceClassification.from_config(config).double().eval()
    whole.classifier = Squared(whole.classifier)
    with pytest.raises(InputError, match=r"cannot be attributed: .* pow in classifier \(Squared\) is not linear"):
        attribute(normscope.wrap(whole), [5, 6, 7], normscope.Label())


def test_what_follows_a_text_does_not_follow_a_special_token_behind_it(tokenizer):
    """A BERT tokenizer puts [SEP] behind every text, also for a causal model."""
    config = AutoConfig.for_model("gpt2", vocab_size=len(tokenizer), n_embd=24, n_layer=2, n_head=4, n_positions=64)
    torch.manual_seed(0)
    whole = AutoModelForCausalLM.from_config(config).double().eval()
    model = normscope.wrap(whole, tokenizer)
    ids = tokenizer(TEXT)["input_ids"]
    assert ids[-1] == tokenizer.sep_token_id
    assert model.ending == (tokenizer.sep_token_id,)
    with torch.no_grad():
        logits = whole(**single_text(model, TEXT, "attribute").model_inputs()).logits[0]
    found = attribute(model, TEXT, normscope.NextToken())
    assert found.target == pytest.approx(float(logits[-2].max()), rel=1e-9)
    assert found.what.endswith("as the next token")
    assert attribute(model, TEXT, normscope.NextToken(position=len(ids) - 1)).target == pytest.approx(
        float(logits[-1].max()), rel=1e-9
    )
    probability = logits[-2].softmax(-1).max()
    assert prediction_of(model, TEXT).choices[0][1] == pytest.approx(float(probability), rel=1e-9)
    readout, _ = readout_of(model, None)
    inputs = {"input_ids": torch.tensor([ids, [*ids[:-2], ids[-1], 0]])}
    inputs["attention_mask"] = torch.tensor([[1] * len(ids), [1] * (len(ids) - 1) + [0]])
    with torch.no_grad():
        output = whole(**inputs)
    expected = [output.logits[0, -2], output.logits[1, -3]]
    torch.testing.assert_close(readout.answers(output, inputs), torch.stack(expected))
