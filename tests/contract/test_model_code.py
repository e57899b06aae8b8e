"""What a model's own code raises is one line that names the module; what our code raises keeps its traceback."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    EsmConfig,
    EsmModel,
    LlamaForCausalLM,
    MllamaForCausalLM,
)
from transformers.masking_utils import eager_mask
from transformers.models.mllama.configuration_mllama import MllamaTextConfig

import normscope
from normscope.errors import InputError
from normscope.maths.masks import Mask
from normscope.models.observe.attention_function import MaskTensor
from normscope.models.stored.decoder_start import decoder_shift
from normscope.models.stored.model_code import model_code
from normscope.models.stored.text_tower import base_of
from tests.architectures import tiny_architecture
from tests.one_text import decompose
from tests.own_models import NanoGPT
from tests.tiny import FAMILY_CONFIGS, tiny_model


class Raises(nn.Module):
    """Raises something in a part of its own."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, _x):
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("pixels"), "KeyError: 'pixels'"),
        (ZeroDivisionError("division by zero"), "division by zero"),
        (NotImplementedError(), "NotImplementedError"),
        (AttributeError("no such thing"), "AttributeError: no such thing"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "'utf-8' codec can't decode"),
        (StopIteration(), "StopIteration"),
    ],
)
def test_whatever_the_code_of_a_model_raises_names_the_module(error, reason):
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Raises(error)))
    with (
        pytest.raises(InputError, match=rf"^model: 1.0 \(Raises\) of Sequential fails: {reason}") as caught,
        model_code(model),
    ):
        model(torch.zeros(1, 2))
    assert caught.value.__cause__ is error


def test_an_operation_that_fails_for_what_the_model_passes_is_its_own():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    with (
        pytest.raises(InputError, match=r"^model: 1 \(Linear\) of Sequential fails on 1 text: mat1 and mat2"),
        model_code(model, "1 text"),
    ):
        model(torch.zeros(1, 2))


def test_our_own_bugs_keep_their_traceback():
    """Even if a hook of ours runs inside a module of the model, or torch raises what our code brings about."""
    model = nn.Sequential(nn.Linear(2, 2))
    scope = {"torch": torch, "__name__": "normscope.models.observe.observer"}
    exec("def hook(*_): {}['missing']\ndef shapes(*_): torch.zeros(2) @ torch.zeros(3)", scope)
    for name, kind in (("hook", KeyError), ("shapes", RuntimeError)):
        handle = model[0].register_forward_hook(scope[name])
        with pytest.raises(kind), model_code(model):
            model(torch.zeros(1, 2))
        handle.remove()


def test_memory_that_is_exhausted_is_no_fault_of_the_model():
    model = Raises(torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError), model_code(model):
        model(torch.zeros(1))


@pytest.mark.slow
def test_a_module_that_fails_on_some_texts_alone_is_named():
    class Picky(NanoGPT):
        def forward(self, idx):
            if idx.tolist() == [[5, 13]]:
                raise LookupError("unlucky")
            return super().forward(idx)

    torch.manual_seed(0)
    wrapped = normscope.wrap(Picky())
    assert decompose(wrapped, [5, 6]).tokens == ("5", "6")
    with pytest.raises(InputError, match="^model: Picky fails on 1 text of 2 tokens: LookupError: unlucky"):
        decompose(wrapped, [5, 13])


@pytest.mark.parametrize("changed", [{}, {"causal": True}, {"keys": torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()}])
def test_a_mask_is_a_tensor_for_whoever_reads_it(changed):
    mask = MaskTensor(Mask(**changed), (2, 3, 3), torch.float64, torch.device("cpu"))
    assert (mask.shape, mask.dtype, mask.device.type, mask.ndim) == ((2, 1, 3, 3), torch.float64, "cpu", 4)
    assert "elements" not in vars(mask)  # nothing has been computed for that
    keys = changed.get("keys")
    expected = eager_mask(
        2,
        3,
        3,
        mask_function=(lambda _b, _h, q, k: k <= q) if changed.get("causal") else (lambda _b, _h, q, _k: q >= 0),
        attention_mask=keys,
        dtype=torch.float64,
    )
    assert torch.equal(mask + 0, expected)
    assert torch.equal(torch.cat([mask, mask], dim=-1)[..., :3], expected)
    assert torch.equal(mask[:, :, 1:, :2], expected[:, :, 1:, :2])
    assert torch.equal(mask.masked_fill(mask < 0, 7.0), expected.masked_fill(expected < 0, 7.0))
    assert type(mask.clone()) is torch.Tensor


def test_a_model_that_adds_the_mask_itself_is_observed():
    """GIT's text part computes attention outside transformers' registry, and adds the mask that the registry makes."""
    wrapped = normscope.wrap(tiny_architecture("git"))
    assert wrapped.verification.error < 1e-12
    assert not wrapped.facts.calls_function
    weights = decompose(wrapped, [5, 7, 9]).maps["attn_w"]
    assert torch.equal(weights, weights.tril())


