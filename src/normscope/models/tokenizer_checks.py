"""Checks that a tokenizer knows the text of some language and fits its model."""

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.errors import InputError, one_line

# A sentence for each of the common scripts; a tokenizer need know only one of them.
_TEXTS = (
    "The cat sat on the mat, and the dog barked at it.",
    "Die Katze sitzt auf der Matte, und der Hund bellt.",
    "Кошка сидит на коврике, а собака лает.",
    "Η γάτα κάθεται στο χαλί και ο σκύλος γαβγίζει.",
    "القطة تجلس على السجادة والكلب ينبح.",
    "החתול יושב על השטיח והכלב נובח.",
    "बिल्ली चटाई पर बैठी है और कुत्ता भौंक रहा है।",
    "বিড়ালটি মাদুরে বসে আছে এবং কুকুর ডাকছে।",
    "แมวนั่งอยู่บนเสื่อ และสุนัขเห่า",
    "猫坐在垫子上，狗在叫。",
    "猫がマットの上に座り、犬がほえる。",
    "고양이가 매트 위에 앉아 있고 개가 짖는다.",
)

_SAMPLED_TOKENS = 64
"""Number of tokens of the vocabulary to try as well, for vocabularies of other scripts or of no language."""

# A tokenizer has few unknown tokens in text of its language; an empty one has nothing else.
_KNOWN_SHARE = 0.5

# Embeddings are padded to round sizes and for later tokens, but never to twice the vocabulary.
_USED_SHARE = 0.5


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, name: str, embeddings: int | None) -> None:
    """Check that a tokenizer knows some text and is not far smaller than its model's embedding.

    From a folder without tokenizer files, transformers makes an empty tokenizer, for which every token is unknown.

    Args:
        tokenizer: A model's tokenizer.
        name: The name of the model or tokenizer, for messages.
        embeddings: Number of rows of the model's embedding; None if its weights are random, so that any tokenizer fits.

    Raises:
        InputError: If it fails either check.
    """
    advice = (
        "check that its files (tokenizer.json, vocab.txt, ...) exist, or set model.tokenizer to the tokenizer that the model "
        "was trained with"
    )
    try:
        known = max(_known_share(tokenizer, text) for text in (*_TEXTS, _text_of_vocabulary(tokenizer)))
    except Exception as error:  # broken vocabularies raise many types, Exception among them
        raise InputError(f"the tokenizer of {name!r} cannot read text: {one_line(error)}; {advice}") from error
    if known <= _KNOWN_SHARE:
        raise InputError(f"the tokenizer of {name!r}, with {len(tokenizer)} tokens, knows no text; {advice}")
    if embeddings is not None and len(tokenizer) < _USED_SHARE * embeddings:
        raise InputError(
            f"the tokenizer of {name!r} has {len(tokenizer)} tokens, but the model has {embeddings} embeddings; {advice}"
        )


def _known_share(tokenizer: PreTrainedTokenizerBase, text: str) -> float:
    """The share of a text's tokens that are not unknown, special or blank."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    special = set(tokenizer.all_special_ids)
    known = [token for token in ids if token not in special and str(tokenizer.decode([token])).strip()]
    return len(known) / max(1, len(ids))


def _text_of_vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    """A sample of the tokenizer's vocabulary as text, in order."""
    ordinary = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    sample = ordinary[:: max(1, len(ordinary) // _SAMPLED_TOKENS)]
    return " ".join(str(tokenizer.decode([token])).strip() for token in sample)
