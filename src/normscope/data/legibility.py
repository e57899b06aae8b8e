"""What is not text although it can be decoded: invisible characters, and bytes of another encoding."""

import unicodedata

# Letters and signs by category that are drawn as nothing: fillers, the Braille blank, joiners, variation selectors.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {
    chr(code) for start, stop in ((0x180B, 0x1810), (0xFE00, 0xFE10), (0xE0100, 0xE01F0)) for code in range(start, stop)
}
NOT_TEXT = "not text"
"""The reason for what is no string, or cannot be one in Unicode."""

_SPACES = frozenset("\t\n\v\f\r")
# Every second byte of UTF-16 is a control character in Latin, Greek and Cyrillic, and three of four bytes of UTF-32. A text
# with a stray NUL has fewer.
_CONTROL_SHARE = 0.4


def why_not_text(text: str) -> str | None:
    """Why a string that is not empty is no text, as a reason to count; None if it is text."""
    if _is_unreadable(text):
        return NOT_TEXT
    if not any(_is_visible(character) for character in text):
        return "no visible character"
    if text.isprintable():
        return None
    controls = sum(unicodedata.category(character) == "Cc" and character not in _SPACES for character in text)
    return "mostly control characters (UTF-16 or UTF-32?)" if controls >= _CONTROL_SHARE * len(text) else None


def _is_unreadable(text: str) -> bool:
    """Whether there is half a character in it, which JSON can smuggle in."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _is_visible(character: str) -> bool:
    category = unicodedata.category(character)
    return category == "Co" or (category[0] not in "CZ" and character not in _BLANKS)
