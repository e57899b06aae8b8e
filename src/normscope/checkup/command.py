"""`normscope checkup MODEL`: the lines in the terminal, the result, its page, and a JSON for those who quantise."""

import dataclasses
import json
from pathlib import Path

from normscope.checkup.findings import content
from normscope.checkup.measuring import measured
from normscope.errors import escaped
from normscope.models.options import ModelOptions
from normscope.reporting.options import Verbosity
from normscope.reporting.page import report
from normscope.reporting.page.elements import without_folders
from normscope.running.options import RunOptions
from normscope.running.progress import Phase, Phases
from normscope.streams import wrapped

PAGE, JSON = "checkup.html", "checkup.json"


def check_up(options: RunOptions, against: ModelOptions | None, command: str, folder: Path) -> Path:
    """Examine a model, print what was found, and write the result, its page and the JSON.

    Args:
        options: The model, the corpus, the device and the options of `outliers`, `score` and `sinks`.
        against: A model to compare with.
        command: What the user typed.
        folder: Where the files go; it is created.

    Raises:
        InputError: See `measuring.measured`; or if the folder cannot be written to.
    """
    coming = [Phase.MODEL, Phase.PASS, Phase.INTERVENTIONS]
    with Phases(coming, shown=options.verbosity is not Verbosity.quiet) as phases:
        found, said = measured(options, against, phases)
    base = found.facts["against"]
    title = f"Checkup of {without_folders(found.facts['model'])}{f' against {without_folders(base)}' if base else ''}"
    found = dataclasses.replace(found, facts={**found.facts, "title": title, "command": command})
    for place, line in enumerate(said, start=1):
        print(wrapped(escaped(f"{place}. {line.found}")))
        print(wrapped(escaped(f"   → {line.do}")))
    kept = json.dumps(content(found, said), indent=1, ensure_ascii=False)
    return report.write_page(folder, PAGE, lambda: report.page(found), found, {JSON: kept})
