"""How results are shown: trackers, the report and the figures."""

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import ConfigDict, Field

from normscope.config.rules import Expected, Options, SomeOf

# What the explorer of a report can show. No tokenizer adds more special tokens than the fewest.
MOST_EXAMPLES = 100
FEWEST_TOKENS, MOST_TOKENS = 8, 512

# Inches: below the first, labels would not fit; the second is a poster's.
NARROWEST_FIGURE, WIDEST_FIGURE = 3, 40
LOWEST_DPI, HIGHEST_DPI = 50, 1200


class Verbosity(enum.StrEnum):
    """How much a run prints."""

    normal = "normal"
    """Progress, notes and tables."""
    quiet = "quiet"
    """The folder of the results, and errors."""


class TrackingMode(enum.StrEnum):
    """Whether to track a run, and whether Weights & Biases sends it to its server."""

    offline = "offline"
    online = "online"
    disabled = "disabled"


NAME_LENGTH = 128
"""Maximum length that W&B allows for the name of a run, project, group or entity."""


TAG_LENGTH = 64
"""Maximum length of a tag in W&B."""


Name = Annotated[str, Field(max_length=NAME_LENGTH)]
_PROJECT = Expected(f"a name of 1 to {NAME_LENGTH} characters, without / \\ # ? % and :")
_ENTITY = Expected(f"a user or team of 1 to {NAME_LENGTH} characters: letters, digits, -, _ and .")


@dataclass
class TrackingOptions(Options):
    """Weights & Biases."""

    __pydantic_config__ = Options.__pydantic_config__ | ConfigDict(json_schema_extra={"own": True})

    mode: TrackingMode | None = None
    """`online`, `offline` or `disabled`; by default WANDB_MODE, or else `offline`."""
    project: Annotated[Name, Field(pattern=r"^[^/\\#?%:]+$"), _PROJECT] | None = None
    """W&B project; by default WANDB_PROJECT, or else `normscope`."""
    entity: Annotated[Name, Field(pattern=r"^[\w.-]+$"), _ENTITY] | None = None
    """W&B user or team."""
    group: Name | None = None
    """Group of runs; in a multirun, by default the name of the sweep's directory."""
    name: Name | None = None
    """Name of the run; by default its analyses, model, data and seed (WANDB_NAME if it is set)."""
    job_type: Name | None = None
    """Type of the run; by default `analysis`, `experiment` or `reproduction` (WANDB_JOB_TYPE if it is set)."""
    notes: str | None = None
    """Notes on the run; by default its command line (WANDB_NOTES if it is set)."""
    tags: list[Annotated[str, Field(max_length=TAG_LENGTH)]] = field(default_factory=list)
    """Tags of the run in addition to its model family, data and analyses; by default WANDB_TAGS."""


@dataclass
class ReportOptions(Options):
    """The report of a run."""

    enabled: bool = True
    """Whether to write the report."""
    examples: Annotated[int, Field(ge=0, le=MOST_EXAMPLES)] = 3
    """Number of texts with token maps: the first texts that are short enough, then the first longer ones."""
    tokens: Annotated[int, Field(ge=FEWEST_TOKENS, le=MOST_TOKENS)] = 64
    """Maximum number of tokens in such a text; longer ones are truncated."""
    text: str | None = None
    """A text to show instead; `text ||| second text` is a pair."""


class FigureFormat(enum.StrEnum):
    """File format of a figure."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


def _is_width(width: str | int | float) -> bool:
    if isinstance(width, str | bool):
        return width in ("column", "page", "slide")
    return NARROWEST_FIGURE <= width <= WIDEST_FIGURE


_WIDTH = Expected(f"column, page, slide or {NARROWEST_FIGURE} to {WIDEST_FIGURE} inches", _is_width)


@dataclass
class FigureOptions(Options):
    """The figures of a run, ready for a paper."""

    format: SomeOf[FigureFormat] = field(default_factory=[FigureFormat.png, FigureFormat.svg].copy)
    """File formats: some of `png`, `svg` and `pdf`, as in `[pdf,png]`."""
    width: Annotated[str | int | float, _WIDTH] = "page"
    """`page` (6.9 inches, both columns of a paper), `column` (3.35 inches), `slide` (as large as fits below the title of a
    slide of 13.3 × 7.5 inches, without the caption), or a number of inches."""
    caption: bool = True
    """Whether to write the caption below the panels; otherwise, it is written to a text file beside the figure."""
    dpi: Annotated[int, Field(ge=LOWEST_DPI, le=HIGHEST_DPI)] = 200
    """Pixels per inch of .png, and of point clouds in the other formats."""


@dataclass
class RecipeOptions(Options):
    """The preset of a paper's result, if `experiment` selects one."""

    name: str | None = None
    """Name of the preset."""
    paper: str | None = None
    """Folder in `experiments/` whose published numbers the metrics are compared with."""
    data: list[str] = field(default_factory=list)
    """Names of the paper's data (`dataset.name`); a run on other data says so first."""


PAGE = 6.9
"""Inches: the width of a figure across both columns of a paper."""
COLUMN = 3.35
"""Inches: the width of a figure in one column of a paper."""

SLIDE = (5.7, 2.9)
"""Inches: what there is room for below the title of a slide of LaTeX's beamer (16 × 9 cm), whose text has a figure's size."""
ENLARGED = 2.1
"""How much larger the slides of other programs are (13.3 × 7.5 inches), and so the files that they read."""

SCREEN = 4.0
"""Inches: the width of a figure on a page, whose text can be read on a phone and beside another figure on a desk."""
ACROSS = 8.0
"""Width, in inches, of a figure drawn across the page where there is room."""


@dataclasses.dataclass(frozen=True)
class Appearance:
    """How figures are drawn."""

    width: float = PAGE
    """Inches."""
    caption: bool = True
    """Whether the caption is written below the panels."""
    dpi: int = 200
    """Pixels per inch of PNG files, and of clouds of points in other files."""
    formats: Sequence[str] = ("png", "svg")
    """Extensions of the files of a run."""
    slide: bool = False
    """Whether figures are for a slide, which decides their size instead of the width."""


def appearance(options: FigureOptions) -> Appearance:
    """The appearance that the config asks for."""
    named = {"page": PAGE, "column": COLUMN, "slide": SLIDE[0]}
    slide = options.width == "slide"
    return Appearance(
        width=named[options.width] if isinstance(options.width, str) else float(options.width),
        caption=options.caption and not slide,
        dpi=options.dpi,
        formats=[str(name) for name in options.format],
        slide=slide,
    )
