"""BibTeX entries for the papers a run is based on."""

from collections.abc import Iterable

from normscope.analyses.registry import analyses
from normscope.distribution import VERSION

_OURS = f"""@software{{normscope,
  title = {{normscope: what the attention blocks of a Transformer really do}},
  author = {{{{The normscope authors}}}},
  version = {{{VERSION}}},
  year = {{2026}},
  month = nov
}}"""


def citations(names: Iterable[str]) -> str:
    """BibTeX of the papers that the analyses implement, and of normscope itself."""
    known = analyses()
    papers = dict.fromkeys(paper for name in names if name in known for paper in known[name].papers)
    return "\n\n".join([*(paper.bibtex for paper in papers), _OURS])
