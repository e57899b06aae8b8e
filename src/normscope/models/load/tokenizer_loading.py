"""Loads the tokenizer of a model, and makes one for a model that has none."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer, normalizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.tokenization import encoded
from normscope.errors import InputError, one_line, printable
from normscope.models.facts import ModelFacts
from normscope.models.options import ModelOptions
from normscope.models.probes import embeddings_of, longest_sequence
from normscope.models.stored.embedder_files import lowercases, tokenizer_arguments
from normscope.models.stored.files import Source, locate


def load_tokenizer(
    options: ModelOptions, source: Source | None, model: PreTrainedModel, facts: ModelFacts, *, random_weights: bool
) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the options name, by default the model's own.

    Args:
        options: The model's options.
        source: The model's files; None if there are none.
        model: The model that will read its tokens.
        random_weights: Whether the model's weights are random, so that a tokenizer much smaller than the embedding is fine.

    Raises:
        InputError: If it cannot be loaded or does not fit the model; the message names the config key.
    """
    tokenizer = read_tokenizer(source, options)
    tokenizer.model_max_length = _longest_sequence(tokenizer, options.name)
    check_tokenizer(tokenizer, options.name, model, facts, options.tokenizer, random_weights=random_weights)
    return tokenizer


def check_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    model: PreTrainedModel,
    facts: ModelFacts,
    tokenizer_name: str | None = None,
    *,
    random_weights: bool = False,
) -> None:
    """Check that a tokenizer and a model fit together.

    Args:
        name: The model's name, for messages.
        model: The model that will read its tokens.
        tokenizer_name: The tokenizer's name, if it is not the model's own.
        random_weights: Whether the model's weights are random, so that a tokenizer much smaller than the embedding is fine.

    Raises:
        InputError: If they do not; the message names the config key.
    """
    given = tokenizer_name or name
    embeddings = embeddings_of(model).num_embeddings
    # Numbers may have gaps.
    tokens = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))
    if tokens > embeddings:
        raise InputError(
            f"the tokenizer of {given!r} has {tokens} tokens, but the model has only {embeddings} embeddings; set "
            "model.tokenizer to the tokenizer that the model was trained with"
        )
    template = tokenizer.chat_template
    if not all(
        isinstance(each, str) for each in (template.values() if isinstance(template, dict) else [template or ""])
    ):
        raise InputError(
            f"the tokenizer of {given!r}: expected a text for chat_template in its tokenizer_config.json, got "
            f"{printable(repr(template), 60)}"
        )
    check_vocabulary(tokenizer, given, None if random_weights else embeddings)
    if facts.reads_target:
        _check_targets(model, tokenizer, name, facts)
    _longest_sequence(tokenizer, name)


def longest_input(
    model: PreTrainedModel, facts: ModelFacts, tokenizer: PreTrainedTokenizerBase, own: int | None = None
) -> int | None:
    """The longest sequence that a model and its tokenizer accept, in tokens; None without a limit.

    Args:
        own: The limit in the model's files that stands in place of the tokenizer's.
    """
    lengths = (
        longest_sequence(model, reads_target=facts.reads_target),
        tokenizer.model_max_length if own is None else own,
    )
    # Tokenizers without a limit have an astronomical number instead.
    return min((int(length) for length in lengths if length is not None and length < 10**9), default=None)


