"""The sources of an answer: passages of the prompt, by name, found among the prompt's tokens."""

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from normscope.data.instructions import instructions_in
from normscope.data.segmentation import spans_of_paragraphs, spans_of_sentences
from normscope.data.source_files import KINDS, beginning
from normscope.data.tokenization import Span, owners_of
from normscope.errors import InputError, printable
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import is_messages, messages_in, parts_of, places_of_tokens
from normscope.rounding import counted

_BREAK = "\0"
"""Between messages of a conversation, or texts of a pair: no passage extends over it."""
_PASSAGE_AND_QUESTION = 2
_SHOWN = 60
"""Characters of a passage in messages."""
_COMPARED = 300, 50_000
"""Characters of a passage and of the prompt in which the nearest match is looked for, which takes their product."""


class Source(NamedTuple):
    """A passage of the prompt."""

    name: str
    text: str
    tokens: tuple[int, ...]
    """Positions in the prompt."""
    instructions: Mapping[str, tuple[int, ...]]
    """The positions of the sentences in it that read as instructions, by their texts."""


def found_sources(
    model: LoadedModel, text: object, ids: Sequence[int], asked: Mapping[str, str] | Sequence[str] | str | None
) -> list[Source]:
    """The sources among the tokens of a prompt, in its order.

    Args:
        text: The prompt: a text or a conversation.
        ids: Its tokens.
        asked: See `normscope.sources`.

    Raises:
        InputError: If a source does not occur in the prompt, or two share a token.
    """
    parts = [each.content for each in messages_in(text)] if is_messages(text) else list(parts_of(text))
    places = places_of_tokens(model, text, ids) if model.tokenizer.is_fast else None
    if places is None:
        raise InputError(
            "sources: expected a fast tokenizer that reads the prompt as given, to find passages among its tokens"
        )
    begins = [0, *itertools.accumulate(len(part) + len(_BREAK) for part in parts)]
    tokens = [place and (begins[place[0]] + place[1], begins[place[0]] + place[2]) for place in places]
    whole = _BREAK.join(parts)
    if asked is None:
        asked = "chat" if is_messages(text) else _kind_of(parts[-1])
    if isinstance(asked, str):
        named = _of_kind(asked, text, parts, begins)
    else:
        names = asked if isinstance(asked, Mapping) else [f"passage {number}" for number in range(1, len(asked) + 1)]
        passages = asked.values() if isinstance(asked, Mapping) else asked
        named = _located(dict(zip(names, passages, strict=True)), whole)
    named = sorted(((name, span) for name, span in named if whole[slice(*span)].strip()), key=lambda each: each[1])
    if not named:
        raise InputError("sources: expected at least one passage with text, got none")
    owned = _members(tokens, [span for _, span in named])
    found = []
    for (name, (start, end)), own in zip(named, owned, strict=True):
        passage = whole[start:end]
        if not own:
            raise InputError(
                f"sources: {_quoted(passage)} has no token of its own in the prompt; extend it to whole words"
            )
        told = instructions_in(passage)
        of_told = _members(tokens, [(start + first, start + last) for first, last in told])
        said = {passage[slice(*span)]: places for span, places in zip(told, of_told, strict=True)}
        found.append(Source(name, passage, own, said))
    return found


def _members(tokens: Sequence[Span | None], spans: Sequence[Span]) -> list[tuple[int, ...]]:
    """The tokens of each span, which are in the order of the text."""
    members: list[list[int]] = [[] for _ in spans]
    for at, owner in enumerate(owners_of(tokens, spans)):
        if owner is not None:
            members[owner].append(at)
    return list(map(tuple, members))


def _of_kind(kind: str, text: object, parts: Sequence[str], begins: Sequence[int]) -> list[tuple[str, Span]]:
    """The messages, paragraphs, sentences or words of a prompt, with their numbers as part of their names."""
    if kind not in KINDS:
        raise InputError(f"sources={printable(kind, _SHOWN)}: expected passages, or one of {', '.join(KINDS)}")
    if kind == "chat":
        if not is_messages(text):
            raise InputError("sources=chat: expected a conversation, got a plain text")
        roles = [message.role for message in messages_in(text)]
        return [
            (f"{number} {role}", (start, start + len(part)))
            for number, (role, start, part) in enumerate(zip(roles, begins, parts, strict=False), start=1)
        ]
    units = [
        (part[first:last], (start + first, start + last))
        for start, part in zip(begins, parts, strict=False)
        for first, last in _spans(kind, part)
    ]
    return [(f"{number} {beginning(unit)}", span) for number, (unit, span) in enumerate(units, start=1)]


def _spans(kind: str, part: str) -> list[Span]:
    if kind == "words":
        return [word.span() for word in re.finditer(r"\S+", part)]
    return spans_of_paragraphs(part) if kind == "paragraphs" else spans_of_sentences(part)


def _kind_of(text: str) -> str:
    """What a prompt is divided into if nobody says: paragraphs, if there are several and a question; else its sentences."""
    if len(spans_of_paragraphs(text)) > _PASSAGE_AND_QUESTION:
        return "paragraphs"
    return "sentences" if len(spans_of_sentences(text)) > 1 else "words"


def _located(passages: Mapping[str, str], whole: str) -> list[tuple[str, Span]]:
    """Between which characters of the prompt each passage lies. White space may differ.

    A passage takes the first of its occurrences that no other passage holds. The longest are placed first, because a short one
    may occur in them as well; of passages of one length, the order is theirs.
    """
    places: dict[str, Span] = {}
    for name in sorted(passages, key=lambda name: -len("".join(passages[name].split()))):
        if not passages[name].strip():
            raise InputError(f"sources: {name}: expected a passage with text, got an empty one")
        occurrences = _occurrences(passages[name], whole)
        if not occurrences:
            nearest = _nearest(passages[name], whole)
            raise InputError(f"sources: {name}: {_quoted(passages[name])} does not occur in the prompt; {nearest}")
        taken = [[other for other, place in places.items() if _overlap(place, span)] for span in occurrences]
        if all(taken):
            both = f"{printable(taken[0][0], _SHOWN)} and {printable(name, _SHOWN)}"
            raise InputError(f"sources: {both} overlap in the prompt; expected passages that share no token")
        places[name] = occurrences[taken.index([])]
    return list(places.items())


def _occurrences(passage: str, whole: str) -> list[Span]:
    words = passage.split()
    pattern = r"\s+".join(map(re.escape, words))
    # A passage that begins or ends with a letter does not begin or end within a word.
    before, after = (r"\b" if end.isalnum() and end.isascii() else "" for end in (words[0][0], words[-1][-1]))
    strict, loose = (re.compile(each).finditer(whole) for each in (before + pattern + after, pattern))
    return [found.span() for found in strict] or [found.span() for found in loose]


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _quoted(passage: str) -> str:
    return f"“{printable(' '.join(passage.split()), _SHOWN)}”"


def _nearest(passage: str, whole: str) -> str:
    """The words of the prompt that a passage shares most of its characters with."""
    most, longest = _COMPARED
    wanted = passage.strip()[:most]
    block = difflib.SequenceMatcher(None, wanted, whole[:longest], autojunk=False).find_longest_match()
    if block.size < min(8, len(wanted) // 2):
        return "nothing in it is similar; write {sources} in the prompt where the passages belong"
    start = max(0, block.b - block.a)
    end = re.compile(r"\b|$").search(whole, start + len(wanted))
    match = whole[start : end.start() if end else None].replace(_BREAK, " ")
    return f"the nearest match is {_quoted(match)}, with {counted(block.size, 'character')} in common"
