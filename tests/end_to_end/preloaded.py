"""Imports all of our own code that a run uses, and composes a config once, for the processes of `forks.py`."""

import gc

import hydra

import normscope.cli
import normscope.running.pipeline  # noqa: F401
from normscope.analyses.registry import analyses
from normscope.distribution import folder
from tests.end_to_end.quick_configs import PATCHES

for _info in analyses().values():
    _info.load()
for _module, _name, _quick in PATCHES:
    setattr(_module, _name, _quick)
with hydra.initialize_config_dir(str(folder("conf")), version_base="1.3"):
    hydra.compose("config")
gc.freeze()
