"""Everything that a run needs before its first batch, and everything that can fail before it."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.registry import analyses as known_analyses
from normscope.config.sections import INCIDENTAL, flat, plain
from normscope.data.annotation import column_values
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.data.corpora import NumberedCorpus, text_keys
from normscope.data.corpus_memory import CorpusMemory
from normscope.data.encoding import Encoder
from normscope.data.examples import Corpus, CorpusCounts
from normscope.data.options import DatasetKind
from normscope.data.resources import Prepared, Readers, ResourceContext, State, prepare_resources
from normscope.data.token_sequence import Segmenter
from normscope.errors import InputError
from normscope.maths.feed_forward import BiasRule
from normscope.models.frozen_layers import LayerFreezer
from normscope.models.loaded import LoadedModel
from normscope.models.model_info import ModelInfo
from normscope.models.observer import Observer
from normscope.models.offloading import offloaded_to
from normscope.models.options import ModelOptions, ModelStack
from normscope.models.pooling import pooling_of
from normscope.reporting.appearance import Appearance, appearance
from normscope.reporting.options import FigureOptions
from normscope.reporting.run_folder import PeerFolder, RunFolder
from normscope.reporting.terminal import say
from normscope.reporting.tracking_environment import with_environment
from normscope.rounding import counted
from normscope.running.batch_stream import BatchStream
from normscope.running.checkpoint import Checkpoint, Position, file_of, saved_parts
from normscope.running.distributed import ProcessGroup, Share
from normscope.running.inputs import ConfiguredInputs, Inputs, InputsInMemory
from normscope.running.options import RunOptions, all_options, chosen_categories, chosen_layers, enabled_analyses
from normscope.running.parts import Parts, merge_saved
from normscope.running.prepared import identity as prepared_identity
from normscope.running.prepared import saved_states
from normscope.running.provenance import Origin, Provenance
from normscope.running.rendezvous import remember_run
from normscope.running.token_maps import ExplorerText, maps_per_layer, select_examples
from normscope.running.views import View, batches_of_views, counts_of


@dataclasses.dataclass
class Session:
    """A run that is ready for its first batch."""

    options: RunOptions
    group: ProcessGroup
    results: RunFolder | None
    """The run folder, in the main process."""
    folder: Path
    """Its path, in all processes."""
    model: LoadedModel
    views: list[View]
    """What the analyses see of the corpus; never empty."""
    observer: Observer
    layers: list[int]
    categories: list[str]
    analyses: list[Analysis]
    texts: list[ExplorerText]
    """The texts of the token maps."""
    bias_rule: BiasRule | None
    """Where the token maps leave the biases of feed-forward networks; None if they end at the attention block."""
    added_maps: int
    """Number of token maps per layer that the analyses add."""
    digests: Mapping[str, str]
    """Hashes of the analyses' resources, by name."""
    states: Mapping[str, Callable[[], State]]
    """Return what resources were made from, by name, if it took a pass over the corpus."""
    prepared_identity: Mapping[str, object]
    """The keys that resources depend on."""
    counts: CorpusCounts
    """The counts of the part of the corpus that is being analysed."""
    open_batches: Callable[[Share, CorpusCounts], Iterator[tuple[Batch, bool]]]
    """All batches that a share of the corpus is concerned with, and whether each belongs to it; updates the counts."""
    parts: Parts
    total: int | None
    """Number of examples to read, if known."""
    provenance: Provenance
    look: Appearance
    """How figures are drawn."""
    stream: BatchStream = dataclasses.field(init=False)
    """What is left of the part."""
    saves: bool = False
    """Whether checkpoints are saved: all processes see the run folder."""
    checkpoint: Checkpoint | None = None
    """The checkpoint of the part; None if none is saved."""
    position: Position = dataclasses.field(default_factory=Position)
    """How far the part had been read when the run was stopped, if it is resumed."""
    finished: bool = False
    """Whether the whole part had been analysed by then."""

    @property
    def encoder(self) -> Encoder:
        """That of the first view, which shows pairs as sequences if any analysis reads them so."""
        return self.views[0].encoder

    @classmethod
    def prepare(
        cls,
        options: RunOptions,
        results: RunFolder | None,
        group: ProcessGroup,
        origin: Origin,
        memory: CorpusMemory | None = None,
    ) -> "Session":
        """Load the model, prove that it can be observed, open the corpus, and build the analyses.

        Raises:
            InputError: If the input is invalid, in this process or in another one of the run.
        """
        folder = Path(group.shared("" if results is None else str(results.path)))
        with group.agreeing():
            parts = Parts.of(options, folder, group)
            session = _prepared(
                options, results, folder, group, origin, ConfiguredInputs(options, group, memory), parts
            )
        session.saves = all(group.gathered(PeerFolder(folder).visible))
        with group.agreeing():
            for share in parts.own[:1]:
                session.begin(share)
            if group.is_main:
                session._announce()
        session._announce_resumed()
        return session

    @classmethod
    def in_memory(cls, options: RunOptions, inputs: InputsInMemory) -> "Session":
        """The same for a model and texts in memory, in this process and without a run folder.

        Raises:
            InputError: If the input is invalid.
        """
        whole = Parts(1, [Share(0, 1)])
        session = _prepared(options, None, Path(), ProcessGroup(), Origin(time.monotonic(), ""), inputs, whole)
        session.begin(whole.own[0])
        return session

    def start(self) -> None:
        """Begin the run in its folder, which records from now on how it ends.

        Raises:
            InputError: If the folder cannot be written to.
        """
        with self.group.agreeing():  # nothing is saved before the main process has begun the run
            if self.results is not None:
                self.options.tracking = with_environment(self.options.tracking)
                self.results.begin(plain(self.options), self._first_checkpoint())
                remember_run(self.group.store, self.results.path)

    def begin(self, share: Share) -> None:
        """Turn to one of the parts, and continue where it was stopped if the run is resumed.

        Raises:
            InputError: If there is no usable example in the corpus, or the checkpoint does not fit the run.
        """
        for analysis in self.analyses:
            for accumulator in analysis.accumulators.values():
                accumulator.reset()
        self.counts.clear()
        self.checkpoint = self._checkpoint(share) if self.saves else None
        before = self.checkpoint if self.options.resume is not None else None
        saved = None if before is None else before.finished(self.analyses)
        self.finished, self.position = saved is not None, Position()
        if saved is not None:
            self.counts.add(saved)
            self.stream = BatchStream(lambda _counts: iter(()), self.counts)
            return
        self.stream = BatchStream(functools.partial(self.open_batches, share), self.counts)
        if share.of == 1 and self.options.merge is None:
            self._require_first_batches()
        if before is not None:
            self.position = before.resume(self.analyses, self.stream)

    def _require_first_batches(self) -> None:
        """Stop now if the corpus ends without a usable example for some of the analyses.

        Raises:
            InputError: If it does.
        """
        missing = {view.encoder.separate: view for view in self.views}

        def all_found(batch: Batch) -> bool:
            missing.pop(batch.paired, None)
            return not missing

        counts = self.stream.read_until(all_found)
        if counts is not None:
            require_examples(self, counts)

    def finish_part(self, position: Position) -> None:
        """Save the state of a whole part, if there are other parts or processes."""
        if self.checkpoint is not None and not self.finished and max(self.parts.number, self.group.size) > 1:
            self.checkpoint.save(self.analyses, position, self.counts)

    def reduce(self) -> None:
        """Merge the parts: the analyses and counts of the main process end up with those of the whole corpus.

        Raises:
            InputError: If another process has failed.
        """
        if self.parts.number == self.group.size:
            self.group.reduce(self.analyses, self.counts)
            return
        self.group.gathered(True)  # once every process has come here, all parts are saved
        if self.group.is_main:
            merge_saved(map(self._checkpoint, self.parts.all), self.analyses, self.counts)

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of a completed run."""
        for share in self.parts.all if self.saves else []:
            self._checkpoint(share).remove()

    def _first_checkpoint(self) -> dict[str, bytes]:
        """The checkpoint of a run that begins, by its name: it records the number of parts, so that a run that is killed before
        its first batch is continued with the same parts and gives the same bytes.
        """
        reads_corpus = self.options.merge is None and not self.options.prepare
        begun = self.options.resume is not None and saved_parts(self.folder) is not None
        if not (self.saves and reads_corpus) or begun:
            return {}
        checkpoint = self._checkpoint(self.parts.all[0])
        return {checkpoint.path.name: checkpoint.of_nothing()}

    def _checkpoint(self, share: Share) -> Checkpoint:
        """The checkpoint of one of the parts."""
        number = self.parts.number
        part = {} if number == 1 else {"the part of the corpus": f"{share.number} of {number}"}
        return Checkpoint(
            PeerFolder(self.folder) if self.results is None else self.results,
            identity(self) | part,
            self.options.checkpoint.every_seconds,
            file_of(share.number, number),
        )

    def _announce(self) -> None:
        model = self.model
        elsewhere = offloaded_to(model.model)
        say(
            f"{model.name}: {counted(model.layers, 'layer')} on {model.device}, {model.number_format}",
            *([f"weights offloaded to {' and '.join(elsewhere)}"] if elsewhere else []),
            f"matches the untouched model to {self.provenance.verification.error:.1e}",
        )

    def _announce_resumed(self) -> None:
        batches = sum(self.group.gathered(self.position.batches))
        finished = sum(self.group.gathered(self.finished))
        if not self.group.is_main:
            return
        if batches or finished:
            say(
                f"resuming after {counted(batches, 'batch', 'batches')}"
                + (
                    f"; {finished:,} of {counted(self.group.size, 'process', 'processes')} "
                    f"{'begins' if finished == 1 else 'begin'} with a part that is finished"
                    if finished
                    else ""
                )
            )
        if not self.saves:
            say(
                f"{self.folder} is not on a file system that all {self.group.size} processes share: this run cannot be resumed"
            )


def identity(session: Session) -> dict[str, object]:
    """What a resumed run must share with the stopped one, and the runs of all shards with each other."""
    config = flat(plain(session.options))
    return {key: value for key, value in config.items() if key.split(".")[0] not in INCIDENTAL} | {
        "the model's weights": session.model.weights_sha256,
        "torch": torch.__version__,
        "normscope": metadata.version("normscope"),
        **{f"the resource {name}": digest for name, digest in session.digests.items()},
    }


def _prepared(
    options: RunOptions,
    results: RunFolder | None,
    folder: Path,
    group: ProcessGroup,
    origin: Origin,
    inputs: Inputs,
    parts: Parts,
) -> Session:
    torch.manual_seed(options.seed)
    look = _look(options.figures)
    needs = _needs(options, inputs)
    model = inputs.load()
    feed_forward = any(requirements.feed_forward for requirements in needs.values())
    verification = model.layers_verification if feed_forward else model.verification
    _load_heads(model, needs.values())
    layers = chosen_layers(options.layers, model.layers)
    encoders = _encoders(options, model, needs, inputs)
    encoder = encoders[0]
    categories = chosen_categories(options.categories, [*encoder.categories.names, ALL])
    corpus = NumberedCorpus(inputs.open_corpus(options.dataset), divisible=not _numbers_rows(needs, model))
    observer = _observer(model, layers, needs.values())
    context = _context(options, model, encoder, observer, layers, categories)
    resources = {
        name: resource
        for own in encoders
        for name, resource in _resources(options, model, own, _of_view(needs, own), inputs, group).items()
    }
    analyses = _analyses(needs, context, {name: resource.value for name, resource in resources.items()})
    views = [_view(own, analyses, needs, inputs.info.hidden_size) for own in encoders]
    rule = _bias_rule(needs.values())
    added = sum(requirements.token_maps for requirements in needs.values())
    if group.is_main and corpus.undivided and any(share.of > 1 for share in parts.own):
        say(f"{corpus.undivided}: every process reads all of it; divide it into several files")
    texts = _texts(options, encoder, len(layers), maps_per_layer(model.layout, rule) + added, inputs)
    counts = CorpusCounts()
    return Session(
        options=options,
        group=group,
        results=results,
        folder=folder,
        model=model,
        views=views,
        observer=observer,
        layers=layers,
        categories=categories,
        analyses=analyses,
        texts=texts,
        bias_rule=rule,
        added_maps=added,
        digests={name: resource.digest for name, resource in resources.items()},
        states={name: resource.state for name, resource in resources.items() if resource.state is not None},
        prepared_identity=prepared_identity(options, _users(needs)),
        counts=counts,
        open_batches=functools.partial(_batches, options, corpus, views),
        parts=parts,
        total=corpus.total if all(share.of == 1 for share in parts.own) else None,  # the size of a share is not known
        provenance=Provenance(origin, options, model, verification, counts),
        look=look,
    )


def _look(options: FigureOptions) -> Appearance:
    """How figures will be drawn; the user's style has been tried."""
    look = appearance(options)
    if look.style:
        from normscope.reporting.trial import try_style  # imports matplotlib

        try_style(look)
    return look


