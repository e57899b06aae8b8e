"""The words of a command line: our commands, which argparse reads, patterns of checkpoints, and the overrides for Hydra."""

import argparse
import math
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException
from omegaconf import OmegaConf

from normscope.analyses.declarations.score import SCORE
from normscope.analyses.declarations.sinks import SINKS
from normscope.config.keys import shown
from normscope.config.training_step import checkpoints
from normscope.errors import InputError, one_line
from normscope.streams import shell_word
from normscope.untrusted.plain_data import LONGEST_TEXT, is_file, read, text_in, without_line_break

_CHECKPOINTS = "model.checkpoints="
"""The key that the command line alone understands."""


def program() -> str:
    """The command that started this process, without its arguments."""
    name = Path(sys.argv[0]).name
    return {"run.py": "python run.py", "__main__.py": "python -m normscope"}.get(name, "normscope")


_RUN = "run"
"""The command of a command line that names none."""
_TEXTS = ("explain", "attention")
"""The commands whose first word is a text."""
VIEWS = ("page", "compare")
"""The commands that read run folders, and take no overrides."""
_COMMANDS = (*_TEXTS, "serve", "checkup", *VIEWS, "help")


class _Parser(argparse.ArgumentParser):
    """A parser that reports invalid words like any other invalid input, instead of printing its usage."""

    def error(self, reason: str) -> NoReturn:
        """Refuse the command line."""
        raise InputError(f"{reason}; see {self.prog} --help")


