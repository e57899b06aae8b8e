"""The packages, of which two lie outside `src`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

OUTSIDE = {"normscope.conf": "conf", "normscope.experiments": "experiments"}

setup(packages=[*find_packages("src"), *OUTSIDE], package_dir={"": "src", **OUTSIDE})
