"""What a run will do: everything that is settled before its first batch, and everything that can fail before it."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.info import AnalysisConfig
from normscope.analyses.registry import analyses as known_analyses
from normscope.config.schema import lasting, plain
from normscope.data.annotation import column_values
from normscope.data.batching import Batch, batches_of_window
from normscope.data.categories import ALL
from normscope.data.corpora import NumberedCorpus, PairsOf, arranged, open_corpus
from normscope.data.encoders import NO_PROMPTS
from normscope.data.encoding import Encoder
from normscope.data.examples import Corpus, CorpusCounts, Example
from normscope.data.nouns import TEXTS
from normscope.data.options import DatasetKind, DatasetOptions, Level
from normscope.data.resources import Prepared, Readers, ResourceContext, prepare_resources
from normscope.data.token_sequence import Segmenter
from normscope.data.token_texts import TokenTexts, Vocabulary
from normscope.distribution import VERSION
from normscope.errors import InputError
from normscope.models.blocks.block import GATED, NOT_LINEAR
from normscope.models.facts import ModelFacts
from normscope.models.load.factories import BuiltModel
from normscope.models.load.input_reading import InputReader
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.loading import open_model
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import ObservedStack
from normscope.models.options import ModelOptions
from normscope.models.prove.verification import Verification
from normscope.reporting.options import Appearance, appearance
from normscope.reporting.terminal import say
from normscope.running.options import AnalysisOptions, RunOptions, all_options, chosen_categories, enabled_analyses
from normscope.running.progress import Phase, Phases
from normscope.running.ranks import ProcessGroup
from normscope.running.token_maps import ExplorerText, maps_per_layer, select_examples

_KEPT_OF_LAYER = 10
"""Numbers that a layer held fixed keeps for each token, in multiples of the hidden size: four for the slopes of its network,
one each for queries, keys, values, and what enters and leaves its halves."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The model and the texts of a run."""

    facts: ModelFacts
    """Where the model keeps its parts, known before its weights are loaded."""
    load: Callable[[], LoadedModel]
    """Returns the model with its weights."""
    open_corpus: Callable[[DatasetOptions], Corpus]
    """Opens the corpus that dataset options describe."""


def configured(options: RunOptions, group: ProcessGroup) -> Inputs:
    """The model and the corpus that a config names.

    Args:
        options: The config.
        group: The processes of the run, each with its own device.
    """
    opened = BuiltModel(options.model) if options.model.factory is not None else open_model(_trained(options.model))

    def load() -> LoadedModel:
        loaded = opened.load(group.local_device(options.device), devices=group.local_devices(options.device))
        return dataclasses.replace(loaded, name=options.model.name)

    return Inputs(opened.facts, load, open_corpus)


def in_memory(model: LoadedModel, corpus: Corpus) -> Inputs:
    """A loaded model, which must not have changed since it was wrapped, and texts in memory."""

    def load() -> LoadedModel:
        model.require_current()
        return model

    return Inputs(model.facts, load, lambda options: arranged(corpus, options))


