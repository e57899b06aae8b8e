"""The page of the Python interface, from what the package exports, and of the formulas behind it."""

import normscope

FORMULAS = ("composition", "mixing", "shares", "norms", "partition", "normalisation", "attention", "scores", "outliers")


TYPES = (
    *(
        f"normscope.api.types.{name}"
        for name in ("Model", "Module", "Tokenizer", "Text", "Texts", "ManyTexts", "Spans")
    ),
    *(f"normscope.api.targets.{name}" for name in ("TokenTarget", "Targets", "Against")),
    *("normscope.api.similarities.Prompts", "normscope.reporting.viewing.Results"),
    *("normscope.config.calls.Several", "normscope.config.calls.Choice"),
)


def page() -> str:
    """The page in Markdown: a heading and an mkdocstrings block for each public name."""
    parts = [
        "# Python interface\n",
        "What `import normscope` provides. [From Python](../tutorials/python.md) shows how to use it.\n",
    ]
    parts += [f"::: normscope.{name}\n" for name in dir(normscope) if not name.startswith("__")]
    parts.append("## Types of arguments\n\nThe names of types in the signatures above.\n")
    parts += [f"::: {name}\n" for name in TYPES]
    parts.append(
        "## Formulas\n\nPure functions on tensors, with their shapes and sources. [Measures](../measures/index.md) "
        "explains what they are for.\n"
    )
    parts += [f"::: normscope.maths.{name}\n" for name in FORMULAS]
    return "\n".join(parts)
