"""The matplotlib style of figures: ours, with a user's on top."""

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.style
from matplotlib.colors import Colormap
from matplotlib.font_manager import FontProperties, findfont

from normscope.errors import InputError, one_line
from normscope.reporting.palette import CATEGORY_COLOURS, LINE_COLOURS, STYLE

_FIXED: dict[Any, Any] = {
    "text.parse_math": False,  # tokens and model names may contain dollar signs
    "text.usetex": False,  # and everything else that TeX would refuse
    "savefig.bbox": None,  # "tight" would change the width
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}
"""What no style may change."""

_FALLBACK_FONT = "DejaVu Sans"
"""Comes with matplotlib and has the papers' symbols, which many fonts lack."""


FontSize = Literal[
    "font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"
]
"""Parameters that set a font size."""

_LARGEST = 1000
"""Points, inches, weights: with larger sizes, a single letter could fill the memory."""

_MOST_BYTES = 2**20
"""Of a style sheet."""

SMALL = 0.8125
"""Size of numbers in and beside cells, as a share of that of other text."""


def read_style(style: str) -> dict[str, Any]:
    """The parameters that a matplotlib style sets.

    Args:
        style: Path of a style sheet, or name of an installed style (`ggplot`, `package.style`).

    Raises:
        InputError: If there is no such style, or matplotlib cannot read one of its lines.
    """
    messages = _Messages()
    logger = logging.getLogger("matplotlib")
    passed_on, logger.propagate = logger.propagate, False
    logger.addHandler(messages)
    try:
        parameters = _parameters(style)
    except (OSError, ValueError) as error:
        raise InputError(f"figures.style={style}: cannot be read: {one_line(error)}") from error
    finally:
        logger.removeHandler(messages)
        logger.propagate = passed_on
    if messages.texts:
        raise InputError(f"figures.style={style}: {messages.texts[0]}; correct or remove this line")
    for name, value in parameters.items():
        if any(not abs(number) <= _LARGEST for number in _numbers(value)):
            raise InputError(f"figures.style={style}: {name}: expected numbers of at most {_LARGEST:,}, got {value}")
    _check_fonts(style, parameters)
    return parameters


def _numbers(value: Any) -> Iterator[float]:
    """The numbers in the value of a parameter: a number, a list, or cycles of properties."""
    if hasattr(value, "by_key"):  # a cycler
        value = list(value.by_key().values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


def _check_fonts(style: str, parameters: Mapping[str, Any]) -> None:
    logger = logging.getLogger("matplotlib.font_manager")
    with styled(parameters):
        for family in mpl.rcParams["font.family"]:
            level = logger.level
            logger.setLevel(logging.ERROR)  # otherwise it logs what we report
            try:
                findfont(FontProperties(family=[family]), fallback_to_default=False)
            except ValueError as error:
                raise InputError(
                    f"figures.style={style}: no font of the family {family!r} is installed; install one, or change font.family"
                ) from error
            finally:
                logger.setLevel(level)


def _parameters(style: str) -> dict[str, Any]:
    path = Path(style).expanduser()
    if path.is_file():
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"figures.style={style}: expected a style sheet of at most 1 MiB")
        return _plain(mpl.rc_params_from_file(str(path), use_default_template=False))
    if style in matplotlib.style.library:
        return _plain(matplotlib.style.library[style])
    for sheet in _in_packages(style):
        return _plain(mpl.rc_params_from_file(str(sheet), use_default_template=False))
    raise InputError(
        f"figures.style={style}: expected a matplotlib style sheet or the name of an installed style, found neither a file "
        "nor a style of this name"
    )


def _in_packages(style: str) -> Iterator[Path]:
    """The style sheet `package.module.name`, found without importing the package: its code is not part of a style."""
    package, *folders, name = style.split(".") if "." in style else ("", style)
    with contextlib.suppress(ModuleNotFoundError, ValueError):
        spec = importlib.util.find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            sheet = Path(place, *folders, f"{name}.mplstyle")
            if sheet.is_file():
                yield sheet


def _plain(parameters: mpl.RcParams) -> dict[str, Any]:
    return {str(name): value for name, value in parameters.items()}


class _Messages(logging.Handler):
    """Keeps what matplotlib logs about a style sheet: it skips lines that it cannot read."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage().strip().split("\n")[0])


@contextlib.contextmanager
def styled(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Draw in our style with these parameters on top, whatever matplotlib's own settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        with warnings.catch_warnings():
            # Style sheets may set parameters that are not about style; matplotlib ignores them.
            warnings.filterwarnings("ignore", "Style includes a parameter")
            matplotlib.style.use([STYLE, dict(parameters), _FIXED])
        mpl.rcParams["font.family"] = _with_fallback(mpl.rcParams["font.family"])
        yield


def _with_fallback(families: Sequence[str]) -> list[str]:
    return [*(family for family in families if family != _FALLBACK_FONT), _FALLBACK_FONT]


def points(parameter: FontSize = "font.size", scale: float = 1.0) -> float:
    """The font size of a parameter in points: `axes.titlesize` may be `large`."""
    return float(FontProperties(size=mpl.rcParams[parameter]).get_size_in_points()) * scale


def line_colours() -> list[Any]:
    """The colours of lines."""
    colours: list[Any] = mpl.rcParams["axes.prop_cycle"].by_key().get("color", list(LINE_COLOURS))
    return colours


def accent() -> Any:
    """The colour of what stands out from the first colour."""
    colours = line_colours()
    return colours[3 % len(colours)]


def magnitudes() -> Colormap:
    """The colour scale of magnitudes: little is light, much is dark."""
    return mpl.colormaps[mpl.rcParams["image.cmap"]]


def category_colour(category: object) -> Any | None:
    """The colour of a category of tokens, which is the same in every figure; None for other series."""
    if category not in CATEGORY_COLOURS:
        return None
    colours = line_colours()
    return colours[LINE_COLOURS.index(CATEGORY_COLOURS[str(category)]) % len(colours)]
