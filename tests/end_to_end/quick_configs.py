"""Half the time of a small run: parsing the same interpolations and files again, composing a config only to read hydra.mode,
and copying what nodes of a config say about themselves with Python's general means."""

import copy
import functools
from pathlib import Path
from typing import Any

import omegaconf
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.hydra import Hydra
from hydra.plugins.config_source import ConfigResult

_parse = functools.cache(omegaconf.grammar_parser.parse)


def _copied(node: omegaconf.base.Metadata, memo: dict[int, Any]) -> omegaconf.base.Metadata:
    """A copy that shares everything but its flags and its cache: the rest are types and names."""
    copied = object.__new__(type(node))
    flags, cache = node.flags, node.resolver_cache
    copied.__dict__.update(node.__dict__)
    copied.flags = None if flags is None else dict(flags)
    copied.resolver_cache = copy.deepcopy(cache, memo) if cache else type(cache)(cache.default_factory)
    return copied


def _read_once(source: FileConfigSource, config_path: str) -> ConfigResult:
    """A file of a config, which is parsed again only if it has changed."""
    path = Path(source.path, source._normalize_file_name(config_path))
    state = path.stat() if path.is_file() else None
    key = (path, config_path, source.provider, state and (state.st_mtime_ns, state.st_size, state.st_ino))
    if state is None or key not in _files:
        _files[key] = _read(source, config_path)
    return copy.deepcopy(_files[key])


_read = FileConfigSource.load_config
_files: dict[Any, ConfigResult] = {}

PATCHES = (
    (omegaconf.base, "parse", _parse),
    (omegaconf._utils, "parse", _parse),
    (Hydra, "get_mode", lambda *_, **__: None),
    (FileConfigSource, "load_config", _read_once),
    (omegaconf.base.Metadata, "__deepcopy__", _copied),
)
"""Module or class, attribute, replacement."""
