"""One text at a time: the live page (type a text, change a word, and see what changes), and the commands for one text."""

import importlib

from normscope.errors import InputError


def require_extra(caller: str) -> None:
    """Check that what serves the page is installed.

    Args:
        caller: What needs it, for the error message.

    Raises:
        InputError: If it is not.
    """
    for name in ("starlette", "uvicorn"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise InputError(f"{caller}: {name} is not installed; run `pip install starlette uvicorn`") from error
