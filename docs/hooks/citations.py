"""The guide to papers: the tables and figures of those that can be repeated, and BibTeX entries as the program prints them."""

from docs.hooks import exhibits
from docs.hooks.markdown import ROOT
from normscope.analyses.registry import analyses


def page() -> str:
    """The page in Markdown."""
    papers = dict.fromkeys(paper for info in analyses().values() for paper in info.papers)
    used = {
        paper: ", ".join(f"`{name}`" for name, info in analyses().items() if paper in info.papers) for paper in papers
    }
    entries = "\n".join(f"{used[paper]}:\n\n```bibtex\n{paper.bibtex}\n```\n" for paper in papers)
    guide = (ROOT / "docs" / "guides" / "papers.md").read_text()
    return guide.replace("<!-- papers -->", entries).replace("<!-- exhibits -->", exhibits.sections())
