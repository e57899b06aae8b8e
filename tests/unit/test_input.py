"""Input that is refused before it is used: empty values, impossible paths, broken small files."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normscope.cli.command_line import asked_of
from normscope.data import token_frequencies as frequency
from normscope.data.text_files import TextFile
from normscope.errors import InputError, message
from normscope.reporting.viewing import command
from normscope.running.options import SCHEMA


@pytest.mark.parametrize("path", ["a\0b", "x" * 256, "/x" * 3000, "~nobody-of-that-name/x", "é" * 200, "\ud800"])
def test_invalid_paths(path):
    with pytest.raises(InputError, match=r"dataset\.path="):
        SCHEMA.check({"dataset": {"path": path}})


def test_a_pipe_is_no_file_of_frequencies(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"analysis\.frequency\.path=.*pipe: no such file"):
        frequency.read(tmp_path / "pipe", 10, "analysis.frequency.path")


@pytest.mark.parametrize("line", ["9" * 5000 + " 1 2", "1 " + "9" * 5000 + " 2", "1 1 " + "9" * 5000])
def test_numbers_of_thousands_of_digits_in_frequencies(tmp_path, line):
    path = tmp_path / "f.txt"
    path.write_text(f"1 1 1\n{line}\n")
    with pytest.raises(InputError, match="line 2: expected `rank count token_id`"):
        frequency.read(path, 10, "analysis.frequency.path")


@pytest.mark.parametrize(
    "other",
    [
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.timestamp("us")),
        pa.StringArray.from_buffers(1, pa.py_buffer(np.int32([0, 2]).tobytes()), pa.py_buffer(b"\xff\xfe")),
    ],
)
def test_parquet_columns_that_are_not_requested(tmp_path, other):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(["A cat."]), "other": other}), path)
    assert [example.text for example in TextFile(path).examples()] == ["A cat."]
    with pytest.raises(InputError, match=r"a\.parquet: damaged Parquet file, or values that are not text"):
        list(TextFile(path, text_column="other").examples())
    with pytest.raises(InputError, match="expected one of text, other"):
        list(TextFile(path, text_column="nope").examples())


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("results.json", '{"schema": 1, "status": "completed", "metrics": {"a": "x"}, "facts": {}}'),
        *(("config.yaml", text) for text in ("", "3", "analysis: 3")),
    ],
)
def test_results_of_another_make(tmp_path, file, content):
    """What is no JSON or YAML at all: test_untrusted_files.py."""
    (tmp_path / "results.json").write_text('{"schema": 1, "status": "completed", "metrics": {"a": 1}, "facts": {}}')
    (tmp_path / "config.yaml").write_text("analysis: {}")
    (tmp_path / file).write_text(content)
    asked, _ = asked_of(["compare", str(tmp_path), "--output", str(tmp_path / "out")])
    with pytest.raises(InputError) as raised:
        command(asked)
    said = message(raised.value)
    assert "\n" not in said
    assert file in said
