"""What results of single texts have in common: where they come from, and tables of several texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from normscope.models.load.loaded import LoadedModel
from normscope.models.stored.stored_weights import number_format
from normscope.results.run_files import FUNCTION
from normscope.running.facts import software


def described(model: LoadedModel, function: str, texts: Sequence[str], **arguments: object) -> dict[str, Any]:
    """The facts and the config of a result.

    Args:
        model: What was asked.
        function: The name of the public function.
        texts: The texts, as the tokenizer decodes them.
        arguments: What it was called with, apart from the model and the texts; None for what was left out.
    """
    given = {name: _plain(value) for name, value in arguments.items() if value is not None}
    return {
        "facts": dict(software())
        | {
            "model": model.name,
            "model_revision": model.revision,
            **({} if model.tower is None else {"tower": str(model.tower)}),
            "device": str(model.device),
            "dtype": number_format(model.model),
            "sequences": len(texts),
        },
        "config": {
            FUNCTION: function,
            "model": {"name": model.name},
            "text": " | ".join(dict.fromkeys(texts)),
            **given,
        },
    }


def _plain(value: Any) -> Any:
    """An argument as a config holds it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if type(value) in (bool, int, float) else str(value)


def stacked(tables: Sequence[pd.DataFrame], column: str | None, first: int = 0) -> pd.DataFrame:
    """Tables one below the other.

    Args:
        tables: At least one.
        column: The first column, with the number of each table; None for a single table.
        first: The number of the first table.
    """
    if column is None:
        (table,) = tables
        return table
    numbered = pd.concat(dict(enumerate(tables, start=first)), names=[column])
    return numbered.reset_index(column).reset_index(drop=True)