def asked_of(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What a command line asks for, and the words of it that are Hydra's.

    Args:
        words: The command line, without the program.

    Returns:
        The `command` with its own arguments; `question` is the text behind an image's file; `help` says that the first page is
        wanted instead, and `is_literal` that the text stands after `--`, and is taken as it stands, even if it is the name of a
        file or begins with a dash.

    Raises:
        InputError: If a command of ours has words that it does not know.
    """
    named = words[:1] and words[0] in _COMMANDS
    asked, rest = _parser().parse_known_args(words if named else [_RUN, *words])
    if rest and asked.command in (*VIEWS, "help"):
        raise InputError(f"unrecognized arguments: {' '.join(rest)}; see {program()} {asked.command} --help")
    asked.is_literal = "--" in words[1:2]
    asked.question = ""
    if asked.command == "explain" and rest and rest[0] in words[2:3] and not _IS_OVERRIDE.match(rest[0]):
        from normscope.untrusted.images import names_image

        asked.question = rest.pop(0) if names_image(asked.text) else ""
    return asked, ["verbosity=quiet" if word == "--quiet" else word for word in rest]


def _parser() -> _Parser:
    parser = _Parser(prog=program())
    commands = parser.add_subparsers(dest="command")
    for name in (_RUN, "serve", *_TEXTS, "help"):
        own = commands.add_parser(name, add_help=False, allow_abbrev=False)
        own.add_argument("--help", "-h", action="store_true")
        if name in _TEXTS:
            own.add_argument("text", nargs="?")
        if name == "explain":
            for key in SOURCES:
                own.add_argument(f"--{key}")
    own.add_argument("topics", nargs="*")
    checkup = commands.add_parser("checkup", add_help=False, allow_abbrev=False)
    checkup.add_argument("--help", "-h", action="store_true")
    checkup.add_argument("model", nargs="?")
    checkup.add_argument("--against", metavar="BASE")
    _add_views(commands)
    return parser


def _add_views(commands: "argparse._SubParsersAction[_Parser]") -> None:
    page = commands.add_parser(
        "page",
        description="Remake a run's figures and report from its results. For several runs of a paper's presets, make the page "
        "of the paper: each of its tables and figures, the published numbers beside those of the runs.",
    )
    page.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directory of the run, or of several")
    page.add_argument("--output", type=Path, help="file for a paper's page (default: outputs/paper.html)")
    compare = commands.add_parser(
        "compare",
        description="Compare runs: metrics and curves by layer, differences from a baseline, means over seeds.",
    )
    compare.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run directories, or folders that contain them"
    )
    compare.add_argument(
        "--baseline", type=Path, help="directory of the run to measure differences from (default: the first run)"
    )
    compare.add_argument(
        "--output", type=Path, help="folder for the comparison (default: the sweep's folder, or outputs/comparison)"
    )
    compare.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=_threshold,
        metavar="METRIC=VALUE",
        help="find the training step at which a metric crosses this value (default: half-way through its change; repeatable)",
    )
    compare.add_argument(
        "--wandb",
        metavar="ENTITY[/PROJECT]",
        help="also publish a Weights & Biases report on the group of these runs as a draft (default project: normscope)",
    )
    compare.add_argument("--group", help="the group of the runs there (default: the name of the first folder)")


def _threshold(text: str) -> tuple[str, float]:
    metric, _, value = text.rpartition("=")
    if not metric or not math.isfinite(float(value)):
        raise argparse.ArgumentTypeError(f"expected METRIC=VALUE, got {text!r}")
    return metric, float(value)


_IS_OVERRIDE = re.compile(r"-|[+~]*[\w./@]+=")
"""What a word begins with that is no question about an image."""
_LOOKS_LIKE_A_FILE = re.compile(r"\.{0,2}/\S+|\S+\.txt")


def text_of(asked: argparse.Namespace, is_key: Callable[[str], bool]) -> str:
    """The text of `explain TEXT` or `attention TEXT`, which may be that of a file or of standard input.

    Args:
        asked: See `asked_of`.
        is_key: Whether a word is a key of the config.

    Raises:
        InputError: If there is no text, or its file cannot be read.
    """
    command, text = asked.command, asked.text
    if text is None:
        raise InputError(f'{command}: expected a text, the name of a text file, or -: {program()} {command} "A text."')
    if asked.is_literal:
        return str(text)
    key, sets, _ = text.partition("=")
    if sets and is_key(key.lstrip("+~")) and not is_file(text):
        raise InputError(
            f'{command}: expected a text before {text}: {program()} {command} "A text." {text}; if it is the text itself, '
            "use - and pipe it to standard input"
        )
    if _LOOKS_LIKE_A_FILE.fullmatch(text) and not is_file(text):
        raise InputError(f"{command}: {text}: no such file; if it is a text, use - and pipe it to standard input")
    if text != "-" and is_file(text):
        from normscope.untrusted.images import names_image
        from normscope.untrusted.sounds import is_sound

        if names_image(text) or is_sound(text):
            return str(text)  # a model of images or sounds opens it
        return text_in(Path(text), f"{command}: {text}")
    try:
        if text == "-":
            return without_line_break(_read_stdin())
        text.encode()
        return str(text)
    except (OSError, ValueError, InputError) as error:
        raise InputError(f"{command}: {text}: expected a text in UTF-8: {one_line(error)}") from error


def _read_stdin() -> str:
    """The text on the standard input, which may have no end."""
    if not hasattr(sys.stdin, "buffer"):  # an object of a notebook or a test
        return sys.stdin.read()
    return read(sys.stdin.buffer, Path("-"), LONGEST_TEXT).decode()


_QUICKLY = {
    SINKS.name: ("inputs=[text]", "ablation_sequences=8", "controls=2"),
    SCORE.name: ("sequences=16", "intervention_sequences=16", "controls=5"),
}
CHECKUP = (
    "tracking=disabled",
    "dataset.limit=60",
    *(f"analysis.{name}.{option}" for name, options in _QUICKLY.items() for option in options),
)
"""What `checkup` sets, so that it takes minutes; a user's own values come after these."""


def checkup_words(asked: argparse.Namespace, words: Sequence[str], presets: Traversable) -> list[str]:
    """The words of `checkup MODEL` that are left for Hydra.

    Args:
        asked: See `asked_of`.
        words: The other words.
        presets: The folder of the presets of models.

    Raises:
        InputError: If no model is named, in place of a key, or together with one.
    """
    example = f"{program()} checkup minilm --against FOLDER"
    if asked.model is None or "=" in asked.model:
        given = "" if asked.model is None else f", got {asked.model}"
        raise InputError(
            f"checkup: expected a preset, a Hub name or a folder of a model{given}; for example, {example}"
        )
    if sweeps := {"-m", "--multirun"} & {*words}:
        raise InputError(f"checkup: expected one model, got a sweep ({min(sweeps)})")
    twice = [word for word in words if word.partition("=")[0] in ("model", "model.name")]
    if twice:
        raise InputError(f"checkup {asked.model} and {twice[0]} are both set; expected one of them")
    preset = preset_of(asked.model, presets)
    named = f"model.name={_quoted(asked.model)}" if preset is None else f"model={asked.model}"
    return [named, *CHECKUP, *words]


def preset_of(model: str, presets: Traversable) -> Traversable | None:
    """The preset of that name; None if it is the name of a folder or of something else."""
    preset = presets / f"{model}.yaml"
    return preset if "/" not in model and not Path(model).is_dir() and preset.is_file() else None


ATTENTION = ("queries", "keys", "heads", "measure", "reduce", "top")
"""The keys of `attention`, besides `layers`, the model and the device."""


SOURCES = ("sources", "answer", "against", "check", "sentences", "tokens", "row")
"""The keys of `explain` that ask for the sources of an answer, which may also be written as options."""


def attention_keys(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The keys of `attention` among the words of a command line, with their values as Hydra reads them, and the other words.

    Raises:
        InputError: If a key is set twice.
    """
    asked, others = _own_keys(words, ATTENTION)
    return {name: _value(word) for name, word in asked.items()}, others


def source_keys(
    asked: argparse.Namespace, words: Sequence[str], is_key: Callable[[str], bool]
) -> tuple[dict[str, str], list[str]]:
    """What is asked for about the sources of an answer, as it was typed, and the other words; nothing for a plain `explain`.

    Without a prompt, the first word sets a key, and is not the text.

    Args:
        is_key: Whether a word is a key of the config.

    Raises:
        InputError: If a key is set twice, or none of them asks for sources or an answer.
    """
    key, sets, _ = (asked.text or "").partition("=")
    names_key = bool(sets) and (key in SOURCES or is_key(key.lstrip("+~")))
    without_prompt = names_key and not asked.is_literal and not is_file(asked.text)
    typed, others = _own_keys([asked.text, *words] if without_prompt else words, SOURCES)
    keys = {name: word.partition("=")[2] for name, word in typed.items()}
    for name in SOURCES:
        option = getattr(asked, name)
        if option is None:
            continue
        if name in keys:
            raise InputError(f"--{name} and {name}= are both set; expected one of them")
        keys[name] = option
    if without_prompt and keys:
        asked.text = None
    elif without_prompt:  # a plain `explain` without a text
        others = list(words)
    if keys and not {"sources", "answer", "against"} & {*keys}:
        raise InputError(f"{next(iter(keys))}: applies only to the sources of an answer; set sources or answer as well")
    return keys, others


def _own_keys(words: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The words that set some keys, by key, and the other words."""
    asked: dict[str, str] = {}
    others = []
    for word in words:
        name, sets, _ = word.partition("=")
        if not sets or name not in names:
            others.append(word)
            continue
        if name in asked:
            raise InputError(f"{word} and {asked[name]} are both set; expected one of them")
        asked[name] = word
    return asked, others


def _value(override: str) -> Any:
    """The value of an override; several with commas between them are a list."""
    try:
        value = OverridesParser.create().parse_override(override).value()
    except HydraException:  # a text with letters that its grammar does not have
        return override.partition("=")[2]
    return value.list if isinstance(value, ChoiceSweep) else value


def with_checkpoints(words: Sequence[str], command: str) -> list[str]:
    """The words with the folders that `model.checkpoints=PATTERN` matches: the models of a page, or of a sweep.

    Raises:
        InputError: If the pattern matches none, `model.name` is set as well, or `serve` is asked for a sweep.
    """
    sweeps = bool({"-m", "--multirun"} & {*words})
    if sweeps and command == "serve":
        raise InputError("serve: expected one page, got a sweep (-m); list models to compare in live.models")
    given = [word for word in words if word.startswith(_CHECKPOINTS) and word != f"{_CHECKPOINTS}null"]
    if not given:
        return [*words]
    folders = checkpoints(given[0].removeprefix(_CHECKPOINTS).strip("'\""))
    others = [word for word in words if word.startswith("model.name=") or word in given[1:]]
    if others:
        raise InputError(f"{given[0]} and {others[0]} are both set; expected one of them")
    first, *rest = [_quoted(os.path.abspath(folder)) for folder in folders]
    if command == "serve":
        expanded, added = first, [f"live.models=[{','.join(rest)}]"]
    else:
        expanded, added = ",".join([first, *rest]), [] if sweeps else ["-m"]
    return [*(f"model.name={expanded}" if word == given[0] else word for word in words), *added]


def overrides(words: Sequence[str]) -> list[str]:
    """The overrides among Hydra's words.

    Raises:
        InputError: If there is a flag that Hydra does not have.
    """
    parser = _Parser(prog=program(), parents=[get_args_parser()], add_help=False)
    given, others = parser.parse_known_args(words)
    if others:
        where = (
            ""
            if any(text.startswith("-") for text in others)
            else "; put all overrides before or after options such as -m"
        )
        parser.error(f"unrecognized arguments: {' '.join(others)}{where}")
    for place in range(len(given.overrides)):
        if (listed := _with_spaces(given.overrides[place:])) is not None:
            joined = "".join(listed.split())
            parser.error(f"{listed}: expected a list without spaces: {joined}; or in quotes: {shlex.quote(listed)}")
    words = [text for text in given.overrides if "=" not in text and not text.startswith("~")]
    if words:
        parser.error(
            f"{words[0]}: expected key=value, or explain, attention, checkup, serve, page or compare as the first word"
        )
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
