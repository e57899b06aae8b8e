"""The tables of measurements on the documentation's pages, and the captions of its pictures."""

import csv
import re

import pytest

from docs import live_pictures
from docs.figures import COMMANDS, EXPLORER, IMAGES, shown
from docs.hooks import measurements
from docs.hooks.markdown import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_every_table_has_its_place_on_one_page():
    asked = [name for page in PAGES for name in re.findall(r"^<!-- ([\w-]+) -->$", page.read_text(), re.M)]
    assert {name: asked.count(name) for name in measurements.TABLES} == dict.fromkeys(measurements.TABLES, 1)


@pytest.mark.parametrize("name", [name for name in measurements.TABLES if name != "gpu"])  # see test_benchmarks.py
def test_a_table_takes_the_place_of_its_name(name):
    page = measurements.with_tables(f"Before.\n\n<!-- {name} -->\n\nBehind.\n")
    assert re.fullmatch(r"Before\.\n\n(\|.*\|\n){3,}(\n!\[.*\]\(\S+\)\n)?\n\nBehind\.\n", page)


def test_a_page_names_the_machine_of_a_suite():
    asked = "Measured on: <!-- machine of shapes -->."
    page = measurements.with_tables(asked)
    assert re.fullmatch(r"Measured on: .*, torch .* threads\.", page)


def test_a_table_has_the_numbers_that_were_measured():
    with (measurements.MEASURED / "shapes.csv").open(newline="") as file:
        measured = [f"{float(row['time_ratio']):.2f}" for row in csv.DictReader(file) if row["way"] != "bare"]
    assert [line.split(" | ")[3] for line in measurements.TABLES["shapes"]().splitlines()[2:]] == measured


def test_every_figure_has_its_caption_as_text():
    """Pictures of whole pages explain themselves; the figures of measurements have their captions on the page."""
    figures = shown() - {EXPLORER, COMMANDS, "lengths", *live_pictures.PICTURES}
    assert not {name for name in figures if not (IMAGES / f"{name}.txt").is_file()}
