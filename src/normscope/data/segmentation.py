"""Documents cut into examples, and the articles of WikiText."""

import dataclasses
import hashlib
import re
from collections.abc import Iterator

import numpy as np

from normscope.data.examples import Corpus, Example
from normscope.data.legibility import why_not_text
from normscope.data.options import Segmentation
from normscope.data.sentence_splitting import sentences

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
    """A corpus whose documents are cut into examples. The paragraphs of a document are its lines.

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

    @property
    def parts(self) -> int | None:
        """The parts of the documents."""
        return self.corpus.parts

    @property
    def undivided(self) -> str:
        """The reason of the corpus inside."""
        return self.corpus.undivided

    def part(self, index: int) -> Corpus:
        """One of the parts."""
        return dataclasses.replace(self, corpus=self.corpus.part(index))

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

    @property
    def parts(self) -> int | None:
        """The parts of the lines; articles may cross their boundaries."""
        return None if self.articles else self.corpus.parts

    @property
    def undivided(self) -> str:
        """The reason of the corpus inside."""
        return self.corpus.undivided

    def part(self, index: int) -> Corpus:
        """One of the parts."""
        return dataclasses.replace(self, corpus=self.corpus.part(index))

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
                article.append(detokenized(line.text))
            else:
                yield Example(detokenized(line.text))
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
