"""One wrong call, and what is wrong with its answer."""

import dataclasses
from collections.abc import Callable

from normscope.errors import InputError

LONGEST = 1001


@dataclasses.dataclass(frozen=True)
class Call:
    """One wrong call."""

    what: str
    make: Callable[[], object]
    surely: bool = True
    """False where the generator cannot know whether the call is fine after all."""


def fault(call: Call) -> str | None:
    """What is wrong with the answer to a call; None if nothing is."""
    try:
        result = call.make()
    except InputError as error:
        line = str(error)
        readable = line.isprintable() and 0 < len(line) <= LONGEST
        return (
            None
            if readable
            else f"{call.what}: a message of {len(line)} characters that is not one line: {line!r:.200}"
        )
    except BaseException as error:
        return f"{call.what}: {type(error).__name__}: {error!s:.200}"
    return f"{call.what}: no error, but {type(result).__name__}" if call.surely else None
