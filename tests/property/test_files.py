"""Whatever a file contains, every row is used or counted as skipped, or one line explains the error."""

import pathlib
import tempfile

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from normscope.data.batching import batches
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts
from normscope.data.options import DatasetKind, DatasetOptions, Segmentation
from normscope.errors import InputError
from tests.unit.test_data import Reader

ENDINGS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet", ".txt.gz")
pieces = st.sampled_from(
    [
        b"text",
        b"a cat",
        b"\n",
        b"\r\n",
        b",",
        b"\t",
        b'"',
        b"{",
        b'{"text": "a"}',
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"null",
    ]
)
contents = st.lists(pieces, min_size=1, max_size=25).map(b"".join)


@pytest.mark.slow
@given(
    content=contents, ending=st.sampled_from(ENDINGS), header=st.booleans(), segmentation=st.sampled_from(Segmentation)
)
@settings(max_examples=150)
def test_examples_in_are_examples_used_and_skipped(tokenizer, content, ending, header, segmentation):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"corpus{ending}"
        path.write_bytes(content)
        options = DatasetOptions(
            kind=DatasetKind.text, path=str(path), header=header, segmentation=segmentation, max_length=8, seed=0
        )
        counts = CorpusCounts()
        try:
            made = list(batches(open_corpus(options).examples(), Encoder(Reader(tokenizer), options), 64, counts))
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - bad files are refused, and in one line
            return
    assert counts.read == counts.used + counts.skipped.total()
    assert counts.sequences == sum(batch.sequences for batch in made)
