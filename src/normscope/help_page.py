"""What `normscope --help` prints, on one screen, and `normscope help KEY`: keys with their types, defaults and meanings.

Keys come from the schema and choices from the presets, as in the documentation. Nothing here imports torch.
"""

import difflib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

from normscope.analyses.registry import analyses
from normscope.config.keys import Key, keys_of
from normscope.config.presets import head_comment
from normscope.distribution import folder
from normscope.errors import InputError
from normscope.running.options import RunOptions

_WIDTH = 100
_INDENT = " " * 14

_SHOWN = {
    "model": ("minilm", "bert", "roberta", "modernbert", "gpt2", "llama", "qwen3", "gemma3", "t5", "own"),
    "experiment": ("kobayashi2020_weights_and_norms", "kobayashi2021_mixing", "clark2019"),
}
"""Presets that stand for the others on the first page."""

_FIRST = ("minilm", "sample", "auto")
"""The defaults, which come before the others."""

_GROUPS = ("analysis", "model", "dataset", "experiment", "device", "tracking")

_KEYS = {
    "model.name=NAME": "a Hub name or a local folder, instead of a preset",
    "dataset.path=FILE": "your text, with dataset=text: .txt, .jsonl, .csv, .parquet, or a folder",
    "dataset.limit=N": "the first N examples only",
    "layers=[1,6,12]": "layers to analyse, counted from 1 (all)",
    "categories=[cls,other]": "token categories to report (all), also those of dataset.categories",
    "report.text=TEXT": "a text of yours in the report's explorer of token maps",
    "output_dir=DIR": "the directory of the results, instead of outputs/DATE",
    "resume=DIR": "continue an interrupted run; no other key is needed",
}
"""The keys that most runs need."""

_EXAMPLES = (
    "analysis=[mixing,norms,outliers] model=roberta",
    "dataset=text dataset.path=my.jsonl dataset.text_column=body",
    "-m model=minilm,bert-random",
    "experiment=kobayashi2021_mixing",
    'explain "The capital of France is" model=smollm3',
)


def help_page(program: str, topics: Sequence[str] = (), own: Sequence[Path] = ()) -> str:
    """The first page, or the keys and presets of some topics.

    Args:
        program: The command as it was typed, `normscope`.
        topics: Keys (`layers`), groups of keys (`dataset`, or the name of an analysis) or groups of presets (`model`).
        own: Folders with presets of the user's own.

    Raises:
        InputError: If there is no such key or group; the message names the closest ones.
    """
    presets = {group: _presets(group, own) for group in _GROUPS}
    if not topics:
        return _first_page(program, presets)
    keys = list(keys_of(RunOptions))
    return "\n\n".join(_topic(program, topic, keys, presets) for topic in topics)


def _first_page(program: str, presets: Mapping[str, Mapping[str, str]]) -> str:
    choices = {group: _listed(group, presets[group]) for group in ("analysis", "model", "dataset", "experiment")}
    choices["analysis"] += "; analysis=[a,b] runs several in one forward pass"
    choices["device"] = f"{_listed('device', presets['device'])}   tracking: {_listed('tracking', presets['tracking'])}"
    width = max(map(len, _KEYS)) + 2
    return "\n".join(
        [
            f"{program} [analysis=NAME] [model=NAME] [dataset=NAME] [KEY=VALUE ...]",
            f"{program} -m KEY=VALUE,VALUE ...   a sweep: every combination, compared at the end",
            f"{program} explain TEXT|FILE|-      what a model predicts for one text, and why",
            f"{program} serve [KEY=VALUE ...]   a local page: type a text, change a word, see what changes",
            f"{program} help KEY|GROUP ...       types, defaults and meanings of keys; all presets",
            "",
            "Measures what the attention blocks of a Transformer really do. Without arguments: mixing ratios of",
            "MiniLM on the sample corpus, offline. Numbers, figures and a report go to a folder in outputs/.",
            "",
            "CHOICES",
            *(_hanging(f"  {group + ':':12}{names}") for group, names in choices.items()),
            "",
            "KEYS",
            *(f"  {key:{width}}{meaning}" for key, meaning in _KEYS.items()),
            "",
            "EXAMPLES",
            *(f"  {program} {words}" for words in _EXAMPLES),
            "",
            "MORE",
            f"  {program} help sinks model.step   keys of an analysis, or one key: {len(list(keys_of(RunOptions)))} in all",
            "  --cfg job: the config; --config-dir DIR: your presets; --quiet: only the directory",
            f"  sweeps for `wandb sweep`: {folder('experiments')}/sweeps",
            "  exit status: 0 done, 1 bug or failed job, 2 bad input, 130/143 stopped",
        ]
    )


