"""The analyses, one package each: their maths, accumulators, tables, figures and sentences.

`registry.analyses()` lists them.
"""