def _needs(options: RunOptions, inputs: Inputs) -> dict[type[Analysis], Requirements]:
    """What the enabled analyses need of the model; cross-attention is observed if one of them requires it.

    Raises:
        InputError: If the model does not have it, or the analyses need nothing to be prepared.
    """
    kinds = _enabled(options)
    aligning = [kind.info.name for kind in kinds if kind.info.requires_cross_attention]
    others = [kind.info.name for kind in kinds if not kind.info.requires_cross_attention]
    if aligning and others and options.model.stack is None:
        raise InputError(
            f"analysis={aligning[0]} measures cross-attention, and analysis={others[0]} the encoder unless model.stack is set; "
            "set model.stack=cross to measure both on cross-attention, or start a run for each"
        )
    if aligning:
        options.model.stack = ModelStack.cross
    _refuse_other_attention(kinds, inputs.info)
    needs = {kind: kind.requirements(getattr(options.analysis, kind.info.name), inputs.info) for kind in kinds}
    _refuse_missing_feed_forward(needs, options.model, inputs.info)
    resources = [resource for requirements in needs.values() for resource in requirements.resources.values()]
    if options.prepare and not any(resource.reads_corpus for resource in resources):
        raise InputError(
            "prepare: the enabled analyses need nothing from the whole corpus; start the shards without it"
        )
    return needs


