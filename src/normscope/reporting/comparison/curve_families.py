"""Families of measures: those that a comparison draws side by side."""

import dataclasses
import re
from collections.abc import Iterable

from normscope.analyses.registry import analyses
from normscope.results.declare import Panel, unitless
from normscope.results.measures import panel_of


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
    """Families of measures, by a name for files.

    Curves that an analysis declares under one name, such as `<method>/mean`, are a family; its other measures
    are another.

    Args:
        names: Full names of curves or metrics, `<analysis>/<curve>`.
    """
    result: dict[str, Family] = {}
    for full in names:
        owner, _, name = full.partition("/")
        info = analyses().get(owner)
        title = owner if info is None else info.title
        found = None if info is None else info.published.curve(name)
        panel = panel_of(full)
        if found is None or not found[1]:
            result.setdefault(owner, Family(title)).panels[full] = panel
            continue
        heading = title if unitless(panel.label) in title.lower() else f"{title}: {unitless(panel.label)}"
        family = Family(heading, found[0].meaning.replace("`", ""))
        result.setdefault(_file_name(owner, found[0].name), family).panels[full] = panel
    return result


def _file_name(owner: str, pattern: str) -> str:
    return f"{owner}_{re.sub(r'[^a-z_]+', '_', pattern).strip('_')}"
