"""The sources of an answer: passages of the prompt, by name, found among the prompt's tokens."""

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from normscope.data.instructions import instructions_in
from normscope.data.segmentation import spans_of_sentences
from normscope.data.tokenization import Place, Span, owners_of
from normscope.errors import InputError, printable
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import is_messages, messages_in, parts_of, places_of_tokens
from normscope.rounding import counted

KINDS = ("chat", "sentences", "words")
"""What a string stands for: the messages of a conversation, or the sentences or words of the prompt."""

_SHOWN = 60
"""Characters of a passage in messages."""
_LONGEST_NAME = 40
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
    named = _named(asked, text, parts)
    spans = _located(named, parts)
    owners = _owners(places, spans, parts)
    found = []
    for number, ((name, passage), (part, (start, end))) in enumerate(zip(named, spans, strict=True)):
        tokens = tuple(at for at, owner in enumerate(owners) if owner == number)
        if not tokens:
            raise InputError(
                f"sources: {_quoted(passage)} has no token of its own in the prompt; extend it to whole words"
            )
        inside = parts[part][start:end]
        told = instructions_in(inside)
        of_told = owners_of([_within(places[at], start) for at in tokens], told)
        found.append(
            Source(
                name,
                inside,
                tokens,
                {
                    inside[slice(*span)]: tuple(at for at, owner in zip(tokens, of_told, strict=True) if owner == which)
                    for which, span in enumerate(told)
                },
            )
        )
    return sorted(found, key=lambda source: source.tokens)


def _within(place: Place | None, start: int) -> Span | None:
    return None if place is None else (place[1] - start, place[2] - start)


def _named(
    asked: Mapping[str, str] | Sequence[str] | str | None, text: object, parts: Sequence[str]
) -> list[tuple[str, str]]:
    """The sources by name; names that repeat are numbered."""
    if asked is None:
        asked = "chat" if is_messages(text) else "sentences" if len(spans_of_sentences(parts[-1])) > 1 else "words"
    if isinstance(asked, str):
        named = list(_of_kind(asked, text, parts))
    elif isinstance(asked, Mapping):
        named = list(asked.items())
    else:
        named = [(f"passage {number}", passage) for number, passage in enumerate(asked, start=1)]
    named = [(name, passage) for name, passage in named if passage.strip()]
    if not named:
        raise InputError("sources: expected at least one passage with text, got none")
    return named


def _of_kind(kind: str, text: object, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    if kind not in KINDS:
        raise InputError(f"sources={printable(kind, _SHOWN)}: expected passages, or one of {', '.join(KINDS)}")
    if kind == "chat":
        if not is_messages(text):
            raise InputError("sources=chat: expected a conversation, got a plain text; set dataset.chat_template=true")
        for number, message in enumerate(messages_in(text), start=1):
            yield f"{number} {message.role}", message.content
        return
    for number, part in enumerate(itertools.chain.from_iterable(_units(kind, part) for part in parts), start=1):
        yield f"{number} {printable(part, _LONGEST_NAME)}", part


def _units(kind: str, part: str) -> list[str]:
    return [part[slice(*span)] for span in spans_of_sentences(part)] if kind == "sentences" else part.split()


def _located(named: Sequence[tuple[str, str]], parts: Sequence[str]) -> list[tuple[int, Span]]:
    """In which text of the prompt each passage lies, and between which characters. White space may differ.

    A passage takes the first of its occurrences that no other passage holds. The longest are placed first, because a short one
    may occur in them as well; of passages of one length, the order is theirs.
    """
    places: dict[int, tuple[int, Span]] = {}
    for number in sorted(range(len(named)), key=lambda number: -len("".join(named[number][1].split()))):
        name, passage = named[number]
        occurrences = list(_occurrences(passage, parts))
        if not occurrences:
            raise InputError(
                f"sources: {name}: {_quoted(passage)} does not occur in the prompt; {_nearest(passage, parts)}"
            )
        free = [place for place in occurrences if not any(_overlap(place, other) for other in places.values())]
        if not free:
            other = next(at for at, other in places.items() if _overlap(occurrences[0], other))
            both = f"{printable(named[other][0], _SHOWN)} and {printable(name, _SHOWN)}"
            raise InputError(f"sources: {both} overlap in the prompt; expected passages that share no token")
        places[number] = free[0]
    return [places[number] for number in range(len(named))]


def _occurrences(passage: str, parts: Sequence[str]) -> Iterator[tuple[int, Span]]:
    words = passage.split()
    pattern = r"\s+".join(map(re.escape, words))
    # A passage that begins or ends with a letter does not begin or end within a word.
    before, after = (r"\b" if end.isalnum() and end.isascii() else "" for end in (words[0][0], words[-1][-1]))
    for strict in (before + pattern + after, pattern):
        found = [(number, found.span()) for number, part in enumerate(parts) for found in re.finditer(strict, part)]
        if found:
            yield from found
            return


def _overlap(one: tuple[int, Span], other: tuple[int, Span]) -> bool:
    return one[0] == other[0] and one[1][0] < other[1][1] and other[1][0] < one[1][1]


def _quoted(passage: str) -> str:
    return f"“{printable(' '.join(passage.split()), _SHOWN)}”"


def _nearest(passage: str, parts: Sequence[str]) -> str:
    """The words of the prompt that a passage shares most of its characters with."""
    most, longest = _COMPARED
    wanted, best, match = passage.strip()[:most], 0, ""
    for part in parts:
        blocks = difflib.SequenceMatcher(None, wanted, part[:longest], autojunk=False)
        block = blocks.find_longest_match()
        if block.size > best:
            start = max(0, block.b - block.a)
            end = re.compile(r"\b|$").search(part, start + len(wanted))
            best, match = block.size, part[start : end.start() if end else None]
    if best < min(8, len(wanted) // 2):
        return "nothing in it is similar; write {sources} in the prompt where the passages belong"
    return f"the nearest match is {_quoted(match)}, with {counted(best, 'character')} in common"


def _owners(
    places: Sequence[Place | None], spans: Sequence[tuple[int, Span]], parts: Sequence[str]
) -> list[int | None]:
    """The source of each token."""
    owners: list[int | None] = [None] * len(places)
    for part in range(len(parts)):
        numbers = sorted(
            (number for number, place in enumerate(spans) if place[0] == part), key=lambda at: spans[at][1]
        )
        own = [None if place is None or place[0] != part else place[1:] for place in places]
        for at, owner in enumerate(owners_of(own, [spans[number][1] for number in numbers])):
            if owner is not None:
                owners[at] = numbers[owner]
    return owners
