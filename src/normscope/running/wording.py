"""What findings are about, in words."""

import dataclasses
import re

from normscope.analyses.findings import Findings, Sentence

# Special tokens and punctuation marks are words of their own, and still called tokens.
_TOKEN = re.compile(r"(?<![Ss]pecial )(?<!mask )(?<!punctuation )(?<!\])(?<!\] )\b(T|t)oken")


def about_words(findings: Findings) -> Findings:
    """The findings of an analysis that has measured words: sentences and captions say `word` where they say `token`."""
    sentences = [
        Sentence(_of_words(text), figure=text.figure, table=text.table)
        if isinstance(text, Sentence)
        else _of_words(text)
        for text in findings.sentences
    ]
    return dataclasses.replace(
        findings,
        sentences=sentences,
        notes=[_of_words(note) for note in findings.notes],
        summary_caption=_of_words(findings.summary_caption),
        figures={
            name: dataclasses.replace(figure, caption=_of_words(figure.caption))
            for name, figure in findings.figures.items()
        },
    )


def _of_words(text: str) -> str:
    return _TOKEN.sub(lambda found: "Word" if found[1] == "T" else "word", text)