def _enabled(options: RunOptions) -> list[type[Analysis]]:
    known = known_analyses()
    return [known[name].load() for name in enabled_analyses(options.analysis)]


def _refuse_other_attention(kinds: Sequence[type[Analysis]], model: ModelInfo) -> None:
    for kind in kinds:
        if kind.info.requires_cross_attention and not model.is_cross_attention:
            raise InputError(
                f"analysis={kind.info.name} needs cross-attention, which is not observed here; set model.stack=cross"
            )
        if model.is_cross_attention and not kind.info.supports_cross_attention:
            others = [name for name, info in known_analyses().items() if info.supports_cross_attention]
            raise InputError(
                f"analysis={kind.info.name} does not support cross-attention; set model.stack=encoder or decoder, or choose "
                f"from {', '.join(others)}"
            )


def _refuse_missing_feed_forward(
    needs: Mapping[type[Analysis], Requirements], options: ModelOptions, model: ModelInfo
) -> None:
    for kind, requirements in needs.items():
        if requirements.feed_forward and not model.has_feed_forward:
            if model.layout is not None and model.layout.stack is None:
                raise InputError(
                    f"model.name={model.name}: analysis={kind.info.name} needs dense feed-forward networks, got a "
                    f"mixture of experts; set another model.name, or leave out analysis={kind.info.name}"
                )
            raise InputError(
                f"model.stack={options.stack}: analysis={kind.info.name} needs the feed-forward network, but a decoder's "
                "self-attention is followed by cross-attention; set model.stack=encoder or cross"
            )


