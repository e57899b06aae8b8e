"""Old versions of torch and transformers are refused in one line, wherever normscope is entered."""

import importlib
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import normscope
from normscope.errors import InputError
from normscope.oldest_versions import OLDEST, refuse_old_versions

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(monkeypatch):
    """Pretend that other versions are installed; None for a library that is not."""

    def pretend(**versions):
        def version(name):
            found = versions.get(name, f"{OLDEST[name]}.0")
            if found is None:
                raise metadata.PackageNotFoundError(name)
            return found

        refuse_old_versions.cache_clear()
        monkeypatch.setattr(metadata, "version", version)

    return pretend


@pytest.mark.parametrize(
    "version", ["2.10", "2.10.0", "2.10.0+cu130", "2.10.0a0+git1", "2.10.0.dev20251101", "2.13.0+cpu", "10", None]
)
def test_versions_from_the_oldest_on_are_accepted(installed, version):
    installed(torch=version)
    refuse_old_versions()


@pytest.mark.parametrize(
    ("name", "version", "needed"),
    [
        *(("torch", version, "2.10") for version in ("2.9.1", "2.9.1+cpu", "2.9.9", "1.13.1")),
        *(("transformers", version, "5.21") for version in ("5.20.1", "5.3.0", "4.57.6", "5.2")),
    ],
)
def test_older_ones_are_refused(installed, name, version, needed):
    installed(**{name: version})
    with pytest.raises(InputError) as error:
        refuse_old_versions()
    assert str(error.value) == (
        f"{name} {version} is too old: expected {needed} or later; run pip install --upgrade '{name}>={needed}'"
    )


def test_python_is_refused_before_anything_is_imported(installed):
    installed(torch="2.9.1")
    for name in ("load", "Callback"):
        with pytest.raises(InputError, match=r"^torch 2\.9\.1 is too old"):
            getattr(normscope, name)
    assert normscope.__version__


def test_the_command_ends_in_one_line_and_imports_neither(tmp_path):
    """Whatever old versions would do when they are imported: here, fail."""
    for name, version in (("torch", "2.13.0"), ("transformers", "5.3.0")):
        information = tmp_path / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (tmp_path / f"{name}.py").write_text("raise TypeError('an old version')")
    done = subprocess.run(
        [sys.executable, "-m", "normscope", "tracking=disabled"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}", "PATH": ""},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stderr == (
        "normscope: transformers 5.3.0 is too old: expected 5.21 or later; "
        "run pip install --upgrade 'transformers>=5.21'\n"
    )
    assert done.returncode == 2
    assert not (tmp_path / "outputs").exists()


def test_the_oldest_versions_are_those_that_pip_is_told():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {each.name: str(each.specifier) for each in map(Requirement, project["dependencies"])}
    assert {name: bounds[name] for name in OLDEST} == {name: f">={oldest}" for name, oldest in OLDEST.items()}


def test_windows_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match=r"^normscope runs on Linux and macOS; on Windows, run it in WSL$"):
        importlib.reload(normscope)
