"""Words of a command that somebody may paste into a terminal."""

import shlex

_NAMED = {"\t": r"\t", "\n": r"\n", "\r": r"\r", "\\": r"\\"}


def shell_word(text: str) -> str:
    """A text as one word of a shell, without characters that a terminal acts on when they are pasted.

    Inside quotes they would still end the paste, delete what was typed or press Enter: the terminal reads them before the shell
    does. `$'…'` writes them as escapes (bash, zsh, ksh, POSIX 2024).

    Args:
        text: Anything but NUL, which no argument can hold.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character.isprintable() and character not in "'!":  # ! would begin a word of the shell's history
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode())
