"""Every preset composes, and what is written in several places agrees."""

import dataclasses
import functools
import re
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from normscope import cli  # registers the schema and the resolvers
from normscope.analyses.registry import analyses
from normscope.api import models as api_models
from normscope.errors import InputError
from normscope.running.options import RunOptions, check, chosen_categories, enabled_analyses
from normscope.running.plan import chosen_layers
from tests.tiny import facts_for

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
PRESETS = sorted(path for path in CONF.glob("*/*.yaml"))


def composed(*overrides: str) -> RunOptions:
    options = OmegaConf.to_object(_composed(overrides))
    assert isinstance(options, RunOptions)
    return options


def changed(*overrides: str) -> RunOptions:
    """The default config with other values, in a fraction of the time; for tests of what is no concern of Hydra."""
    config = _composed(()).copy()
    config.merge_with_dotlist(list(overrides))
    return OmegaConf.to_object(config)


@functools.cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    assert cli
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def only_names_a_checkpoint(path: Path) -> bool:
    return path.parent.name == "model" and set(yaml.safe_load(path.read_text())) == {"name"}


NAMES_ALONE = [path for path in PRESETS if only_names_a_checkpoint(path)]


@pytest.mark.parametrize(
    "path",
    [path for path in PRESETS if path not in NAMES_ALONE[1:]],
    ids=lambda path: f"{path.parent.name}={path.stem}",
)
@pytest.mark.spread(5)
def test_every_preset_composes(path):
    """Those that only name a checkpoint are alike."""
    group, name = path.parent.name, path.stem
    given = ["dataset.path=x.txt"] if group == "dataset" and name in ("text", "stsb", "stsb-pairs") else []
    given += ["analysis.alignment.gold.path=x"] if "alignment" in name else []
    check(composed(f"{group}={name}", *given))


def test_every_preset_shows_its_command():
    for path in PRESETS:
        head = "\n".join(path.read_text().splitlines()[:2])
        command = rf"^# python run.py .*{path.parent.name}={path.stem}\b"
        assert re.search(command, head, re.MULTILINE), f"{path}: its head shows its command"


def test_the_default_config_composes():
    check(composed())


def test_every_analysis_has_options_and_a_preset():
    names = {field.name for field in dataclasses.fields(RunOptions().analysis)}
    assert names == set(analyses()) == {path.stem for path in (CONF / "analysis").glob("*.yaml")}


def test_analyses_are_chosen_as_a_list_or_alone():
    every = list(analyses())
    assert enabled_analyses(composed(f"analysis=[{','.join(every)}]").analysis) == every
    assert enabled_analyses(composed("analysis=mixing").analysis) == ["mixing"]
    with pytest.raises(InputError, match="expected at least one of"):
        check(composed("analysis=[]"))


def test_the_longest_values_of_tracking_and_report_are_taken():
    longest = ["project", "entity", "group", "name"]
    check(composed(*(f"tracking.{key}={'x' * 128}" for key in longest), f"tracking.tags=[{'x' * 64}]"))
    check(composed("report.examples=100", "report.tokens=512"))
    check(composed("report.examples=0", "report.tokens=8"))


@pytest.mark.parametrize("width", ["column", "page", "3", "3.35", "40"])
def test_figures_take_names_and_numbers_of_inches(width):
    options = changed(f"figures.width={width}", "figures.format=[pdf,svg]", "figures.dpi=600")
    check(options)
    assert str(options.figures.width) == width
    assert options.figures.format == ["pdf", "svg"]


def test_the_seed_is_inherited_until_it_is_set():
    options = composed("seed=7", "dataset.seed=8")
    assert (options.model.seed, options.dataset.seed) == (7, 8)
    assert composed("model=multiberts", "model.seed=3").model.name.endswith("seed_3")


def test_layers():
    facts = facts_for("bert")
    assert chosen_layers("all", facts) == [1, 2, 3]
    assert chosen_layers([3, 1, 3], facts) == [1, 3]
    assert chosen_layers(2, facts) == [2]
    for wrong in ([0], [4], [], "some", [1.5], [True], ["1"]):
        with pytest.raises(InputError, match="layers="):
            chosen_layers(wrong, facts)


def test_categories():
    assert chosen_categories("all", ["a", "b"]) == ["a", "b"]
    assert chosen_categories(["b"], ["a", "b"]) == ["b"]
    for wrong in (["c"], [], "c"):
        with pytest.raises(InputError, match="categories="):
            chosen_categories(wrong, ["a", "b"])


def test_python_and_the_command_line_have_the_same_default_model():
    assert composed().model.pin == api_models.DEFAULT_PIN
    assert composed().model.name == api_models.DEFAULT_MODEL


def test_a_preset_does_not_pin_another_model():
    options = composed("model.name=other/model").model
    assert options.pin.name != options.name
