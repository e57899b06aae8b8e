"""Runs of others: their configs let no code run, read no files and send nothing anywhere, unless the user says so again."""

import dataclasses
import json
import shutil
from typing import Annotated

import pytest
import yaml

from normscope.analyses.info import AnalysisConfig
from normscope.config.rules import OWN, RUNS_CODE, FilePath
from normscope.config.schema import Schema
from normscope.running.options import SCHEMA
from tests.end_to_end.disturbed import SMALL
from tests.end_to_end.shell import run_here, run_once

KEYS = ("model.trust_remote_code", "model.allow_pickle")


def test_these_keys_let_code_run():
    assert SCHEMA.keys_that_run_code == {"model.factory": None, **dict.fromkeys(KEYS, False)}

    @dataclasses.dataclass
    class OfPlugIn(AnalysisConfig):
        script: Annotated[str, RUNS_CODE] = ""
        harmless: int = 1

    assert Schema(OfPlugIn).keys_that_run_code == {"script": ""}


def test_these_keys_are_the_users_own():
    own = SCHEMA.own_keys
    assert {"dataset.path", "dataset.pair_path", "dataset.categories", "analysis.frequency.source"} <= {*own}
    assert {"analysis.alignment.gold.path", "analysis.alignment.baselines", "live.host"} <= {*own}
    assert {key for key in SCHEMA.keys if key.startswith("tracking.")} <= {*own}
    assert not {"model.name", "seed", "layers", "report.text"} & {*own}

    @dataclasses.dataclass
    class OfPlugIn(AnalysisConfig):
        words: FilePath | None = None
        server: Annotated[str, OWN] = "here"
        harmless: int = 1

    assert Schema(OfPlugIn).own_keys == ["words", "server"]


@pytest.fixture
def strangers_run(runs, tmp_path):
    """A function that changes the config of a copy of a run, and returns the copy."""
    folder = tmp_path / "theirs"
    shutil.copytree(runs / "whole", folder)

    def changed(**sections):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        for section, values in sections.items():
            config[section] |= values
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        return folder

    return changed


THEIRS = {"mode": "online", "entity": "stranger", "project": "theirs", "tags": ["x"]}


@pytest.mark.parametrize("command", ["reproduce", "resume"])
@pytest.mark.spread(1)
def test_a_run_does_not_decide_where_results_go(caplog, capsys, monkeypatch, strangers_run, tmp_path, command):
    folder = strangers_run(tracking=THEIRS, live={"host": "0.0.0.0"})
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    given = [f"reproduce={folder}", f"output_dir={tmp_path / 'again'}"]
    if command == "resume":
        (folder / "results.json").unlink()
        given = [f"resume={folder}"]
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 0, outcome.err
    (line,) = [line for line in caplog.messages if "your own settings" in line]
    wanted = "tracking.mode=online tracking.project=theirs tracking.entity=stranger"
    assert line.endswith(f"to do as that run did, add {wanted} 'tracking.tags=[x]' live.host=0.0.0.0")
    written = yaml.safe_load(((folder if command == "resume" else tmp_path / "again") / "config.yaml").read_text())
    assert written["tracking"] == {
        **dict.fromkeys(written["tracking"]),
        "mode": "disabled",
        "project": "mine",
        "tags": [],
    }
    assert written["live"]["host"] == "127.0.0.1"


@pytest.mark.slow
def test_what_the_user_types_again_holds_and_is_not_mentioned(caplog, capsys, monkeypatch, strangers_run, tmp_path):
    folder = strangers_run(tracking={"mode": "offline", "project": "theirs"})
    given = [f"reproduce={folder}", f"output_dir={tmp_path / 'again'}", "tracking=disabled", "tracking.project=theirs"]
    outcome = run_here(capsys, monkeypatch, *given)
    assert (outcome.status, "your own settings" in caplog.text) == (0, False), outcome.err
    tracking = yaml.safe_load((tmp_path / "again/config.yaml").read_text())["tracking"]
    assert (tracking["mode"], tracking["project"]) == ("disabled", "theirs")


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", ["text", "categories", "pattern", "link"])
def test_a_run_reads_no_file_outside_its_folder(capsys, monkeypatch, strangers_run, tmp_path, kind):
    secret = tmp_path / "secret.txt"
    secret.write_text("My diary.\nIt is private.\nthe\n")
    link = tmp_path / "theirs/link.txt"
    link.symlink_to(secret)
    values, typed = {
        "text": ({"kind": "text", "path": str(secret)}, f"dataset.path={secret}"),
        "pattern": ({"kind": "text", "path": f"{tmp_path}/s*.txt"}, f"'dataset.path={tmp_path}/s*.txt'"),
        "link": ({"kind": "text", "path": str(link)}, f"dataset.path={link}"),
        "categories": (
            {"categories": {"diary": f"file:{secret}"}},
            f"+dataset.categories.diary=file:{secret}",
        ),
    }[kind]
    folder = strangers_run(dataset=values)
    outcome = run_here(capsys, monkeypatch, f"reproduce={folder}", f"output_dir={tmp_path / 'again'}")
    assert outcome.status == 2
    read = f"that run read {typed}, outside its folder; if it is to be read here, add {typed}"
    assert outcome.err == f"normscope: reproduce={folder}: {read}\n"
    assert not (tmp_path / "again").exists()
    if kind in ("text", "categories"):  # the key is all that has to be added; the numbers are those of other texts
        word = f"dataset.path={secret}" if kind == "text" else typed.strip("'")
        outcome = run_here(capsys, monkeypatch, f"reproduce={folder}", word, f"output_dir={tmp_path / 'again'}")
        assert "outside its folder" not in outcome.err
        assert (tmp_path / "again/config.yaml").exists(), outcome.err


