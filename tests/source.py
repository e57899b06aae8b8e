"""Source files as syntax trees, for tests of what is written in them."""

import ast
import functools

parsed = functools.cache(ast.parse)
"""The syntax tree of a file's text, which is parsed once in a process."""
