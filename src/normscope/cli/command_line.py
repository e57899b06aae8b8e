"""The words of a command line: commands of ours, patterns of checkpoints, and the overrides for Hydra."""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException
from omegaconf import OmegaConf

from normscope.config.keys import shown
from normscope.config.training_step import checkpoints
from normscope.errors import InputError, one_line
from normscope.streams import shell_word
from normscope.untrusted.plain_data import MIB, opened, read

_CHECKPOINTS = "model.checkpoints="
"""The key that the command line alone understands."""


def program() -> str:
    """The command that started this process, without its arguments."""
    name = Path(sys.argv[0]).name
    return {"run.py": "python run.py", "__main__.py": "python -m normscope"}.get(name, "normscope")


def translate_command() -> None:
    """Turn `--quiet` into an override."""
    sys.argv[1:] = ["verbosity=quiet" if word == "--quiet" else word for word in sys.argv[1:]]


def help_topics() -> list[str] | None:
    """What `help KEY…` asks about; nothing for `--help`; None if the command line asks for no help."""
    words = sys.argv[1:]
    if words[:1] == ["help"]:
        return words[1:]
    own = words[:1] in (["explain"], ["attention"], ["page"], ["compare"])
    return [] if not own and {"--help", "-h"} & set(words) else None


_LOOKS_LIKE_A_FILE = re.compile(r"\.{0,2}/\S+|\S+\.txt")


_LONGEST_TEXT = 16 * MIB


def text_of(command: str, is_key: Callable[[str], bool]) -> str | None:
    """Take a text, such as that of `explain TEXT`, from the command line, a file or standard input; None without the command.

    After `--`, the text is what it is, even if it is the name of a file or begins with a dash.

    Args:
        command: `explain` or `attention`.
        is_key: Whether a word is a key of the config.

    Raises:
        InputError: If there is no text, or its file cannot be read.
    """
    if sys.argv[1:2] != [command]:
        return None
    if sys.argv[2:3] == ["--"] and len(sys.argv) > 3:
        text = sys.argv[3]
        del sys.argv[1:4]
        return text
    if len(sys.argv) < 3 or sys.argv[2].startswith("--"):
        raise InputError(f'{command}: expected a text, the name of a text file, or -: {program()} {command} "A text."')
    text = sys.argv[2]
    key, sets, _ = text.partition("=")
    if sets and is_key(key.lstrip("+~")) and not _is_file(text):
        raise InputError(
            f'{command}: expected a text before {text}: {program()} {command} "A text." {text}; if it is the text itself, '
            "use - and pipe it to standard input"
        )
    del sys.argv[1:3]
    if _LOOKS_LIKE_A_FILE.fullmatch(text) and not _is_file(text):
        raise InputError(f"{command}: {text}: no such file; if it is a text, use - and pipe it to standard input")
    try:
        if text == "-":
            return _read_stdin().removesuffix("\n").removesuffix("\r")
        if _is_file(text):
            with opened(Path(text)) as stream:
                whole = read(stream, Path(text), _LONGEST_TEXT).decode()
            return whole.removesuffix("\n").removesuffix("\r")
        text.encode()
    except InputError as error:
        raise InputError(f"{command}: {text}: expected a text in UTF-8: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{command}: {text}: expected a text in UTF-8: {one_line(error)}") from error
    return text


def _read_stdin() -> str:
    """The text on the standard input, which may have no end."""
    if not hasattr(sys.stdin, "buffer"):  # an object of a notebook or a test
        return sys.stdin.read()
    return read(sys.stdin.buffer, Path("-"), _LONGEST_TEXT).decode()


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # longer than any name of a file
        return False


ATTENTION = ("queries", "keys", "heads", "measure", "reduce", "top")
"""The keys of `attention`, besides `layers`, the model and the device."""


def asked_of_attention() -> dict[str, Any]:
    """Take the keys of `attention` from the command line, with their values as Hydra reads them.

    Raises:
        InputError: If a key is set twice.
    """
    asked: dict[str, str] = {}
    for word in [*sys.argv[1:]]:
        name, sets, _ = word.partition("=")
        if sets and name in ATTENTION:
            if name in asked:
                raise InputError(f"{word} and {asked[name]} are both set; expected one of them")
            asked[name] = word
            sys.argv.remove(word)
    return {name: _value(word) for name, word in asked.items()}


def _value(override: str) -> Any:
    """The value of an override; several with commas between them are a list."""
    try:
        value = OverridesParser.create().parse_override(override).value()
    except HydraException:  # a text with letters that its grammar does not have
        return override.partition("=")[2]
    return value.list if isinstance(value, ChoiceSweep) else value


def view() -> list[str] | None:
    """The words of `page RUN` or `compare RUN …`; None if the command line has neither."""
    return sys.argv[1:] if sys.argv[1:2] in (["page"], ["compare"]) else None


def asks_to_serve() -> bool:
    """Take `serve` from the command line, and turn a pattern of checkpoints into the models of its page.

    Raises:
        InputError: If the rest asks for a sweep, or the pattern matches nothing.
    """
    if sys.argv[1:2] != ["serve"]:
        return False
    del sys.argv[1]
    if {"-m", "--multirun"} & set(sys.argv):
        raise InputError("serve: expected one page, got a sweep (-m); list models to compare in live.models")
    for word in [word for word in sys.argv[1:] if word.startswith(_CHECKPOINTS) and word != f"{_CHECKPOINTS}null"]:
        first, *others = map(os.path.abspath, checkpoints(word.removeprefix(_CHECKPOINTS).strip("'\"")))
        listed = ",".join(map(_quoted, others))
        sys.argv[sys.argv.index(word)] = f"model.name={_quoted(first)}"
        sys.argv.append(f"live.models=[{listed}]")
    return True


