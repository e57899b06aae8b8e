"""The page of the Python interface, from what the package exports, and of the formulas behind it."""

import normscope

FORMULAS = ("composition", "mixing", "shares", "norms", "words", "normalisation", "attention", "scores", "outliers")


def page() -> str:
    """The page in Markdown: a heading and an mkdocstrings block for each public name."""
    parts = [
        "# Python interface\n",
        "What `import normscope` provides. [From Python](../tutorials/python.md) shows how to use it.\n",
    ]
    parts += [f"::: normscope.{name}\n" for name in normscope.__all__ if not name.startswith("__")]
    parts.append(
        "## Formulas\n\nPure functions on tensors, with their shapes and sources. [Measures](../measures/index.md) "
        "explains what they are for.\n"
    )
    parts += [f"::: normscope.maths.{name}\n" for name in FORMULAS]
    return "\n".join(parts)
