"""What messages suggest: a key to set to a value, or to leave out. Whoever does so must not be refused for it."""

import dataclasses
import re
import shlex
from collections.abc import Iterator, Sequence

from normscope.running.options import RunOptions
from tests.end_to_end.bad_input.case import EITHER, Case

_SETTING = re.compile(r"(?P<before>\S+ )?'?(?P<setting>\+{0,2}[a-z][\w./]*=(?:\[[^\]\s]*\]|[^\s;,:')\]]+))")
_QUOTED = "with this value in quotes: "
_KEY = r"[a-z]\w*(?:\.\w+)*"
_LEFT_OUT = re.compile(rf"leave (?:out )?(?P<keys>{_KEY}(?: and {_KEY})*)")
# What stands before a setting that is none to make: the one that was made, or one to undo.
_OTHERWISE = ("got ", "leave ", "drop ", "out ", "for ", "reads ", "needs ", "without ")
_GROUPS = {field.name for field in dataclasses.fields(RunOptions)} | {"hydra"}
# NAME, FILE, … and /path/to/folder are for the reader to fill in; key=value is what any setting looks like.
_BLANK = re.compile(r"…|\b[A-Z]{3,}\b|/path/to/|^key=value$")


def suggestions(message: str, arguments: Sequence[str]) -> Iterator[list[str]]:
    """The arguments of a refused command with each suggestion of its message followed.

    Args:
        message: The message, with what refused it first, as in `key=value: expected …; set key=other`.
        arguments: What was typed.
    """
    _, quoted, word = message.partition(_QUOTED)
    if quoted:  # the whole word, as a shell reads it
        yield [*_without(arguments, word.lstrip("'").partition("=")[0].lstrip("+")), *shlex.split(word)]
        return
    refused, colon, advice = message.removeprefix("normscope: ").partition(": ")
    text = advice if colon else message
    key = refused.partition("=")[0]
    for found in _SETTING.finditer(text):
        setting = found["setting"].rstrip(".")
        if found["before"] not in _OTHERWISE and not _BLANK.search(setting) and not _typed(setting, arguments):
            group = setting.partition("=")[0].lstrip("+")
            if group.partition(".")[0] not in _GROUPS:  # a key of another file
                continue
            yield [*_without(arguments, group, *([key] if key.startswith(f"{group}.") else [])), setting]
    for found in _LEFT_OUT.finditer(text):
        left = _without(arguments, *found["keys"].split(" and "))
        if left != list(arguments):
            yield left


def followed(case: Case, errors: str) -> Iterator[Case]:
    """Cases that follow what the message of a case suggests."""
    said = [line for line in errors.splitlines() if line.startswith("normscope: ")]
    if len(said) != 1 or case.refused or case.environment:
        return
    for arguments in suggestions(said[0], case.arguments):
        # A value in brackets has the right type, which is all that the message asks for.
        new = [
            argument
            for argument in arguments
            if argument not in case.arguments and argument.replace("=[", "=").removesuffix("]") not in case.arguments
        ]
        # Quotes make it a value, which may still be one of the wrong type.
        again = (said[0], *(f"normscope: {argument}: " for argument in new if _QUOTED not in said[0]))
        what = f"{case.what}, as its message suggests: {' '.join(arguments[-1:])}"
        statuses = case.statuses if arguments[:1] == ["-m"] else EITHER  # of a sweep, jobs may fail
        writes = "outputs" if _drops_folder(case.arguments, arguments) else case.writes
        yield dataclasses.replace(
            case, what=what, arguments=arguments, names=[""], statuses=statuses, refused=again, writes=writes
        )


def _drops_folder(before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether a command names no output folder any more."""

    def named(arguments: Sequence[str]) -> bool:
        return any(argument.startswith("output_dir=") and argument != "output_dir=null" for argument in arguments)

    return named(before) and not named(after)


def _typed(setting: str, arguments: Sequence[str]) -> bool:
    """Whether a setting repeats what was typed: as it was, a part of it, escaped, or without its quotation marks."""
    return any(
        setting in shown
        for argument in arguments
        for shown in (argument, ascii(argument), argument.replace('"', "").replace("'", ""))
    )


def _without(arguments: Sequence[str], *keys: str) -> list[str]:
    return [argument for argument in arguments if argument.partition("=")[0].lstrip("+~") not in keys]
