"""What ships with the code: its version, and the folders at the top of the repository that a wheel carries as packages."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

VERSION = "1.0.0"

RUN_SCHEMA = 1
"""Version of the layout of run directories. A table, column or key that is removed or changes its meaning raises it, because a
reader of the previous version would misread a file or miss part of it; additions do not."""


def _checkout() -> Path | None:
    source = Path(__file__).resolve().parents[1]
    root = source.parent
    return root if source.name == "src" and (root / "conf" / "config.yaml").is_file() else None


CHECKOUT = _checkout()
"""The checkout that this code runs from; None if it is installed."""


def folder(name: Literal["conf", "experiments"]) -> Traversable:
    """The presets (`conf`), or the published numbers and W&B sweeps (`experiments`).

    In a checkout these are its own folders, whichever checkout an editable install points to.
    """
    return files(f"normscope.{name}") if CHECKOUT is None else CHECKOUT / name
