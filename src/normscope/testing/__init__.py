"""The contract of plug-ins, as tests: `pytest --pyargs normscope.testing` runs them for every installed plug-in."""
