"""Which tests were skipped and why, for the last lines of a test run: what is skipped in silence is never missed."""

from collections.abc import Iterable

import pytest


def skipped_tests(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Lines that name the skipped tests of each file, by reason.

    Args:
        reports: Of skipped tests. Every worker reports a file that is skipped as a whole.

    Returns:
        No line if nothing was skipped. Tests that differ in parameters alone share a name, with their number.
    """
    tests: dict[str, dict[str, dict[str, set[str]]]] = {}
    for report in reports:
        file, _, name = report.nodeid.partition("::")
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        names = tests.setdefault(reason.removeprefix("Skipped: "), {}).setdefault(file, {})
        names.setdefault(name.partition("[")[0] or "the whole file", set()).add(name)
    lines = []
    for reason, files in sorted(tests.items()):
        number = sum(len(same) for names in files.values() for same in names.values())
        lines.append(f"Skipped ({number}): {reason}")
        for file, names in sorted(files.items()):
            each = (f"{name} ({len(same)})" if len(same) > 1 else name for name, same in names.items())
            lines.append(f"  {file}: {', '.join(each)}")
    return lines
