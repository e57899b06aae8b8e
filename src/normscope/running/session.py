"""Everything that a run needs before its first batch."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from normscope.alignment.gold import SEGMENTERS, NumberedCorpus, reference
from normscope.analyses import ANALYSES
from normscope.analyses.base import Analysis, AnalysisContext
from normscope.analyses.options import FrequencyOptions
from normscope.config.schema import ModelOptions, ModelStack, RunOptions, enabled_analyses
from normscope.config.validation import chosen_categories, chosen_layers
from normscope.data import token_frequencies as frequency
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts
from normscope.data.text_files import TextFile
from normscope.data.token_frequencies import TokenFrequencies
from normscope.errors import InputError
from normscope.models.loaded import LoadedModel
from normscope.models.loading import load
from normscope.models.observer import Observer
from normscope.models.verification import verify
from normscope.reporting.terminal import say
from normscope.running.checkpoint import Position
from normscope.running.distributed import ProcessGroup
from normscope.running.provenance import Progress
from normscope.running.token_maps import ExplorerText, select_examples


@dataclasses.dataclass(frozen=True)
class Started:
    """When a run started, and by which command."""

    moment: float
    command: str


@dataclasses.dataclass
class Job:
    """Everything that a run needs to measure a corpus, ready for the first batch."""

    options: RunOptions
    processes: ProcessGroup
    model: LoadedModel
    encoder: Encoder
    layers: list[int]
    categories: list[str]
    observer: Observer
    analyses: list[Analysis]
    explorer: list[ExplorerText]
    counts: CorpusCounts
    stream: Iterator[tuple[Batch, bool]]
    total: int | None
    """Examples that will be read; None where that is not known."""
    progress: Progress
    position: Position = dataclasses.field(default_factory=Position)
    """What an earlier process of the same run has measured."""

    @property
    def only_alignment(self) -> bool:
        """Whether no analysis reports token categories."""
        return all(analysis.requires_cross_attention for analysis in self.analyses)


def prepare(options: RunOptions, processes: ProcessGroup, started: Started) -> Job:
    """Load and verify the model, open the corpus, and build the analyses.

    Raises:
        InputError: If the input is bad.
    """
    torch.manual_seed(options.seed)
    chosen = [ANALYSES[name] for name in enabled_analyses(options.analysis)]
    aligning = any(kind.requires_cross_attention for kind in chosen)
    if aligning:
        options.model.stack = ModelStack.cross
    device = processes.own_device(options.device)
    model = dataclasses.replace(load(_trained(options.model), device), name=options.model.name)
    verification = verify(model.model, model.layout, model.name)
    layers = chosen_layers(options.layers, model.layers)
    encoder = Encoder(model, options.dataset, SEGMENTERS[options.analysis.alignment.words] if aligning else None)
    categories = chosen_categories(options.categories, [*encoder.categories.names, ALL])
    corpus = NumberedCorpus(open_corpus(options.dataset))
    _refuse_crossing(chosen, model)
    hidden = range(model.layers + 1) if any(kind.hidden for kind in chosen) else ()
    observer = Observer(model.model, model.layout, layers, hidden)
    context = _context(options, model, encoder, observer, layers, categories)
    analyses = [kind(getattr(options.analysis, kind.name), context) for kind in chosen]
    explorer = _chosen(options, encoder, len(layers))
    counts = CorpusCounts()
    stream = processes.batches(corpus.examples(), encoder, options.device.batch_tokens, counts)
    if processes.size == 1:
        stream = _not_empty(stream, options, counts)
    if processes.first:
        say(
            f"{model.name}: {model.layers} layers on {model.device}, {model.dtype}".replace("torch.", ""),
            f"verified to {verification.error:.1e}",
        )
    return Job(
        options=options,
        processes=processes,
        model=model,
        encoder=encoder,
        layers=layers,
        categories=categories,
        observer=observer,
        analyses=analyses,
        explorer=explorer,
        counts=counts,
        stream=stream,
        total=corpus.total if processes.size == 1 else None,  # a share's is not known
        progress=Progress(started.moment, counts, model, verification, started.command),
    )


def _refuse_crossing(chosen: Sequence[type[Analysis]], model: LoadedModel) -> None:
    for kind in chosen:
        if model.layout.is_cross_attention and not kind.supports_cross_attention:
            raise InputError(
                f"analysis={kind.name} does not look at cross-attention; set model.stack=encoder or decoder, or choose of "
                f"{', '.join(name for name, other in ANALYSES.items() if other.supports_cross_attention)}"
            )


def _context(
    options: RunOptions,
    model: LoadedModel,
    encoder: Encoder,
    observer: Observer,
    layers: list[int],
    categories: list[str],
) -> AnalysisContext:
    return AnalysisContext(
        layers=layers,
        categories=categories,
        parameters=observer.parameters,
        hidden_norms=observer.hidden_norms,
        methods=model.layout.methods,
        content_only=not model.layout.registry,
        depth=model.layers,
        outliers=options.analysis.outliers,
        names=encoder.categories.names,
        special_tokens=encoder.categories.special,
        token=lambda token: str(model.tokenizer.convert_ids_to_tokens(token)),
        reference=lambda wanted: reference(open_corpus(dataclasses.replace(options.dataset, limit=None)), wanted),
        frequencies=lambda wanted: _frequencies(wanted, options, encoder, model.vocabulary),
    )


def _trained(options: ModelOptions) -> ModelOptions:
    """Where the model is, once it is there."""
    if not options.toy:
        return options
    from normscope.translation.toy import toy_model  # the trainer takes seconds to import

    return dataclasses.replace(options, name=str(toy_model(options.seed, say)))


def _frequencies(wanted: FrequencyOptions, options: RunOptions, encoder: Encoder, vocabulary: int) -> TokenFrequencies:
    if wanted.path is not None:
        found = frequency.read(Path(wanted.path).expanduser(), vocabulary)
    elif wanted.source == "corpus":
        found = frequency.counted(open_corpus(options.dataset).examples(), encoder, vocabulary)
    else:
        text = TextFile(
            Path(wanted.source).expanduser(),
            options.dataset.text_column,
            options.dataset.pair_column,
            options.dataset.header,
            key="analysis.frequency.source",
        )
        found = frequency.counted(text.examples(), encoder, vocabulary)
    return frequency.conventional(found, encoder) if wanted.conventional else found


def _chosen(options: RunOptions, encoder: Encoder, layers: int) -> list[ExplorerText]:
    if not options.report.enabled or not (options.report.examples or options.report.text):
        return []
    return select_examples(open_corpus(options.dataset), encoder, options.report, layers)


def _not_empty(
    stream: Iterator[tuple[Batch, bool]], options: RunOptions, counts: CorpusCounts
) -> Iterator[tuple[Batch, bool]]:
    """The stream, once its first batch has shown that there is one."""
    first = next(stream, None)
    if first is None:
        raise no_example(options, counts)

    def whole() -> Iterator[tuple[Batch, bool]]:
        yield first
        yield from stream

    return whole()


def no_example(options: RunOptions, counts: CorpusCounts) -> InputError:
    """The error of a corpus without a usable example, with the reasons."""
    where = options.dataset.path or options.dataset.kind
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in counts.skipped.items()) or "it has no rows"
    return InputError(f"dataset {where}: no usable example ({reasons}); check dataset.path and dataset.text_column")
