"""Detects strings that decode without error but are no text: invisible characters, or bytes of another encoding."""

import unicodedata

# Invisible characters in the Unicode categories of letters and symbols: fillers, the Braille blank, variation selectors.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {
    chr(code) for start, stop in ((0x180B, 0x1810), (0xFE00, 0xFE10), (0xE0100, 0xE01F0)) for code in range(start, stop)
}
NOT_TEXT = "not text"
"""The reason for values that are no strings, or no valid Unicode."""

_SPACES = frozenset("\t\n\v\f\r")
# In UTF-16 every other byte of Latin, Greek or Cyrillic text is a control character, in UTF-32 three bytes of four. A text with
# a stray NUL stays below this.
_CONTROL_SHARE = 0.4


def why_not_text(text: str) -> str | None:
    """The reason why a non-empty string is no text; None if it is."""
    if _has_surrogates(text):
        return NOT_TEXT
    if not any(_is_visible(character) for character in text):
        return "no visible character"
    if text.isprintable():
        return None
    controls = sum(unicodedata.category(character) == "Cc" and character not in _SPACES for character in text)
    return "mostly control characters (UTF-16 or UTF-32?)" if controls >= _CONTROL_SHARE * len(text) else None


def _has_surrogates(text: str) -> bool:
    """Whether it contains half a surrogate pair, which JSON escapes can produce."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _is_visible(character: str) -> bool:
    category = unicodedata.category(character)
    return category == "Co" or (category[0] not in "CZ" and character not in _BLANKS)
