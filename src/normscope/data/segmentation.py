"""Documents cut into examples, and what WikiText's files call a document."""

import dataclasses
import hashlib
import re
from collections.abc import Iterator

import numpy as np

from normscope.config.schema import Segmentation
from normscope.data.examples import Corpus, Example
from normscope.data.legibility import why_not_text
from normscope.data.sentence_splitting import sentences

_TITLE = re.compile(r"^= [^=].*[^=] =$")

# What WikiText's tokeniser took apart.
_JOINED = (
    (re.compile(r" @([-,.])@ "), r"\1"),
    (re.compile(r" ([.,;:!?%)\]}])"), r"\1"),
    (re.compile(r"([(\[{$]) "), r"\1"),
    (re.compile(r" ('s|'t|'re|'ve|'m|'ll|'d|n't)\b"), r"\1"),
    (re.compile(r'" ([^"]*) "'), r'"\1"'),
)


@dataclasses.dataclass(frozen=True)
class Segmented(Corpus):
    """The examples that the documents of a corpus are cut into. A document's paragraphs are its lines.

    Args:
        corpus: Where documents come from; pairs are left as they are.
        segmentation: `sentence`: every sentence is an example; `pair`: two consecutive paragraphs of each document, drawn by
            the seed and the document itself.
        seed: Seed of the draw.
    """

    corpus: Corpus
    segmentation: Segmentation
    seed: int

    @property
    def total(self) -> int | None:
        """Not known before the documents are read, but for pairs: one of each."""
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
        paragraphs = [line.strip() for line in document.splitlines() if line.strip()]
        if len(paragraphs) < 2:
            return "one paragraph"
        content = hashlib.sha256(document.encode()).digest()
        generator = np.random.default_rng([self.seed, int.from_bytes(content[:16], "little")])
        first = int(generator.integers(len(paragraphs) - 1))
        return Example(paragraphs[first], paragraphs[first + 1])


@dataclasses.dataclass(frozen=True)
class WikiText(Corpus):
    """Paragraphs of a corpus of WikiText's lines, or whole articles, without headings and with its signs put back.

    Args:
        corpus: Lines, as the files have them.
        articles: Whether the paragraphs of an article are one example, a line each.
    """

    corpus: Corpus
    articles: bool

    @property
    def total(self) -> int | None:
        """Not known before the lines are read."""
        return None

    def examples(self) -> Iterator[Example | str]:
        """Paragraphs or articles; headings are skipped and counted."""
        article: list[str] = []
        for line in self.corpus.examples():
            if isinstance(line, str):
                yield line
            elif _is_heading(line.text):
                if article and _TITLE.match(line.text):
                    yield Example("\n".join(article))
                    article = []
                yield "heading"
            elif self.articles:
                article.append(joined(line.text))
            else:
                yield Example(joined(line.text))
        if article:
            yield Example("\n".join(article))


def _is_heading(line: str) -> bool:
    """Whether a line is `= Title =`, `= = Section = =` and so on."""
    return len(line) >= len("=  =") and line.startswith("= ") and line.endswith(" =") and "\n" not in line


def joined(text: str) -> str:
    """Text whose signs stand where a writer puts them."""
    for pattern, replacement in _JOINED:
        text = pattern.sub(replacement, text)
    return text
