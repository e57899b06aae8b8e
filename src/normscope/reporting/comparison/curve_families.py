"""Curves by family, with the titles and axis labels under which a comparison shows them."""

import dataclasses
import re
from collections.abc import Iterable

from normscope.analyses.registry import analyses
from normscope.results.declare import declared


def is_percentage(label: str) -> bool:
    """Whether the label of an axis or of colours is that of numbers in per cent."""
    return label.endswith("(%)")


def unitless(label: str) -> str:
    """The label without its unit."""
    return label.removesuffix(" (%)")


@dataclasses.dataclass(frozen=True)
class Panel:
    """How one curve is shown."""

    title: str
    """What distinguishes it within its family; empty if the label says it."""
    label: str
    """Title of the y-axis."""

    @property
    def factor(self) -> float:
        """What values are multiplied by to be drawn: 100 in per cent."""
        return 100.0 if is_percentage(self.label) else 1.0


@dataclasses.dataclass
class Family:
    """Curves that are shown side by side."""

    title: str
    meaning: str = ""
    panels: dict[str, Panel] = dataclasses.field(default_factory=dict)
    """By the name of the curve."""

    @property
    def label(self) -> str:
        """The title of all y-axes; empty if they differ."""
        labels = {panel.label for panel in self.panels.values()}
        return labels.pop() if len(labels) == 1 else ""

    def titles(self) -> dict[str, str]:
        """The panels' titles, with the titles of their y-axes where these differ."""
        both = (
            (name, panel.title, "" if self.label and panel.title else panel.label)
            for name, panel in self.panels.items()
        )
        return {name: ": ".join(filter(None, (title, label))) for name, title, label in both}


def families(names: Iterable[str]) -> dict[str, Family]:
    """Families of curves, by a name for files.

    Curves that their analysis describes by one name, such as `<method>/mean`, are a family; its other curves are another. Names
    that no analysis describes stay as they are.

    Args:
        names: Full names of curves, `<analysis>/<curve>`.
    """
    result: dict[str, Family] = {}
    for full in names:
        owner, _, name = full.partition("/")
        info = analyses().get(owner)
        found = None if info is None else declared(info.published.curves, name)
        if (
            info is not None
            and found is not None
            and found[1]
            and any(one.name == name for one in info.published.metrics)
        ):
            found = None  # `share/heads` is a number of its own, and no category of `share/<category>`
        title = owner if info is None else info.title
        if info is None or found is None:
            result.setdefault(owner, Family(title)).panels[full] = Panel(name.replace("/", " "), "")
            continue
        curve, values = found
        label = info.published.label(curve)
        if not values:
            result.setdefault(owner, Family(title)).panels[full] = Panel("", label)
            continue
        heading = title if unitless(label) in title.lower() else f"{title}: {unitless(label)}"
        meaning = curve.meaning.replace("`", "")
        family = result.setdefault(_file_name(owner, curve.name), Family(heading, meaning))
        family.panels[full] = Panel(", ".join(info.published.title(*item) for item in values.items()), label)
    return result


def _file_name(owner: str, pattern: str) -> str:
    return f"{owner}_{re.sub(r'[^a-z_]+', '_', pattern).strip('_')}"
