"""Tokens are shown as the text that they stand for, whatever a vocabulary writes for bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from normscope.api import NextToken, wrap
from normscope.data.token_frequencies import _single_characters
from normscope.data.token_texts import BYTES, TokenTexts
from normscope.data.words import unit_texts
from normscope.errors import InputError
from normscope.live.predictions import prediction_of
from normscope.models.load.predictor import token_number
from normscope.results.token_labels import label
from tests.one_text import attribute, decompose


def written(data: bytes) -> str:
    """Bytes as a byte-level vocabulary writes them."""
    return "".join(character for byte in data for character, of in BYTES.items() if of[0] == byte)


MERGED = ["北京", " 北", "京", "é", " é", "naïve", "\n\n", "\t", "\u202e", "a\u00a0b", " ▁", "don"]
PIECES = [
    *map(written, [text.encode() for text in MERGED]),
    written("北".encode()[:2]),
    written("京".encode() + b"\xe5"),
]


def byte_level(extra=()):
    """A tokenizer that knows all bytes, and some texts as single tokens."""
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*sorted(BYTES), *PIECES, *extra]))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    made.add_tokens([AddedToken("<｜Ã©｜>", special=True), "Ãa"])
    return made


@pytest.fixture(scope="module")
def of_bytes():
    return byte_level()


def test_bytes_are_shown_as_the_text_that_they_spell(of_bytes):
    ids = of_bytes.convert_tokens_to_ids(PIECES)
    assert TokenTexts(of_bytes).of(ids) == [
        *("北京", "Ġ北", "京", "é", "Ġé", "naïve", "␊␊", "␉", "\\u202e", "a\\xa0b", "Ġ▁", "don", "⟨E5 8C⟩", "京⟨E5⟩")
    ]
    # Added tokens are text already, even where their characters could stand for bytes.
    assert TokenTexts(of_bytes).of(of_bytes.convert_tokens_to_ids(["<｜Ã©｜>", "Ãa"])) == ["<｜Ã©｜>", "Ãa"]
    assert TokenTexts(of_bytes).of(of_bytes.convert_tokens_to_ids(sorted(BYTES)))[:3] == ["!", '"', "#"]


@given(st.binary(min_size=1, max_size=12))
def test_every_run_of_bytes_is_printable_and_can_be_named(data):
    tokenizer = byte_level([written(data)] if written(data) not in {*BYTES, *PIECES} else [])
    texts = TokenTexts(tokenizer)
    shown = texts.shown(written(data))
    assert shown.isprintable()
    if not {"\\", "⟨"} & set(data.decode(errors="ignore")):  # which text that is shown escaped may spell itself
        assert texts.token(shown) == written(data)


def test_valid_text_is_shown_as_it_is(of_bytes):
    for text in ("Straße", "привет", "नमस्ते", "שלום", "e\u0301", "😀", "a_b"):
        assert TokenTexts(of_bytes).shown(written(text.encode())) == text


def test_bytes_of_sentencepiece():
    names = ["<unk>", "<s>", "▁the", "<0xE5>", "<0x0A>", "<0x41>", "▁", "A", "<0x42>"]
    model = models.BPE({name: number for number, name in enumerate(names)}, [], byte_fallback=True, unk_token="<unk>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>")
    tokenizer.add_tokens(["<0x43>"])  # text, of a user
    texts = TokenTexts(tokenizer)
    assert texts.of(range(10)) == ["<unk>", "<s>", "▁the", "⟨E5⟩", "␊", "A", "▁", "A", "B", "<0x43>"]
    assert [texts.token(shown) for shown in ("⟨E5⟩", "␊", "A", "B", "<0xE5>", "the")] == [
        *("<0xE5>", "<0x0A>", "A", "<0x42>", "<0xE5>", None)
    ]


def test_word_pieces_keep_their_marks():
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"##é": 0, "åĮĹ": 1}, "##é")))
    assert TokenTexts(plain).of([0, 1]) == ["##é", "åĮĹ"]  # this vocabulary is of words, not of bytes


def test_units_and_single_characters(of_bytes):
    ids = of_bytes.convert_tokens_to_ids([PIECES[12], written("北".encode()[2:]), PIECES[12], PIECES[3]])
    assert unit_texts(of_bytes, ids, None) == ("⟨E5 8C⟩", "⟨97⟩", "⟨E5 8C⟩", "é")
    assert unit_texts(of_bytes, ids, [0, 0, 1, 2]) == ("北", "⟨E5 8C⟩", "é")
    single = _single_characters(of_bytes, len(of_bytes))
    assert [PIECES.index(token) for token in PIECES if of_bytes.convert_tokens_to_ids(token) in single] == [
        *(1, 2, 3, 4, 7, 12)
    ]


def test_shown_tokens_can_be_asked_for(of_bytes):
    """The model reads bytes; its tokens are shown as text, and that text names the token."""
    config = GPT2Config(vocab_size=len(of_bytes), n_layer=1, n_head=2, n_embd=8, n_positions=32)
    model = wrap(GPT2LMHeadModel(config).eval(), of_bytes)
    tokens = ("⟨C3⟩", "⟨A9⟩", "Ġ", *(f"⟨{byte:02X}⟩" for byte in "北京".encode()))
    assert decompose(model, "é 北京").tokens == tokens
    assert {name for name, _ in prediction_of(model, "é").choices} <= {*TokenTexts(of_bytes).of(range(len(of_bytes)))}
    named = {PIECES[0]: "北京", PIECES[1]: "Ġ北", PIECES[3]: "é", PIECES[6]: "␊␊", PIECES[12]: "⟨E5 8C⟩", "!": "!"}
    for piece, shown in named.items():
        number = of_bytes.convert_tokens_to_ids(piece)
        assert token_number(model.tokenizer, shown) == token_number(model.tokenizer, number) == number
        assert repr(label(shown)) in attribute(model, "é 北京", NextToken(shown)).what
    with pytest.raises(InputError, match=r"expected a single token, got 6: \['⟨E5⟩', '⟨8C⟩'"):
        token_number(model.tokenizer, "北北")


def of_residues(letters="ACDEFGHIKLMNPQRSTVWYX", extra=()):
    """A tokenizer as protein models have it: a token for each residue, marks of gaps, and a special token without its name."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    vocabulary = {token: number for number, token in enumerate([*special, *letters, ".", "-", "<null_1>", *extra])}
    backend = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "unk": "[UNK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{name}_token": token for name, token in names.items()}
    )


def shown(tokenizer, text):
    return list(unit_texts(tokenizer, tokenizer.convert_tokens_to_ids(text.split()), None))


def test_residues_have_their_places():
    expected = ["[CLS]", "E1", "V2", "[MASK]", "L4", "[SEP]", "V1", "K2", "[SEP]"]
    assert shown(of_residues(), "[CLS] E V [MASK] L [SEP] V K [SEP]") == expected
    assert shown(of_residues("ACGT"), "[CLS] G A T [SEP]") == ["[CLS]", "G1", "A2", "T3", "[SEP]"]


def test_letters_of_a_text_have_none():
    for tokenizer in (of_residues("ACDEFGHIa"), of_residues(extra=["VK"]), of_residues("ACG"), of_residues("ABCÄ")):
        assert shown(tokenizer, "[CLS] C A [SEP]") == ["[CLS]", "C", "A", "[SEP]"]
    assert TokenTexts(of_residues()).of([6, 7]) == ["C", "D"]  # tokens of a vocabulary have no place
