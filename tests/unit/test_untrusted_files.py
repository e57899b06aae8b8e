"""Files that anybody may have written: what is refused, and that nothing costs much time or memory."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from normscope.config.schema import plain
from normscope.errors import InputError
from normscope.running.options import RunOptions
from normscope.untrusted.plain_data import json_mapping, require, text, yaml_mapping
from normscope.untrusted.tables import Columns, table

RUN = Path(__file__).parents[1] / "contract/run"

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
_PLAIN = st.dictionaries(
    _TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers(1 - 2**63, 2**63 - 1) | st.floats(-1e299, 1e299) | _TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@given(_PLAIN)
def test_what_is_written_is_read(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("plain") / "file"
    path.write_text(json.dumps(content))
    assert json_mapping(path, 10**6) == content
    # PyYAML has its own ideas of line ends and control characters.
    path.write_text(yaml.safe_dump(content, allow_unicode=False))
    assert yaml_mapping(path, 10**6) == content


def test_the_config_of_a_run_is_read_as_it_was(tmp_path):
    path, content = tmp_path / "config.yaml", plain(RunOptions()) | {"report": {"text": "${oc.env:HOME} 'x' # y: [z]"}}
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    assert yaml_mapping(path, 10**6) == content


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _path: None, "No such file"),
        (Path.mkdir, "Is a directory"),
        (os.mkfifo, "expected a file, got a device or pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "expected a file, got a device or pipe"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b"x" * 1001), "expected at most"),
        (lambda path: path.write_bytes(b"\xff"), "can't decode byte 0xff"),
    ],
)
def test_what_is_no_text(tmp_path, make, said):
    make(tmp_path / "file")
    with pytest.raises(InputError, match=said) as error:
        text(tmp_path / "file", 1000)
    assert str(error.value).startswith(f"{tmp_path / 'file'}: ")


_DEEP = "expected lists and mappings nested at most 50 deep"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "Expecting value"),
        ("[]", "expected a mapping, got "),
        ('{"a": NaN}', "a: expected a finite number"),
        ('{"a": [0, {"b": 1e999}]}', "a.1.b: expected a finite number"),
        (f'{{"a": {10**400}}}', "a: expected a smaller number"),
        (f'{{"a": {"9" * 5000}}}', "Exceeds the limit"),
        (r'{"a": "\ud800"}', "a: expected valid Unicode, got a lone surrogate"),
        (r'{"\ud800": 1}', "a key: expected valid Unicode, got a lone surrogate"),
        ('{"a": ' + "[" * 60 + "]" * 60 + "}", _DEEP),
        ('{"a": ' + "[" * 100_000, _DEEP),
        (json.dumps({"a": "x" * 1_000_001}), "a: expected a text of at most 1,000,000 characters"),
    ],
)
def test_what_is_no_json(tmp_path, content, said):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=said) as error:
        json_mapping(tmp_path / "a.json", 10**7)
    assert str(error.value).startswith(f"{tmp_path / 'a.json'}: ")


_LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "expected a mapping, got None"),
        ("a: [", "while parsing"),
        (_LAUGHS, "got an alias or a tag"),
        ("a: &a [*a]", "got an alias or a tag"),
        ("a: !!python/object/apply:os.system [true]", "got an alias or a tag"),
        ("a: !!timestamp x", "got an alias or a tag"),
        ("a: 2026-01-01", "a: expected plain data, got datetime.date"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: 0b_", "invalid literal"),
        ("? [a]\n: b", "unhashable key"),
        ("null: b", "expected names as keys, got None"),
        (f"a: 0x{'f' * 900}", "a: expected a smaller number"),
        (f"0x{'f' * 900}: a", "a key: expected a smaller number"),
        ("a: " + "[" * 60 + "]" * 60, _DEEP),
        ("a: " + "[" * 100_000, _DEEP),
        ("a: x\n---\nb: y", "expected a single document"),
    ],
)
def test_what_is_no_yaml(tmp_path, content, said):
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(InputError, match=said) as error:
        yaml_mapping(tmp_path / "a.yaml", 10**6)
    assert str(error.value).startswith(f"{tmp_path / 'a.yaml'}: ")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("a text", ["", "x"], [None, 3, ["x"]]),
        ("a whole number", [0, 2**63 - 1], [None, -1, 2**63, 1.0, True, "1"]),
        ("a number", [-1, 0.5], [None, False, "1"]),
        ("a mapping", [{}, {"a": 1}], [None, [], "a"]),
    ],
)
def test_values_of_a_kind(tmp_path, kind, good, bad):
    for value in good:
        require(tmp_path, {"key": value}, "key", kind)
    for value in bad:
        with pytest.raises(InputError, match=f"expected {kind} for key, got"):
            require(tmp_path, {"key": value}, "key", kind)
    require(tmp_path, {}, "key", kind, optional=True)


_ROWS = pd.DataFrame({"name": ["a", "b", "c"], "layer": [0, 1, 2], "value": [0.5, np.nan, -1.0]})
_COLUMNS = Columns({"name": "text", "layer": "whole", "value": "number"}, key=("name",), least={"layer": 0})


def _written(tmp_path, rows: pd.DataFrame):
    rows.to_parquet(tmp_path / "a.parquet", index=False)
    return tmp_path / "a.parquet"


def test_a_table_is_read_as_it_was_written(tmp_path):
    path = _written(tmp_path, _ROWS.assign(more=[True, False, True]))
    pd.testing.assert_frame_equal(table(path, _COLUMNS), _ROWS)
    assert table(path)["more"].tolist() == [1, 0, 1]
    assert list(table(_written(tmp_path, pd.DataFrame(columns=["x"])), _COLUMNS)) == list(_ROWS)
    categories = _ROWS.assign(name=_ROWS["name"].astype("category"), value=[1, 2, 3])
    pd.testing.assert_frame_equal(table(_written(tmp_path, categories), _COLUMNS), _ROWS.assign(value=[1.0, 2.0, 3.0]))


def test_further_columns_are_of_one_kind(tmp_path):
    path = _written(tmp_path, _ROWS.assign(head_1=1.0, head_2=2))
    columns = Columns({"name": "text"}, others="number")
    assert list(table(path, columns)) == ["name", "layer", "value", "head_1", "head_2"]
    with pytest.raises(InputError, match="column odd: expected numbers, got texts"):
        table(_written(tmp_path, _ROWS.assign(odd="x")), columns)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (_ROWS.drop(columns="value"), "expected one column value, got 0"),
        (_ROWS.assign(name=[1, 2, 3]), "column name: expected texts, got whole numbers"),
        (_ROWS.assign(layer=[0.0, 1.0, 2.0]), "column layer: expected whole numbers, got numbers"),
        (_ROWS.assign(value="x"), "column value: expected numbers, got texts"),
        (_ROWS.assign(value=[[1], [2], [3]]), "column value: expected numbers, got list<"),
        (_ROWS.assign(value=pd.Timestamp("2026-01-01")), "column value: expected numbers, got timestamp"),
        (_ROWS.assign(name=["a", None, "c"]), "column name: expected texts, got cells without a value"),
        (
            _ROWS.assign(layer=pd.array([0, None, 2], "Int64")),
            "column layer: expected whole numbers, got cells without",
        ),
        (_ROWS.assign(value=[0.0, np.inf, 1.0]), "column value: expected finite numbers"),
        (_ROWS.assign(layer=[-1, 0, 1]), "column layer: expected numbers of at least 0"),
        (_ROWS.assign(name="a"), "expected every name once"),
        (_ROWS.assign(name=["a", "b", "x" * 200_000]), "expected texts of at most 100,000 characters"),
    ],
)
def test_what_is_no_such_table(tmp_path, rows, said):
    path = _written(tmp_path, rows)
    with pytest.raises(InputError) as error:
        table(path, _COLUMNS)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{path}: ")


def test_a_small_file_of_much_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("normscope.untrusted.tables._MOST_TEXT", 10**6)
    monkeypatch.setattr("normscope.untrusted.tables._MOST_ROWS", 2000)
    path = _written(tmp_path, pd.DataFrame({"name": ["x" * 99_000] * 11}))
    with pytest.raises(InputError, match="MiB of text"):
        table(path)
    with pytest.raises(InputError, match="expected a table that fits into memory, got 3,000 rows"):
        table(_written(tmp_path, pd.DataFrame({"name": ["x"] * 3000})))


def test_text_that_is_not_unicode_is_refused(tmp_path):
    bad = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    pa.parquet.write_table(pa.table({"name": bad}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="Invalid UTF8"):
        table(tmp_path / "a.parquet")


@pytest.mark.parametrize("depth", [np.nan, 0.0, 5e-324, -0.5, 2.0])
def test_a_comparison_refuses_depths_that_are_none(tmp_path, depth):
    from normscope.reporting.comparison.runs import read

    for name in ("config.yaml", "results.json"):
        (tmp_path / name).write_bytes((RUN / name).read_bytes())
    (tmp_path / "tables").mkdir()
    curves = pd.read_parquet(RUN / "tables/curves.parquet")
    read([RUN])
    curves["depth"] = depth
    curves.to_parquet(tmp_path / "tables/curves.parquet")
    with pytest.raises(InputError, match="depth"):
        read([tmp_path])
