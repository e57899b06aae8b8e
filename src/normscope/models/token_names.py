"""A tokenizer for models that have none: a text is the names of its tokens, separated by spaces."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from normscope.errors import InputError, printable


class TokenNames(PreTrainedTokenizerFast):
    """Turns names of tokens into ids; it adds no special tokens."""

    @classmethod
    def of(cls, names: Sequence[str]) -> "TokenNames":
        """A tokenizer for these names.

        Args:
            names: The name of each token id.

        Raises:
            InputError: If two tokens have the same name, or a name is empty or contains spaces.
        """
        for number, name in enumerate(names):
            if not isinstance(name, str) or name.split() != [name]:
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

    def _known(self, text: Any, *, strict: bool) -> Any:
        """A text, or several, without unknown words."""
        if not isinstance(text, str):
            return [self._known(each, strict=strict) for each in text] if isinstance(text, list | tuple) else text
        known = self.get_vocab()
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
