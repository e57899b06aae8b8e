"""What has been found to break something: `values.yaml` and `found.yaml`, with long texts where their names stand."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_LONG = {
    "digits": "9" * 5000,
    "deep": "/".join(["x" * 200] * 30),
    "parentheses": "(" * 3000 + ")" * 3000,
    "accents": "e\u0301" * 500,
    "words": "word " * 400,
    "families": "👩‍👩‍👧‍👦" * 200,
}
_NAMED = re.compile(rf"<({'|'.join(_LONG)}|(\d+)(.))>")


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    return _NAMED.sub(lambda found: int(found[2]) * found[3] if found[2] else _LONG[found[1]], value)


def _read(name: str) -> Any:
    return _whole(yaml.safe_load((Path(__file__).parent / name).read_text("utf-8")))


VALUES: Mapping[str, list[Any]] = _read("values.yaml")
"""Lists by name; `<300x>` stands for 300 times x."""
FOUND = [(given["words"], words, line) for given in _read("found.yaml").values() for *words, line in given["refused"]]
"""Words that a command begins with, those that are wrong, and the line that it is refused with."""
