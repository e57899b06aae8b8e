"""The pickle reader: what Python's own reads of plain data, and a bounded refusal of everything else."""

import pickle
import resource
import struct
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from normscope.data import pickles
from normscope.data.pickled_tokens import PickledTokens
from normscope.data.pickles import load
from normscope.errors import InputError

keys = st.text(max_size=5) | st.integers() | st.none() | st.booleans()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.lists(inner).map(tuple),
    max_leaves=30,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pickles") / "a.pkl"


@given(value=values, protocol=st.integers(0, 5))
def test_plain_data_is_what_python_reads(file, value, protocol):
    shared = [value, value]
    file.write_bytes(pickle.dumps(shared, protocol=protocol))
    assert load(file) == shared


@pytest.mark.parametrize("protocol", range(2, 6))
def test_arrays_are_passed_over(file, protocol):
    row = {"tokens": ["a", "b"], "attns": np.arange(6.0).reshape(2, 3), "bytes": b"\xff", "f": np.float32(1)}
    file.write_bytes(pickle.dumps([row, row], protocol=protocol))
    rows = load(file)
    assert [found["tokens"] for found in rows] == [["a", "b"]] * 2
    assert type(rows[0]["attns"]).__module__ == "normscope.data.pickles"


TOKENS = b"X\x06\x00\x00\x00tokens"
MARKS = b"\x80\x04" + b"(" * 2000
HOSTILE = {
    "claims 2 GB": b"\x80\x04B" + struct.pack("<I", 2**31 - 1),
    "claims 2^63 bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**63),
    "claims a large memo": b"]r\xff\xff\xff\x7fK\x01.",
    "a number of 5,000 digits": b"I" + b"9" * 5000 + b"\n.",
    "a line without an end": b"V" + b"a" * 200_000,
    "marks in marks": MARKS,
    "tuples in tuples as a key": b"\x80\x04})" + b"\x85" * 2_000 + b"K\x01s.",
    "a stack that is empty": b"0.",
    "pops below a mark": b"](a.",
    "loads": b"cos\nsystem\n.",
    "a name with control characters": b"cos\x1b[31m\nx\n.",
    "an object outside": b"Pa\x1b[31m\n.",
    "an extension": b"\x82\x01.",
    "an unknown protocol": b"\x80\x63].",
    "calls a number": b"K\x01)R.",
    "a state for a list": b"]}b.",
    "no end": b"]",
    "no list": b"K\x01.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_plain_data_is_one_readable_line(tmp_path, name):
    path = tmp_path / "a.pkl"
    path.write_bytes(HOSTILE[name])
    tracemalloc.start(1)
    try:
        with pytest.raises(InputError, match=r"dataset\.path=.*a\.pkl") as caught:
            list(PickledTokens(path).examples())
        assert str(caught.value).isprintable()
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


def test_lists_in_lists_are_harmless(tmp_path):
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x04" + b"]" * 4_000 + b"a" * 3_999 + b".")
    assert list(PickledTokens(path).examples()) == ["without tokens"]


def test_memory_is_counted_before_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "_MEMORY", 2**16)
    path = tmp_path / "a.pkl"
    path.write_bytes(b"K\x01" + b"2" * 9_000 + b".")
    with pytest.raises(InputError, match="more than 0 MB of memory"):
        load(path)
    path.write_bytes(b"]" + b"\x94" + b"h\x00a" * 9_000 + b".")
    with pytest.raises(InputError, match="more than 0 MB of memory"):
        load(path)


def test_a_token_that_is_repeated_does_not_exhaust_memory(tmp_path):
    """A million characters a thousand times over would be a text of a gigabyte."""
    path = tmp_path / "a.pkl"
    token = b"X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"\x94"
    path.write_bytes(b"\x80\x04](}(" + TOKENS + b"](" + token + b"h\x00" * 1000 + b"eue.")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert list(PickledTokens(path).examples()) == ["too long"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 2**10


def test_half_a_character_is_invalid(tmp_path):
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps([{"tokens": ["a", "\ud800"]}, {"tokens": ["b"]}]))
    skipped, example = PickledTokens(path).examples()
    assert (skipped, example.text) == ("not text", "b")
