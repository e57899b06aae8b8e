"""What can be known of a config's keys from the dataclass at its root."""

import dataclasses
import difflib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from normscope.config.rules import FREE_FORM, IS_PATH, MAY_BE_BLANK, RUNS_CODE, Metadata, check_rules
from normscope.config.sections import flat, plain
from normscope.errors import InputError

_LONGEST_NAME, _LONGEST_PATH = 255, 4095  # bytes, on every file system in use

_ALIKE, _LAST_ALIKE = 0.6, 0.85
"""How alike two keys, or the last parts of two keys of any groups, are if one may be a misspelling of the other."""


class Schema:
    """All keys of a config, with their defaults and the metadata of their fields.

    Args:
        root: The dataclass of the whole config, all of whose fields have defaults.
    """

    def __init__(self, root: type) -> None:
        self._root = root

    def check(self, options: Any) -> None:
        """Check the options of a run, as far as their metadata tells."""
        self.check_strings(plain(options))
        check_rules(options)

    def refuse_unknown(self, config: DictConfig) -> None:
        """Refuse unknown keys set by `+key=value`, which OmegaConf lets through: they are typos.

        Raises:
            InputError: If there is an unknown key.
        """
        self._refuse_unknown(config, "")

    def _refuse_unknown(self, config: DictConfig, prefix: str) -> None:
        for name in map(str, config):
            key = f"{prefix}{name}"
            if key not in self._names:
                raise InputError(f"unknown key {key}{self.suggestion(key)}")
            below = config._get_node(name)
            if isinstance(below, DictConfig) and f"{key}." in self._sections:
                self._refuse_unknown(below, f"{key}.")

    def knows(self, key: str) -> bool:
        """Whether this is a key or a section, or a key that Hydra reads itself."""
        return key in self._names or self.is_free_form(key) or key == "experiment" or key.startswith("hydra.")

    def suggestion(self, key: str) -> str:
        """The end of a message that suggests the closest known key; empty if none is close.

        What a key is called counts most: to `model.dtype`, `device.dtype` is closer than `model.toy`.
        """

        def alike(one: str, other: str) -> float:
            return difflib.SequenceMatcher(None, one, other).ratio()

        def last(name: str) -> str:
            return name.rpartition(".")[2]

        scores = {name: (alike(last(name), last(key)), alike(name, key)) for name in self._names}
        close = {
            name: of_last + of_all / 2
            for name, (of_last, of_all) in scores.items()
            if of_last >= _LAST_ALIKE or of_all >= _ALIKE
        }
        return f"; did you mean {max(close, key=lambda name: close[name])}?" if close else ""

    def is_free_form(self, key: str) -> bool:
        """Whether a key is, or lies in, a mapping that users fill in with keys of their own."""
        return any(f"{key}.".startswith(f"{own}.") for own in self._with(FREE_FORM))

    @functools.cached_property
    def keys_that_run_code(self) -> Mapping[str, Any]:
        """The default of every key that lets third-party code run, those of plug-ins included; see `RUNS_CODE`."""
        return {key: default for key, default in self._defaults.items() if key in self._with(RUNS_CODE)}

    def check_strings(self, config: Mapping[str, Any]) -> None:
        """Refuse strings and lists without a meaning: an empty string is not the same as null, and no file name contains NUL.

        Args:
            config: The whole config or a part of it, nested or flat.
        """
        settings = {key: value for key, value in flat(config).items() if not self.is_free_form(key)}
        for key, value in settings.items():
            if isinstance(value, list):  # OmegaConf takes any item for a list of numbers or words
                _check_items(key, value)
        for key, text in _strings(settings):
            if not text or (not text.strip() and key not in self._with(MAY_BE_BLANK)):
                null = f", or set {key}=null" if self._defaults.get(key, "") is None else ""
                raise InputError(f"{key}={text!r}: expected a value, got an empty one; leave {key} out{null}")
            if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
                raise InputError(f"{key}={text!r}: expected text, got a character that no text or file name has")
            if key in self._with(IS_PATH):
                _check_path(key, text)

    @functools.cached_property
    def _fields(self) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
        """The field and the default of every key and every section, the latter with a dot at the end."""
        return dict(_fields(self._root(), ""))

    @functools.cached_property
    def _names(self) -> dict[str, None]:
        """Every key and section, in order."""
        return dict.fromkeys(key.removesuffix(".") for key in self._fields)

    @functools.cached_property
    def _sections(self) -> frozenset[str]:
        return frozenset(key for key in self._fields if key.endswith("."))

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        return {key: default for key, (_, default) in self._fields.items()}

    def _with(self, mark: Metadata) -> frozenset[str]:
        """The keys whose metadata has a mark."""
        return self._marked.get(next(iter(mark)), frozenset())

    @functools.cached_property
    def _marked(self) -> dict[str, frozenset[str]]:
        names = {name for field, _ in self._fields.values() for name in field.metadata}
        return {
            name: frozenset(key for key, (field, _) in self._fields.items() if field.metadata.get(name))
            for name in names
        }


def _fields(section: Any, prefix: str) -> Iterator[tuple[str, tuple[dataclasses.Field[Any], Any]]]:
    for field in dataclasses.fields(section):
        default, key = getattr(section, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(default):
            yield f"{key}.", (field, default)
            yield from _fields(default, f"{key}.")
        else:
            yield key, (field, default)


def _check_items(key: str, items: list[Any]) -> None:
    for item in items:
        if isinstance(item, list | dict):
            raise InputError(f"{key}={items}: expected a list of single values, got {item!r} in it")


def _strings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        yield from ((key, item) for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))


def _check_path(key: str, text: str) -> None:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{key}={text}: {error}") from error
    if len(str(path).encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in path.parts):
        raise InputError(
            f"{key}={text[:60]}…: expected a path with names of at most {_LONGEST_NAME} bytes, {_LONGEST_PATH:,} in all"
        )
