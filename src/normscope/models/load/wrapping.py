"""A model in memory, observed through a copy that shares its weights, so that the model itself is never touched.

The copy has modules, a config and hooks of its own, and the same parameters in memory: nothing is doubled, and weights that
training changes in place are those observed. Only layers with an adapter have weights of their own, which are the merged ones.
"""

import collections
import copy
import dataclasses
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.errors import InputError, one_line
from normscope.models.facts import ModelFacts, StackName
from normscope.models.load.adapters import adapted_layers, merge_active_adapters, without_peft
from normscope.models.load.any_module import AnyModule, Inputs, PlainModule
from normscope.models.load.image_texts import reads_image_texts
from normscope.models.load.input_reading import Processor
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import DTYPES, check_shape, run_experts_in_float64
from normscope.models.load.task_heads import Head, has_head
from normscope.models.load.text_batches import batch_from_texts
from normscope.models.load.tokenizer_loading import TokenNames, check_tokenizer, longest_input
from normscope.models.load.towers import check_tower, has_towers, text_part, two_towers
from normscope.models.load.vector_loading import cross_stack, image_text_model, speech_model, tower_of, vector_model
from normscope.models.observe.reading import facts_of, observed_stack, refusal_explained
from normscope.models.options import Tower
from normscope.models.probes import embeddings_of
from normscope.models.prove.verification import verify_same_outputs
from normscope.models.stored.config_checks import check_not_quantised, check_supported, see_later_tokens
from normscope.models.stored.embedder_files import embedder_in_memory, kind_of_encoder, rule_in_memory
from normscope.models.stored.random_state import drawing
from normscope.models.stored.text_tower import base_of, class_of, text_config, text_tower
from normscope.models.stored.weight_checks import check_finite

_UNCOVERED = "“Your own model” in the documentation for what a model may compute"

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_CHANGED = (
    "{} has changed since it was wrapped: its weights were moved, cast or replaced, its adapters trained or switched, or its "
    "settings or those of its tokenizer changed; wrap it again"
)

_PROBE = ("a?", "b.")
"""A pair that becomes a few tokens."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers by their size in bytes."""
_ODD = 0x1E3779B97F4A7C15
"""Spreads the weights of sums over 64 bits."""

# Their forward hooks record outputs and ask for gradients; none of them changes a number.
_HARMLESS_HOOKS = ("transformers", "peft")


def wrap_model(
    model: object,
    tokenizer: PreTrainedTokenizerBase | Processor | None = None,
    stack: StackName | None = None,
    *,
    inputs: Inputs | None = None,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    example: object = None,
    tower: Tower | None = None,
) -> LoadedModel:
    """A model in memory, ready to be observed.

    Args:
        model: A transformers model with or without a head, a PEFT model around one, an encoder of sentence-transformers, or
            any other module that maps token ids to vectors. Active adapters are merged in the copy.
        tokenizer: Its tokenizer. Without one, a text is the names of its tokens, separated by spaces. For a model of images or
            audio, its processor; for one of images and texts, the processor of both. For one of any other vectors, a function
            of an input that returns the keyword arguments of its `forward`.
        stack: Which attention of an encoder–decoder; the encoder's by default.
        inputs: What a module is called with, as a function of ids and mask; see `AnyModule`.
        tokens: The name of each token id, if there is no tokenizer; by default, the ids themselves. For vectors, the names of
            an input's tokens in order, or names by category; an input may have fewer tokens.
        example: An input of that function; without one, it is given images.
        tower: Which part of a model that embeds images and texts; by default, the one for images if there is a processor.

    Raises:
        InputError: If it is not such a model, cannot be observed or cannot be copied faithfully.
    """
    whole = without_peft(model)
    if isinstance(whole, PreTrainedModel) and has_towers(whole.config):
        return _either_tower(whole, tokenizer, _names_of_ids(tokenizer, tokens, example), tower, stack)
    check_tower(tower, whole.config.model_type if isinstance(whole, PreTrainedModel) else type(whole).__name__)
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        if reads_image_texts(whole, tokenizer):
            return _reading_image_texts(whole, tokenizer)
        return _reading_vectors(whole, tokenizer, stack, tokens, example)
    names = _names_of_ids(tokenizer, tokens, example)
    kind = kind_of_encoder(model)
    if kind is not None:
        return _encoder_of_library(model, kind, tokenizer, stack)
    if not isinstance(whole, PreTrainedModel):
        return _wrapped_module(whole, tokenizer, stack, inputs, names)
    if inputs is not None:
        raise InputError(
            f"inputs: expected none for a transformers model, whose forward is known, got {_kind(inputs)}; leave it out"
        )
    return _reading_texts(whole, tokenizer, names, stack)


