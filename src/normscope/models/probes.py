"""Texts of tokens that stand for nothing, and what a model looks up for them: its embeddings, its longest sequence."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.linear.layer_calls import LayerCalls
from normscope.linear.provenance import begin
from normscope.linear.refusals import NotRecognisedError
from normscope.models.stored.model_code import StopForward, model_code
from normscope.models.stored.stored_weights import execution_device

# Positions and relative positions alike grow with the length; only those of tokens are one per token.
_LENGTHS = (4, 6)


def embeddings_of(model: Any) -> nn.Embedding:
    """The token embedding of a model, or of one of its stacks."""
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    return embeddings


def longest_sequence(model: PreTrainedModel, *, reads_target: bool) -> int | None:
    """The longest sequence that the positions allow, in tokens; None if there is no limit.

    Args:
        model: A base model in evaluation mode.
        reads_target: Whether its decoder is observed.
    """
    learned = _longest_by_positions(model, reads_target=reads_target)
    if learned is not None:
        return learned
    limit = getattr(model.config, "max_position_embeddings", None)
    return None if limit is None or limit < 1 else int(limit)


def _longest_by_positions(model: PreTrainedModel, *, reads_target: bool) -> int | None:
    """The number of positions for which a model has an embedding; None if it looks up none, or is on the meta device.

    RoBERTa's positions start after the padding index, OPT's at 2, so the rows that are never used are not counted.
    """
    if all(parameter.is_meta for parameter in model.parameters()):
        return None
    passes = [_lookups(model, length, reads_target=reads_target) for length in _LENGTHS]
    rooms = [
        {weight: rows - int(ids[..., 0].min()) for weight, (rows, ids) in lookups.items() if _counts_up(ids, length)}
        for length, lookups in zip(_LENGTHS, passes, strict=True)
    ]
    return min((room for weight, room in rooms[0].items() if rooms[1].get(weight) == room), default=None)


def _counts_up(ids: Tensor, length: int) -> bool:
    """Whether ids are those of the positions of every token, one after the other."""
    return 1 <= ids.ndim <= 2 and ids.shape[-1] == length and bool((ids.diff(dim=-1) == 1).all())


def equal_tokens(model: PreTrainedModel, length: int, *, reads_target: bool) -> dict[str, Tensor]:
    """A text of one token, repeated, as the source and, if the model reads a target text, as that too.

    A model that is given vectors reads an input of its own size.
    """
    if of_vectors := getattr(model, "random_batch", None):
        vectors: dict[str, Tensor] = of_vectors(1)
        return vectors
    # Some models find their positions by looking for padding: none may stand among the tokens.
    token = 1 if padding_of(model) == 0 else 0
    inputs = {"input_ids": torch.full((1, length), token, device=execution_device(model))}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs | ({f"decoder_{name}": tensor for name, tensor in inputs.items()} if reads_target else {})


def _lookups(model: PreTrainedModel, length: int, *, reads_target: bool) -> dict[int, tuple[int, Tensor]]:
    """The rows of the embeddings that are looked up before the first layer, and with which ids, by their weights' address."""

    def stop(_layer: int, _vectors: Tensor) -> None:
        raise StopForward

    inputs: Mapping[str, Any] = equal_tokens(model, length, reads_target=reads_target)
    with torch.inference_mode(), model_code(model), Lookups() as lookups:
        inputs = after_encoder(model, inputs) if reads_target else inputs
        with contextlib.suppress(StopForward), LayerCalls(model, 1, stop):
            model(**inputs)
    return {weight.data_ptr(): (len(weight), ids) for weight, ids in reversed(lookups.found)}


def after_encoder(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of an encoder–decoder whose encoder has run."""
    source = {name: given for name, given in inputs.items() if not name.startswith(("decoder_", "use_"))}
    encoded = model.get_encoder()(**source)  # type: ignore[operator]
    begin(encoded.last_hidden_state)
    others = {name: given for name, given in inputs.items() if name not in source or name == "attention_mask"}
    return {**others, "encoder_outputs": encoded}


class Lookups(TorchFunctionMode):
    """While active, records every lookup of rows in a table, by `nn.functional.embedding` or by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor]] = []
        """The weights and the ids."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        looked_up = lookup_of(function, args, kwargs or {})
        if looked_up is not None:
            self.found.append(looked_up)
        return function(*args, **(kwargs or {}))


def lookup_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """A table and ids, if a function looks up a row of the table for each id."""
    if function is nn.functional.embedding:
        given = dict(zip(("input", "weight"), args, strict=False)) | dict(kwargs)
        return given["weight"], given["input"]
    if getattr(function, "__name__", "") != "__getitem__" or not isinstance(args[0], nn.Parameter) or args[0].ndim != 2:
        return None
    ids, *rest = args[1] if isinstance(args[1], tuple) else (args[1],)
    is_lookup = isinstance(ids, Tensor) and ids.dtype in (torch.int64, torch.int32)
    return (args[0], ids) if is_lookup and all(each in (slice(None), ...) for each in rest) else None


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


def random_batch(model: Any, lengths: Sequence[int], targets: Sequence[int] | None = None) -> dict[str, Tensor]:
    """A batch of random token ids; see `random_tokens`.

    Args:
        lengths: Number of tokens of each text.
        targets: The same of the texts that the decoder reads; None for a model that reads none.

    Raises:
        NotRecognisedError: If the model has no token embeddings.
    """
    if of_vectors := getattr(model, "random_batch", None):  # of the size of its inputs
        vectors: dict[str, Tensor] = of_vectors(len(lengths))
        return vectors
    try:  # a Marian model may have two vocabularies
        readers = [model] if targets is None else [model, model.get_decoder()]
        vocabularies = [embeddings_of(reader).num_embeddings for reader in readers]
    except (AssertionError, AttributeError, NotImplementedError) as error:
        raise NotRecognisedError("the model has no token embeddings") from error
    device = execution_device(model)
    inputs = random_tokens(model, vocabularies[0], lengths, device)
    if targets is not None:
        target = random_tokens(model, vocabularies[1], targets, device)
        inputs |= {f"decoder_{name}": tensor for name, tensor in target.items()}
    return inputs
