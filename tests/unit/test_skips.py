"""The last lines of a test run."""

import pytest

from tests.skips import skipped_tests


def report(nodeid: str, reason: str) -> pytest.TestReport:
    place = (nodeid.partition("::")[0], 7, f"Skipped: {reason}")
    return pytest.TestReport(nodeid, ("", 7, ""), {}, "skipped", place, "setup")


def test_skipped_tests_are_named_by_reason_and_file():
    reports = [
        report("tests/a.py::test_page[dark]", "Chromium is not installed"),
        report("tests/b.py::test_map", "Chromium is not installed"),
        report("tests/a.py::test_page[light]", "Chromium is not installed"),
        report("tests/a.py::test_click", "Chromium is not installed"),
        report("tests/c.py", "captum is not installed"),
        report("tests/c.py", "captum is not installed"),
    ]
    assert skipped_tests(reports) == [
        "Skipped (4): Chromium is not installed",
        "  tests/a.py: test_page (2), test_click",
        "  tests/b.py: test_map",
        "Skipped (1): captum is not installed",
        "  tests/c.py: the whole file",
    ]


def test_nothing_is_said_where_nothing_is_skipped():
    assert skipped_tests([]) == []
