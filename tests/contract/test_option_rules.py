"""Rules for the values of options, from their metadata: each is checked, and a wrong value is answered with one line."""

import copy
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from omegaconf import OmegaConf

from normscope.config.rules import Rule
from normscope.errors import InputError
from normscope.running.options import SCHEMA, RunOptions

# Numbers for which any value of the type has a meaning, or whose range another key or the model gives.
WITHOUT_RULE = {
    "analysis.alignment.gold.base": "0 or 1, checked where files of other aligners are",
    "analysis.alignment.sentences": "rows of the corpus, skipped where there are fewer",
    "analysis.outliers.dimensions": "the model has the range",
    "analysis.planted.power": "its own check is what is tested",
    "dataset.stride": "the length of a window has the range",
}


@functools.cache
def options() -> RunOptions:
    made = OmegaConf.structured(RunOptions)
    made.model.name, made.dataset.kind = "some/model", "sample"
    made.analysis.mixing.enabled = True
    resolved = OmegaConf.to_object(made)
    assert isinstance(resolved, RunOptions)
    return resolved


def fields(section: Any, prefix: str = "") -> Iterator[tuple[str, Any, str, dataclasses.Field[Any]]]:
    """Every key, the section that it is in, its name there, and its field."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", section, field.name, field


def rules(field: dataclasses.Field[Any]) -> list[tuple[Rule, bool]]:
    """The rules of a field, and whether they are about the items of a list."""
    metadata = field.metadata
    return [(rule, False) for rule in metadata.get("rules", ())] + [
        (rule, True) for rule in metadata.get("rules_of_items", ())
    ]


CASES = [
    (key, number, value)
    for key, _, _, field in fields(RunOptions())
    for number, (rule, _) in enumerate(rules(field))
    for value in rule.wrong
]


def test_defaults_satisfy_the_rules():
    SCHEMA.check(options())


@pytest.mark.spread(72)
@pytest.mark.parametrize(("key", "number", "value"), CASES, ids=str)
def test_a_wrong_value_is_one_line_that_names_the_key(key, number, value, monkeypatch):
    _, section, name, field = next(place for place in fields(options()) if place[0] == key)
    rule, of_items = rules(field)[number]
    monkeypatch.setattr(section, name, [value] if of_items else copy.copy(value))
    with pytest.raises(InputError, match=f"^{re.escape(key)}=.*: expected ") as error:
        SCHEMA.check(options())
    assert "\n" not in str(error.value)
    if isinstance(value, str) and not value.strip():
        return  # any empty string is refused
    assert str(error.value) == f"{key}={rule.shown(value)}: expected {rule.expected}"


def test_every_number_has_a_rule_or_a_reason_to_have_none():
    without = set()
    for key, section, name, field in fields(options()):
        kind = get_type_hints(type(section))[name]
        kinds = {kind, *get_args(kind), *(inner for part in get_args(kind) for inner in get_args(part))}
        if kinds & {int, float} and bool not in kinds and str not in kinds and not rules(field):
            without.add(key)
    assert without <= WITHOUT_RULE.keys(), without - WITHOUT_RULE.keys()
