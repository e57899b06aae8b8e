"""Run folders of every schema that was ever released can be read, and what programs are told about them is true."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

import normscope
from normscope.analyses.registry import analyses
from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError
from normscope.reporting import schemas
from normscope.reporting.comparison import compare, runs
from normscope.reporting.earlier_runs import Status
from normscope.reporting.run_facts import FACTS
from normscope.reporting.run_folder import results_content
from normscope.reporting.run_tables import COMPARISON
from normscope.results.declare import Table
from tests.end_to_end.shell import ROOT, run_here

RUNS = Path(__file__).parent / "runs"
"""A run folder of each schema, without its figures: three sentences, a tiny random BERT. That of 1 is from 0.2.0 itself."""

EVERY = range(1, RUN_SCHEMA + 1)
SINCE = {"phases", "steps", "remarks", "left_out", "unknown_share"}
"""Facts that were added to this schema after its run folder was made."""
DECLARED = schemas.tables_of(analyses().values())


def folder_of(schema: int) -> Path:
    return RUNS / f"schema-{schema}"


def copied(tmp_path: Path, schema: int = RUN_SCHEMA) -> Path:
    return Path(shutil.copytree(folder_of(schema), tmp_path / "run"))


def edited(folder: Path, **changes: object) -> Path:
    """The folder, with other values in results.json."""
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize("schema", EVERY)
def test_a_run_of_every_schema_is_read(schema):
    """The numbers are those of pandas and json, which know nothing of schemas."""
    folder = folder_of(schema)
    run, content = normscope.read(folder), json.loads((folder / "results.json").read_text())
    assert (run.schema, run.status, run.error) == (schema, "completed", "")
    assert content.get("schema", 1) == schema
    assert run.metrics == content["metrics"]
    assert len(run.metrics) == {1: 29}.get(schema, 41)
    assert run.provenance == content["provenance"]
    assert run.config["analysis"]["mixing"]["enabled"] is True
    assert set(run.tables) == {path.stem for path in (folder / "tables").glob("*.parquet")}
    for name, table in run.tables.items():
        expected = pd.read_parquet(folder / "tables" / f"{name}.parquet")
        plain = {
            name: kind.lower() for name, kind in expected.dtypes.astype(str).items() if kind in ("Int64", "Float64")
        }
        pd.testing.assert_frame_equal(table, expected.astype(plain), check_exact=True)
    curves = run.tables["curves"].set_index(["curve", "layer"])["value"]
    assert curves["mixing/attnresln_n/mean"].mean() == pytest.approx(run.metrics["mixing/attnresln_n/mean"], rel=1e-12)


def test_the_schemas_agree_on_the_same_run():
    """Both have analysed the same texts with the same weights in float32: what was measured then is measured now."""
    first, second = (normscope.read(folder_of(schema)) for schema in (1, 2))
    assert first.provenance["model_sha256"] == second.provenance["model_sha256"]
    assert (
        first.metrics.items()
        <= {name: pytest.approx(value, abs=1e-7) for name, value in second.metrics.items()}.items()
    )
    for name in (
        "mixing_by_layer",
        "frequency_by_token",
        "frequency_sample",
    ):  # ranks of equal weights depend on rounding
        pd.testing.assert_frame_equal(first.tables[name], second.tables[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("schema", EVERY)
def test_tables_have_the_types_that_are_declared(schema):
    for name, rows in normscope.read(folder_of(schema)).tables.items():
        kinds = DECLARED[name].kinds
        for column, values in rows.items():
            kind = kinds.get(column, kinds.get("<method>"))
            is_kind = {
                "text": pd.api.types.is_string_dtype,
                "whole": pd.api.types.is_integer_dtype,
                "truth": pd.api.types.is_bool_dtype,
                "number": pd.api.types.is_float_dtype,
            }[kind]
            assert is_kind(values), f"{name}.{column}: {values.dtype}"


def test_a_run_prints_what_it_is(tmp_path):
    shown = repr(normscope.read(folder_of(1)))
    assert "completed, schema 1\nmodel tiny-bert, 3 sequences, 26 tokens\nmetrics: 29\ntables: curves, " in shown
    assert len(shown) < 400
    failed = edited(copied(tmp_path), status="failed", metrics={}, provenance={}, error="The disk\x1b is full.")
    assert repr(normscope.read(failed)).splitlines()[0] == f"{failed}: failed (The disk\\x1b is full.), schema 2"


def test_tables_are_read_when_they_are_asked_for_and_once(tmp_path):
    folder = copied(tmp_path)
    (folder / "tables" / "curves.parquet").write_bytes(b"PAR1")
    tables = normscope.read(folder).tables
    assert "curves" in tables
    assert tables["mixing_by_layer"] is tables["mixing_by_layer"]
    with pytest.raises(InputError, match=r"curves\.parquet: cannot be read"):
        tables["curves"]
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
    path = folder / "tables" / "curves.parquet"
    pd.read_parquet(path).assign(layer=[0.5, *[1.0] * 65]).to_parquet(path, index=False)
    assert normscope.read(folder).tables["curves"]["layer"].tolist()[:2] == [0.5, 1.0]


def test_reading_needs_no_torch():
    code = "import sys, normscope; normscope.read(sys.argv[1]).tables['curves']; assert 'torch' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code, folder_of(1)], check=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}
    )


def nothing_there(folder: Path) -> Path:
    return folder / "nowhere"


def empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def unfinished(folder: Path) -> Path:
    (folder / "results.json").unlink()
    return folder


WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "later": (
        lambda folder: edited(folder, schema=3),
        "expected a schema from 1 to 2, got 3; upgrade normscope to read",
    ),
    "before the first": (lambda folder: edited(folder, schema=0), "expected a schema from 1 to 2, got 0"),
    "text": (lambda folder: edited(folder, schema="2"), "expected a whole number for schema, got '2'"),
    "true": (lambda folder: edited(folder, schema=True), "expected a whole number for schema, got True"),
    "list": (lambda folder: edited(folder, metrics=[1]), "expected a mapping for metrics"),
    "fact": (lambda folder: edited(folder, provenance={"skipped": 3}), "expected a mapping for skipped, got 3"),
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


def test_commands_refuse_a_later_schema_before_they_load_a_model(capsys, monkeypatch, tmp_path):
    folder = edited(copied(tmp_path), schema=RUN_SCHEMA + 1)
    outcome = run_here(capsys, monkeypatch, f"reproduce={folder}", f"output_dir={tmp_path / 'again'}")
    assert (outcome.status, outcome.out) == (2, "")
    assert f"expected a schema from 1 to {RUN_SCHEMA}, got {RUN_SCHEMA + 1}; upgrade normscope" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    with pytest.raises(InputError, match="upgrade normscope"):
        runs.read([folder])


@pytest.mark.parametrize("schema", EVERY)
def test_runs_of_every_schema_are_compared(schema, tmp_path):
    comparison = compare.compared(*runs.read([folder_of(schema), folder_of(RUN_SCHEMA)]))
    compare.write(comparison, tmp_path)
    about = metadata_of(tmp_path / "comparison.parquet")
    assert about["normscope.schema"] == str(RUN_SCHEMA)
    assert {name: column["meaning"] for name, column in json.loads(about["normscope.columns"]).items()} == (
        COMPARISON.columns
    )


def test_shipped_descriptions_are_current():
    """`python -m normscope.reporting.schemas src/normscope/schemas` rewrites them.

    If a table, a column or a key has gone or means something else, RUN_SCHEMA rises, and a run folder of it is added here.
    """
    assert {path.name: path.read_text() for path in schemas.FOLDER.iterdir()} == schemas.files()


def test_results_match_their_json_schema():
    schema = json.loads((schemas.FOLDER / "results.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    results = json.loads((folder_of(RUN_SCHEMA) / "results.json").read_text())
    validator.validate(results)
    validator.validate(json.loads(results_content(Status.FAILED, {}, {}, "The disk is full.")))
    for wrong in (
        {"schema": 1},
        {"status": "fine"},
        {"status": "failed"},  # without its reason
        {"metrics": {"mixing/attn_w/mean": "0.5"}},
        {"provenance": {"seconds": "4"}},
        {"provenance": {"skipped": {"too long": "many"}}},
        {"error": "None."},  # of a completed run
        {"more": 1},
    ):
        assert not validator.is_valid(results | wrong), wrong
    missing = dict(results)
    del missing["schema"]
    assert not validator.is_valid(missing)


def test_the_schema_of_results_describes_every_number_and_every_fact():
    results = json.loads((folder_of(RUN_SCHEMA) / "results.json").read_text())
    described = schemas.results_schema()["properties"]
    for metric in results["metrics"]:
        assert [1 for pattern in described["metrics"]["patternProperties"] if jsonschema_matches(pattern, metric)], (
            metric
        )
    assert results["provenance"].keys() == FACTS.keys() - {
        "layers_without_attention",
        *SINCE,
    }  # only hybrids have the first


def jsonschema_matches(pattern: str, name: str) -> bool:
    return jsonschema.Draft202012Validator({"patternProperties": {pattern: False}}).is_valid({name: 1}) is False


def metadata_of(path: Path) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in parquet.read_metadata(path).metadata.items()}


def test_parquet_files_say_what_they_are():
    """Also to readers that know nothing of normscope."""
    run = normscope.read(folder_of(RUN_SCHEMA))
    for path in sorted((run.folder / "tables").glob("*.parquet")):
        about, table = metadata_of(path), DECLARED[path.stem]
        assert (about["normscope.schema"], about["normscope.table"]) == (str(RUN_SCHEMA), path.stem)
        columns = json.loads(about["normscope.columns"])
        assert list(columns) == list(pd.read_parquet(path))
        for name, column in columns.items():
            declared = name if name in table.columns else "<method>"
            assert column == {
                "type": table.kinds[declared],
                **({"unit": table.units[declared]} if declared in table.units else {}),
                "meaning": table.columns[declared],
            }
        identity = json.loads(about["normscope.run"])
        facts = run.provenance
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
    assert len(described) > 150
    for name, (meaning, unit) in described.items():
        is_ratio = meaning.startswith(("Spearman", "1 −", "Coefficient")) or "ratio" in name
        if "‖" in meaning and not is_ratio:
            assert unit, f"{name}: {meaning}"
        assert ("nats" in meaning) <= unit.startswith("nats"), f"{name}: {meaning}"
    assert described["norms_by_head.f"][1] == described["sinks_drains.alpha_f"][1] == "residual stream"
    assert described["score_ablation_loss.change"][1] == "nats"
    assert described["mixing_by_layer.mean"][1] == ""


def test_the_description_of_tables_is_that_of_the_declarations():
    described = schemas.tables_description()
    assert described["schema"] == RUN_SCHEMA
    for name, table in DECLARED.items():
        assert isinstance(table, Table)
        content = described["tables"][name]
        assert (content["row"], content["key"]) == (table.row, list(table.key))
        assert {column: about["meaning"] for column, about in content["columns"].items()} == table.columns
        assert {column: about["type"] for column, about in content["columns"].items()} == table.kinds
    metrics = {f"{name}/{one.name}": one.meaning for name, info in analyses().items() for one in info.published.metrics}
    assert described["metrics"] == metrics
    assert np.all([len(meaning) > 10 for meaning in metrics.values()])
