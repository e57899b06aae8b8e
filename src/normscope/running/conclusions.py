"""From the accumulated state of the analyses to the results of a run."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

from normscope.config.sections import plain
from normscope.data.categories import ALL
from normscope.data.options import DatasetKind, Level
from normscope.errors import InputError
from normscope.models.interventions import InterventionRunner
from normscope.reporting.published import against_paper
from normscope.results.figures import Figure
from normscope.results.findings import Sentence, Summary
from normscope.results.parts import joined, rolled_up
from normscope.results.result import Result
from normscope.results.run_files import lost
from normscope.running.loop import Run, require_examples
from normscope.running.progress import Phase

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""Wraps an iterable in a progress bar, given its length and a title."""


def conclude(run: Run) -> Result:
    """Run the interventions of the analyses, and return the results of all.

    Raises:
        InputError: If there was nothing to analyse, or a number is not finite.
    """
    require_examples(run.plan, run.counts)
    missing_categories(run)
    run.phases.begin(Phase.INTERVENTIONS)
    runner = runner_of(run, run.phases.steps)
    for analysis in run.plan.analyses:
        analysis.intervene(runner)
    run.phases.begin(Phase.RESULTS)
    parts = {
        analysis.info.name: rolled_up(analysis.info.name, analysis.info.published, analysis.result())
        for analysis in run.plan.analyses
    }
    if run.plan.options.level is Level.word:
        parts = {name: about_words(part) for name, part in parts.items()}
    result = joined(parts, run.plan.model.layers)
    batching = [note] if (note := run.plan.encoder.batching.note) else []
    notes = list(dict.fromkeys([*_of_corpus(run), *result.notes, *batching]))
    result = dataclasses.replace(result, notes=notes, config={**plain(run.plan.options), "resume": None})
    return _with_published(result)


def _of_corpus(run: Run) -> list[str]:
    """What was lost of the corpus, also as the analyses read it that compare the texts of pairs."""
    in_memory = run.plan.options.dataset.kind is DatasetKind.text and run.plan.options.dataset.path is None
    key = "max_length" if in_memory else "dataset.max_length"
    said = []
    for view, counts in run.plan.by_view(run.counts):
        first = view is run.plan.views[0]
        facts = counts.facts() | ({"left_out": run.facts.left_out} if first else {})
        sentences = lost(facts, f"{view.encoder.max_length} tokens ({key})")
        said += sentences if first else [f"{view.names}: {sentence}" for sentence in sentences]
    return said


def _with_published(result: Result) -> Result:
    """The results with the table that compares them with the published numbers of the preset's paper, if there is one."""
    comparison = against_paper(result)
    if comparison is None or comparison.empty:
        return result
    return dataclasses.replace(result, tables={**result.tables, "comparison": comparison})


def runner_of(run: Run, progress: Progress = lambda steps, _total, _title: steps) -> InterventionRunner:
    """What runs the model again for the analyses of a run."""
    batch_tokens = run.plan.options.device.batch_tokens
    return InterventionRunner(run.plan.model, run.plan.encoder, run.plan.layers, batch_tokens, progress)


def missing_categories(run: Run) -> list[str]:
    """The reported categories that do not occur in the corpus; tables have no rows for them.

    Raises:
        InputError: If none of them occurs.
    """
    if all(analysis.info.requires_cross_attention for analysis in run.plan.analyses):
        return []
    categories = run.plan.categories
    missing = [category for category in categories if category != ALL and not run.counts.categories[category]]
    if len(missing) == len(categories):
        raise InputError(f"categories=[{','.join(categories)}]: no token of these categories occurs in the corpus")
    return missing


# Special tokens and punctuation marks are words of their own, and still called tokens.
_TOKEN = re.compile(r"(?<![Ss]pecial )(?<!mask )(?<!punctuation )(?<!\])(?<!\] )\b(T|t)oken")


_TEXTS = ("caption", "value_label", "x_label", "y_label")
"""The fields of figures that readers see. Titles of panels stay: comparisons of runs know panels by them."""


def about_words(part: Result) -> Result:
    """The part of an analysis that has measured words: sentences, captions and labels say `word` where they say `token`."""
    return dataclasses.replace(
        part,
        sentences=[Sentence.of(text).but(_of_words(text)) for text in part.sentences],
        notes=[_of_words(note) for note in part.notes],
        summaries={name: _summary_of_words(summary) for name, summary in part.summaries.items()},
        figures={name: _figure_of_words(figure) for name, figure in part.figures.items()},
    )


def _summary_of_words(summary: Summary) -> Summary:
    table = summary.table.rename(columns=lambda name: _of_words(str(name)))
    return dataclasses.replace(summary, table=table, caption=_of_words(summary.caption))


def _figure_of_words(figure: Figure) -> Figure:
    texts: dict[str, Any] = {
        name: _of_words(text) for name in _TEXTS if (text := getattr(figure, name, None)) is not None
    }
    return dataclasses.replace(figure, **texts)


def _of_words(text: str) -> str:
    return _TOKEN.sub(lambda found: "Word" if found[1] == "T" else "word", text)
