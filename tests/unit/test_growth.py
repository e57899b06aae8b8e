"""The benchmark of growth: one small size of each part, and the figure, the table and the plan that follow from rows."""

import json
import os
import sys
from unittest import mock

import pandas as pd
import pytest

from benchmarks import growth, parted
from docs.hooks import measurements, tables_in_parts
from normscope.running import loop, pipeline

ROWS = [
    *(
        {
            "part": "corpus",
            "model": growth.TINY,
            "at": at,
            "tokens_per_second": rate,
            "mebibytes": 640,
            "state_bytes": 2**22,
        }
        for at, rate in ((1_000, 6_000), (10_000, 9_000))
    ),
    *(
        {
            "part": "length",
            "model": growth.MINILM,
            "at": at,
            "tokens_per_second": rate,
            "mebibytes": 700,
            "state_bytes": 2**23,
        }
        for at, rate in ((64, 3_000), (512, 2_500), (8_192, 900))
    ),
    {
        "part": "processes",
        "model": growth.MINILM,
        "at": 1,
        "tokens": 1_000,
        "text_bytes": 4_500,
        "tokens_per_second": 2_000,
        "mebibytes": 800,
    },
    *(
        {
            "part": "shards",
            "model": growth.MINILM,
            "at": at,
            "tokens_per_second": 3_000,
            "mebibytes": 900,
            "state_bytes": at * 50 * 2**20,
            "merge_seconds": merging,
        }
        for at, merging in ((1, 0.5), (11, 2.5))
    ),
]


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame(ROWS).assign(way="mixing+norms", bare_tokens_per_second=None, machine="A machine")


@pytest.fixture
def rows(table, tmp_path, monkeypatch):
    """As the hook reads them."""
    for row in table.to_dict("records"):
        parted.add(tmp_path / "growth.csv", row, growth.CELL)
    monkeypatch.setattr(measurements, "MEASURED", tmp_path)
    return measurements._rows("growth")


def test_a_pass_is_measured_with_as_many_categories_as_asked_for():
    few, many = (
        growth.pass_row(growth.Pass("categories", count, "mixing+norms", 2, 16, layers=1, categories=count))
        for count in (2, 8)
    )
    for row in (few, many):
        assert row["tokens"] == 31  # one is padding
        assert row["tokens_per_second"] > 0
        assert row["bare_tokens_per_second"] > 0
        assert row["mebibytes"] > 100
    assert few["state_bytes"] < many["state_bytes"]
    assert {*growth.CELL} <= {*few}


def test_parts_have_the_sizes_that_were_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(growth, "_of_pass", lambda cell: asked.append(cell) or {})
    monkeypatch.setattr(growth, "_of_run", lambda *cell: asked.append(cell[:3]) or {})
    [*growth.measured_growth(["length", "layers", "categories"], growth.Sizes(only=[8, 40, 8192]))]
    cells = [
        (cell.part, cell.at, cell.way, cell.sequences, cell.length, cell.layers, cell.categories) for cell in asked
    ]
    assert cells == [
        *(("length", 8192, way, 1, 8192, None, None) for way in growth.WAYS),
        *(("layers", 8, way, 8, 128, 8, None) for way in growth.WAYS),
        *(("categories", 40, way, 16, 128, None, 40) for way in growth.WAYS),
    ]
    asked.clear()
    [*growth.measured_growth(["corpus", "processes", "shards"], growth.Sizes(largest=1_000))]
    assert asked == [
        ("corpus", growth.TINY, 1_000),
        ("corpus", growth.MINILM, 1_000),
        *(("processes", growth.MINILM, number) for number in growth.PROCESSES),
        *(("shards", growth.MINILM, number) for number in growth.SHARDS),
    ]


def test_parts_of_the_other_suite_measure_nothing(tmp_path):
    parted.measure("growth", ["word"], 1, growth.Sizes(), tmp_path)
    assert not [*tmp_path.iterdir()]
    assert [*growth.measured_growth([])] == []


