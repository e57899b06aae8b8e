"""The masked language model of every family that has one, around the base model that is observed."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from normscope.config.schema import DeviceOptions, ModelOptions
from normscope.models.loading import load
from normscope.models.observer import Observer
from tests.tiny import DECODERS, FAMILY_CONFIGS


@pytest.mark.parametrize("family", sorted(set(FAMILY_CONFIGS) - DECODERS))
def test_the_masked_language_model_is_put_around_the_base_model(family, tmp_path, tokenizer):
    """Its predictions are those of the checkpoint's own masked language model, also while it is observed."""
    settings = FAMILY_CONFIGS[family] | {"vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    whole = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**settings)).eval()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load(ModelOptions(name=str(tmp_path), seed=0), DeviceOptions(name="cpu"))
    head = loaded.masked_language_head
    assert head is not None
    inputs = tokenizer(["a cat sees the river", "the old"], padding=True, return_tensors="pt")
    inputs = {name: tensor for name, tensor in inputs.items() if name != "token_type_ids"}
    with torch.inference_mode():
        expected = whole(**inputs).logits
    with Observer(loaded.model, loaded.layout) as observer:
        found = observer.run(inputs, lambda _block: None, whole=head).logits
    token_mask = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[token_mask], expected[token_mask], rtol=1e-3, atol=1e-3)