def _reading_texts(
    given: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    names: Sequence[str] | None,
    stack: StackName | None,
) -> LoadedModel:
    """A transformers model of texts, ready to be observed."""
    name = str(given.config.name_or_path or type(given).__name__)
    check_not_quantised(given.config)
    whole = text_tower(given)
    check_supported(whole.config)
    base, stack = _observed_part(whole, stack)
    heads = {head for head in Head if stack != "encoder" and has_head(whole, head)}
    copied = _Copy(whole if heads else base, name, hold=whole is not given)
    observed = base_of(copied.model) if heads else copied.model
    run_experts_in_float64(observed)
    check_finite(observed, name)
    # The original, because some models change their modules when they run (BigBird).
    with refusal_explained(name):
        facts = facts_of(observed, stack)
    check_shape(observed, facts, name)
    tokenizer = _checked_tokenizer(tokenizer, names, observed, facts, name)
    loaded = _loaded(copied, observed, facts, name, tokenizer)
    return dataclasses.replace(loaded, load_head=lambda head: copied.model if head in heads else None)


def _names_of_ids(
    tokenizer: object, tokens: Sequence[str] | Mapping[str, Sequence[str]] | None, example: object
) -> Sequence[str] | None:
    """The names that are given for the token ids of a model of texts.

    Raises:
        InputError: If there is a tokenizer as well, or something that is for models of vectors.
    """
    if tokenizer is not None and tokens is not None:
        raise InputError("tokens: expected none with a tokenizer, which has its own names; leave out one of the two")
    if example is not None or isinstance(tokens, Mapping):
        raise InputError(
            f"{'tokens' if example is None else 'example'}: expected a function of an input, for a model of vectors; pass "
            "it in place of a tokenizer"
        )
    return tokens


def _reading_vectors(
    given: object,
    processor: Processor,
    stack: StackName | None,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None,
    example: object,
) -> LoadedModel:
    """A model of images, audio or other vectors, ready to be observed."""
    if example is not None and isinstance(given, nn.Module) and not isinstance(given, PreTrainedModel):
        _check_eager(given)
        given = PlainModule(given)
    if not isinstance(given, PreTrainedModel):
        raise InputError(
            f"model: expected a transformers model that reads images or audio, got {_kind(given)}; for a module that reads "
            "other vectors, pass example=, an input of the function"
        )
    if cross_stack(stack) is not None:
        copied, name = _copied(given, base_of(given))
        settings = getattr(given, "generation_config", None)
        return speech_model(copied.model, processor, None, name, settings, copied.require_unchanged)
    classifies = example is None and has_head(given, Head.CLASS)
    find = tower_of if example is None else base_of
    copied, name = _copied(given, given if classifies else find(given))
    whole = copied.model if classifies else None
    return vector_model(
        find(copied.model),
        processor,
        name,
        lambda _head: whole,
        copied.require_unchanged,
        tokens=tokens,
        example=example,
    )


def _copied(given: PreTrainedModel, part: PreTrainedModel) -> tuple["_Copy", str]:
    """A copy of a part of a model, or of all of it, and the model's name."""
    check_not_quantised(given.config)
    name = str(given.config.name_or_path or type(given).__name__)
    copied = _Copy(part, name, hold=part is not given or isinstance(given, PlainModule))
    check_finite(copied.model, name)
    return copied, name


