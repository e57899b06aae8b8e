"""Attribution of what a language model predicts, and by integrated gradients, with the model's own head."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedTokenizerFast
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from normscope.attribution.effects import attribute_with_effects
from normscope.attribution.scalars import attribute_scalars
from normscope.models.frozen_pass import FrozenPass, frozen_pass
from normscope.models.layout import ModelLayout, embeddings_of

ONE_LOGIT = "one logit"
LOGITS = "250 logits"
CONTRAST = "one logit minus another"
BY_HEAD = "one logit, by head"
DIRECT = "one logit, direct effects"
SEVERAL = "ten logits, each"
INTEGRATED_GRADIENTS = "integrated gradients (Captum, 50 steps)"
INSEQ = "integrated gradients (inseq, 50 steps)"
"""Of one logit, by inseq, if it is installed; it reads causal models only."""
WAYS = (ONE_LOGIT, LOGITS, CONTRAST, BY_HEAD, DIRECT, SEVERAL)

_LOGITS = 250
_STEPS = 50
_TOKENS_AT_ONCE = 4096
"""Of the texts between the baseline and the input that pass the model together."""


def with_head(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model with its language-modelling head and random weights."""
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and config.model_type != "bert"
    auto: Any = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    model: PreTrainedModel = auto.from_config(config, dtype=dtype).eval().requires_grad_(False)
    return model


def ways_of(head: PreTrainedModel, layout: ModelLayout, inputs: Mapping[str, Tensor]) -> dict[str, Callable[[], None]]:
    """One function per way to attribute what the head predicts of a single text."""
    model: PreTrainedModel = head.base_model
    last = int(inputs["attention_mask"].sum()) - 1

    def attributing(
        choose: Callable[[Tensor], Tensor], then: Callable[[FrozenPass, Tensor], object] = attribute_scalars
    ) -> Callable[[], None]:
        def attribute() -> None:
            head.set_attn_implementation("sdpa")
            with (
                frozen_pass(model, layout, inputs, head) as passed,
                torch.inference_mode(False),
                torch.enable_grad(),
            ):
                then(passed, choose(passed.output.logits[0]))

        return attribute

    def integrated() -> None:
        from captum.attr import IntegratedGradients

        head.set_attn_implementation("sdpa")
        module = embeddings_of(model)

        def logit(vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
            replaced = module.register_forward_hook(lambda _module, _args, _output: vectors)
            try:
                logits: Tensor = head(input_ids=ids, attention_mask=mask).logits
            finally:
                replaced.remove()
            return logits[:, last, 7]

        ids, mask = (inputs[name].clone() for name in ("input_ids", "attention_mask"))
        embeddings = module(ids).detach().requires_grad_()
        rows = max(1, _TOKENS_AT_ONCE // ids.shape[1])
        IntegratedGradients(logit).attribute(
            embeddings, n_steps=_STEPS, internal_batch_size=rows, additional_forward_args=(ids, mask)
        )

    def by_inseq() -> None:
        import inseq

        tokenizer = _tokenizer(head.config.vocab_size)
        text = tokenizer.decode(inputs["input_ids"][0])
        explained = inseq.load_model(head, "integrated_gradients", tokenizer=tokenizer)
        explained.attribute(
            text,
            f"{text} {tokenizer.decode([7])}",
            n_steps=_STEPS,
            internal_batch_size=max(1, _TOKENS_AT_ONCE // (last + 1)),
            show_progress=False,
        )

    positions, tokens = many_logits(last)
    return {
        ONE_LOGIT: attributing(lambda logits: logits[last, 7][None]),
        LOGITS: attributing(lambda logits: logits[positions, tokens].sum()[None]),
        CONTRAST: attributing(lambda logits: (logits[last, 7] - logits[last, 8])[None]),
        BY_HEAD: attributing(
            lambda logits: logits[last, 7][None],
            lambda passed, target: attribute_with_effects(passed, target, direct=False),
        ),
        DIRECT: attributing(
            lambda logits: logits[last, 7][None],
            lambda passed, target: attribute_with_effects(passed, target, direct=True),
        ),
        SEVERAL: attributing(lambda logits: logits[last, 7:17]),
        INTEGRATED_GRADIENTS: integrated,
        INSEQ: by_inseq,
    }


def many_logits(last: int) -> tuple[Tensor, Tensor]:
    """Positions and tokens of 250 logits: those of the second half of a text, several at each position if it is short.

    Args:
        last: The last position.
    """
    at_once = min(_LOGITS, last // 2)
    numbers = torch.arange(_LOGITS)
    return last - numbers % at_once, 7 + numbers // at_once


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are words: the numbers of the vocabulary."""
    words = {f"w{number}": number for number in range(vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    special = dict.fromkeys(("unk_token", "pad_token", "bos_token", "eos_token"), "w0")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
