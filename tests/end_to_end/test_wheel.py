"""The wheel is the whole program: installed in an empty environment, it runs without the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from normscope.distribution import VERSION
from tests.end_to_end.shell import ROOT

# Commands and Python code, one after another in one process, which imports torch once. Prints the status and output of each.
_DRIVER = """
import contextlib, io, json, runpy, sys, traceback
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if words[0] == "-c":
                exec(words[1], {})
            else:
                sys.argv = words
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as exit_:
            status = exit_.code or 0
        except BaseException:
            status = 1
            traceback.print_exc()
    print(json.dumps([status, out.getvalue(), err.getvalue()]), file=sys.__stdout__, flush=True)
"""

_INTERFACE = """
import importlib.resources, pathlib, normscope
assert pathlib.Path(normscope.__file__).is_relative_to({environment!r}), normscope.__file__
assert importlib.resources.files("normscope.conf").joinpath("model", "bert.yaml").is_file()
assert importlib.resources.files("normscope.experiments").joinpath("maruta2024", "published.yaml").is_file()
model = normscope.load({model!r})
print(normscope.__version__, list(normscope.decompose(model, "A short text.").summaries[""].table))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, as building leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    _copy_sources(folder / "source")
    _pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder), str(folder / "source"))
    [wheel] = folder.glob("*.whl")
    return wheel


def _copy_sources(folder: Path) -> None:
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "conf", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)


def _pip(*arguments: str) -> None:
    # The tests turn most warnings into errors in their own process; pip has its own.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=_outside())
    assert finished.returncode == 0, finished.stderr


def _outside(**environment: str) -> dict[str, str]:
    """The environment of a user who has no checkout."""
    hidden = ("PYTHONPATH", "WANDB_SERVICE")
    return {name: value for name, value in os.environ.items() if name not in hidden} | environment


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """A virtual environment with the wheel, which finds the libraries, but not normscope, where these tests find them."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    # Unlike a site directory, a folder named in a .pth file has its own .pth files ignored, the editable install's among them.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _pip("--python", str(folder / "bin/python"), "install", "--no-deps", "--no-index", "--no-compile", str(wheel))
    return folder


def _run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        list(arguments), cwd=folder, env=_outside(), capture_output=True, text=True, check=False, timeout=500
    )


def _outcomes(environment: Path, folder: Path, commands: dict[str, list[str]]) -> dict[str, tuple[int, str, str]]:
    python = str(environment / "bin/python")
    finished = _run(folder, python, "-c", _DRIVER, json.dumps(list(commands.values())))
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("[")]
    return dict(zip(commands, lines, strict=True))


def _sources() -> Iterator[str]:
    for folder, package in (("src/normscope", ""), ("conf", "conf/")):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".pyc",):
                yield f"normscope/{package}{path.relative_to(ROOT / folder).as_posix()}"
    yield "normscope/experiments/__init__.py"
    for pattern in ("*/published.yaml", "*/exhibits.yaml", "sweeps/*.yaml"):
        for path in (ROOT / "experiments").glob(pattern):
            yield f"normscope/{path.relative_to(ROOT).as_posix()}"


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_program_and_no_other(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == set(_sources())
    assert wheel.name == f"normscope-{VERSION}-py3-none-any.whl"


@pytest.mark.slow
def test_an_installed_wheel_is_the_whole_program(environment, saved_model, tmp_path):
    command = str(environment / "bin/normscope")
    presets = tmp_path / "presets"
    (presets / "model").mkdir(parents=True)
    (presets / "model/mine.yaml").write_text(f"name: {saved_model}\n")
    small = ["tracking=disabled", "device=cpu", "dataset.limit=3", "layers=[1]"]
    unreported = [*small, "report.enabled=false"]
    paper = [command, "experiment=kobayashi2021_mixing"]
    outcomes = _outcomes(
        environment,
        tmp_path,
        {
            "help": [command, "--help"],
            "typo": [command, "--foo"],
            "run": [command, *small, "output_dir=run"],
            "sweep": [
                *(command, "--config-dir", str(presets), "-m", "model=mine", "model.random_init=false,true"),
                *(*unreported, "output_dir=sweep"),
            ],
            "paper": [*paper, *unreported],
            "paper, another model": [
                *paper,
                "analysis=mixing",
                f"model.name={saved_model}",
                *unreported,
                "output_dir=paper",
            ],
            "Python": ["-c", _INTERFACE.format(environment=str(environment), model=str(saved_model))],
        },
    )
    for name, (status, _, err) in outcomes.items():
        assert status == (2 if name in ("typo", "paper") else 0), f"{name}: {err}"

    page = outcomes["help"][1]
    assert "normscope [analysis=NAME]" in page
    assert "run.py" not in page
    assert str(environment) in page  # where the presets and the W&B sweeps lie
    assert outcomes["typo"][2].strip().endswith("see normscope --help")

    report = (tmp_path / "run/report.html").read_text()
    assert "normscope tracking=disabled" in report
    assert "run.py" not in report
    assert json.loads((tmp_path / "run/results.json").read_text())["facts"]["git_commit"] is None
    assert set(pd.read_parquet(tmp_path / "sweep/comparison.parquet")["run"]) == {"0", "1"}
    assert (tmp_path / "sweep/comparison.html").is_file()

    assert "model.name=google-bert/bert-base-uncased: not in the local cache" in outcomes["paper"][2]
    assert "beside this run, which is not the paper's" in " ".join(outcomes["paper, another model"][1].split())
    assert outcomes["Python"][1].startswith(VERSION)
    assert "attnresln_n" in outcomes["Python"][1]


@pytest.mark.slow
def test_the_commands_start_by_themselves(environment, tmp_path):
    for words in ([str(environment / "bin/normscope")], [str(environment / "bin/python"), "-m", "normscope"]):
        name = " ".join(["normscope"] if len(words) == 1 else ["python", *words[1:]])
        page = _run(tmp_path, *words, "--help").stdout
        assert f"{name} [analysis=NAME]" in page
    assert _run(tmp_path, str(environment / "bin/normscope"), "dataset.limit=2").returncode == 0
    [report] = tmp_path.glob("outputs/*/report.html")
    results = json.loads((report.parent / "results.json").read_text())
    assert results["status"] == "completed"
    assert results["facts"]["command"] == "normscope dataset.limit=2"


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(wheel, tmp_path):
    _copy_sources(tmp_path / "source")
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    _run(tmp_path / "source", sys.executable, "-c", build).check_returncode()
    [archive] = tmp_path.glob("*.tar.gz")
    _pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(tmp_path), str(archive))
    [rebuilt] = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(rebuilt).namelist() == zipfile.ZipFile(wheel).namelist()
