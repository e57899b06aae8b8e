"""The longest sequence that a model's learned positions allow, determined from what the model looks up."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.models.stored.model_code import StopForward, model_code
from normscope.models.stored.stored_weights import execution_device

# Positions and relative positions alike grow with the length; only those of tokens are one per token.
_LENGTHS = (4, 6)


def longest_by_positions(model: PreTrainedModel, layer: nn.Module, *, reads_target: bool) -> int | None:
    """The number of positions for which a model has an embedding; None if it looks up none, or is on the meta device.

    RoBERTa's positions start after the padding index, OPT's at 2, so the rows that are never used are not counted. The pass
    ends at the layer.

    Args:
        model: A base model in evaluation mode.
        layer: The first layer of the stack that is observed.
        reads_target: Whether the model reads a target text as well.
    """
    if all(parameter.is_meta for parameter in model.parameters()):
        return None
    passes = [_lookups(model, layer, equal_tokens(model, length, reads_target=reads_target)) for length in _LENGTHS]
    rooms = [
        {weight: rows - int(ids[..., 0].min()) for weight, (rows, ids) in lookups.items() if _counts_up(ids, length)}
        for length, lookups in zip(_LENGTHS, passes, strict=True)
    ]
    return min((room for weight, room in rooms[0].items() if rooms[1].get(weight) == room), default=None)


def _counts_up(ids: Tensor, length: int) -> bool:
    """Whether ids are those of the positions of every token, one after the other."""
    return 1 <= ids.ndim <= 2 and ids.shape[-1] == length and bool((ids.diff(dim=-1) == 1).all())


def equal_tokens(model: PreTrainedModel, length: int, *, reads_target: bool) -> dict[str, Tensor]:
    """A text of one token, repeated, as the source and, if the model reads a target text, as that too."""
    # Some models find their positions by looking for padding: none may stand among the tokens.
    token = 1 if padding_of(model) == 0 else 0
    inputs = {"input_ids": torch.full((1, length), token, device=execution_device(model))}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs | ({f"decoder_{name}": tensor for name, tensor in inputs.items()} if reads_target else {})


def _lookups(model: PreTrainedModel, layer: nn.Module, inputs: Mapping[str, Tensor]) -> dict[int, tuple[int, Tensor]]:
    """The rows of the embeddings that are looked up before a layer, and with which ids; by the address of their weights."""
    handle = layer.register_forward_pre_hook(_stop)
    try:
        with torch.inference_mode(), model_code(model), Lookups() as lookups:
            model(**inputs)
    except StopForward:
        pass
    finally:
        handle.remove()
    return {weight.data_ptr(): (len(weight), ids) for weight, ids in reversed(lookups.found)}


def _stop(*_arguments: Any) -> None:
    raise StopForward


class Lookups(TorchFunctionMode):
    """While active, records every embedding that is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor]] = []
        """The weights and the ids."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is nn.functional.embedding:
            ids, weight = args[:2]
            self.found.append((weight, ids))
        return function(*args, **(kwargs or {}))


def random_tokens(model: nn.Module, vocabulary: int, lengths: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """A batch of texts whose token ids stand for nothing, right-padded; the same at every call.

    Args:
        model: The model that will read them.
        vocabulary: Number of token ids.
        lengths: Number of tokens of each text.
        device: Where the model runs.
    """
    generator = torch.Generator().manual_seed(0)
    padding = padding_of(model)
    ids = torch.randint(vocabulary, (len(lengths), max(lengths)), generator=generator)
    token_mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    if padding is not None:
        # Some models find their positions by looking for padding: none may stand among the tokens.
        ids = torch.where(ids == padding, (ids + 1) % vocabulary, ids).masked_fill(~token_mask, padding)
    return {"input_ids": ids.to(device), "attention_mask": token_mask.long().to(device)}


def padding_of(model: nn.Module) -> int | None:
    """The id of the padding token; None without one. T5Gemma 2's encoder has it in the config of its text part alone."""
    config = getattr(model, "config", None)
    text = config.get_text_config() if isinstance(config, PretrainedConfig) else config
    padding: int | None = getattr(text, "pad_token_id", None)
    return padding
