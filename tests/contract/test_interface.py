"""The names of the Python interface."""

import pkgutil

import normscope
import normscope.api


def test_every_public_name_can_be_imported():
    assert all(getattr(normscope, name) is not None for name in normscope.__all__)


def test_no_submodule_has_the_name_of_a_public_function():
    """Importing `normscope.x` would put the module in the place of the function x."""
    modules = {
        module.name for package in (normscope, normscope.api) for module in pkgutil.iter_modules(package.__path__)
    }
    assert modules, "no submodules were found"
    assert not modules & {*normscope.__all__, *normscope.api.__all__}
