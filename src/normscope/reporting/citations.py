"""The papers behind the numbers of a run."""

from collections.abc import Iterable

from normscope.analyses.registry import analyses

_OURS = """@software{normscope, title = {normscope}, note = {What the attention blocks of a Transformer really do}}"""


def citations(names: Iterable[str]) -> str:
    """BibTeX of the papers behind some analyses, and of normscope."""
    known = analyses()
    papers = dict.fromkeys(paper for name in names if name in known for paper in known[name].papers)
    return "\n\n".join([*(paper.bibtex for paper in papers), _OURS])