def _listed(group: str, presets: Mapping[str, str]) -> str:
    """The presets of a group: all, or the user's own and those that stand for the others."""
    if group not in _SHOWN:
        return ", ".join(presets)
    names = [*(name for name in presets if name not in _shipped(group)), *_SHOWN[group]]
    return f"{', '.join(names)} and {len(presets) - len(names)} more"


def _topic(program: str, topic: str, keys: Sequence[Key], presets: Mapping[str, Mapping[str, str]]) -> str:
    name = topic.strip("+~").partition("=")[0].rstrip(".")
    name = f"analysis.{name}" if name in analyses() else name
    own = [key for key in keys if key.name == name or key.name.startswith(f"{name}.")]
    if not own and name not in presets:
        known = [*dict.fromkeys(_sections(keys)), *(key.name for key in keys), *analyses(), *presets]
        close = difflib.get_close_matches(name, known, n=3)
        raise InputError(
            f"help {topic}: no such key or group; {'closest: ' + ', '.join(close) if close else f'see {program} --help'}"
        )
    parts = []
    if name in presets:
        listed = (_hanging(f"  {preset:28}{sentence}", 30) for preset, sentence in presets[name].items())
        parts.append("\n".join([f"PRESETS: {name}=NAME", *listed]))
    if name == "analysis":  # its keys are those of eleven analyses
        parts.append(f"KEYS: {program} help NAME prints those of an analysis.")
    elif own:
        title = (
            analyses()[name.removeprefix("analysis.")].title if name.startswith("analysis.") and len(own) > 1 else ""
        )
        heading = f"KEYS: {name}" + (f" ({title})" if title else "")
        parts.append("\n".join([heading, *map(_described, own)]))
    return "\n\n".join(parts)


def _described(key: Key) -> str:
    """A key with its type and default, and its meaning below."""
    about = f"  {key.name}   {_plain(key.type)}; default: {_plain(key.default)}"
    return f"{_hanging(about, 6)}\n{textwrap.indent(_filled(_plain(key.meaning), _WIDTH - 6), ' ' * 6)}"


def _sections(keys: Iterable[Key]) -> Iterable[str]:
    return (key.name.rpartition(".")[0] for key in keys if "." in key.name)


def _presets(group: str, own: Sequence[Path]) -> dict[str, str]:
    """What each preset of a group is, in a sentence; the user's own first."""
    known = {path.stem: head_comment(path.read_text(encoding="utf-8"))[1] for path in _files(own, group)}
    if group == "analysis":
        known |= {name: info.title for name, info in analyses().items()}
    shipped = _shipped(group)
    order = sorted(shipped, key=lambda name: (name not in _FIRST, name))
    return known | {name: shipped[name] for name in order if name not in known}


def _shipped(group: str) -> dict[str, str]:
    files: Traversable = folder("conf") / group
    return {
        file.name.removesuffix(".yaml"): head_comment(file.read_text(encoding="utf-8"))[1]
        for file in files.iterdir()
        if file.name.endswith(".yaml")
    }


def _files(folders: Iterable[Path], group: str) -> list[Path]:
    return [path for one in folders for path in sorted((one / group).glob("*.yaml"))]


def _plain(markdown: str) -> str:
    return markdown.replace("`", "")


def _hanging(text: str, indent: int = len(_INDENT)) -> str:
    """A text in lines, all but the first indented."""
    return textwrap.fill(text, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)


def _filled(text: str, width: int) -> str:
    return textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)