@dataclasses.dataclass(frozen=True)
class Reading:
    """What some of the analyses see, as they would alone: a pair as one sequence, or its two texts side by side."""

    encoder: Encoder
    analyses: Sequence[Analysis]
    token_entries: int = 0
    """Numbers that these keep for each token of a batch."""

    @property
    def names(self) -> str:
        """The analyses, for messages."""
        return ", ".join(analysis.info.name for analysis in self.analyses)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that is ready for its first batch. Nothing here changes, but for the state inside the analyses."""

    options: RunOptions
    model: LoadedModel
    verification: Verification
    """How closely the observed model matches the untouched one, as far as the analyses look."""
    readings: Sequence[Reading]
    """What the analyses see of the corpus; never empty."""
    observer: Observer
    layers: list[int]
    categories: list[str]
    analyses: Sequence[Analysis]
    texts: Sequence[ExplorerText]
    """Those whose token maps are in the report."""
    maps_of_networks: bool
    """Whether these maps go through the feed-forward networks; otherwise they end at the attention block."""
    added_maps: int
    """Number of maps per layer that the analyses add to them."""
    resources: Mapping[str, Prepared]
    """What analyses need that is made before the first batch, by name."""
    corpus: NumberedCorpus
    group: ProcessGroup
    """The processes that read it together."""
    weights: Mapping[str, str]
    """Digests of the model's weights; see `LoadedModel.weights`."""
    look: Appearance
    """How figures are drawn."""

    @classmethod
    def of(cls, options: RunOptions, open_inputs: Callable[[], Inputs], group: ProcessGroup, phases: Phases) -> "Plan":
        """Load the model, prove that it can be observed, open the corpus, and build the analyses.

        Args:
            open_inputs: Returns the model and the texts; see `configured` and `in_memory`.
            group: The processes of the run.
            phases: The phases of the run, which moves on to those of the model and the corpus.
        """
        phases.begin(Phase.MODEL)
        torch.manual_seed(options.seed)
        look = appearance(options.figures)
        inputs = open_inputs()
        needs = _needs(options.analysis, options.model, options.level, inputs)
        model = inputs.load()
        feed_forward = any(requirements.feed_forward for requirements in needs.values())
        verification = model.layers_verification if feed_forward else model.verification
        _load_heads(model, needs.values())
        phases.begin(Phase.CORPUS)
        layers = chosen_layers(options.layers, model.facts)
        encoders = _encoders(options.dataset, options.level, model, needs, inputs)
        categories = chosen_categories(options.categories, [*encoders[0].categories.names, ALL])
        corpus = inputs.open_corpus(options.dataset)
        if options.dataset.kind is DatasetKind.sample and encoders[0].separate:  # its other half are single sentences
            corpus = PairsOf(corpus)
        observer = _observer(model, layers, needs.values())
        context = _context(all_options(options.analysis), model, encoders[0], observer, layers, categories)
        resources = {
            name: resource
            for own in encoders
            for name, resource in _resources(
                options.dataset, model, own, _of_reading(needs, own), inputs, group
            ).items()
        }
        analyses = _analyses(needs, context, {name: resource.value for name, resource in resources.items()})
        # With a gate, what reaches the networks is not a sum of multiples of one vector for each key.
        of_networks = feed_forward and not model.facts.is_gated
        added = sum(requirements.token_maps for requirements in needs.values())
        maps = maps_per_layer(model.facts, feed_forward=of_networks) + added
        return cls(
            options=options,
            model=model,
            verification=verification,
            readings=[_reading(own, analyses, needs, inputs.facts) for own in encoders],
            observer=observer,
            layers=layers,
            categories=categories,
            analyses=analyses,
            texts=_texts(options, encoders[0], len(layers), maps, inputs, model.reader),
            maps_of_networks=of_networks,
            added_maps=added,
            resources=resources,
            corpus=NumberedCorpus(corpus),
            group=group,
            weights=model.weights(),
            look=look,
        )

    @property
    def encoder(self) -> Encoder:
        """That of the first reading, which shows pairs as sequences if any analysis reads them so."""
        return self.readings[0].encoder

    @property
    def total(self) -> int | None:
        """Number of examples to read, if known; that of one process of several is not."""
        return self.corpus.total if self.group.size == 1 else None

    def batches(self, counts: CorpusCounts) -> Iterator[tuple[Batch, bool]]:
        """All batches that this process makes, and whether each is for it; updates the counts."""
        return self.group.batches(self.corpus, self._batches_of_window, counts)

    def _batches_of_window(self, window: Sequence[Example | str], counts: CorpusCounts) -> Iterator[Batch]:
        """The batches of one window of the corpus, of one reading after the other."""
        for reading, own in self.by_reading(counts):
            yield from batches_of_window(window, own, reading.encoder, self.options.device.batch_tokens)

    def by_reading(self, counts: CorpusCounts) -> list[tuple[Reading, CorpusCounts]]:
        """Every reading with its counts: those of the first, and those that the other has of pairs that are compared."""
        return [(reading, counts if reading is self.readings[0] else counts.of_compared()) for reading in self.readings]

    @property
    def identity(self) -> dict[str, object]:
        """What a resumed run must share with the stopped one."""
        return lasting(plain(self.options)) | {
            "the model's weights": dict(self.weights),
            "torch": torch.__version__,
            "normscope": VERSION,
            **{f"the resource {name}": resource.digest for name, resource in self.resources.items()},
        }


def _trained(options: ModelOptions) -> ModelOptions:
    """The options of the model; the toy model is trained first."""
    if not options.toy:
        return options
    from normscope.translation.toy import toy_model  # the trainer takes seconds to import

    return dataclasses.replace(options, name=str(toy_model(options.seed, say)))


def chosen_layers(layers: Any, facts: ModelFacts) -> list[int]:
    """The `layers` key as sorted layer numbers.

    Raises:
        InputError: If it is neither `all` nor a list of layers of the model that have softmax attention.
    """
    count = facts.last
    if layers == "all":
        return facts.attends
    numbers = layers if isinstance(layers, list) else [layers]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= count:
            raise InputError(
                f"layers={layers}: expected all or numbers from 1 to {count} (this model's layers), got {number!r}"
            )
    if not numbers:
        raise InputError(f"layers=[]: expected all or numbers from 1 to {count}")
    for number in numbers:
        facts.check_attends("layers", number)
    return sorted(set(numbers))


