"""A toy corpus: German sentences from a small grammar with English translations and exact word alignments.

It has what makes word alignment hard, on a small scale: reordering (verbs in second place or at the end of a clause),
one-to-two and two-to-one links (compounds, separable verbs), unaligned words (particles, *does*) and punctuation.
"""

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Literal

from normscope.data.examples import Corpus, Example, Links

PAIRS = 200
"""Sentence pairs of the corpus that is analysed."""

Case = Literal["nominative", "accusative"]

# German noun, gender, English words.
_ACTORS = (
    *(("Hund", "m", "dog"), ("Vogel", "m", "bird"), ("Lehrer", "m", "teacher"), ("Bürgermeister", "m", "mayor")),
    *(("Katze", "f", "cat"), ("Frau", "f", "woman"), ("Schülerin", "f", "pupil"), ("Ärztin", "f", "doctor")),
    *(("Kind", "n", "child"), ("Pferd", "n", "horse"), ("Mädchen", "n", "girl")),
)
_NOUNS = (
    *_ACTORS,
    *(
        ("Garten", "m", "garden"),
        ("Schlüssel", "m", "key"),
        ("Koffer", "m", "suitcase"),
        ("Apfelbaum", "m", "apple tree"),
    ),
    *(("Regenschirm", "m", "umbrella"), ("Leuchtturm", "m", "light house"), ("Brief", "m", "letter")),
    *(
        ("Brücke", "f", "bridge"),
        ("Zeitung", "f", "newspaper"),
        ("Haustür", "f", "front door"),
        ("Landkarte", "f", "map"),
    ),
    *(("Kaffeetasse", "f", "coffee cup"), ("Bushaltestelle", "f", "bus stop"), ("Buch", "n", "book")),
    *(("Fenster", "n", "window"), ("Bild", "n", "picture"), ("Fahrrad", "n", "bicycle"), ("Rathaus", "n", "town hall")),
)
_ADJECTIVES = (
    *(("klein", "small"), ("groß", "big"), ("alt", "old"), ("neu", "new"), ("rot", "red"), ("schwarz", "black")),
    *(("müd", "tired"), ("freundlich", "friendly"), ("seltsam", "strange"), ("berühmt", "famous"), ("leer", "empty")),
)
# German present, participle, separable particle; English present, infinitive, participle.
_VERBS = (
    *(("sieht", "gesehen", "", "sees", "see", "seen"), ("findet", "gefunden", "", "finds", "find", "found")),
    *(("malt", "gemalt", "", "paints", "paint", "painted"), ("sucht", "gesucht", "", "seeks", "seek", "sought")),
    *(
        ("kauft", "gekauft", "", "buys", "buy", "bought"),
        ("vergisst", "vergessen", "", "forgets", "forget", "forgotten"),
    ),
    *(("verkauft", "verkauft", "", "sells", "sell", "sold"), ("liebt", "geliebt", "", "loves", "love", "loved")),
    *(
        ("macht", "aufgemacht", "auf", "opens", "open", "opened"),
        ("schließt", "abgeschlossen", "ab", "locks", "lock", "locked"),
    ),
    *(
        ("holt", "abgeholt", "ab", "fetches", "fetch", "fetched"),
        ("sieht", "angesehen", "an", "watches", "watch", "watched"),
    ),
)
_ADVERBS = (
    *(("heute", "today"), ("gestern", "yesterday"), ("oft", "often"), ("manchmal", "sometimes")),
    *(("hier", "here"), ("draußen", "outside"), ("jetzt", "now")),
)
_PARTICLES = ("ja", "doch", "eben", "halt")
_CONJUNCTIONS = (("weil", "because"), ("obwohl", "although"), ("wenn", "when"))