def read_tokenizer(source: Source | None, options: ModelOptions) -> PreTrainedTokenizerBase:
    """The tokenizer that the options name, otherwise the one beside a model.

    Args:
        source: The model's files; None only if the options name a tokenizer.

    Raises:
        InputError: If there is none, or it cannot be read.
    """
    if options.tokenizer is not None:
        given = f"model.tokenizer={options.tokenizer}"
        folder = locate(options.tokenizer, options, weights=False, key="model.tokenizer").folder
    else:
        assert source is not None
        given, folder = f"model.name={options.name}", source.folder
    arguments = tokenizer_arguments(folder, options.name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code, **arguments)
    except Exception as error:  # missing files and missing optional packages raise many types
        raise InputError(
            f"{given}: cannot load a tokenizer from {folder}: {one_line(error)}; set model.tokenizer to the "
            "name or folder of a model with a tokenizer"
        ) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    if lowercases(folder, options.name):
        _lowercase(tokenizer, given)
    for attribute, key, language in (
        ("src_lang", "source_language", options.source_language),
        ("tgt_lang", "target_language", options.target_language),
    ):
        if language is not None and attribute == "tgt_lang" and hasattr(tokenizer, "set_prefix_tokens"):
            _set_prompt(tokenizer, language)
        elif language is not None:
            _set_language(tokenizer, attribute, f"model.{key}={language}", language)
    return tokenizer


def _lowercase(tokenizer: PreTrainedTokenizerBase, given: str) -> None:
    """Let a tokenizer read texts in lower case, as sentence-transformers does.

    Raises:
        InputError: If it runs in Python, so that it has no part that could.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"{given}: expected a fast tokenizer, since the sentence encoder's settings have do_lower_case, got a slow one"
        )
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), *([] if backend.normalizer is None else [backend.normalizer])]
    )


def _set_language(tokenizer: PreTrainedTokenizerBase, attribute: str, setting: str, language: str) -> None:
    if not hasattr(tokenizer, attribute):
        raise InputError(f"{setting}: the model's tokenizer has no languages; leave it out")
    try:
        setattr(tokenizer, attribute, language)
        code = tokenizer.convert_tokens_to_ids(getattr(tokenizer, attribute))
    except (KeyError, ValueError) as error:
        raise InputError(f"{setting}: the tokenizer has no such language: {one_line(error)}") from error
    # M2M100's language codes and the tokens for them have different names.
    known = getattr(tokenizer, "lang_code_to_token", {})
    if code == tokenizer.unk_token_id and language not in known:
        raise InputError(
            f"{setting}: the tokenizer has no such language; expected a code from its vocabulary, such as eng_Latn or en"
        )


def _set_prompt(tokenizer: Any, language: str) -> None:
    """Let a tokenizer of transcripts begin them with their language, and with the task of transcribing."""
    try:
        tokenizer.set_prefix_tokens(language=language, task="transcribe", predict_timestamps=False)
        _ = tokenizer.prefix_tokens
    except ValueError as error:
        raise InputError(
            f"model.target_language={language}: the tokenizer has no such language: {one_line(error)}"
        ) from error


def _longest_sequence(tokenizer: PreTrainedTokenizerBase, name: str) -> int:
    """The tokenizer's limit on the length of a sequence, in tokens; astronomical if it has none."""
    limit = tokenizer.model_max_length
    number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not number or not 1 <= limit < math.inf or limit != int(limit):
        raise InputError(
            f"model.name={name}: expected model_max_length in its tokenizer_config.json to be a whole number of at "
            f"least 1, got {printable(repr(limit), 60)}"
        )
    return int(limit)


def _check_targets(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, facts: ModelFacts) -> None:
    """Check that the decoder has an embedding for every token that it may read."""
    if getattr(tokenizer, "separate_vocabs", False):
        raise InputError(
            f"model.stack={facts.stack}: {name} has a separate vocabulary for targets, which is not supported; set "
            "model.stack=encoder"
        )
    embeddings = embeddings_of(model.get_decoder()).num_embeddings
    start = getattr(model.config, "decoder_start_token_id", None)
    advice = "set model.tokenizer to the tokenizer that the model was trained with, or model.stack=encoder"
    if len(tokenizer) > embeddings:
        raise InputError(
            f"model.stack={facts.stack}: the decoder of {name} has {embeddings} embeddings, but the tokenizer has "
            f"{len(tokenizer)} tokens; {advice}"
        )
    if start is not None and not 0 <= start < embeddings:
        raise InputError(
            f"model.stack={facts.stack}: the decoder of {name} has {embeddings} embeddings, but its "
            f"decoder_start_token_id is {start}; {advice}"
        )


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
        knows = any(_known_share(tokenizer, text) > _KNOWN_SHARE for text in _texts(tokenizer))
    except Exception as error:  # broken vocabularies raise many types, Exception among them
        raise InputError(f"the tokenizer of {name!r} cannot read text: {one_line(error)}; {advice}") from error
    if not knows:
        raise InputError(f"the tokenizer of {name!r}, with {len(tokenizer)} tokens, knows no text; {advice}")
    if embeddings is not None and len(tokenizer) < _USED_SHARE * embeddings:
        raise InputError(
            f"the tokenizer of {name!r} has {len(tokenizer)} tokens, but the model has {embeddings} embeddings; {advice}"
        )


