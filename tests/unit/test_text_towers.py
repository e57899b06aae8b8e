"""A multimodal model is observed through its text tower, with the head on its tokens."""

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForImageTextToText, BertModel

import normscope
from normscope.errors import InputError
from normscope.models.load.task_heads import Head
from normscope.models.stored.text_tower import class_of, text_tower
from tests.architectures import tiny_architecture
from tests.one_text import attribute, attribution_maps
from tests.tiny import FAMILY_CONFIGS

_VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
_SIGLIP = _VISION | {"model_type": "siglip_vision_model"}
_Q_FORMER = _VISION | {"encoder_hidden_size": 16}
_AUDIO = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}

# The family of each tower, the rest of the config, and the kind of the tower with its head, if it has one.
MODELS = {
    "gemma3": ("gemma3_text", {"vision_config": _VISION}, "Gemma3ForCausalLM"),
    "llava": ("llama", {"vision_config": _VISION | {"model_type": "clip_vision_model"}}, "LlamaForCausalLM"),
    "mistral3": ("mistral", {"vision_config": _VISION | {"model_type": "pixtral"}}, "MistralForCausalLM"),
    "internvl": ("qwen2", {"vision_config": _VISION}, "Qwen2ForCausalLM"),
    "idefics3": ("llama", {"vision_config": _VISION}, "LlamaForCausalLM"),
    "blip-2": ("opt", {"vision_config": _VISION, "qformer_config": _Q_FORMER}, "OPTForCausalLM"),
    "qwen2_audio": ("qwen2", {"audio_config": _AUDIO | {"model_type": "qwen2_audio_encoder"}}, None),
    "modernvbert": ("modernbert", {"vision_config": _SIGLIP}, None),
    # It leaves out the factor that its tower's own head has.
    "aya_vision": ("cohere2", {"vision_config": _SIGLIP}, None),
}
QUICK = ("gemma3", "blip-2", "aya_vision")


@pytest.fixture(params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
def multimodal(request, tokenizer):
    """A tiny multimodal model, the family of its tower, and the kind of the tower with its head."""
    family, rest, kind = MODELS[request.param]
    torch.manual_seed(0)
    text = FAMILY_CONFIGS[family] | {"vocab_size": len(tokenizer), "initializer_range": 0.2}
    config = AutoConfig.for_model(request.param, text_config=text, **rest)
    reads_images = type(config) in AutoModelForImageTextToText._model_mapping
    model = (AutoModelForImageTextToText if reads_images else AutoModel).from_config(config).eval()
    return model, family, kind


@pytest.mark.spread(1)
def test_the_tower_is_found_with_its_head(multimodal, tokenizer):
    model, family, kind = multimodal
    wrapped = normscope.wrap(model, tokenizer)
    assert wrapped.facts.family == family
    assert not hasattr(wrapped.model, "vision_tower")
    head = wrapped.load_head(Head.NEXT_TOKEN)
    assert type(head).__name__ == str(kind if kind else None.__class__.__name__)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in wrapped.model.parameters()} <= parameters
    if kind is not None:
        ids = torch.tensor([[5, 6, 7, 8]])
        with torch.inference_mode():
            view = text_tower(model)(input_ids=ids).logits
            torch.testing.assert_close(head(input_ids=ids).logits, view)
            if "blip" not in model.config.model_type:  # which needs an image
                torch.testing.assert_close(view, model(input_ids=ids).logits)
        score = attribute(wrapped, "The answer is", normscope.NextToken())
        assert len(score.scores) > 0


@pytest.mark.slow
def test_a_checkpoint_is_loaded_through_its_tower(multimodal, tokenizer, tmp_path):
    model, family, kind = multimodal
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, wrapped = normscope.load(tmp_path, device="cpu"), normscope.wrap(model, tokenizer)
    assert loaded.facts.family == family
    tables = [normscope.decompose(each, "One short text.").table for each in (loaded, wrapped)]
    assert tables[0].equals(tables[1])
    assert kind is None or type(loaded.next_token_head).__name__ == kind


def test_a_changed_tower_is_noticed(tokenizer):
    config = AutoConfig.for_model(
        "internvl", text_config=FAMILY_CONFIGS["qwen2"] | {"vocab_size": len(tokenizer)}, vision_config=_VISION
    )
    model = AutoModelForImageTextToText.from_config(config)
    wrapped = normscope.wrap(model, tokenizer)
    normscope.decompose(wrapped, "One.")
    model.double()
    with pytest.raises(InputError, match="has changed since it was wrapped"):
        normscope.decompose(wrapped, "One.")


def test_the_width_of_a_stack_is_read_from_its_vectors():
    """The config of T5Gemma 2's encoder has no width: its text part has."""
    model = tiny_architecture("t5gemma2")
    maps = attribution_maps(normscope.wrap(model), [5, 6, 7, 8])
    np.testing.assert_allclose(maps["alti"].total.sum(axis=-1), 1, atol=1e-6)


def test_a_class_that_transformers_lists_and_lacks_is_none():
    config = CONFIG_MAPPING["voxtral_realtime_text"]()
    assert class_of(AutoModel, config) is None
    assert class_of(AutoModel, CONFIG_MAPPING["bert"]()) is BertModel
