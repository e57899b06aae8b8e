"""Words of `level=word` do not depend on marks, joiners and soft hyphens that their letters carry."""

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from normscope.data.words import NO_WORD, written_words

WITH_MARKS = "كَتَبَ الوَلَدُ رِسَالَةً إِلَى أُمِّهِ"
WITHOUT_MARKS = "كتب الولد رسالة إلى أمه"
HINDI = "हिन्दी में लिखी हुई किताब"

# The pre-tokenizer of GPT-4 and Llama 3, whose words are runs of letters: marks are none.
_RUNS_OF_LETTERS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def characters(texts, normalizer, pre_tokenizer):
    """A tokenizer whose tokens are single characters, or bytes, within the words of a pre-tokenizer."""
    letters = sorted({letter for text in texts for letter in normalizer.normalize_str(text)})
    vocabulary = ["[UNK]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(
        models.WordPiece({token: number for number, token in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    # WordPiece takes the longest token; these have one character each.
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def spelt(tokenizer, text):
    """The words of a text, each as the characters from its first token to its last."""
    encoding = tokenizer(text, add_special_tokens=False).encodings[0]
    words = written_words(encoding, [text])
    blank = [text[slice(*span)].isspace() for span in encoding.offsets]
    assert (words == NO_WORD).tolist() == blank, "white space is part of no word"
    spans = [
        [span for span, number in zip(encoding.offsets, words, strict=True) if number == word]
        for word in range(words.max() + 1)
    ]
    return [text[of[0][0] : of[-1][1]].strip() for of in spans]


def uncased(*texts):
    return characters(texts, normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer())


def cased(*texts):
    normalizer = normalizers.BertNormalizer(strip_accents=False, lowercase=False)
    return characters(texts, normalizer, pre_tokenizers.BertPreTokenizer())


def byte_level():
    """Tokens are bytes, in the words of Llama 3."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(sorted(alphabet))}, []))
    split = pre_tokenizers.Split(_RUNS_OF_LETTERS, behavior="isolated")
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_equal_tokens_are_equal_words_with_and_without_vowel_marks():
    tokenizer = uncased(WITH_MARKS, WITHOUT_MARKS)
    both = [tokenizer(text, add_special_tokens=False) for text in (WITH_MARKS, WITHOUT_MARKS)]
    assert both[0]["input_ids"] == both[1]["input_ids"]
    words = [
        written_words(encoded.encodings[0], [text])
        for encoded, text in zip(both, (WITH_MARKS, WITHOUT_MARKS), strict=True)
    ]
    assert np.array_equal(*words)
    assert words[0].max() + 1 == 5


@pytest.mark.parametrize(
    "text",
    [
        HINDI,
        WITH_MARKS,
        "שָׁלוֹם עֲלֵיכֶם",  # niqqud
        "mi\u0304nh ti\u1ebf\u0301ng Vie\u0323\u0302t",  # decomposed accents
        "می\u200cخواهم کتاب",  # a zero-width non-joiner
        "un\u00adhap\u00adpi\u00adly don\u00ad't e\u0301'a",  # soft hyphens; apostrophes beside marks
        "க\u0bcdஷ\u0bbf ஶ\u0bcd\u200dர\u0bc0",  # joined consonants of Tamil
    ],
)
@pytest.mark.parametrize("kind", ["uncased", "cased", "bytes"])
def test_marks_joiners_and_soft_hyphens_end_no_word(kind, text):
    tokenizer = {"uncased": uncased, "cased": cased}[kind](text) if kind != "bytes" else byte_level()
    words = spelt(tokenizer, text)
    # A last mark that the tokenizer drops lies behind the last token of its word.
    assert len(words) == len(text.split(" "))
    assert all(whole.startswith(word) for whole, word in zip(text.split(" "), words, strict=True))


def test_emoji_keep_their_selectors_and_joiners():
    text = "❤\ufe0f 👩\u200d💻x 👍🏽 1\ufe0f\u20e3"
    assert spelt(byte_level(), text) == ["❤\ufe0f", "👩\u200d💻", "x", "👍🏽", "1\ufe0f\u20e3"]
    assert spelt(cased(text), text)[0] == "❤\ufe0f"


def test_words_still_end_at_spaces_punctuation_and_ideographs():
    text = "a\u200bb co-op कि।खी \u200eab"
    assert spelt(byte_level(), text) == [*("a", "\u200b", "b", "co", "-", "op", "कि", "।", "खी", "\u200e", "ab")]
    variant = "葛\U000e0100城"
    assert spelt(cased(variant), variant) == ["葛\U000e0100", "城"]
    # This tokenizer drops the zero-width space, and says that one word is left.
    assert spelt(uncased("ab 葛城"), "a\u200bb 葛\U000e0100城") == ["a\u200bb", "葛", "城"]
