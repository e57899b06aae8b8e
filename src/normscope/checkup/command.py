"""`normscope checkup MODEL`: the lines in the terminal, one page and one JSON."""

import json
from pathlib import Path

from normscope.checkup.findings import content, lines
from normscope.checkup.measuring import measured
from normscope.checkup.page import page
from normscope.errors import InputError, escaped, one_line
from normscope.models.options import ModelOptions
from normscope.reporting.options import Verbosity
from normscope.running.options import RunOptions
from normscope.running.progress import Phase, Phases
from normscope.streams import wrapped
from normscope.untrusted.writing import write_file

PAGE, JSON = "checkup.html", "checkup.json"


def check_up(options: RunOptions, against: ModelOptions | None, command: str, folder: Path) -> Path:
    """Examine a model, print what was found, and write the page and the JSON.

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
        found = measured(options, against, phases)
    said = lines(found)
    for place, line in enumerate(said, start=1):
        print(wrapped(escaped(f"{place}. {line.found}")))
        print(wrapped(escaped(f"   → {line.do}")))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder, JSON, json.dumps(content(found, command), indent=1, ensure_ascii=False).encode())
        return write_file(folder, PAGE, page(found, said, command).encode())
    except OSError as error:
        raise InputError(f"output_dir={folder}: cannot be written: {one_line(error)}") from error