def _needs(
    options: AnalysisOptions, model: ModelOptions, level: Level, inputs: Inputs
) -> dict[type[Analysis], Requirements]:
    """What the enabled analyses need of the model."""
    known = known_analyses()
    facts = inputs.facts
    kinds = [known[name].load().suited_to(facts) for name in enabled_analyses(options)]
    _refuse_other_attention(kinds, facts)
    needs = {kind: kind.requirements(getattr(options, kind.info.name), facts) for kind in kinds}
    _refuse_missing_feed_forward(needs, model, facts)
    _refuse_missing_parts(needs, level, model.name, facts)
    return needs


def _refuse_other_attention(kinds: Sequence[type[Analysis]], facts: ModelFacts) -> None:
    for kind in kinds:
        if kind.info.requires_cross_attention and not facts.is_cross_attention:
            raise InputError(
                f"analysis={kind.info.name} needs cross-attention, which is not observed here; set model.stack=cross"
            )
        if facts.is_cross_attention and facts.reads_vectors and not kind.info.requires_cross_attention:
            raise InputError(
                f"model.stack=cross: the cross-attention to a sound is measured by analysis=alignment alone, not by "
                f"analysis={kind.info.name}; leave out model.stack to measure the encoder"
            )
        if facts.is_cross_attention and not kind.info.supports_cross_attention:
            others = [name for name, info in known_analyses().items() if info.supports_cross_attention]
            raise InputError(
                f"analysis={kind.info.name} does not support cross-attention; set model.stack=encoder or decoder, or choose "
                f"from {', '.join(others)}"
            )


def _refuse_missing_feed_forward(
    needs: Mapping[type[Analysis], Requirements], model: ModelOptions, facts: ModelFacts
) -> None:
    for kind, requirements in needs.items():
        if requirements.feed_forward and not facts.has_networks:
            if facts.stack is None:
                raise InputError(
                    f"model.name={model.name}: analysis={kind.info.name} needs the feed-forward network of every layer, but "
                    f"one layer has none, or has its attention inside a bottleneck; set another model.name, or leave out "
                    f"analysis={kind.info.name}"
                )
            raise InputError(
                f"model.stack={model.stack}: analysis={kind.info.name} needs the feed-forward network, but a decoder's "
                "self-attention is followed by cross-attention; set model.stack=encoder or cross"
            )


def _refuse_missing_parts(
    needs: Mapping[type[Analysis], Requirements], level: Level, name: str, facts: ModelFacts
) -> None:
    """Refuse analyses that gates or latent attention leave undefined."""
    if facts.is_gated and level is Level.word:
        raise InputError(f"level=word is not defined for {name}: {GATED}; set level=token")
    for kind, requirements in needs.items():
        reason = None
        if requirements.vectors_of_keys and facts.is_gated:
            reason = GATED
        elif requirements.weights_of_keys and not facts.has_score_weights:
            reason = NOT_LINEAR.format("queries or keys")
        if reason is not None:
            raise InputError(
                f"analysis={kind.info.name} is not defined for {name}: {reason}; set analysis to mixing, outliers or "
                "sinks"
            )


def _load_heads(model: LoadedModel, needs: Iterable[Requirements]) -> None:
    """Load the heads that analyses use, now, since they may be damaged."""
    for requirements in needs:
        if requirements.language_head:
            _ = model.next_token_head, model.masked_language_head
        if requirements.classifier:
            _ = model.classifier
        if requirements.translator:
            _ = model.translator


def _encoders(
    options: DatasetOptions,
    level: Level,
    model: LoadedModel,
    needs: Mapping[type[Analysis], Requirements],
    inputs: Inputs,
) -> list[Encoder]:
    """One for each way in which the analyses read pairs; that of pairs as sequences comes first."""
    values = _annotated_categories(options, inputs)
    asked = next((requirements.prompts for requirements in needs.values() if requirements.prompts is not None), None)
    prompts = NO_PROMPTS if asked is None else asked(lambda: model.embedder)
    return [
        Encoder(model, options, _words(needs), values, separate=separate, level=level, prompts=prompts)
        for separate in sorted({kind.info.requires_pairs for kind in needs})
    ]


def _of_reading(
    needs: Mapping[type[Analysis], Requirements], encoder: Encoder
) -> Mapping[type[Analysis], Requirements]:
    """What the analyses need that see the sequences of an encoder."""
    return {kind: requirements for kind, requirements in needs.items() if kind.info.requires_pairs == encoder.separate}