def expand_checkpoints() -> None:
    """Turn `model.checkpoints=PATTERN` into a sweep over the folders that the pattern matches.

    Raises:
        InputError: If it matches none, or `model.name` is set as well.
    """
    given = [word for word in sys.argv[1:] if word.startswith(_CHECKPOINTS) and word != f"{_CHECKPOINTS}null"]
    if not given:
        return
    others = [word for word in sys.argv[1:] if word.startswith("model.name=") or word in given[1:]]
    if others:
        raise InputError(f"{given[0]} and {others[0]} are both set; expected one of them")
    folders = checkpoints(given[0].removeprefix(_CHECKPOINTS).strip("'\""))
    names = ",".join(_quoted(os.path.abspath(folder)) for folder in folders)
    sys.argv[sys.argv.index(given[0])] = f"model.name={names}"
    if not {"-m", "--multirun"} & set(sys.argv):
        sys.argv.append("-m")


def overrides() -> list[str]:
    """The overrides on the command line.

    Raises:
        InputError: If there is a flag that Hydra does not have.
    """
    parser = get_args_parser()

    def refuse(reason: str) -> NoReturn:  # Hydra would print its whole usage
        raise InputError(f"{reason}; see {program()} --help")

    parser.error = refuse  # type: ignore[method-assign, assignment]
    given, others = parser.parse_known_args()
    if others:
        where = (
            ""
            if any(text.startswith("-") for text in others)
            else "; put all overrides before or after options such as -m"
        )
        refuse(f"unrecognized arguments: {' '.join(others)}{where}")
    for place in range(len(given.overrides)):
        if (listed := _with_spaces(given.overrides[place:])) is not None:
            joined = "".join(listed.split())
            refuse(f"{listed}: expected a list without spaces: {joined}; or in quotes: {shlex.quote(listed)}")
    words = [text for text in given.overrides if "=" not in text and not text.startswith("~")]
    if words:
        refuse(f"{words[0]}: expected key=value, or explain, attention, serve, page or compare as the first word")
    if given.experimental_rerun is not None:  # it would read a pickle
        raise InputError("--experimental-rerun: not supported; reproduce=FOLDER repeats a run")
    return list(given.overrides)


def _with_spaces(words: Sequence[str]) -> str | None:
    """The list that begins in the first word and that a shell has split at its spaces; None if there is none."""
    if "=[" not in words[0] or words[0].count("[") <= words[0].count("]"):
        return None
    for count in range(2, len(words) + 1):
        listed = " ".join(words[:count])
        if listed.count("[") == listed.count("]"):
            return listed
    return None


def culprit(overrides: Sequence[str]) -> str:
    """The override that Hydra could not use, if its error does not name one."""
    parser = OverridesParser.create()
    for text in overrides:
        try:
            override = parser.parse_override(text)
            value = override.value()
        except Exception:  # the grammar fails in many ways
            return text
        names = value if isinstance(value, list) else [value]
        if "." not in override.key_or_group and not all(isinstance(name, str) for name in names):
            return text
    of_hydra = [text for text in overrides if text.lstrip("+~").startswith("hydra")]
    return " ".join(of_hydra or overrides) or "the command line"


def complaint(error: Exception) -> str:
    """What an error says that Hydra did not raise on purpose."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, KeyError) and frames[-1].f_globals["__name__"] == "os":
        return f"expected environment variables that are set, got {error}; set it, or remove it from hydra.job.env_copy"
    return one_line(error)


def quoted_override(typed: str) -> str | None:
    """The word for a shell that gives a key the value as it was typed, by quoting it for Hydra; None if none does.

    Args:
        typed: An override that Hydra does not read, or not as one value.
    """
    key, _, value = typed.partition("=")
    if not value or not typed.isprintable():
        return None
    wanted: list[tuple[str, object]] = []
    if value.startswith("[") and value.endswith("]"):
        items = [item.strip() for item in value[1:-1].split(",")]
        wanted.append((f"[{','.join(map(_quoted, items))}]", items))
    wanted += [(_quoted(value), value), (_quoted(value.replace("${", r"\${")), value)]
    return next((shlex.quote(f"{key}={written}") for written, meant in wanted if _reads(key, written, meant)), None)


def word_for(key: str, value: Any) -> str:
    """The word for a shell that gives a key a value."""
    typed = f"{key}={shown(value)}"
    quoted = quoted_override(typed) if isinstance(value, str) and not _reads(key, value, value) else None
    return quoted or shell_word(typed)


def _reads(key: str, written: str, meant: object) -> bool:
    """Whether Hydra and OmegaConf read a value as it is meant."""
    try:
        read = OverridesParser.create().parse_override(f"{key}={written}").value()
        value = OmegaConf.create({"value": read})
        return bool(read == meant or OmegaConf.to_container(value, resolve=True) == {"value": meant})
    except Exception:  # the grammar fails in many ways
        return False


def _quoted(text: str) -> str:
    """A string for Hydra's grammar, whatever signs it has. Only before a quotation mark does a backslash escape."""
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f'"{escaped}"'
