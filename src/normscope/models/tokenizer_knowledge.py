"""Whether a tokenizer knows any text: from a folder without its files transformers makes an empty one."""

from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.errors import InputError, one_line

# One sentence in each of the scripts that tokenizers are made for: a tokenizer need only know one of them.
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

_OWN_TOKENS = 64
"""Tokens of its own vocabulary that are tried as well, for vocabularies of no language."""

# A tokenizer writes the text that it was made for with few unknown tokens, and an empty one writes nothing but these.
_KNOWN_SHARE = 0.5

# Embeddings have rows to spare, for round numbers and later tokens, but not as many again as the vocabulary.
_USED_SHARE = 0.5


def refuse_ignorant(tokenizer: PreTrainedTokenizerBase, given: str, embeddings: int | None) -> None:
    """Refuse a tokenizer that makes unknown tokens of every text, or that is far smaller than the model's embedding.

    Args:
        tokenizer: Of the model.
        given: The model's or tokenizer's name, for messages.
        embeddings: Rows of the model's embedding; None if its weights are random, so that any tokenizer will do.

    Raises:
        InputError: If it is one of these.
    """
    advice = "are its files (tokenizer.json, vocab.txt, ...) there? Set model.tokenizer to the one the model was trained with"
    try:
        known = max(_known_share(tokenizer, text) for text in (*_TEXTS, _own_text(tokenizer)))
    except Exception as error:  # broken vocabularies surface as many types, the plain one among them
        raise InputError(f"the tokenizer of {given!r} cannot read text: {one_line(error)}; {advice}") from error
    if known <= _KNOWN_SHARE:
        raise InputError(f"the tokenizer of {given!r}, with {len(tokenizer)} tokens, knows no text; {advice}")
    if embeddings is not None and len(tokenizer) < _USED_SHARE * embeddings:
        raise InputError(
            f"the tokenizer of {given!r} knows {len(tokenizer)} tokens, but the model has embeddings of {embeddings}; {advice}"
        )


def _known_share(tokenizer: PreTrainedTokenizerBase, text: str) -> float:
    """Share of the tokens of a text that stand for some of it."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    special = set(tokenizer.all_special_ids)
    known = [token for token in ids if token not in special and str(tokenizer.decode([token])).strip()]
    return len(known) / max(1, len(ids))


def _own_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Some of the tokenizer's own tokens, in their order and as text."""
    ordinary = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    chosen = ordinary[:: max(1, len(ordinary) // _OWN_TOKENS)]
    return " ".join(str(tokenizer.decode([token])).strip() for token in chosen)
