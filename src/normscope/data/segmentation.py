"""Documents cut into examples, and the articles of WikiText."""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator

import numpy as np
import regex
from syntok import segmenter

from normscope.data.examples import Corpus, Example
from normscope.data.legibility import why_not_text
from normscope.data.options import Segmentation
from normscope.data.tokenization import Span, visible

_TITLE = re.compile(r"^= [^=].*[^=] =$")

# Undo WikiText's tokenisation.
_DETOKENIZE = (
    (re.compile(r" @([-,.])@ "), r"\1"),
    (re.compile(r" ([.,;:!?%)\]}])"), r"\1"),
    (re.compile(r"([(\[{$]) "), r"\1"),
    (re.compile(r" ('s|'t|'re|'ve|'m|'ll|'d|n't)\b"), r"\1"),
    (re.compile(r'" ([^"]*) "'), r'"\1"'),
)


@dataclasses.dataclass(frozen=True)
class Segmented(Corpus):
    """A corpus whose documents are cut into examples. The paragraphs of a document are its lines, as those of a file are.

    Args:
        corpus: The documents; pairs are left as they are.
        segmentation: `sentence`: every sentence is an example; `pair`: two consecutive paragraphs of each document, drawn at
            random.
        seed: Seed of the draw, which also depends on the document.
    """

    corpus: Corpus
    segmentation: Segmentation
    seed: int

    @property
    def total(self) -> int | None:
        """The number of documents for pairs; otherwise unknown before they are read."""
        return self.corpus.total if self.segmentation is Segmentation.pair else None

    def examples(self) -> Iterator[Example | str]:
        """Examples in the order of the documents."""
        for document in self.corpus.examples():
            if isinstance(document, str) or document.text_pair is not None:
                yield document
            elif self.segmentation is Segmentation.sentence:
                yield from (why_not_text(part) or Example(part) for part in sentences(document.text))
            else:
                yield self._pair(document.text)

    def _pair(self, document: str) -> Example | str:
        paragraphs = [line.strip() for line in _LINE_BREAK.split(document) if line.strip()]
        if len(paragraphs) < 2:
            return "one paragraph"
        content = hashlib.sha256(document.encode()).digest()
        generator = np.random.default_rng([self.seed, int.from_bytes(content[:16], "little")])
        first = int(generator.integers(len(paragraphs) - 1))
        return Example(paragraphs[first], paragraphs[first + 1])


@dataclasses.dataclass(frozen=True)
class WikiText(Corpus):
    """WikiText as detokenized paragraphs or articles, without headings.

    Args:
        corpus: The lines of the files.
        articles: Whether an example is a whole article with one paragraph per line, rather than a paragraph.
    """

    corpus: Corpus
    articles: bool

    @property
    def total(self) -> int | None:
        """Unknown before the lines are read."""
        return None

    def examples(self) -> Iterator[Example | str]:
        """Paragraphs or articles; headings are skipped and counted."""
        article: list[str] = []
        for line in self.corpus.examples():
            if isinstance(line, str):
                yield line
                continue
            text = line.text.strip()
            if _is_heading(text):
                if article and _TITLE.match(text):
                    yield Example("\n".join(article))
                    article = []
                yield "heading"
            elif self.articles:
                article.append(detokenized(text))
            else:
                yield Example(detokenized(text))
        if article:
            yield Example("\n".join(article))


def _is_heading(line: str) -> bool:
    """Whether a line is `= Title =`, `= = Section = =` and so on."""
    return len(line) >= len("=  =") and line.startswith("= ") and line.endswith(" =") and "\n" not in line


def detokenized(text: str) -> str:
    """WikiText with punctuation attached as in ordinary text."""
    for pattern, replacement in _DETOKENIZE:
        text = pattern.sub(replacement, text)
    return text


_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_BLANK_LINE = re.compile(r"\n\s*\n")
_SPACE = re.compile(r"\s")
# What ends a sentence in any script (Unicode's UAX 29: Chinese, Hindi, Arabic, Amharic, …), with the closing marks that belong
# to it. syntok knows the marks of European languages, and needs a space after them; these need none.
_END = regex.compile(r"([\p{Sentence_Break=STerm}.．…]++)[\p{Pe}\p{Pf}\"']*+")
_LEFT_TO_SYNTOK = ".…!?"
# German and French close quotations with marks that open them in English; syntok accepts plain marks for both. One
# character replaces one, so that offsets stay valid.
_PLAIN_QUOTES = str.maketrans(dict.fromkeys("„“”«»", '"'))
# Characters passed to syntok at a time: it keeps a few hundred bytes for every word of a sentence.
_PIECE = 2**18


def sentences(document: str) -> list[str]:
    """The sentences of a document in order, stripped of white space. Joined, they are the document up to white space."""
    return [document[start:end] for start, end in spans_of_sentences(document)]


def spans_of_sentences(document: str) -> list[Span]:
    """Where the sentences of a document lie, without white space around them.

    A blank line ends a sentence; a single line break does not.
    """
    cuts = {0, len(document), *_ends(document)}
    for start, end in spans_of_paragraphs(document):
        cuts |= {start, *(start + cut for cut in _cuts(document[start:end]))}
    return _visible(document, itertools.pairwise(sorted(cuts)))


def spans_of_paragraphs(document: str) -> list[Span]:
    """Where the texts between blank lines lie, without white space around them."""
    blanks = (edge for blank in _BLANK_LINE.finditer(document) for edge in blank.span())
    edges = [0, *blanks, len(document)]
    return _visible(document, zip(edges[::2], edges[1::2], strict=True))


def _visible(document: str, spans: Iterable[Span]) -> list[Span]:
    return [visible(document, span) for span in spans if document[slice(*span)].strip()]


def _ends(document: str) -> Iterator[int]:
    """Offsets behind the marks that end sentences and that syntok does not know."""
    for match in _END.finditer(document):
        in_number = match[1] == "．" and document[match.end() : match.end() + 1].isdigit()
        if match[1].strip(_LEFT_TO_SYNTOK) and not in_number:
            yield match.end()


def _cuts(paragraph: str) -> Iterator[int]:
    """Offsets at which syntok finds sentences after the first."""
    start = 0
    while start < len(paragraph):
        piece = paragraph[start : start + _PIECE]
        cuts = list(_cuts_of_piece(piece))
        yield from (start + cut for cut in cuts)
        # The last sentence of a piece may continue, so the next piece starts with it.
        start += len(piece) if start + len(piece) == len(paragraph) or not cuts else cuts[-1]


def _cuts_of_piece(piece: str) -> Iterator[int]:
    end = None
    for paragraph in segmenter.analyze(piece.translate(_PLAIN_QUOTES)):
        for tokens in paragraph:
            first, last = tokens[0], tokens[-1]
            if end is not None:
                # Characters outside syntok's tokens stay with the sentence they touch.
                space = _SPACE.search(piece, end, first.offset)
                yield first.offset if space is None else space.start()
            end = last.offset + len(last.value)