def _reading_image_texts(given: Any, processor: Any) -> LoadedModel:
    """A model of texts with images, ready to be observed."""
    copied, name = _copied(given, given)
    for part in copied.model.modules():
        if isinstance(part, PreTrainedModel):
            see_later_tokens(text_config(part.config))
    check_supported(text_config(copied.model.config))
    run_experts_in_float64(copied.model)
    tokenizer = processor.tokenizer
    current = functools.partial(copied.require_current, tokenizer, _size_of(tokenizer))
    loaded = image_text_model(copied.model, processor, name, tokenizer, current)
    check_tokenizer(tokenizer, name, loaded.model, loaded.facts)
    return loaded


def _either_tower(
    given: PreTrainedModel,
    reader: PreTrainedTokenizerBase | Processor | None,
    tokens: Sequence[str] | None,
    tower: Tower | None,
    stack: StackName | None,
) -> LoadedModel:
    """A tower of a model that embeds images and texts: the one that was chosen, or else the one whose inputs are made."""
    of_texts = reader is None or isinstance(reader, PreTrainedTokenizerBase)
    tokenizer = reader if of_texts else getattr(reader, "tokenizer", None)
    observed_stack(given.config, stack)  # which has none
    copied, name = _copied(given, given)

    def image() -> LoadedModel:
        if of_texts:
            raise InputError(f"tower=image: expected the processor of {name}, which reads images, got a tokenizer")
        return vector_model(tower_of(copied.model), reader, name, lambda _head: None, copied.require_unchanged)

    def text() -> LoadedModel:
        if not of_texts and tokenizer is None:
            raise InputError(
                f"tower=text: expected the processor or tokenizer of {name}, which reads texts, got one of images"
            )
        observed = text_part(copied.model)
        with refusal_explained(name):
            facts = facts_of(observed)
        return _loaded(copied, observed, facts, name, _checked_tokenizer(tokenizer, tokens, observed, facts, name))

    chosen = tower or (Tower.text if of_texts else Tower.image)
    return two_towers(copied.model, chosen, {Tower.image: image, Tower.text: text})


def _encoder_of_library(
    encoder: Any, kind: str, tokenizer: PreTrainedTokenizerBase | None, stack: StackName | None
) -> LoadedModel:
    """The model in an encoder of sentence-transformers, with its tokenizer and, if it embeds texts, what makes embeddings."""
    first = next(iter(encoder.children()), None)
    inner = getattr(first, "auto_model", None)
    if not isinstance(inner, PreTrainedModel):
        raise InputError(f"model: expected a {kind} whose first module is a Transformer, got {_kind(first)}")
    loaded = wrap_model(inner, tokenizer or getattr(encoder, "tokenizer", None), stack)
    lengths = [each for each in (loaded.max_length, getattr(encoder, "max_seq_length", None)) if each is not None]
    loaded = dataclasses.replace(
        loaded,
        max_length=min(lengths, default=None),
        require_current=_watching(encoder, loaded),
        rule=rule_in_memory(encoder, loaded.name)[0],
    )
    if kind == "CrossEncoder":
        _check_tokens(encoder, loaded)
        return loaded
    return dataclasses.replace(loaded, given_embedder=embedder_in_memory(encoder, loaded.name))


def _check_tokens(encoder: Any, loaded: LoadedModel) -> None:
    """Check that a pair becomes the tokens that a cross-encoder reads, so that nothing but its settings says how."""
    expected = encoder.preprocess([_PROBE], prompt=loaded.rule.prompt or None)["input_ids"]
    if expected.tolist() != batch_from_texts(loaded, _PROBE).input_ids.tolist():
        raise InputError(
            f"model: {_kind(encoder)} makes other tokens of a pair than its settings say; pass its transformers model and "
            "tokenizer instead, and texts as it writes them"
        )


