"""Texts in memory as a corpus."""

import dataclasses
from collections.abc import Iterator

from normscope.data.examples import Corpus, Example


@dataclasses.dataclass(frozen=True)
class GivenTexts(Corpus):
    """Texts, or pairs of texts, that a Python caller has in memory."""

    texts: tuple[Example, ...]

    @property
    def total(self) -> int:
        """The number of texts."""
        return len(self.texts)

    def examples(self) -> Iterator[Example | str]:
        """The texts in order; those without a character that can be seen are skipped, as empty lines of a file are."""
        for example in self.texts:
            yield example if example.text.strip() else "empty"