def _load_heads(model: LoadedModel, needs: Iterable[Requirements]) -> None:
    """Load the heads that analyses use, now, since they may be damaged."""
    for requirements in needs:
        if requirements.language_head:
            _ = model.next_token_head, model.masked_language_head
        if requirements.classifier:
            _ = model.classifier


def _encoders(
    options: RunOptions, model: LoadedModel, needs: Mapping[type[Analysis], Requirements], inputs: Inputs
) -> list[Encoder]:
    """One for each way in which the analyses read pairs; that of pairs as sequences comes first."""
    values = _annotated_categories(options, inputs)
    encoders = [
        Encoder(model, options.dataset, _words(needs), values, separate=separate, level=options.level)
        for separate in sorted({requirements.pairs for requirements in needs.values()})
    ]
    if inputs.memory is not None:
        for encoder in encoders:
            encoder.memory = inputs.memory.sequences(options.dataset, encoder.identity)
    return encoders


def _of_view(needs: Mapping[type[Analysis], Requirements], encoder: Encoder) -> Mapping[type[Analysis], Requirements]:
    """What the analyses need that see the sequences of an encoder."""
    return {kind: requirements for kind, requirements in needs.items() if requirements.pairs == encoder.separate}


def _view(
    encoder: Encoder, analyses: Sequence[Analysis], needs: Mapping[type[Analysis], Requirements], hidden_size: int
) -> View:
    own = _of_view(needs, encoder)
    entries = hidden_size * sum(requirements.vectors_of_pairs for requirements in own.values())
    return View(encoder, [analysis for analysis in analyses if type(analysis) in own], entries)


def _words(needs: Mapping[type[Analysis], Requirements]) -> Segmenter | None:
    """The segmenter of the analysis that needs words, if any does."""
    return next((requirements.words for requirements in needs.values() if requirements.words is not None), None)


def _numbers_rows(needs: Mapping[type[Analysis], Requirements], model: LoadedModel) -> bool:
    """Whether something refers to examples by their rows: gold links, tables of pairs, messages about translations."""
    by_row = any(requirements.pairs or requirements.words is not None for requirements in needs.values())
    return by_row or model.decoder_inputs is not None