def test_a_corpus_has_as_many_texts_as_asked_for():
    with growth._corpus(601, 3) as path:
        texts = path.read_text().splitlines()
    assert len(texts) == 601
    assert {len(text.split()) for text in texts} <= {1, 2, 3}
    assert texts[0] == texts[300]  # the sample, repeated


def test_runs_note_the_time_of_passes_and_of_merging(monkeypatch, saved_model, tmp_path):
    """A sweep of two shards, which it merges at its end; in this process."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a\nb c\nd\ne f\n")
    arguments = [
        "analysis=mixing",
        "dataset=text",
        f"dataset.path={corpus}",
        f"model.name={saved_model}",
        "tracking=disabled",
        "report.enabled=false",
        "device.batch_tokens=4",
        "shard=0,1",
        "shards=2",
        f"hydra.sweep.dir={tmp_path / 'run'}",
        "-m",
    ]
    monkeypatch.setattr(sys, "argv", ["growth.py", *arguments])
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(os.environ), pytest.raises(SystemExit, match="0"):
        growth._run(tmp_path / "times")
    assert pipeline.accumulate is loop.accumulate
    noted = json.loads((tmp_path / "times").read_text())
    assert len(noted["passes"]) == 2
    assert noted["merge"][0] > 0
    assert noted["bytes"] > 2**20
    assert len([*(tmp_path / "run").rglob("shard.safetensors")]) == 2


def test_the_figure_has_its_caption_as_text(table, tmp_path):
    growth.draw(table, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 10_000
    caption = (tmp_path / "growth.txt").read_text()
    assert (
        "With 10 times as many sequences, tiny BERT runs at 9,000 tokens per second instead of 6,000, in 640 MiB"
        in caption
    )
    assert caption.endswith("A machine.\n")


def test_the_table_has_the_smallest_and_the_largest_size(rows):
    lines = tables_in_parts.growth(rows).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(cell[0], cell[1]) for cell in cells] == [
        ("corpus", "1,000"),
        ("corpus", "10,000"),
        ("length", "64"),
        ("length", "8,192"),
        ("processes", "1"),
        ("shards", "1"),
        ("shards", "11"),
    ]
    assert cells[3] == ["length", "8,192", "MiniLM", "mixing, norms", "900", "", "700", "8"]


def test_the_plan_follows_from_the_measurements(rows):
    lines = tables_in_parts.plan(rows).splitlines()[2:]
    cells = {
        name.strip(): [one.strip(), many.strip()] for name, one, many in (line.strip("|").split("|") for line in lines)
    }
    # 10⁹ × 128 tokens at 2,000 per second are 64 million seconds; of 4.5 bytes each.
    assert cells["passes of MiniLM, `mixing` and `norms`, at 2,000 tokens per second per process"] == [
        "741 days",
        "18 hours",
    ]
    assert cells["process-hours"] == ["17,778", "17,778"]
    assert cells["text read by each process"] == ["576 GB", "576 MB"]
    assert cells["parts of one MiB read by each process"] == ["549,316", "549"]
    assert cells["states saved by all shards"] == ["none", "48.8 GiB"]
    assert cells["merging them, at 0.2 s each"] == ["none", "3 min"]


def test_without_its_parts_there_is_no_plan(rows):
    assert tables_in_parts.plan([row for row in rows if row["part"] != "shards"]) == tables_in_parts.NOT_RECORDED


@pytest.mark.usefixtures("rows")
def test_pages_can_be_built_before_anything_is_measured(tmp_path):
    (tmp_path / "growth.csv").unlink()
    for name in ("growth", "plan", "peers"):
        assert measurements.TABLES[name]() == tables_in_parts.NOT_RECORDED


def test_tiny_models_are_read_by_the_program(tmp_path):
    growth._save_tiny(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 2
    assert (tmp_path / "tokenizer.json").exists()
