"""Why Hydra or OmegaConf cannot compose a config, on one line that names the key."""

import difflib
import re
from collections.abc import Callable, Iterator, Sequence

from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from normscope.config.schema import Schema, suggestion, what_is_expected
from normscope.errors import printable

# OmegaConf keeps only the words of what a resolver of ours raises.
_FROM_RESOLVER = "InputError raised while resolving interpolation: "
_MERGING = "Error merging override "
_SEVERAL = "Ambiguous value for argument '"
_INSTEAD = {
    "model": "; for a folder or a name on the Hub, set model.name={}",
    "dataset": "; for a file, set dataset=text dataset.path={}",
    "tracking": "; for Weights & Biases, set tracking=online or tracking=offline; for no tracking, tracking=disabled",
}
"""What may have been meant by a name that resembles no preset, by group."""
_NOT_A_LIST = "is not a ListConfig, list or tuple"

# Lines of their messages that are of no use to a user; their advice to add a + would get a typo past the schema.
_ASIDES = ("full_key:", "object_type=", "reference_type=", "To append to your", "See https://", "^")


def explain(error: Exception, schema: Schema, quoted: Callable[[str], str | None] = lambda _typed: None) -> str:
    """The reason for an error of Hydra's or OmegaConf's, with the key or override that it is about.

    Args:
        error: Whatever composing a config or reading a value of it has raised.
        schema: The keys that there are.
        quoted: Returns an override whose value is quoted so that it can be read, as a word for a shell; None if it cannot.
    """
    causes = list(_causes(error))
    ours = str(error).partition(_FROM_RESOLVER)[2]
    if ours:
        return ours.splitlines()[0]
    missing = getattr(error, "missing_cfg_file", None)
    if missing is not None:
        return _missing_preset(missing, getattr(error, "options", None))
    typed = getattr(error, "override", None)  # where the grammar cannot read it
    if isinstance(typed, str):
        word = quoted(typed)
        return f"{typed}: expected key=value" + (
            f", with this value in quotes: {word}" if word is not None else f": {_reason(error)}"
        )
    if _SEVERAL in str(error):
        name, _, values = str(error).partition(_SEVERAL)[2].partition("'")[0].partition("=")
        # Groups have no values with commas.
        word = quoted(f"{name}={values}") if "." in name else None
        return f"{name}={values}: expected one value, or a list: '{name}=[{values}]'; --multirun makes it a sweep" + (
            f"; if the comma is part of the value: {word}" if word is not None else ""
        )
    about = next((cause for cause in causes if isinstance(cause, OmegaConfBaseException)), None)
    if about is None:
        return _reason(error)
    key, said = str(about.full_key or ""), str(error)
    is_reference = str(about).startswith("Interpolation")
    if isinstance(about, ConfigAttributeError | ConfigKeyError) and not is_reference:
        if schema.is_free_form(key):
            return f"{key} is not set yet; +{key}=VALUE adds it"
        return f"unknown key {key}{suggestion(key, schema.keys)}"
    where = said.removeprefix(_MERGING).splitlines()[0] if said.startswith(_MERGING) else key
    name, is_typed, value = where.partition("=")
    if is_typed and not is_reference and name in schema.names:
        in_brackets = f": '{name}=[{value}]'" if _NOT_A_LIST in str(about) and schema.accepts(name, [value]) else ""
        return f"{where}: {what_is_expected(name, value, schema.keys)}{in_brackets}"
    return f"{where}: {_reason(about)}" if where else _reason(about)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(_ASIDES))
    return printable(text, 300) or type(error).__name__


def _missing_preset(file: str, presets: list[str] | None) -> str:
    # Only Hydra's own groups are nested; elsewhere a slash belongs to a path or to a name on the Hub.
    group, _, name = file.rpartition("/") if file.startswith("hydra/") else file.partition("/")
    if not presets:
        return f"{file}: no such config"
    is_path = "/" in name or "." in name
    # Of the ways to track, the closest word may mean the opposite: `online` to `none`.
    close = None if is_path or group == "tracking" else _closest(name, presets)
    own = "" if close else _INSTEAD.get(group, "").format(name)
    advice = f"did you mean {close}? Expected" if close else "expected"
    return f"{group}={name}: no such preset{own}; {advice} one of {', '.join(presets)}"


_SAME, _ENOUGH = 0.8, 0.5
"""How alike two words are if one may be a misspelling of the other, and how much of two names consists of such words."""


def _closest(name: str, presets: Sequence[str]) -> str | None:
    """The preset that a name may stand for; None if none is close.

    Names are compared word by word: `bert-basse` has one word in common with `bert` and with `bert-sst2`, and is closer to
    `bert`, which has no other.
    """

    def in_common(preset: str) -> float:
        words, others = _PARTS.split(name), _PARTS.split(preset)
        joined = _alike("".join(words), "".join(others))
        found = sum(ratio for one in others if (ratio := max(_alike(one, word) for word in words)) >= _SAME)
        return max(2 * found / (len(words) + len(others)), joined if joined >= _SAME else 0.0)

    best = max(presets, key=in_common)
    return best if in_common(best) >= _ENOUGH else next(iter(difflib.get_close_matches(name, presets, n=1)), None)


_PARTS = re.compile("[-_]")


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