_DEFINITE = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das")}
_INDEFINITE = {"m": ("ein", "einen"), "f": ("eine", "eine"), "n": ("ein", "ein")}
_ENDINGS = {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es")}


@dataclasses.dataclass(frozen=True)
class _Phrase:
    """Words of both languages, each with the name of a concept. Words with the same concept are linked."""

    german: Sequence[tuple[str, str]]
    english: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class ToyCorpus(Corpus):
    """Sentence pairs from the grammar with their links.

    Args:
        pairs: Number of pairs.
        seed: Seed of the draw; corpora with different seeds share hardly any sentences.
    """

    pairs: int
    seed: int

    @property
    def total(self) -> int:
        """Number of pairs."""
        return self.pairs

    def examples(self) -> Iterator[Example]:
        """The pairs."""
        draw = random.Random(self.seed)
        for _ in range(self.pairs):
            yield _example(_sentence(draw))


def _example(phrase: _Phrase) -> Example:
    # A concept in capitals makes a possible link, not a sure one.
    links = {
        (source, target): concept
        for (source, (_, concept)), (target, (_, other)) in itertools.product(
            enumerate(phrase.german), enumerate(phrase.english)
        )
        if concept and concept == other.lower()
    }
    unsure = {target for target, (_, other) in enumerate(phrase.english) if other != other.lower()}
    sure = frozenset(link for link in links if link[1] not in unsure)
    german, english = (" ".join(word for word, _ in side) for side in (phrase.german, phrase.english))
    return Example(german, english, links=Links(sure, frozenset(links)))


def _sentence(draw: random.Random) -> _Phrase:
    end = draw.choice((".", ".", ".", "!"))
    main = _clause(draw, "a", fronted=draw.random() < 0.4)
    parts = [main]
    if draw.random() < 0.4:
        german, english = draw.choice(_CONJUNCTIONS)
        parts.append(_Phrase([(",", "comma"), (german, "because")], [(",", "comma"), (english, "because")]))
        parts.append(_clause(draw, "b", subordinate=True))
    parts.append(_Phrase([(end, "end")], [(end, "end")]))
    return _Phrase([word for part in parts for word in part.german], [word for part in parts for word in part.english])


def _clause(draw: random.Random, name: str, fronted: bool = False, subordinate: bool = False) -> _Phrase:
    context = _noun_phrase(draw, f"{name}s", "nominative", _ACTORS)
    object_ = _noun_phrase(draw, f"{name}o", "accusative", _NOUNS)
    present, participle, particle, says, infinitive, done = draw.choice(_VERBS)
    verb, tense = f"{name}v", draw.choice(("present", "present", "perfect", "negated"))
    time, when = draw.choice(_ADVERBS)
    adverb = _Phrase([(time, f"{name}t")], [(when, f"{name}t")])
    mood = [(draw.choice(_PARTICLES), "")] if draw.random() < 0.3 else []
    away = [(particle, verb)] if particle else []
    if tense == "perfect":
        finite, rest = ("hat", f"{name}h"), [(participle, verb)]
        english = [("has", f"{name}h"), (done, verb)]
    elif tense == "negated":
        finite, rest = (present, verb), [("nicht", f"{name}n"), *away]
        english = [("does", verb.upper()), ("not", f"{name}n"), (infinitive, verb)]
    else:
        finite, rest = (present, verb), away
        english = [(says, verb)]
    if subordinate:
        # The verb moves to the end and is rejoined with its particle.
        last = [*rest, finite] if tense == "perfect" else [*rest[: len(rest) - len(away)], (particle + present, verb)]
        return _Phrase([*context.german, *mood, *object_.german, *last], [*context.english, *english, *object_.english])
    if fronted:
        german = [*adverb.german, finite, *context.german, *mood, *object_.german, *rest]
        return _Phrase(german, [*adverb.english, *context.english, *english, *object_.english])
    german = [*context.german, finite, *mood, *adverb.german, *object_.german, *rest]
    return _Phrase(german, [*context.english, *english, *object_.english, *adverb.english])


def _noun_phrase(draw: random.Random, name: str, case: Case, nouns: Sequence[tuple[str, str, str]]) -> _Phrase:
    column = 0 if case == "nominative" else 1
    noun, gender, translation = draw.choice(nouns)
    definite = draw.random() < 0.6
    article = (_DEFINITE if definite else _INDEFINITE)[gender][column]
    german, english = [(article, f"{name}d")], [("the" if definite else "a", f"{name}d")]
    if draw.random() < 0.5:
        adjective, quality = draw.choice(_ADJECTIVES)
        weak = "en" if gender == "m" and column else "e"
        german.append((adjective + (weak if definite else _ENDINGS[gender][column]), f"{name}a"))
        english.append((quality, f"{name}a"))
    first = english[1][0] if len(english) > 1 else translation
    if not definite and first[0] in "aeiou":
        english[0] = ("an", english[0][1])
    german.append((noun, f"{name}n"))
    return _Phrase(german, [*english, *((word, f"{name}n") for word in translation.split())])
