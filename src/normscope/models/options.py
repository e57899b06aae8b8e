"""Which model is analysed, and where it runs."""

import enum
from dataclasses import dataclass, field
from typing import Annotated

from omegaconf import II, MISSING
from pydantic import Field

from normscope.config.rules import RUNS_CODE, Count, MemorySize, Options, PathText, Seed
from normscope.errors import InputError


@dataclass
class Pin(Options):
    """The source of a preset's model. It is ignored if another `model.name` overrides the preset's."""

    name: str | None = None
    """The model's name; the other values hold only for this model."""
    package: str | None = None
    """An installed package that has the model's files."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    sha256: str | None = None
    """SHA-256 digest of the weights."""


class ModelStack(enum.StrEnum):
    """Which stack of an encoder–decoder is analysed."""

    encoder = "encoder"
    decoder = "decoder"
    cross = "cross"


class Tower(enum.StrEnum):
    """Which part of a model that embeds images and texts is analysed."""

    image = "image"
    text = "text"


@dataclass
class ModelOptions(Options):
    """Which model is analysed."""

    name: PathText = MISSING
    """Hub name or local folder."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    sha256: str | None = None
    """Expected SHA-256 digest of the weights."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Training step of the checkpoint, the x-axis of a comparison; by default read from the revision, the name or the file
    `trainer_state.json`. With `model=multiberts-steps`, which checkpoint."""
    checkpoints: str | None = None
    """Pattern of a training run's checkpoint folders, such as `/path/run/checkpoint-*`: a sweep over all of them, in the order
    of their steps."""
    pin: Pin = field(default_factory=Pin)
    stack: ModelStack | None = None
    """Which attention of an encoder–decoder to analyse; by default, the encoder's."""
    tower: Tower | None = None
    """Which part of a model with an image and a text tower, such as CLIP, to analyse; by default, the image tower if the model
    comes with an image processor."""
    tokenizer: PathText | None = None
    """Hub name or local folder of another tokenizer."""
    factory: Annotated[str | None, RUNS_CODE] = None
    """A function that builds the model, as `package.module:function`. It returns a `torch.nn.Module`, a pair of a module and
    its tokenizer, or a dict with `model` and other arguments of `normscope.wrap`."""
    random_init: bool = False
    """Use random weights of the same shapes, as a control."""
    toy: bool = False
    """Use the toy translation model, which is trained on first use."""
    seed: Seed = II("seed")
    """Seed of random weights; with `model=multiberts`, which of the 25 models."""
    training: str | None = None
    """Name of a training that was repeated with other seeds, of which `seed` is one: comparisons take means over them."""
    source_language: str | None = None
    """Source language of a multilingual translation model, as a language code of its tokenizer."""
    target_language: str | None = None
    """Target language of a multilingual translation model, as a language code of its tokenizer."""
    allow_pickle: Annotated[bool, RUNS_CODE] = False
    """Accept weights that are not safetensors."""
    trust_remote_code: Annotated[bool, RUNS_CODE] = False
    """Run code that comes with the model."""


class DType(enum.StrEnum):
    """Number format of weights and activations."""

    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class DeviceMap(enum.StrEnum):
    """How weights are spread over devices."""

    auto = "auto"


@dataclass
class MaxMemory(Options):
    """Sizes such as `20GiB` or `500MB`; by default, the free memory."""

    accelerator: MemorySize | None = None
    """On the accelerator on which the model runs, and on each other GPU of the process."""
    cpu: MemorySize | None = None
    """In CPU memory. Weights that fit nowhere stay on disk."""


@dataclass
class DeviceOptions(Options):
    """Where the model runs."""

    name: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:<number>` or `mps`."""
    dtype: DType = DType.float32
    """Number format of weights and activations."""
    batch_tokens: Count = 4096
    """Maximum number of tokens in a batch, padding included."""
    map: DeviceMap | None = None
    """`auto` keeps weights that do not fit on the device on the process's other GPUs, then in CPU memory, then on disk
    (accelerate)."""
    max_memory: MaxMemory = field(default_factory=MaxMemory)
    """How much memory weights may take with `map`."""


def check_model(options: ModelOptions) -> None:
    """Check how the keys of a model go together."""
    if options.checkpoints is not None:
        raise InputError(
            f"model.checkpoints={options.checkpoints}: expected on the command line, where it makes a sweep; in a file, "
            "set model.name to one folder"
        )
    if options.factory is not None:
        others = {"random_init": options.random_init, "sha256": options.sha256, "toy": options.toy}
        for key, value in others.items():
            if value:
                raise InputError(
                    f"model.factory={options.factory}: the function builds the model; leave out model.{key}"
                )
        if options.name == options.pin.name:
            raise InputError(
                f"model.factory={options.factory}: expected model=own, got the preset of {options.name}; set model=own"
            )
    if options.sha256 is not None and options.random_init:
        raise InputError("model.sha256 is set, but random weights are asked for; drop one of the two")


def check_device(options: DeviceOptions) -> None:
    """Check how the keys of a device go together."""
    for place, size in vars(options.max_memory).items():
        if size is not None and options.map is None:
            raise InputError(f"device.max_memory.{place}={size} is only used with device.map=auto; set it as well")