@pytest.mark.parametrize(
    ("model_type", "refusal"),
    [
        (
            "convbert",
            "layer 1 cannot be measured: what it gives is not followed to a linear layer .modeling_convbert.py",
        ),
    ],
)
def test_architectures_that_are_refused_say_what_they_do(model_type, refusal):
    with pytest.raises(InputError, match=refusal) as caught:
        normscope.wrap(tiny_architecture(model_type))
    assert "\n" not in str(caught.value)


def test_an_encoder_without_embeddings_of_its_own_is_refused():
    with pytest.raises(
        InputError, match="expected the encoder of FSMTModel to be a transformers model .* got FSMTEncoder"
    ):
        normscope.wrap(tiny_architecture("fsmt"))


@pytest.mark.slow
def test_the_base_of_a_model_is_found_where_its_class_names_none():
    """Llama 4's causal model says that its base is `language_model`, and has none."""
    base = tiny_architecture("llama4_text")
    whole = AutoModelForCausalLM.from_config(copy.deepcopy(base.config), dtype=torch.float64).eval()
    assert base_of(whole) is whole.model
    wrapped = normscope.wrap(whole)
    assert wrapped.verification.error < 1e-5
    assert base_of(wrapped.next_token_head) is wrapped.model
    llama = LlamaForCausalLM(tiny_model({"model_type": "llama"} | FAMILY_CONFIGS["llama"], torch.float32).config)
    assert base_of(llama) is llama.model


def test_the_text_part_of_mllama_is_the_base_of_its_causal_model():
    """transformers makes no base model from the config of the text part."""
    torch.manual_seed(0)
    config = MllamaTextConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=40,
        cross_attention_layers=[1],
        pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    whole = MllamaForCausalLM(config).eval()
    assert base_of(whole) is whole.model
    wrapped = normscope.wrap(whole)
    assert wrapped.verification.error < 1e-5
    assert wrapped.layers == 2  # without an image, the layer with cross-attention does not run


SHIFTS = {
    "bart": ([2, 3, 4], {"decoder_start_token_id": 2}),
    "t5": ([1, 3, 4], {"decoder_start_token_id": 1}),
    "mbart": ([5, 3, 4], {}),
    "plbart": ([5, 3, 4], {}),
    "marian": ([1, 3, 4], {"decoder_start_token_id": 1}),
    "m2m_100": ([2, 3, 4], {"decoder_start_token_id": 2}),
    "t5gemma": ([2, 3, 4], {}),
}


@pytest.mark.parametrize("model_type", SHIFTS)
def test_what_a_decoder_reads_is_what_the_model_makes_of_labels(model_type):
    expected, changes = SHIFTS[model_type]
    config = tiny_architecture(model_type).config
    for key, value in changes.items():
        setattr(config, key, value)
    shift = decoder_shift(config)
    assert shift([3, 4, 5]) == expected
    kind = AutoModelForSeq2SeqLM._model_mapping[type(config)]
    if hasattr(kind, "prepare_decoder_input_ids_from_labels"):
        with torch.device("meta"):
            whole = kind(config)
        assert (
            shift([7, 8, 9, 6])
            == whole.prepare_decoder_input_ids_from_labels(labels=torch.tensor([[7, 8, 9, 6]])).tolist()[0]
        )


@pytest.mark.slow
def test_a_decoder_that_nobody_tells_where_to_start_is_refused():
    model = tiny_architecture("t5", torch.float32)
    assert decoder_shift(model.config) is None
    with pytest.raises(InputError, match="stack=cross: expected decoder_start_token_id in the model's config"):
        normscope.wrap(model, stack="cross")
    wrapped = normscope.wrap(tiny_architecture("plbart", torch.float32), stack="cross")
    assert wrapped.decoder_inputs([4, 5, 6]) == [6, 4, 5]


@pytest.mark.spread(1)
@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_an_encoder_and_a_decoder_that_were_put_together_are_observed(stack):
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "vocab_size": 99,
    }
    parts = BertConfig(**shape), BertConfig(**shape, is_decoder=True, add_cross_attention=True)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    torch.manual_seed(0)
    wrapped = normscope.wrap(EncoderDecoderModel(config=config).double(), stack=stack)
    assert wrapped.verification.error < 1e-13


def test_rotary_positions_of_esm_2_are_observed():
    """No key of a config is refused for its name: the proof says what the model computes."""
    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=33,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        position_embedding_type="rotary",
        pad_token_id=1,
        mask_token_id=32,
        emb_layer_norm_before=False,
    )
    wrapped = normscope.wrap(EsmModel(config).double().eval())
    assert wrapped.layers_verification.error < 2e-7  # transformers turns queries and keys in float32
    assert wrapped.facts.has_score_weights
