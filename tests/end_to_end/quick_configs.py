"""Half the time of a small run: parsing the same interpolations again, and composing a config only to read hydra.mode."""

import functools

import omegaconf
from hydra._internal.hydra import Hydra

_parse = functools.cache(omegaconf.grammar_parser.parse)
PATCHES = (
    (omegaconf.base, "parse", _parse),
    (omegaconf._utils, "parse", _parse),
    (Hydra, "get_mode", lambda *_, **__: None),
)
"""Module or class, attribute, replacement."""
