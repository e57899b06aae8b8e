"""The page of all config keys, from the schema, and of all presets."""

from docs.hooks import presets
from docs.hooks.markdown import code, table
from normscope.analyses.registry import analyses
from normscope.config.keys import Key
from normscope.running.options import SCHEMA


def page() -> str:
    """The page in Markdown."""
    sections: dict[str, list[Key]] = {"": []}
    for key in SCHEMA.keys.values():
        sections.setdefault(_section(key.name), []).append(key)
    parts = [
        "# Config keys and presets\n",
        "Every key that can be set on the command line (`normscope KEY=VALUE …`), in a preset, or in a file of your own. A key "
        "that does not exist or a value of the wrong type is an error before anything runs. This page is generated from the "
        "schema, and `normscope help KEY` prints the same in a terminal; [presets](#presets) set whole groups.\n",
    ]
    for section, members in sections.items():
        parts.append(f"## {code(section) if section else 'The run'}\n")
        if section.startswith("analysis."):
            info = analyses()[section.removeprefix("analysis.")]
            parts.append(f"{info.title}: see [its tables](tables.md#{info.name}).\n")
        rows = [
            (code(key.name), key.expected, code(key.shown_default), key.meaning)
            for key in sorted(members, key=lambda key: key.name.count(".") > 1 + section.count("."))
        ]
        parts.append(table(("key", "expected", "default", "meaning"), rows))
    return "\n".join([*parts, presets.section()])


def _section(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "analysis" else parts[0] if len(parts) > 1 else ""
