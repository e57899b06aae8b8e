"""The tables, figures and results of a paper, and what shows each of them here."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import pandas as pd
import yaml

from normscope.config.schema import flat
from normscope.distribution import folder
from normscope.reporting.published import COLUMNS, COMPARISON, file_of, grid, published, unmet
from normscope.results.result import Result

_PRESETS = folder("conf") / "experiment"
_TYPED = "# python run.py"


@dataclasses.dataclass(frozen=True)
class Exhibit:
    """A table, figure or result of a paper, and what shows it here."""

    exhibit: str
    """Its number in the paper, such as `Table 1`, which groups of published numbers refer to."""
    title: str
    """What it shows."""
    preset: str | None = None
    """The experiment that shows it; None if no run does."""
    tables: Sequence[str] = ()
    """Our tables of the same numbers, by full name."""
    figures: Sequence[str] = ()
    """Our figures of the same, by full name; `alignment_map_*` stands for several."""
    columns: Sequence[str] = ()
    """Of the paper's table, if the paper prints the numbers as one."""
    rows: Mapping[str, Sequence[str | None]] = dataclasses.field(default_factory=dict)
    """Of that table: the metrics in its columns, by what the row is called; None is an empty cell."""
    maps: bool = False
    """Whether the explorer of token maps shows it."""
    command: str = ""
    """What to type where that is not the command of the preset."""
    needs: str = ""
    """What the paper's own version takes that does not come with this program."""

    def how(self) -> str:
        """The command that shows it; empty if none does."""
        return self.command or (command_of(self.preset) if self.preset else "")

    def shown_in(self, result: Result) -> bool:
        """Whether a result has something of it: a table, a figure, a map or a number that was published."""
        return bool(
            any(name in result.tables for name in self.tables)
            or self.figures_of(result)
            or (self.maps and result.maps)
            or len(self.rows_of(result))
        )

    def figures_of(self, result: Result) -> list[str]:
        """The names of the result's figures that show it."""
        return [name for pattern in self.figures for name in result.figures if fnmatch(name, pattern)]

    def rows_of(self, result: Result) -> pd.DataFrame:
        """The rows of the comparison that are of it."""
        rows = result.tables.get(COMPARISON, pd.DataFrame(columns=list(COLUMNS)))
        # Runs of earlier versions do not say which exhibit a number is of.
        return rows[rows["exhibit"] == self.exhibit] if "exhibit" in rows else rows.head(0)

    def printed(self, groups: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
        """The paper's own table: names of numbers, or None, by what its rows and columns are called.

        Args:
            groups: Its published numbers. Rows of one of our tables are a table as they are.

        Returns:
            Empty if the paper does not print its numbers as a table.
        """
        if not self.rows:
            return pd.concat([pd.DataFrame(), *(grid(group) for group in groups if "table" in group)])
        return pd.DataFrame.from_dict(dict(self.rows), orient="index", columns=list(self.columns)).rename_axis([""])


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A paper whose tables and figures can be repeated."""

    paper: str
    """Authors, year and title."""
    exhibits: Sequence[Exhibit]
    """In the paper's order."""
    needs: str = ""
    """What the published numbers were measured on, and where that is."""
    offline: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The preset that stands in for another where there is no network."""

    @property
    def presets(self) -> list[str]:
        """The experiments that show its exhibits, in order."""
        return list(dict.fromkeys(exhibit.preset for exhibit in self.exhibits if exhibit.preset))


def reproduction_of(paper: str) -> Reproduction:
    """A paper, with all of its tables and figures, or with those of its published numbers if they are not listed.

    Args:
        paper: Folder below `experiments/`.

    Raises:
        InputError: If the paper has no published numbers.
    """
    listed = file_of(paper, "exhibits.yaml")
    if not listed.is_file():
        sources: dict[str, str] = {}
        for group in published(paper):
            sources.setdefault(group["exhibit"], group["source"])
        return Reproduction(paper, [Exhibit(name, source) for name, source in sources.items()])
    content = yaml.safe_load(listed.read_text(encoding="utf-8"))
    return Reproduction(**{**content, "exhibits": [Exhibit(**entry) for entry in content["exhibits"]]})


def command_of(preset: str) -> str:
    """The command that the first comment of an experiment's preset gives."""
    lines = (_PRESETS / f"{preset}.yaml").read_text(encoding="utf-8").splitlines()
    command = next(line for line in lines if line.startswith(_TYPED))
    return f"normscope{command.removeprefix(_TYPED)}"


def closest(paper: str, exhibit: str, result: Result) -> list[dict[str, Any]]:
    """The groups of an exhibit's published numbers of the conditions that a run comes closest to, the first of several.

    Args:
        paper: Folder below `experiments/`.
        exhibit: Its name.
        result: The results of the run.
    """
    settings = flat(result.config)
    groups = [group for group in published(paper) if group["exhibit"] == exhibit]
    nearest = min(groups, key=lambda group: len(unmet(group, settings)), default={})
    return [group for group in groups if group["when"] == nearest["when"]]


def differences(paper: str, exhibits: Collection[str], result: Result) -> dict[str, tuple[object, list[object]]]:
    """In what a run differs from the paper's: by key, its value, and the paper's values.

    Args:
        paper: Folder below `experiments/`.
        exhibits: The exhibits that count, by name: for each, the published numbers whose conditions the run comes closest to.
        result: The results of the run.
    """
    settings = flat(result.config)
    wanted: dict[str, list[object]] = {}
    for group in (group for exhibit in exhibits for group in closest(paper, exhibit, result)[:1]):
        conditions = unmet(group, settings)
        if "weights" in group and result.facts.get("files_sha256") not in group["weights"]:
            conditions["model.name"] = "its own weights"
        for key, value in conditions.items():
            wanted[key] = list(dict.fromkeys([*wanted.get(key, []), value]))
    return {key: (settings.get(key), values) for key, values in wanted.items()}
