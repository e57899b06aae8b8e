"""The packages, of which two lie outside `src`; everything else is in pyproject.toml."""

import sys

from setuptools import find_packages, setup

OUTSIDE = {"normscope.conf": "conf", "normscope.experiments": "experiments"}

# An editable install finds these two in the checkout (`normscope.distribution`). If it listed them, setuptools would install a
# hook that imports understand and type checkers do not.
shipped = {} if "editable_wheel" in sys.argv else OUTSIDE

setup(packages=[*find_packages("src"), *shipped], package_dir={"": "src", **shipped})
