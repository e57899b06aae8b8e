"""The section of all presets, from `conf/`."""

import yaml

from docs.hooks.markdown import ROOT, code, table

GROUPS = {
    "model": "Models. A preset is a name on the Hub and what belongs to it; `model.name=NAME` takes any other.",
    "dataset": "Texts. Their keys are those of [`dataset`](#dataset).",
    "analysis": "Analyses. `analysis=[mixing,norms]` runs several in one forward pass.",
    "experiment": "Settings of a paper's results. If the model and the data are the paper's, the run compares its numbers with "
    "the published ones.",
    "device": "Where the model runs.",
    "tracking": "Where runs are [tracked](../guides/runs.md#weights-biases).",
}


def section() -> str:
    """The section in Markdown."""
    parts = [
        "## Presets\n",
        "A preset sets the keys of a whole group: `normscope model=roberta`. Each is a short file, and every key in it can be "
        "overridden. [Your own presets](../tutorials/own-model.md#presets-of-your-own) work the same way.\n",
    ]
    for group, introduction in GROUPS.items():
        rows = []
        for path in sorted((ROOT / "conf" / group).glob("*.yaml")):
            command, sentence = head_comment(path.read_text())
            hub = yaml.safe_load(path.read_text()).get("name") if group == "model" else None
            rows.append((code(path.stem), f"{code(hub)}. {sentence}" if hub else sentence, code(command)))
        shown = table(("preset", "what it is", "command"), rows)
        parts.append(f"### {code(group)} {{#presets-{group}}}\n\n{introduction}\n\n{shown}")
    return "\n".join(parts)


def head_comment(preset: str) -> tuple[str, str]:
    """The command in the first comment of a preset (empty if there is none), and the sentences in the lines after it."""
    comments = [line[2:] for line in preset.splitlines() if line.startswith("# ")]
    command = next((line for line in comments if line.startswith("python run.py")), "")
    sentences = [line for line in comments if not line.startswith(("python run.py", "@package"))]
    return command.replace("python run.py", "normscope", 1), " ".join(sentences)