def _known_share(tokenizer: PreTrainedTokenizerBase, text: str) -> float:
    """The share of a text's tokens that are not unknown, special or blank."""
    ids = encoded(tokenizer, text, special=False)["input_ids"]
    special = set(tokenizer.all_special_ids)
    known = [token for token in ids if token not in special and str(tokenizer.decode([token])).strip()]
    return len(known) / max(1, len(ids))


def _texts(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Texts that a tokenizer may know; the last is a sample of its vocabulary, in order."""
    yield from _TEXTS
    ordinary = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    sample = ordinary[:: max(1, len(ordinary) // _SAMPLED_TOKENS)]
    yield " ".join(str(tokenizer.decode([token])).strip() for token in sample)


class TokenNames(PreTrainedTokenizerFast):
    """Turns names of tokens into ids; it adds no special tokens."""

    @classmethod
    def of(cls, names: Sequence[str], *, spaced: bool = False) -> "TokenNames":
        """A tokenizer for these names.

        Args:
            names: The name of each token id.
            spaced: Whether names may contain spaces; no text can then be written in them.

        Raises:
            InputError: If two tokens have the same name, or a name is empty or contains spaces.
        """
        for number, name in enumerate(names):
            words = [name] if spaced else str(name).split()
            if not isinstance(name, str) or words != [name] or name.encode(errors="ignore").decode() != name:
                raise InputError(
                    f"tokens: expected a name without spaces for each token id, got {name!r} for id {number}"
                )
        known = {name: number for number, name in enumerate(names)}
        if len(known) < len(names):
            twice = next(name for number, name in enumerate(names) if known[name] != number)
            raise InputError(f"tokens: expected distinct names, got {twice!r} twice")
        model = Tokenizer(WordLevel(known))
        model.pre_tokenizer = WhitespaceSplit()
        return cls(tokenizer_object=model)

    def __call__(self, text: Any = None, text_pair: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Tokenize texts.

        Raises:
            InputError: If a text contains anything but token names. Words that are looked up on their own, without special
                tokens, may be unknown.
        """
        texts = [self._known(each, strict=kwargs.get("add_special_tokens", True)) for each in (text, text_pair)]
        return super().__call__(*texts, *args, **kwargs)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        """The token id of each name."""
        numbers: dict[str, int] = self.get_vocab()
        return numbers

    def _known(self, text: Any, *, strict: bool) -> Any:
        """A text, or several, without unknown words."""
        if not isinstance(text, str):
            return [self._known(each, strict=strict) for each in text] if isinstance(text, list | tuple) else text
        known = self._numbers
        unknown = [word for word in text.split() if word not in known]
        if strict and unknown:
            names = ", ".join(sorted(known, key=known.__getitem__)[:3])
            raise InputError(
                f"expected token names separated by spaces ({names}, …), got {printable(repr(unknown[0]), 60)}; to pass "
                "ordinary text, wrap the model with its tokenizer"
            )
        return " ".join(word for word in text.split() if word in known) if unknown else text

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of these token ids.

        Raises:
            InputError: If one is not in the vocabulary.
        """
        for number in ids:
            if not 0 <= number < len(self):
                raise InputError(f"expected token ids from 0 to {len(self) - 1}, got {number}")
        return " ".join(map(str, self.convert_ids_to_tokens(list(ids))))
