"""The page of the Python interface, from what the package exports."""

import normscope


def page() -> str:
    """The page in Markdown: a heading and an mkdocstrings block for each public name."""
    parts = [
        "# Python interface\n",
        "What `import normscope` provides. [From Python](../tutorials/python.md) shows how to use it.\n",
    ]
    parts += [f"::: normscope.{name}\n" for name in normscope.__all__ if not name.startswith("__")]
    return "\n".join(parts)
