"""The language model of every family that has one, around the base model that is observed."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from normscope.models.load.loading import load
from normscope.models.observe.observer import Observer
from normscope.models.options import DeviceOptions, ModelOptions
from tests.tiny import FAMILY_CONFIGS

# One family for every kind of head, and of its place in the checkpoint.
MASKED = ["albert", "bert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta"]


def checkpoint_of(family, auto, folder, tokenizer):
    """A random model with its head, saved with the tokenizer."""
    settings = FAMILY_CONFIGS[family] | {"vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    whole = auto.from_config(AutoConfig.for_model(**settings)).eval()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    whole.config.use_cache = False
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return whole


def assert_same_predictions(whole, loaded, head, tokenizer):
    inputs = tokenizer(["a cat sees the river", "the old"], padding=True, return_tensors="pt")
    inputs = {name: tensor for name, tensor in inputs.items() if name != "token_type_ids"}
    with torch.inference_mode():
        expected = whole(**inputs).logits
    with Observer(loaded.model, loaded.facts) as observer:
        observed = observer.run(inputs, lambda _block: None, whole=head).logits
    token_mask = inputs["attention_mask"].bool()
    torch.testing.assert_close(observed[token_mask], expected[token_mask], rtol=1e-3, atol=1e-3)


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", MASKED)
def test_the_masked_language_model_is_put_around_the_base_model(family, tmp_path, tokenizer):
    """Its predictions are those of the checkpoint's own masked language model, also while it is observed."""
    whole = checkpoint_of(family, AutoModelForMaskedLM, tmp_path, tokenizer)
    loaded = load(ModelOptions(name=str(tmp_path), seed=0), DeviceOptions(name="cpu"))
    assert loaded.masked_language_head is not None
    assert_same_predictions(whole, loaded, loaded.masked_language_head, tokenizer)


# One family for every way in which attention or the logits differ: caps, sinks, factors, biases of the scores, experts.
CAUSAL = ["bloom", "cohere", "falcon", "gemma2", "gpt2", "gpt_oss", "gptj", "granite", "llama", "mixtral", "opt", "phi"]


@pytest.mark.spread(1)
@pytest.mark.parametrize("family", CAUSAL)
def test_the_causal_language_model_is_put_around_the_base_model(family, tmp_path, tokenizer):
    """Its predictions are those of the checkpoint's own language model: caps, sinks and biases of the scores included."""
    whole = checkpoint_of(family, AutoModelForCausalLM, tmp_path, tokenizer)
    loaded = load(ModelOptions(name=str(tmp_path), seed=0), DeviceOptions(name="cpu"))
    assert loaded.next_token_head is not None
    assert loaded.masked_language_head is None
    assert_same_predictions(whole, loaded, loaded.next_token_head, tokenizer)
