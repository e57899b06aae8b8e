"""Configs without what takes a third of a small run: files that are read and merged again, interpolations that are parsed
again, a config that is composed only to read hydra.mode, and copies that are made by Python's general means."""

import copy
import functools
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import omegaconf
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource

_parse = functools.cache(omegaconf.grammar_parser.parse)


def _copied(node: omegaconf.base.Metadata, memo: dict[int, Any]) -> omegaconf.base.Metadata:
    """A copy that shares everything but its flags and its cache: the rest are types and names."""
    copied = object.__new__(type(node))
    flags, cache = node.flags, node.resolver_cache
    copied.__dict__.update(node.__dict__)
    copied.flags = None if flags is None else dict(flags)
    copied.resolver_cache = copy.deepcopy(cache, memo) if cache else type(cache)(cache.default_factory)
    return copied


def _load_once(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
    """A part of a config, which is read again only if it has changed. The nodes are shared: they may not be changed."""
    source = repository._find_object_source(config_path=config_path, object_type=ObjectType.CONFIG)
    if source is None:
        return None
    key = (source.scheme(), source.path, source.provider, config_path, _state(source, config_path))
    if key not in _loaded:
        _loaded[key] = _load(repository, config_path)
        _loaded[key].key = key
    result = copy.copy(_loaded[key])
    result.header, result.defaults_list = dict(result.header), copy.deepcopy(result.defaults_list)
    return result


def _state(source: ConfigSource, config_path: str) -> Hashable:
    """What differs once a part of a config has changed. Packages do not change."""
    name = source._normalize_file_name(config_path)
    match source.scheme():
        case "file":
            file = Path(source.path, name).stat()
            return file.st_mtime_ns, file.st_size, file.st_ino
        case "structured":
            node = ConfigStore.instance()._load(name).node
            _nodes[id(node)] = node  # no other gets its number
            return id(node)
    return None


def _compose_once(loader: ConfigLoaderImpl, defaults: Any, repo: Any) -> omegaconf.DictConfig:
    """A copy of the parts of a config, merged."""
    parts = [repo.load_config(config_path=default.config_path) for default in defaults]
    key = tuple(
        (default.config_path, default.package, default.primary, part.key)
        for default, part in zip(defaults, parts, strict=True)
    )
    if key not in _composed:
        for part in parts:
            part.config = copy.deepcopy(part.config)
        _composed[key] = _compose(loader, defaults, repo)
    return copy.deepcopy(_composed[key])


def _copied_repository(repository: ConfigRepository, _memo: dict[int, Any]) -> ConfigRepository:
    """Hydra copies a repository deeply so that its sources can be changed; these never are."""
    copied = copy.copy(repository)
    copied.sources = list(repository.sources)
    return copied


def _map_if_needed(overrides: Any, defaults: Any, self_added: bool) -> omegaconf.DictConfig:
    """What an interpolation in a list of defaults may refer to."""
    needed = any(not default.is_self() and default.is_interpolation() for default in defaults)
    return _map(overrides, defaults, self_added) if needed else omegaconf.DictConfig({})


_map = defaults_list._create_interpolation_map
_load = ConfigRepository.load_config
_compose = ConfigLoaderImpl._compose_config_from_defaults_list
_loaded: dict[Hashable, ConfigResult] = {}
_nodes: dict[int, Any] = {}
_composed: dict[Hashable, omegaconf.DictConfig] = {}

PATCHES = (
    (omegaconf.base, "parse", _parse),
    (omegaconf._utils, "parse", _parse),
    (Hydra, "get_mode", lambda *_, **__: None),
    (ConfigRepository, "load_config", _load_once),
    (ConfigLoaderImpl, "_compose_config_from_defaults_list", _compose_once),
    (ConfigRepository, "__deepcopy__", _copied_repository),
    (defaults_list, "_create_interpolation_map", _map_if_needed),
    (omegaconf.base.Metadata, "__deepcopy__", _copied),
)
"""Module or class, attribute, replacement."""
HYDRAS = (
    (ConfigRepository, "load_config", _load),
    (ConfigLoaderImpl, "_compose_config_from_defaults_list", _compose),
    (defaults_list, "_create_interpolation_map", _map),
)
"""What is remembered from one config to the next, as Hydra does it."""