def _reading(
    encoder: Encoder, analyses: Sequence[Analysis], needs: Mapping[type[Analysis], Requirements], facts: ModelFacts
) -> Reading:
    own = _of_reading(needs, encoder)
    tokens = _KEPT_OF_LAYER * facts.layers * facts.width
    tokens *= sum(requirements.keeps_layers for requirements in own.values())
    return Reading(encoder, [analysis for analysis in analyses if type(analysis) in own], tokens)


def _words(needs: Mapping[type[Analysis], Requirements]) -> Segmenter | None:
    """The segmenter of the analysis that needs words, if any does."""
    return next((requirements.words for requirements in needs.values() if requirements.words is not None), None)


def _annotated_categories(options: DatasetOptions, inputs: Inputs) -> tuple[str, ...]:
    """The values of the column of annotated words that are categories, if `dataset.categories` names one."""
    column = options.categories
    return column_values(inputs.open_corpus(options), column) if isinstance(column, str) else ()


def _observer(model: LoadedModel, layers: Sequence[int], needs: Iterable[Requirements]) -> Observer:
    """An observer of exactly what the analyses need; the forward pass ends after the last of it."""
    needs = list(needs)
    hidden = {*range(model.layers + 1)} if any(requirements.hidden for requirements in needs) else set()
    if model.reader is not None and any(requirements.returned for requirements in needs):
        hidden |= {model.layers, model.layers + 1}
    every = any(requirements.all_layers for requirements in needs)
    feed_forward = any(requirements.feed_forward for requirements in needs)
    layers = model.facts.attends if every else layers
    projections = any(requirements.weights_of_keys for requirements in needs)
    return Observer(model.model, model.facts, layers, hidden, feed_forward=feed_forward, projections=projections)


def _context(
    options: Sequence[AnalysisConfig],
    model: LoadedModel,
    encoder: Encoder,
    observer: Observer,
    layers: list[int],
    categories: list[str],
) -> AnalysisContext:
    texts, reader = TokenTexts(model.tokenizer), model.reader
    before = () if reader is None else map(model.tokenizer.convert_tokens_to_ids, reader.before)
    return AnalysisContext(
        layers=layers,
        categories=categories,
        parameters=observer.parameters,
        names=encoder.categories.names,
        vocabulary=Vocabulary(
            size=min(len(model.tokenizer), model.vocabulary),
            special=encoder.categories.special.union(before),
            mask=model.tokenizer.mask_token_id,
            first=encoder.first_token,
            text=lambda token: texts.of([token])[0],
        ),
        methods=model.facts.methods,
        has_position_terms=not model.facts.calls_function and model.verification.position_terms,
        width=model.facts.width,
        depth=model.layers,
        files_sha256=model.files_sha256,
        nouns=TEXTS if reader is None else reader.nouns,
        input_length=None if reader is None else reader.positions.length,
        observed=ObservedStack(model.model, model.facts),
        own_embedder=lambda: model.embedder,
        dtype=model.model.dtype,
        has_feed_forward=model.facts.has_networks,
        has_experts=model.facts.routed,
        options=options,
    )


def _resources(
    options: DatasetOptions,
    model: LoadedModel,
    encoder: Encoder,
    needs: Mapping[type[Analysis], Requirements],
    inputs: Inputs,
    group: ProcessGroup,
) -> dict[str, Prepared]:
    """The resources of all analyses, by name; one that several need is prepared once."""
    wanted = {name: resource for requirements in needs.values() for name, resource in requirements.resources.items()}
    context = ResourceContext(options, encoder, model.vocabulary, inputs.open_corpus)
    readers = Readers(group.windows, group.agreeing, group.gathered)
    return prepare_resources(wanted, context, inputs.open_corpus, readers)


def _analyses(
    needs: Mapping[type[Analysis], Requirements], context: AnalysisContext, resources: Mapping[str, Any]
) -> list[Analysis]:
    options = {type(options): options for options in context.options}
    every = list(range(1, context.depth + 1))
    return [
        kind(
            options[kind.info.options],
            dataclasses.replace(
                context,
                layers=every if requirements.all_layers else context.layers,
                resources={name: resources[name] for name in requirements.resources},
            ),
        )
        for kind, requirements in needs.items()
    ]


def _texts(
    options: RunOptions, encoder: Encoder, layers: int, maps: int, inputs: Inputs, reader: InputReader | None
) -> list[ExplorerText]:
    report = options.report
    # Of pairs whose texts are compared, the report shows maps of both.
    if not report.enabled or not (report.text or (report.examples and not encoder.separate)):
        return []
    return select_examples(inputs.open_corpus(options.dataset), encoder, report, layers, maps, reader)
