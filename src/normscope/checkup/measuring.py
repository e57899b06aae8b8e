"""Everything that a checkup measures: three analyses, and passes with the linear layers of the model rounded."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from normscope.analyses.declarations.outliers import OUTLIERS
from normscope.analyses.declarations.score import SCORE
from normscope.analyses.declarations.sinks import SINKS
from normscope.checkup.against import differences, require_same_shape
from normscope.checkup.figures import figures_of
from normscope.checkup.findings import Advice, lines
from normscope.checkup.heads import HeadOutputs, alike_heads, idle_heads
from normscope.checkup.linear_inputs import LinearInputs
from normscope.checkup.passes import Passes
from normscope.checkup.rounding_cost import Rounding, SkipList, costs
from normscope.data.batching import Batch
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import Example
from normscope.errors import InputError
from normscope.maths.quantisation import NumberFormat
from normscope.models.load.interventions import InterventionRunner
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import load
from normscope.models.options import ModelOptions
from normscope.models.stored.stored_weights import is_offloaded
from normscope.results.checkup_tables import CHECKUP
from normscope.results.result import Result
from normscope.running.options import RunOptions
from normscope.running.pipeline import analyse
from normscope.running.progress import Phase, Phases
from normscope.statistics.intervals import FEWEST
from normscope.streams import Progress

TEXTS = 12
"""Texts on which modules are chosen, and texts on which the choice is judged."""
TEXTS_BY_LAYER = FEWEST
"""Texts for the cost of each layer, of which a large model has many."""
TOKENS = 64
"""Length at which these texts are cut."""
RANDOM_LISTS = 3
"""Skip lists of random modules and dimensions that the chosen one is compared with."""
SHORTEST = 8
"""Tokens of a text that is used."""


def measured(options: RunOptions, against: ModelOptions | None, phases: Phases) -> tuple[Result, list[Advice]]:
    """Examine a model.

    Args:
        options: The model, the corpus, and the options of the analyses; everything else is ignored.
        against: The model to compare with, if any.
        phases: Shows what it is doing: loading, the pass of the analyses, and passes with something rounded.

    Returns:
        The result of the analyses with the tables, lines and figures of the checkup, and these lines. The facts say which
        modules and dimensions should not be rounded (`skip`, chosen on other texts than `rounding` is measured on) and which
        heads stand out.

    Raises:
        InputError: If a model cannot be loaded or observed, some weights are kept elsewhere, the models have different shapes,
            or there are too few texts.
    """
    progress = phases.steps
    model = _loaded(options)
    base = None
    if against is not None:
        base = _loaded(dataclasses.replace(options, model=against), key="--against")
        require_same_shape(model, base)
    corpus = open_corpus(options.dataset)
    phases.begin(Phase.PASS)
    result = analyse(_with_analyses(options, model), model, corpus, progress=False)
    phases.begin(Phase.INTERVENTIONS)
    runner = _runner(model, options, progress)
    chosen, judged = _texts(runner, corpus.examples(), options.seed)
    passes = Passes(runner)
    inputs, heads = LinearInputs(), HeadOutputs()
    for batch in progress(chosen, len(chosen), "inputs of linear layers, and heads"):
        passes.run(batch, inputs)
        runner.observe(batch, heads.update)
    tables = {"linear_inputs": inputs.table(), "heads": heads.table()}
    massive = tables["linear_inputs"].query("massive")["module"]
    skip = SkipList(massive.tolist(), sorted(result.tables[f"{OUTLIERS.name}_model"]["dimension"].tolist()))
    rounding = functools.partial(Rounding, largest=inputs.largest, width=model.facts.width)
    tables["rounding"] = costs(passes, judged, _variants(rounding, inputs, skip, options.seed), progress, "rounding")
    by_layer = [
        ({"layer": layer, "format": str(target)}, functools.partial(rounding, target, layer=layer))
        for layer in range(1, model.layers + 1)
        for target in NumberFormat
    ]
    tables["rounding_by_layer"] = costs(passes, judged[:TEXTS_BY_LAYER], by_layer, progress, "rounding by layer")
    if base is not None:
        tables["against"] = differences(passes, Passes(_runner(base, options, progress)), judged)
    stand_out = {"idle": idle_heads(tables["heads"]), "alike": alike_heads(tables["heads"])}
    own = {"against": base and base.name, "skip": vars(skip), "heads": stand_out}
    found = dataclasses.replace(
        result,
        tables={name: tables[name] for name in CHECKUP if name in tables} | dict(result.tables),
        figures=figures_of(tables) | dict(result.figures),
        facts=dict(result.facts) | own,
    )
    said = lines(found, causal=model.causal)
    return dataclasses.replace(found, sentences=[*(line.sentence for line in said), *result.sentences]), said


def _loaded(options: RunOptions, key: str = "model.name") -> LoadedModel:
    """The model of some options, with all of its weights in memory."""
    try:
        model = load(options.model, options.device)
    except InputError as error:
        raise InputError(str(error).replace("model.name", key)) from error.__cause__
    if is_offloaded(model.model):
        raise InputError(
            f"{key}={model.name}: checkup rounds weights in memory, but device.map=auto keeps some elsewhere; expected a model "
            "that fits into memory, for example in device.dtype=bfloat16"
        )
    if model.facts.is_cross_attention:
        raise InputError(
            "model.stack=cross: checkup examines one stack; set model.stack=encoder, or decoder if the model reads texts"
        )
    return model


def _with_analyses(options: RunOptions, model: LoadedModel) -> RunOptions:
    """The options with the analyses of a checkup that are defined for the model."""
    wanted = {OUTLIERS.name, SINKS.name} | ({SCORE.name} if model.facts.has_score_weights else set())
    groups = {
        field.name: dataclasses.replace(getattr(options.analysis, field.name), enabled=field.name in wanted)
        for field in dataclasses.fields(options.analysis)
    }
    report = dataclasses.replace(options.report, enabled=False)
    return dataclasses.replace(options, analysis=dataclasses.replace(options.analysis, **groups), report=report)


def _runner(model: LoadedModel, options: RunOptions, progress: Progress) -> InterventionRunner:
    longest = TOKENS if options.dataset.max_length is None else min(TOKENS, options.dataset.max_length)
    encoder = Encoder(model, dataclasses.replace(options.dataset, max_length=longest, mask_fraction=0.0))
    return InterventionRunner(model, encoder, model.facts.attends, longest, progress)


def _texts(
    runner: InterventionRunner, examples: Iterator[Example | str], seed: int
) -> tuple[Sequence[Batch], Sequence[Batch]]:
    """The texts on which modules are chosen, and the others, on which the choice is judged: drawn at random, a batch each."""
    usable = [example for example in examples if isinstance(example, Example)]
    order = np.random.default_rng(seed).permutation(len(usable))
    found: list[Batch] = []
    for place in order:
        found += [batch for batch in runner.read([usable[place]]) if batch.lengths[0] >= SHORTEST][:1]
        if len(found) == 2 * TEXTS:
            break
    if len(found) < 2 * FEWEST:
        raise InputError(
            f"dataset: checkup chooses modules on some texts and judges them on others: expected at least {2 * FEWEST} texts "
            f"of {SHORTEST} tokens or more, got {len(found)}"
        )
    half = len(found) // 2
    return found[:half], found[half:]


def _variants(
    rounding: functools.partial[Rounding], inputs: LinearInputs, skip: SkipList, seed: int
) -> list[tuple[Mapping[str, Any], Callable[[], Rounding]]]:
    """What is rounded: everything in each format, and in int8 all but the skip list, or all but random ones of its size."""
    lists = {}
    if skip.modules or skip.dimensions:
        generator = np.random.default_rng(seed)
        modules = sorted(set(inputs.largest) - set(skip.modules))
        dimensions = np.setdiff1d(np.arange(rounding.keywords["width"]), list(skip.dimensions))
        lists["without_skipped"] = skip
        for number in range(1, RANDOM_LISTS + 1):
            lists[f"without_random_{number}"] = SkipList(
                generator.choice(modules, min(len(skip.modules), len(modules)), replace=False).tolist(),
                generator.choice(dimensions, min(len(skip.dimensions), len(dimensions)), replace=False).tolist(),
            )
    found = {str(target): functools.partial(rounding, target) for target in NumberFormat}
    found |= {
        name: functools.partial(rounding, NumberFormat.int8_per_tensor, skipped=each) for name, each in lists.items()
    }
    return [({"rounded": name}, make) for name, make in found.items()]
