"""What annotations of options expect: each is checked, and a wrong value is answered with one line."""

import contextlib
import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

from normscope.config.keys import adapter, shown
from normscope.config.schema import plain
from normscope.errors import InputError
from normscope.running.options import SCHEMA, RunOptions
from normscope.running.options import check as check_run

# Numbers for which any value of the type has a meaning, or whose range another key or the model gives.
WITHOUT_RANGE = {
    "analysis.alignment.gold.base": "0 or 1, checked where files of other aligners are",
    "analysis.alignment.sentences": "rows of the corpus, skipped where there are fewer",
    "analysis.outliers.dimensions": "the model has the range",
    "analysis.planted.power": "its own check is what is tested",
    "dataset.pair_column": "the file has the range",
    "dataset.score_column": "the file has the range",
    "dataset.stride": "the length of a window has the range",
    "dataset.text_column": "the file has the range",
}

# What no range, length or choice of an annotation says.
WRONG_BY_OTHER_RULES: dict[str, list[Any]] = {
    "analysis.alignment.baselines": [["a"], "a"],
    "analysis.attribution.shares": [[5.0, 100.0], [float("nan")]],
    "analysis.sinks.inputs": [["text", "text"]],
    "dataset.categories": [["verb"], 3, "", " "],
    "dataset.delimiter": ["; "],
    "device.max_memory.accelerator": ["much", "GiB", "-1GB"],
    "device.max_memory.cpu": ["much", "GiB", "-1GB"],
    "figures.format": [["png", "png"]],
    "figures.width": [2.9, 40.5, "wide", True, float("nan")],
    "live.models": [[" "]],
    "output_dir": ["http://x/y", "s3://x/y"],
    "tracking.entity": ["a b", "a/b"],
    "tracking.project": ["a/b", "a:b", "a%b"],
}


def resolved(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    return named[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def leaves(schema: dict[str, Any], named: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key and what pydantic's JSON Schema says of it."""
    for name, field in schema["properties"].items():
        field = resolved(field, named)
        if "properties" in field:
            yield from leaves(field, named, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


JSON_SCHEMA = adapter(RunOptions).json_schema()
NAMED = JSON_SCHEMA["$defs"]
LEAVES = dict(leaves(JSON_SCHEMA, NAMED))


def wrong(field: dict[str, Any]) -> Iterator[Any]:
    """Values that a JSON Schema excludes, the nearest ones first."""
    for bound, step in (("minimum", -1), ("exclusiveMinimum", 0), ("maximum", 1), ("exclusiveMaximum", 0)):
        if bound in field:
            yield field[bound] + step
    match resolved(field, NAMED):
        case {"anyOf": [only, {"type": "null"}]}:
            yield from wrong(only)
        case {"enum": _} | {"const": _}:
            yield "nonsense"
        case {"type": "integer"}:
            yield from ("x", 1.5)
        case {"type": "number"}:
            yield "x"
        case {"type": "boolean"}:
            yield "x"
        case {"type": "string", **others}:
            yield from ("", "a\0b", *(["x" * (others["maxLength"] + 1)] if "maxLength" in others else []))
        case {"type": "array", "items": items, **others}:
            yield from ([[]], 3, *([[]] if "minItems" in others else []), *([value] for value in wrong(items)))


CASES = [(key, value) for key, field in LEAVES.items() for value in [*wrong(field), *WRONG_BY_OTHER_RULES.get(key, [])]]


def options() -> RunOptions:
    made = OmegaConf.structured(RunOptions)
    made.model.name, made.dataset.kind = "some/model", "sample"
    made.analysis.mixing.enabled = True
    options = OmegaConf.to_object(made)
    assert isinstance(options, RunOptions)
    return options


VALID = plain(options())


def with_value(key: str, value: Any) -> dict[str, Any]:
    values = copy.deepcopy(VALID)
    *sections, last = key.split(".")
    section = values
    for name in sections:
        section = section[name]
    section[last] = value
    return values


def test_every_default_is_accepted_by_its_own_rule():
    SCHEMA.check(VALID)
    check_run(options())


@pytest.mark.parametrize(("key", "value"), CASES, ids=str)
def test_a_wrong_value_is_one_line_that_names_the_key(key, value):
    with pytest.raises(InputError) as error:
        SCHEMA.check(with_value(key, value))
    line = str(error.value)
    assert line.isprintable()
    assert line.startswith(str(InputError(f"{key}={shown(value)}: expected ")))
    if not isinstance(value, list) and "\0" not in str(value):
        assert f": expected {SCHEMA.keys[key].expected}" in line


@pytest.mark.parametrize("key", SCHEMA.keys)
def test_null_is_accepted_where_it_is_said_to_be(key):
    refused = not SCHEMA.keys[key].expected.endswith("or null") and key not in ("layers", "categories")
    with pytest.raises(InputError, match=": expected ") if refused else contextlib.nullcontext():
        SCHEMA.check(with_value(key, None))


def test_every_key_says_what_it_means_and_expects():
    for key in SCHEMA.keys.values():
        assert re.match(r"[A-Z`].*\.\)?$", key.meaning, re.DOTALL), f"{key.name} has no description below it"
        assert key.expected != "any value", key.name


def test_every_number_has_a_range_or_a_reason_to_have_none():
    without = set()
    for key, field in LEAVES.items():
        parts = [field, *field.get("anyOf", [])]
        parts += [part["items"] for part in parts if "items" in part]
        numbers = [part for part in parts if part.get("type") in ("integer", "number") and "expected" not in field]
        without |= {key for part in numbers if not {"minimum", "exclusiveMinimum"} & part.keys()}
    assert without <= WITHOUT_RANGE.keys(), without - WITHOUT_RANGE.keys()