def _annotated_categories(options: RunOptions, inputs: Inputs) -> tuple[str, ...]:
    """The values of the column of annotated words that are categories, if `dataset.categories` names one."""
    column = options.dataset.categories
    return column_values(inputs.open_corpus(options.dataset), column) if isinstance(column, str) else ()


def _observer(model: LoadedModel, layers: Sequence[int], needs: Iterable[Requirements]) -> Observer:
    """An observer of exactly what the analyses need; the forward pass ends after the last of it."""
    needs = list(needs)
    hidden = range(model.layers + 1) if any(requirements.hidden for requirements in needs) else ()
    every = any(requirements.all_layers for requirements in needs)
    feed_forward = any(requirements.feed_forward for requirements in needs)
    layers = range(1, model.layers + 1) if every else layers
    return Observer(model.model, model.layout, layers, hidden, feed_forward=feed_forward)


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
        names=encoder.categories.names,
        special_tokens=encoder.categories.special,
        mask_token=model.tokenizer.mask_token_id,
        token=lambda token: str(model.tokenizer.convert_ids_to_tokens(token)),
        hidden_norms=observer.hidden_norms,
        methods=model.layout.methods,
        has_position_terms=not model.layout.registry,
        depth=model.layers,
        freezer=LayerFreezer(model.model, model.layout),
        own_pooling=lambda: pooling_of(model.folder, model.name),
        has_feed_forward=bool(model.layout.feed_forward),
        vocabulary=min(len(model.tokenizer), model.vocabulary),
        first_token=encoder.first_token,
        options=all_options(options.analysis),
    )


def _resources(
    options: RunOptions,
    model: LoadedModel,
    encoder: Encoder,
    needs: Mapping[type[Analysis], Requirements],
    inputs: Inputs,
    group: ProcessGroup,
) -> dict[str, Prepared]:
    """The resources of all analyses, by name; one that several need is prepared once."""
    wanted = {name: resource for requirements in needs.values() for name, resource in requirements.resources.items()}
    context = ResourceContext(options.dataset, encoder, model.vocabulary, inputs.open_corpus)
    readers = Readers(Share(group.rank, group.size).windows, group.agreeing, group.gathered)
    saved = saved_states(options, wanted, _users(needs))
    return prepare_resources(wanted, context, inputs.open_corpus, readers, saved)


def _users(needs: Mapping[type[Analysis], Requirements]) -> dict[str, str]:
    """The name of an analysis that needs each resource."""
    return {name: kind.info.name for kind, requirements in needs.items() for name in requirements.resources}


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


def _bias_rule(needs: Iterable[Requirements]) -> BiasRule | None:
    """The rule of the analysis that needs feed-forward networks, if any does."""
    return next((requirements.bias_rule for requirements in needs if requirements.feed_forward), None)


def _texts(options: RunOptions, encoder: Encoder, layers: int, maps: int, inputs: Inputs) -> list[ExplorerText]:
    if options.shard is not None or not options.report.enabled or not (options.report.examples or options.report.text):
        return []
    return select_examples(inputs.open_corpus(options.dataset), encoder, options.report, layers, maps)


def _batches(
    options: RunOptions, corpus: Corpus, views: Sequence[View], share: Share, counts: CorpusCounts
) -> Iterator[tuple[Batch, bool]]:
    """All batches that a share of the corpus is concerned with, and whether each belongs to it."""
    return share.batches(corpus, functools.partial(batches_of_views, views, options.device.batch_tokens), counts)


def require_examples(session: Session, counts: CorpusCounts) -> None:
    """Check that every analysis had an example.

    Args:
        session: The run.
        counts: The counts of the whole corpus.

    Raises:
        InputError: If one had none; the message has the reasons.
    """
    options = session.options
    for view, own in zip(session.views, counts_of(session.views, counts), strict=True):
        if own.used:
            continue
        what = "" if len(session.views) == 1 else f" for analysis={view.names}"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in own.skipped.items()) or "it has no rows"
        if options.dataset.kind is DatasetKind.text and options.dataset.path is None:  # texts in memory
            raise InputError(f"texts: no usable text{what} ({reasons})")
        where = options.dataset.path or options.dataset.kind
        # Some reasons name the key that they depend on; the others depend on what was read.
        unexplained = not own.skipped or any("dataset." not in reason for reason in own.skipped)
        keys = " and ".join(text_keys(options.dataset)) if unexplained else ""
        raise InputError(f"dataset {where}: no usable example{what} ({reasons}){keys and f'; check {keys}'}")
