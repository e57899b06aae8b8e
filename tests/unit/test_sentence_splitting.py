"""Where sentences end, and that splitting loses no text."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from normscope.data import segmentation
from normscope.data.segmentation import sentences

DOCUMENTS = (
    ('He said "Hi."', "Then left."),
    ("Dr. Smith met Mr. Jones at 5 p.m. on Friday.", "They talked."),
    ("The U.S. economy grew.", "It grew by 3.5 percent, e.g. in the South."),
    ("See https://example.com/a.b?c=d.e for details.", "Thanks!"),
    ("“Stop!” he cried.", "She did not."),
    ('He asked, "Why?"', 'She answered, "Because."'),
    ("(He was wrong.)", "She knew it."),
    ("J. R. R. Tolkien wrote it in 1937.", "It sold well."),
    ("Er sagte: „Hallo.“", "Dann ging er."),
    ("Er ist z. B. oft krank, d. h. selten da.", "Prof. Dr. Weber nicht."),
    ("»Komm!«, rief sie.", "Er kam."),
    ("राम घर गया ।", "वह सो गया॥", "क्यों?", "बस।"),
    ("هل ذهبت؟", "«لماذا؟»", "نعم."),
    ("کیا آپ گئے؟", "میں گیا۔۔۔", "اچھا!"),
    ("ሰላም ነው።", "ለምን፧", "እሺ።"),
    ("Ի՞նչ է։", "Լավ։"),
    ("我走了｡", "“真的吗？！”", "是．", "値は３．５だ．", "「そう。」", "「ええ」"),
)
# What ends sentences or seems to, what closes them, every kind of white space, and what syntok does not make tokens of.
PIECES = [*".!?…。\"'“”„»()]」_-\u00ad\u200b\ufeff\x00 \t\n\u00a0\x85\x1cAbß中😀1", "\n\n", "\r\n", "e\u0301"]
PIECES += ["।", "؟", "．", "U.S.", "e.g.", "Dr.", "don't", "http://a.b/c.d", "3.5", "Then"]


def without_space(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("expected", DOCUMENTS, ids=lambda expected: expected[0][:20])
def test_sentences_end_where_a_reader_ends_them(expected):
    assert sentences(" ".join(expected)) == list(expected)


def test_sentences_without_spaces_between_them():
    assert sentences("他说：「走吧。」然后走了。好！") == ["他说：「走吧。」", "然后走了。", "好！"]
    assert sentences("वह गया।राम आया॥१॥कब") == ["वह गया।", "राम आया॥", "१॥", "कब"]
    assert sentences("هل ذهبت؟!نعم؟؟؟لا") == ["هل ذهبت؟!", "نعم؟؟؟", "لا"]
    assert sentences("「行く。」「来る。」") == ["「行く。」", "「来る。」"]


def test_blank_lines_end_sentences_and_ends_of_lines_do_not():
    assert sentences("A heading\n \nIt goes\non here. The end") == ["A heading", "It goes\non here.", "The end"]
    assert sentences(" \n\n ") == []


@pytest.mark.slow
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join)), st.sampled_from([7, 2**18]))
@example('He said "Hi." Then left.', 2**18)
@settings(max_examples=300)
def test_sentences_are_the_document_up_to_white_space(document, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segmentation, "_PIECE", piece)
        found = sentences(document)
    assert without_space("".join(found)) == without_space(document)
    assert all(part and part in document and part == part.strip() for part in found)


def test_a_long_paragraph_is_read_in_pieces_with_the_same_result(monkeypatch):
    expected = [f"Dr. Smith said number {number}." for number in range(50)]
    monkeypatch.setattr(segmentation, "_PIECE", 100)
    assert sentences(" ".join(expected)) == expected


@pytest.mark.parametrize("piece", ["A b.\n\n", "a ", "\n ", "。」", "Dr. "])
def test_the_splitter_reads_bounded_pieces_once(monkeypatch, piece):
    """Its work grows with the length of a document, not with its square."""
    split, given = segmentation.segmenter.analyze, []
    monkeypatch.setattr(segmentation.segmenter, "analyze", lambda text: given.append(len(text)) or split(text))
    monkeypatch.setattr(segmentation, "_PIECE", 500)
    text = piece * 2_000
    sentences(text)
    assert max(given, default=0) <= 500
    assert sum(given) <= 2 * len(text)  # the last sentence of a piece is read again with the next