def _watching(encoder: nn.Module, loaded: LoadedModel) -> Callable[[], None]:
    """A check that neither the model in an encoder nor the modules beside it have changed."""

    def settings(whole: nn.Module) -> tuple[object, ...]:
        return _state(whole, set()), rule_in_memory(whole, loaded.name)

    reference, state = weakref.ref(encoder), settings(encoder)

    def require_current() -> None:
        loaded.require_current()
        whole = reference()
        if whole is not None and settings(whole) != state:
            raise InputError(_CHANGED.format(loaded.name))

    return require_current


def _loaded(
    copied: "_Copy", model: PreTrainedModel, facts: ModelFacts, name: str, tokenizer: PreTrainedTokenizerBase
) -> LoadedModel:
    """The base model in a copy, without heads."""
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        facts=facts,
        name=name,
        revision=None,
        max_length=longest_input(model, facts, tokenizer),
        require_current=functools.partial(copied.require_current, tokenizer, _size_of(tokenizer)),
    )


def _wrapped_module(
    module: object,
    tokenizer: PreTrainedTokenizerBase | None,
    stack: StackName | None,
    inputs: Inputs | None,
    tokens: Sequence[str] | None,
) -> LoadedModel:
    """A module that is not from transformers, ready to be observed."""
    if not isinstance(module, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {_kind(module)}")
    name = type(module).__name__
    if stack is not None:
        raise InputError(
            f"stack={stack}: expected none for {name}, which is not a transformers encoder–decoder; leave out stack"
        )
    _check_eager(module)
    copied = _Copy(AnyModule(module, inputs), name, hold=True)
    observed = copied.model
    assert isinstance(observed, AnyModule)
    check_finite(observed, name)
    with refusal_explained(name, f"see {_UNCOVERED}"), drawing():
        observed.find_parts()
        facts = dataclasses.replace(facts_of(observed), source=_UNCOVERED)
    return _loaded(copied, observed, facts, name, _checked_tokenizer(tokenizer, tokens, observed, facts, name))


def _check_eager(module: nn.Module) -> None:
    """Check that a module runs its own Python code.

    Raises:
        InputError: If a part of it is compiled or scripted.
    """
    for path, part in module.named_modules():
        compiled = getattr(part, "_compiled_call_impl", None) is not None or hasattr(part, "_orig_mod")
        if compiled or isinstance(part, torch.jit.ScriptModule):
            kind = "compiled" if compiled else "scripted"
            raise InputError(
                f"model: expected a module that runs its own code, got a {kind} one{f' at {path}' if path else ''}; pass the "
                "original module"
            )


def _checked_tokenizer(
    tokenizer: PreTrainedTokenizerBase | None,
    tokens: Sequence[str] | None,
    model: PreTrainedModel,
    facts: ModelFacts,
    name: str,
) -> PreTrainedTokenizerBase:
    """The tokenizer that was given, if it fits the model; without one, a tokenizer of names."""
    if tokenizer is not None:
        check_tokenizer(tokenizer, name, model, facts)
        return tokenizer
    rows = embeddings_of(model).num_embeddings
    if tokens is not None and len(tokens) > rows:
        raise InputError(f"tokens: expected at most {rows} names, one for each row of the embedding, got {len(tokens)}")
    return TokenNames.of([str(number) for number in range(rows)] if tokens is None else tokens)


def _observed_part(whole: PreTrainedModel, stack: StackName | None) -> tuple[PreTrainedModel, StackName | None]:
    """The base model, or its encoder if that is the stack, and the stack."""
    base = base_of(whole)
    stack = observed_stack(whole.config, stack)
    if stack is None:
        return base, None
    encoder = base.get_encoder()
    if encoder is base and (stack != "encoder" or _is_decoder(base)):
        expected, part = "a whole encoder–decoder", "a part of one"
        if stack == "encoder":
            expected, part = "an encoder or a whole encoder–decoder", "a decoder"
        raise InputError(f"model: expected {expected}, got only {part}, {type(whole).__name__}")
    observed = encoder if stack == "encoder" else base
    if not isinstance(observed, PreTrainedModel):
        raise InputError(
            f"model: expected the {stack} of {type(whole).__name__} to be a transformers model of its own, got "
            f"{type(observed).__name__}, which has no token embeddings of its own"
        )
    return observed, stack


def _is_decoder(part: PreTrainedModel) -> bool:
    """Whether a part of an encoder–decoder is its decoder; the encoder and the decoder may be of one class."""
    config = part.config
    if getattr(config, "is_decoder", False):
        return True
    kind: Any = class_of(AutoModel, config)
    if kind is None:
        return False
    with torch.device("meta"):
        whole = kind(copy.deepcopy(config))
    return type(part) is type(whole.get_decoder()) is not type(whole.get_encoder())


class _Copy:
    """The copy of a model that shares its weights.

    Args:
        original: What is copied. It is left as it is.
        name: For messages.
        hold: Whether to keep the original, which nobody else does: a view of the text tower in another model.

    Raises:
        InputError: If something about the model cannot be copied, or its adapters cannot be merged exactly.
    """

    def __init__(self, original: PreTrainedModel, name: str, *, hold: bool = False) -> None:
        _check_copyable(original)
        self._original, self._name, self._held = weakref.ref(original), name, original if hold else None
        adapted = adapted_layers(original)
        self._own = {id(parameter) for layer in adapted.values() for parameter in layer.parameters()}
        self.model = _copy(original, frozenset(self._own))
        if adapted:
            unmerged = _copy(original, frozenset())
            merge_active_adapters(self.model)
            self.model.requires_grad_(False)
            verify_same_outputs(self.model, unmerged, name, "with its adapters merged into its weights")
        self._state = _state(original, self._own)

    def require_current(self, tokenizer: PreTrainedTokenizerBase, size: tuple[int, int]) -> None:
        """Check that the copy still has the weights of its original, and a tokenizer its maximal length and its vocabulary.

        Raises:
            InputError: If the original was moved, cast or given other weights, or its adapters have changed.
        """
        if _size_of(tokenizer) != size:
            raise InputError(_CHANGED.format(self._name))
        self.require_unchanged()

    def require_unchanged(self) -> None:
        """Check that the copy still has the weights of its original.

        Raises:
            InputError: If the original was moved, cast or given other weights, or its adapters have changed.
        """
        original = self._original()
        if original is not None and _state(original, self._own) != self._state:
            raise InputError(_CHANGED.format(self._name))


def _size_of(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """The maximal length of a tokenizer's texts, and the number of its tokens."""
    return tokenizer.model_max_length, len(tokenizer)


def _state(model: nn.Module, own: set[int]) -> list[tuple[object, ...]]:
    """Where every weight lies, and what those are that the copy does not share."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    state: list[tuple[object, ...]] = [
        (name, tensor.data_ptr(), _digest(tensor) if id(tensor) in own else 0) for name, tensor in tensors
    ]
    for name, layer in adapted_layers(model).items():
        scales = tuple(dict(getattr(layer, "scaling", {})).items())
        state.append((name, tuple(layer.active_adapters), layer.disable_adapters, tuple(layer.merged_adapters), scales))
    return state


def _digest(tensor: Tensor) -> tuple[int, int]:
    """Two sums over the bits of a tensor, weighted by row and by column.

    A tensor's version does not change when `tensor.data` does. Changes that leave both sums alone are not made by chance.
    """
    rows = tensor.detach().contiguous()
    rows = rows.flatten(1) if rows.ndim > 1 else rows.reshape(1, -1)
    size = rows.element_size()
    # Sums of eight bytes at a time, where they fit, take a small part of the time.
    fits = rows.shape[1] * size % 8 == 0 and rows.storage_offset() * size % 8 == 0
    rows = rows.view(torch.int64 if fits else _BITS[size])
    by_row, by_column = rows.sum(dim=1, dtype=torch.int64), rows.sum(dim=0, dtype=torch.int64)
    return _weighted(by_row), _weighted(by_column)


def _weighted(sums: Tensor) -> int:
    return int((sums * torch.arange(1, 2 * len(sums), 2, device=sums.device) * _ODD).sum())


def _copy(original: PreTrainedModel, own: frozenset[int]) -> PreTrainedModel:
    """A copy in evaluation mode, without hooks and gradients, whose weights are the original's but for some of its own."""
    memo: dict[int, Any] = {}
    for parameter in original.parameters():
        weights = parameter.detach()
        memo[id(parameter)] = nn.Parameter(weights.clone() if id(parameter) in own else weights, requires_grad=False)
    for buffer in original.buffers():
        memo[id(buffer)] = buffer.detach()
    for module in original.modules():
        memo |= {id(hooks): collections.OrderedDict() for hooks in _all_hooks(module)}
    try:
        copied = copy.deepcopy(original, memo)
    except Exception as error:  # attributes of other people's modules, which may be anything
        raise InputError(f"model: its modules cannot be copied: {one_line(error)}") from error
    for module in copied.modules():
        attributes = vars(module)
        for name, value in attributes.items():
            if isinstance(value, types.FunctionType):
                attributes[name] = _with_copies(value, memo)
        if isinstance(attributes.get("config"), PretrainedConfig):
            attributes["config"].use_cache = False  # as in `loading`
            attributes["config"].return_dict = True
        if "chunk_size_feed_forward" in attributes:
            attributes["chunk_size_feed_forward"] = 0
        # With its hooks gone, transformers must be free to add them again.
        attributes.pop("_output_capturing_hooks_installed", None)
    return copied.eval()


def _with_copies(function: types.FunctionType, memo: Mapping[int, Any]) -> types.FunctionType:
    """A function that closes over the copies of modules: `self.mlp = lambda x: m.project(x)` would run the original m."""
    cells = function.__closure__ or ()
    held = [cell.cell_contents for cell in cells]
    if not any(isinstance(value, nn.Module) and id(value) in memo for value in held):
        return function
    closure = tuple(types.CellType(memo.get(id(value), value)) for value in held)
    copied = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _all_hooks(module: nn.Module) -> Iterator[dict[int, Any]]:
    for name, value in vars(module).items():
        if name.startswith(_HOOKS) and isinstance(value, dict):
            yield value


def _check_copyable(model: PreTrainedModel) -> None:
    """Check that the modules compute what their classes say, from weights that are here.

    Raises:
        InputError: If a module has hooks or another `forward`, or a weight is elsewhere or quantised.
    """
    for name, module in model.named_modules():
        where = f"model: {name or type(model).__name__}"
        if "forward" in vars(module):
            raise InputError(
                f"{where} has a custom forward, from accelerate or other code, that cannot be copied; pass a model whose "
                "modules are unchanged, on one device"
            )
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for hook in hooks.values():
                if str(getattr(hook, "__module__", "")).partition(".")[0] not in _HARMLESS_HOOKS:
                    raise InputError(
                        f"{where} has a forward hook, {getattr(hook, '__qualname__', _kind(hook))}, which may change what "
                        "the model computes; remove it first"
                    )
    devices = {str(tensor.device) for tensor in [*model.parameters(), *model.buffers()]}
    if len(devices) > 1 or "meta" in devices:
        raise InputError(f"model: expected all weights on one device, got {', '.join(sorted(devices))}")
    for name, parameter in model.named_parameters():
        # A tensor of torchao holds integers and scales, but names the dtype of the numbers that they stand for.
        quantised = is_traceable_wrapper_subclass(parameter)
        if quantised or parameter.dtype not in DTYPES.values():
            found = type(parameter).__name__ if quantised else str(parameter.dtype).removeprefix("torch.")
            raise InputError(
                f"model: expected weights in {', '.join(DTYPES)}, got {found} for {name}; load the model without quantisation"
            )


def _kind(value: object) -> str:
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}".removeprefix("builtins.")