@pytest.mark.slow
def test_a_file_in_the_folder_may_be_read(capsys, monkeypatch, strangers_run, tmp_path):
    folder = strangers_run(dataset={"kind": "text", "path": str(tmp_path / "theirs/corpus.txt")})
    (folder / "corpus.txt").write_text("They gave us this text.\nAnd this one.\n")
    outcome = run_here(capsys, monkeypatch, f"reproduce={folder}", f"output_dir={tmp_path / 'again'}")
    assert "outside its folder" not in outcome.err
    assert (tmp_path / "again/results.json").exists()


@pytest.fixture(scope="module")
def runs(saved_model, tmp_path_factory):
    """A completed run that lets no code run."""
    place = tmp_path_factory.mktemp("runs")
    given = [*SMALL, "analysis=mixing", "dataset.limit=4", f"model.name={saved_model}"]
    assert run_once(*given, f"output_dir='{place / 'whole'}'").status == 0
    return place


@pytest.fixture
def trusting(runs, tmp_path, monkeypatch):
    """The same runs with a config that trusts everybody, and a model whose code leaves a trace."""
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    model = tmp_path / "model"
    shutil.copytree(yaml.safe_load((folder / "whole/config.yaml").read_text())["model"]["name"], model)
    (model / "configuration_evil.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'obeyed')!r}).touch()\n"
    )
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "configuration_evil.EvilConfig"}}
    (model / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))

    def trusting(key: str, *, evil: bool):
        for path in folder.glob("*/config.yaml"):
            config = yaml.safe_load(path.read_text())
            config["model"][key.removeprefix("model.")] = True
            if evil:
                config["model"]["name"] = str(model)
            path.write_text(yaml.safe_dump(config))
        return folder

    return trusting


def commands(folder, tmp_path):
    return {
        "reproduce": [f"reproduce={folder / 'whole'}", f"output_dir={tmp_path / 'again'}"],
        "resume": [f"resume={folder / 'whole'}"],
    }


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("command", ["reproduce", "resume"])
@pytest.mark.spread(1)
def test_a_run_does_not_decide_what_runs_here(capsys, monkeypatch, trusting, tmp_path, command, key):
    folder = trusting(key, evil=True)
    if command == "resume":  # as a kill leaves it
        (folder / "whole" / "results.json").unlink()
    outcome = run_here(capsys, monkeypatch, *commands(folder, tmp_path)[command])
    assert outcome.status == 2
    (line,) = outcome.err.splitlines()
    assert (
        f"that run had {key}=true, which lets third-party code run here; if you trust that code, add {key}=true" in line
    )
    assert line.startswith(f"normscope: {command}={folder}")
    assert not (tmp_path / "obeyed").exists()
    assert not (tmp_path / "again").exists()


def test_the_code_runs_if_the_user_says_so_again(capsys, monkeypatch, trusting, tmp_path):
    """Otherwise the tests above would prove nothing."""
    folder = trusting("model.trust_remote_code", evil=True)
    run_here(capsys, monkeypatch, *commands(folder, tmp_path)["reproduce"], "model.trust_remote_code=true")
    assert (tmp_path / "obeyed").exists()


@pytest.mark.slow
def test_the_user_may_say_so_again(capsys, monkeypatch, trusting, tmp_path):
    folder = trusting("model.allow_pickle", evil=False)
    outcome = run_here(capsys, monkeypatch, *commands(folder, tmp_path)["reproduce"], "model.allow_pickle=true")
    assert outcome.status == 0, outcome.err
    assert "numbers are the same" in outcome.out
    assert yaml.safe_load((tmp_path / "again/config.yaml").read_text())["model"]["allow_pickle"] is True
    outcome = run_here(capsys, monkeypatch, *commands(folder, tmp_path)["reproduce"], "model.trust_remote_code=true")
    assert outcome.status == 2
    assert "model.trust_remote_code was False in that run and is True now" in outcome.err


@pytest.mark.slow
def test_a_config_asks_this_machine_for_nothing(capsys, monkeypatch, runs, tmp_path):
    """Neither variables of the environment nor resolvers of ours."""
    folder = tmp_path / "run"
    shutil.copytree(runs / "whole", folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["dataset"]["name"] = "${oc.env:SECRET} \\${x}"
    config["tracking"]["notes"] = "${sweep_folder:elsewhere}"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("SECRET", "told")
    outcome = run_here(capsys, monkeypatch, f"reproduce={folder}", f"output_dir={tmp_path / 'again'}")
    assert outcome.status == 0, outcome.err
    assert yaml.safe_load((tmp_path / "again/config.yaml").read_text())["dataset"]["name"] == "${oc.env:SECRET} \\${x}"
    assert "told" not in "".join(path.read_text() for path in (tmp_path / "again").glob("*.*"))
