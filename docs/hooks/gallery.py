"""The gallery: live reports, and every figure with its caption once."""

import html
import re
from pathlib import Path

from PIL import Image

from docs.hooks.captions import IMAGES, caption
from docs.hooks.markdown import ROOT, code
from docs.reports import LIVE, REPORTS
from normscope.analyses.registry import analyses

_MISSING = "`make docs` makes the reports; this copy of the pages was built without them."


def page() -> str:
    """The page in Markdown."""
    return "\n".join(
        [
            "# Gallery\n",
            "Reports that you can click through, then every figure, by the question that it helps to answer. The name after a "
            "caption, such as `mixing_heatmap`, is that of the file in a run's `figures/`.\n",
            "## Live reports\n",
            *(_reports() or [f"{_MISSING}\n"]),
            *_figures(),
        ]
    )


def _reports() -> list[str]:
    parts = []
    for name, live in LIVE.items():
        if not (REPORTS / name / live.page).is_file():
            continue
        link = f"reports/{name}/{live.page}"
        command = " ".join(_quoted(argument) for argument in live.arguments)
        parts.append(
            f"### {live.title}\n\n{live.about} [Open it on a page of its own]({link}){{ target=_blank }}.\n\n"
            f'<iframe class="live" loading="lazy" title="{html.escape(live.title)}" src="{link}"></iframe>\n\n'
            f"```\nnormscope {command}\n```\n"
        )
    return parts


def _quoted(argument: str) -> str:
    return f'"{argument}"' if re.search(r"[\s']", argument) else argument


def _figures() -> list[str]:
    """Every figure by analysis: from the live reports, or as the pages show it."""
    shown = {path.stem: path for path in sorted(IMAGES.glob("*.png"))}
    shown |= {path.stem: path for path in sorted(REPORTS.glob("*/figures/*.png"))}
    parts = []
    for name, info in analyses().items():
        own = {figure: path for figure, path in shown.items() if figure.startswith(f"{name}_")}
        if own:
            parts.append(f"## {info.question}\n\n[{info.title}](measures/{name}.md)\n")
        parts += [_figure(figure, path) for figure, path in sorted(own.items())]
        shown = {figure: path for figure, path in shown.items() if figure not in own}
    parts.append("## From Python, and over training\n")
    return parts + [_figure(figure, path) for figure, path in sorted(shown.items())]


def _figure(name: str, path: Path) -> str:
    link = path.relative_to(ROOT / "docs").as_posix()
    with Image.open(path) as picture:
        width, height = picture.size
    described = html.escape(f"The figure {name}", quote=True)
    size = f'width="{width}" height="{height}" loading="lazy"'
    return f'<img src="{link}" alt="{described}" {size}>\n\n{caption(path)} {code(name)}\n'
