"""What `normscope --help` and `normscope help KEY` print. Nothing here imports torch."""

import difflib
import textwrap
from collections.abc import Iterable, Sequence

from normscope.analyses.registry import analyses
from normscope.config.keys import Key
from normscope.distribution import folder
from normscope.errors import InputError
from normscope.running.options import SCHEMA

_PAGE = """\
{program} [analysis=NAME] [model=NAME] [dataset=NAME] [KEY=VALUE ...]
{program} -m KEY=VALUE,VALUE ...   a sweep: every combination, compared at the end
{program} explain TEXT|FILE|-      a prediction, and why; --sources PATH: from which passages
{program} attention TEXT|FILE|-    what its tokens, words or spans receive from one another
{program} checkup MODEL            what to leave alone when you quantise; --against BASE
{program} serve [KEY=VALUE ...]    a local page: type a text, change a word, see what changes
{program} page RUN                 remake the figures and the report of a run from its results
{program} compare RUN RUN ...      a page that compares runs, with a verdict
{program} help KEY|GROUP ...       types, defaults and meanings of keys

Measures what the attention blocks of a Transformer really do. Without arguments: mixing ratios of
MiniLM on the sample corpus, offline. Numbers, figures and a report go to a folder in outputs/.

  {program} analysis=[mixing,norms] model=roberta dataset=text dataset.path=my.txt
  {program} help dataset sinks layers

Analyses: {analyses}
Presets (model=NAME is model/NAME.yaml): {presets}
Sweeps for `wandb sweep`: {sweeps}"""


def help_page(program: str, topics: Sequence[str] = ()) -> str:
    """The first page, or the keys of some topics.

    Args:
        program: The command as it was typed, `normscope`.
        topics: Keys (`layers`) or groups of keys (`dataset`, or the name of an analysis).

    Raises:
        InputError: If there is no such key or group; the message names the closest ones.
    """
    if not topics:
        names = textwrap.fill(", ".join(analyses()), 88, subsequent_indent=" " * 10)
        presets, sweeps = folder("conf"), f"{folder('experiments')}/sweeps"
        return _PAGE.format(program=program, analyses=names, presets=presets, sweeps=sweeps)
    return "\n\n".join(_described(key) for topic in topics for key in _below(topic, SCHEMA.keys.values()))


def _below(topic: str, keys: Iterable[Key]) -> list[Key]:
    name = f"analysis.{topic}" if topic in analyses() else topic
    below = [key for key in keys if f"{key.name}.".startswith(f"{name}.")]
    if not below:
        groups = [key.name.rpartition(".")[0] for key in keys]
        close = difflib.get_close_matches(topic, {*groups, *(key.name for key in keys), *analyses()})
        raise InputError(
            f"help {topic}: no such key or group; expected one such as {', '.join(close or ['dataset', 'layers'])}"
        )
    return below


def _described(key: Key) -> str:
    meaning = textwrap.indent(key.meaning.replace("`", ""), "    ")
    return f"{key.name}   {key.expected}; default: {key.shown_default}\n{meaning}".rstrip()
