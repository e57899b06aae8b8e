"""Analyses: which maths, which accumulators, which tables, figures and sentences. A package for each.

`registry.analyses()` lists them.
"""
