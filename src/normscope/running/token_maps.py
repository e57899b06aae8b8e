"""Token maps: every pair of tokens of a few texts, for the report and for `normscope.decompose`."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.data.batching import Batch, collate
from normscope.data.encoding import Encoder
from normscope.data.examples import ROOT, Corpus, CorpusCounts, Example
from normscope.data.options import Level
from normscope.data.token_sequence import OwnInput, TokenSequence
from normscope.data.words import NO_WORD, unit_numbers, words_of_tokens
from normscope.errors import InputError
from normscope.maths.layer_composition import LAYER_STAGES, LayerStage
from normscope.maths.mixing import OF_STAGE
from normscope.maths.partition import Partition
from normscope.models.blocks.block import AttentionBlock
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.models.facts import ModelFacts
from normscope.models.load.input_reading import InputReader
from normscope.models.load.loaded import LoadedModel
from normscope.models.observe.check import Check
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from normscope.reporting.options import FEWEST_TOKENS, ReportOptions
from normscope.results.maps import DependencyTree, HeardSound, PatchedImage, TokenMap
from normscope.rounding import counted
from normscope.streams import Progress, no_bar

STRETCH, REGION = "stretch", "region"
"""What several frames of a sound, or several patches, are called that are shown as one."""

SHARE = "share"
"""The measure of signed shares."""

# Number of examples that are searched for short ones.
_SEARCHED = 500

# Values of all texts together, so that a report stays below 3 MB: three texts of 64 tokens with six layers of twelve heads
# fit. Each takes at most 2.1 bytes in the report and ten in the table.
_BUDGET = 1_260_000
# Maps per block: the mean weights, the norms of F, R and T, and the shares.
_MAPS = 5


def maps_per_layer(facts: ModelFacts, *, feed_forward: bool) -> int:
    """The number of maps of a layer, without those of single heads, as far as the size of a report is concerned.

    Args:
        feed_forward: Whether there are maps through the feed-forward networks.
    """
    # The first stage of the layer is the last one of its attention block.
    of_network = max(len(LAYER_STAGES[position]) for position in facts.norm_positions) - 1
    return _MAPS + (of_network if feed_forward else 0)


@dataclasses.dataclass(frozen=True, eq=False)
class ExplorerText:
    """A text whose token maps are drawn, from the corpus or from the user."""

    sequence: TokenSequence
    cut: bool
    """Whether it was truncated to these tokens."""

    @property
    def pairs(self) -> int:
        """The number of pairs of a query and a key, or of words; in cross-attention the keys are the source's."""
        sequence = self.sequence
        queries = _number(sequence.input_ids, sequence.units)
        return queries * max(queries, _number(sequence.source_ids, sequence.source_units))


def _number(ids: np.ndarray | None, units: np.ndarray | None) -> int:
    """The number of tokens, or of words if these are measured."""
    if ids is None:
        return 0
    return len(ids) if units is None else int(units.max(initial=-1)) + 1


def select_examples(
    corpus: Corpus,
    encoder: Encoder,
    options: ReportOptions,
    layers: int,
    maps: int = _MAPS,
    reader: InputReader | None = None,
) -> list[ExplorerText]:
    """The user's text; otherwise the first texts of the corpus that are short enough, then the first longer ones.

    Longer texts are truncated to `report.tokens`, or further if the model has many layers, and analysed as if they ended there.

    Args:
        corpus: Provides the texts, unless the user gives one.
        encoder: Turns them into token sequences.
        options: The number of texts and their maximum length, or the user's text.
        layers: Number of analysed layers.
        maps: See `maps_per_layer`.
        reader: Knows the grids of images, whose patches are merged into regions if there are more than `report.tokens`.

    Raises:
        InputError: If the user's text is empty or too long for the model.
    """
    longest = max(FEWEST_TOKENS, min(options.tokens, math.isqrt(_BUDGET // (maps * layers))))
    window = encoder.windowed(longest)
    if options.text is not None:
        return [_user_text(options.text, encoder.unmasked(), window)]
    short: list[ExplorerText] = []
    cut: list[ExplorerText] = []
    for example in itertools.islice(corpus.examples(), _SEARCHED):
        if len(short) == options.examples:
            break
        if isinstance(example, str):  # why it is skipped
            continue
        sequences = window.encode([example], counts := CorpusCounts())
        if sequences:
            sequence = _in_regions(_in_stretches(sequences[0], longest), longest, reader)
            (cut if counts.cut else short).append(ExplorerText(sequence, bool(counts.cut)))
            del cut[options.examples :]
    return [*short, *cut][: options.examples]


def _user_text(text: str, encoder: Encoder, window: Encoder) -> ExplorerText:
    source, _, target = text.partition(" ||| ")
    # Where the texts of a pair are sequences of their own, the first is shown: a single text needs no second one.
    example = Example(source, target or (source if encoder.separate else None))
    if not encoder.encode([example], counts := CorpusCounts()) or counts.cut:
        raise InputError(
            f"report.text: expected a text within the model's maximum length, or `text ||| second text`; got one with "
            f"{'too many' if counts.cut else 'no'} tokens"
        )
    (sequence,) = window.encode([example], counts)
    return ExplorerText(dataclasses.replace(sequence, second=None), bool(counts.cut))


def token_maps(
    model: LoadedModel,
    encoder: Encoder,
    texts: Sequence[ExplorerText],
    layers: Sequence[int],
    *,
    feed_forward: bool = False,
    added_maps: int = 0,
    add: Callable[[Batch], Mapping[str, np.ndarray]] = lambda _batch: {},
    progress: Progress = no_bar,
) -> tuple[list[TokenMap], list[str]]:
    """Every pair of tokens of the texts, layer by layer, within the size limit of the report.

    Args:
        model: The model to observe.
        encoder: Makes batches.
        texts: See `select_examples`.
        layers: Layers to show, counted from 1.
        feed_forward: Whether to add maps through the feed-forward networks to those of the attention blocks.
        added_maps: Number of maps per layer that `add` returns, at most.
        add: Returns more maps of a text, by measure: layer, query, key.
        progress: Shows how far it is.

    Returns:
        The maps, and notes about what is missing. A text whose single heads exceed the limit is shown without them; one that
        exceeds it altogether is left out, and the model is not run on it.
    """
    observer = Observer(model.model, model.facts, layers, feed_forward=feed_forward, projections=False)
    maps = maps_per_layer(model.facts, feed_forward=feed_forward) + added_maps
    # Between words, ‖αf(x)‖ is no product of α and ‖f(x)‖, so both are kept for every pair.
    merged = encoder.level is Level.word or any(text.sequence.own is not None for text in texts)
    heads = model.facts.heads_of[layers[0]] * (1 + merged)
    made, left_out, remaining = [], [], _BUDGET
    for number, text in enumerate(progress(texts, len(texts), "texts"), start=1):
        values = text.pairs * len(layers)
        if values * maps > remaining:
            left_out.append(number)
            continue
        facts = model.facts  # the explorer's layers have the same heads
        single_heads = values * (heads + maps) <= remaining and not (facts.is_gated or facts.heads_differ)
        remaining -= values * (maps + single_heads * heads)
        token_map = _map(model, encoder, text, observer, layers, single_heads, feed_forward)
        added = add(collate([text.sequence], encoder).to(model.device))
        more = {name: values.astype(np.float32) for name, values in added.items()}
        made.append(dataclasses.replace(token_map, maps={**token_map.maps, **more}))
    return made, _notes(texts, made, left_out)


def _notes(texts: Sequence[ExplorerText], made: Sequence[TokenMap], left_out: Sequence[int]) -> list[str]:
    shown = [text for number, text in enumerate(texts, start=1) if number not in left_out]
    cut = [number for number, text in enumerate(shown, start=1) if text.cut]
    blocks = [number for number, token_map in enumerate(made, start=1) if not token_map.head_maps]
    notes = []
    if cut:
        longest = max(len(shown[number - 1].sequence.input_ids) for number in cut)
        notes.append(
            f"{counted(len(cut), 'text is', 'texts are')} truncated to at most {longest} tokens (report.tokens)"
        )
    if any(token_map.unit == REGION for token_map in made):
        notes.append("neighbouring patches are shown as one region, named by its upper left patch (report.tokens)")
    if blocks:
        notes.append(f"{counted(len(blocks), 'example is', 'examples are')} shown without individual heads")
    if left_out:
        notes.append(
            f"{counted(len(left_out), 'more example is', 'more examples are')} left out because the report would be "
            "too large (report.examples)"
        )
    return notes


def _map(
    model: LoadedModel,
    encoder: Encoder,
    text: ExplorerText,
    observer: Observer,
    layers: Sequence[int],
    single_heads: bool,
    feed_forward: bool,
) -> TokenMap:
    batch = collate([text.sequence], encoder)
    words = batch.keys.units is not None

    def heads(units: GroupedBlock) -> dict[str, Tensor]:
        if not single_heads:
            return {}
        # Between words, ‖αf(x)‖ is not the product of α and ‖f(x)‖.
        weights, vectors = units.head_maps() if words else (units.block.weights, units.block.transformed_norms)
        return {"head_w": weights[0], "head_n": vectors[0]}

    on_device = batch.to(model.device)
    found = pair_maps(observer, on_device, heads, feed_forward=feed_forward, in_double=False)
    maps = {name: values.float().numpy() for name, values in found.items()}
    head_maps, norms = {}, None
    if single_heads:
        head_maps["attn_w"], vectors = maps.pop("head_w"), maps.pop("head_n")
        if words:
            head_maps["attn_n"] = vectors
        else:
            norms = vectors
    about = without_values(model, batch)
    title = f"{about.title} …" if text.cut else about.title
    names, numbers = encoder.categories.names, batch.keys.measured.categories[0].tolist()
    return dataclasses.replace(
        about,
        title=title,
        layers=tuple(layers),
        maps=maps,
        head_maps=head_maps,
        norms=norms,
        categories=tuple(names[number] for number in numbers),
    )


def pair_maps(
    observer: Observer,
    batch: Batch,
    beside: Callable[[GroupedBlock], Mapping[str, Tensor]],
    *,
    queries: Int[Tensor, " query"] | None = None,
    measures: Collection[str] | None = None,
    feed_forward: bool = False,
    in_double: bool = True,
) -> dict[str, Float[Tensor, "layer ..."]]:
    """What every query of a batch of one takes from every key, by measure: layer, query, key, in float64 on the CPU.

    Args:
        observer: Observes the layers, and their networks if maps go through them.
        batch: On the model's device.
        beside: Returns further values of a block, by name.
        queries: The positions of the queries; all by default.
        measures: The wanted maps of blocks besides the weights; all by default.
        feed_forward: Whether to add maps through the feed-forward networks.
        in_double: Whether these are computed in float64, or as the model does.
    """
    layers, sources = _Layers(len(observer.parameters)), batch.keys.partition
    targets = batch.partition if queries is None else Partition.tokens(batch.token_mask, queries)

    def visit(block: AttentionBlock) -> None:
        units = GroupedBlock(block, targets, sources)
        norms = None if measures is None else [method for method in OF_STAGE.values() if method in measures]
        of_block = {str(method): values[0] for method, values in units.maps(norms).items()}
        if measures is not None:
            of_block = {name: values for name, values in of_block.items() if name in ("attn_w", *measures)}
        if measures is None or SHARE in measures:
            of_block[SHARE] = units.pair_shares()[0]
        layers.add(**of_block, **beside(units))

    def visit_feed_forward(block: FeedForwardBlock) -> None:
        stages = block.pair_maps(targets, sources, in_double=in_double)
        layers.extend(**{f"{stage}_n": maps[0] for stage, maps in stages.items() if stage is not LayerStage.BLOCK})

    with observer:
        of_networks = visit_feed_forward if feed_forward else None
        observer.run(batch.model_inputs(), visit, visit_feed_forward=of_networks, check=Check.TEXTS)
    return layers.of_all()


class _Layers:
    """Tensors of layers by name, in float64 on the CPU: each is copied once, and not at all if there is one layer."""

    def __init__(self, count: int) -> None:
        self._maps: dict[str, Tensor] = {}
        self._added: Counter[str] = Counter()
        self._count, self._done = count, 0

    def of_all(self) -> dict[str, Tensor]:
        """What all layers have."""
        return {name: tensor for name, tensor in self._maps.items() if self._added[name] == self._count}

    def add(self, **values: Tensor) -> None:
        """Add what belongs to the next layer."""
        self._done += 1
        self.extend(**values)

    def extend(self, **values: Tensor) -> None:
        """Add more of the same layer."""
        for name, of_layer in values.items():
            self._added[name] += 1
            if self._count == 1:
                self._maps[name] = of_layer.cpu().double().unsqueeze(0)
                continue
            if name not in self._maps:
                self._maps[name] = torch.empty(self._count, *of_layer.shape, dtype=torch.float64)
            self._maps[name][self._done - 1] = of_layer


def without_values(model: LoadedModel, batch: Batch) -> TokenMap:
    """The token map of a batch of one, before anything is measured: its title, tokens, words and tree.

    The title is the text as the tokenizer decodes it, source → target in an encoder–decoder's decoder, or an input's own.
    """
    sides = [batch] if batch.source is None else [batch.source, batch]
    queries, keys = (_texts_of(model, side) for side in (batch, batch.keys))
    special = set(map(str, model.tokenizer.all_special_tokens))
    tree = None
    words: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = None, None
    if batch.units is None:
        words = words_of_tokens(queries, special), words_of_tokens(keys, special)
    if batch.sentences and not batch.is_cross_attention and (annotated := _annotated(batch)) is not None:
        numbers, tree = annotated
        words = words if batch.units is not None else (numbers, numbers)
    query_words, key_words = words if None not in words else (None, None)
    sound = heard_sound(batch.keys)
    return TokenMap(
        title=" → ".join(
            str(model.tokenizer.decode(side.input_ids[0].tolist(), skip_special_tokens=True))
            if side.own is None
            else side.own.titles[0]
            for side in sides
        ),
        queries=queries,
        keys=keys,
        is_cross_attention=batch.is_cross_attention,
        query_words=query_words,
        key_words=key_words,
        tree=tree,
        unit=str(_unit_of(batch)),
        image=patched_image(model, batch),
        sound=sound,
    )


def _texts_of(model: LoadedModel, side: Batch) -> tuple[str, ...]:
    """What the tokens of a batch of one are called, or its words."""
    if side.own is None or model.reader is None:
        return side.unit_texts(model.tokenizer)
    places = side.input_ids[0].tolist() if side.units is None else side.partition.first[0].tolist()
    return tuple(model.reader.names[place] for place in places)


def _unit_of(batch: Batch) -> str:
    """What the queries of a batch are called."""
    if batch.units is None or (batch.is_cross_attention and batch.keys.own is not None):
        return Level.token
    if batch.own is None:
        return Level.word
    return STRETCH if batch.own.sounds else REGION


def heard_sound(side: Batch) -> HeardSound | None:
    """The sound whose frames, or stretches of them, are the tokens of a batch of one."""
    if side.own is None or not side.own.sounds:
        return None
    (sound,) = side.own.sounds
    low, high = (tuple(ends.tolist()) for ends in sound.extremes[: sound.frames].T)
    each = 1 if side.units is None else int((side.units[0] == 0).sum())
    return HeardSound(low, high, sound.seconds, each * sound.seconds, math.ceil(sound.frames / each))


def _in_stretches(sequence: TokenSequence, most: int) -> TokenSequence:
    """A sound whose frames are merged into at most so many stretches of one length, without padding after it."""
    if sequence.own is None or not sequence.own.sounds:
        return sequence
    (sound,) = sequence.own.sounds
    each = math.ceil(sound.frames / most)
    places = np.arange(len(sound.loudness))
    units = np.where(places < sound.frames, places // each, NO_WORD)
    if sequence.source_ids is None:
        return dataclasses.replace(sequence, units=units)
    return dataclasses.replace(sequence, units=np.arange(len(sequence.input_ids)), source_units=units)


def _in_regions(sequence: TokenSequence, most: int, reader: InputReader | None) -> TokenSequence:
    """An image whose patches are merged into at most so many squares of patches; those at the end may be smaller."""
    if sequence.own is None or reader is None or sequence.units is not None:
        return sequence
    grid = reader.geometry(sequence.own).grid
    if grid is None:
        return sequence
    side = next(side for side in range(1, max(grid) + 1) if math.prod(_regions(grid, side)) <= most)
    row, column = np.divmod(np.arange(math.prod(grid)), grid[1])
    before = len(sequence.input_ids) - math.prod(grid)
    of_patches = before + row // side * _regions(grid, side)[1] + column // side
    return sequence if side == 1 else dataclasses.replace(sequence, units=np.r_[:before, of_patches])


def _regions(grid: tuple[int, int], side: int) -> tuple[int, int]:
    """Rows and columns of squares of patches."""
    return math.ceil(grid[0] / side), math.ceil(grid[1] / side)


def patched_image(model: LoadedModel, batch: Batch) -> PatchedImage | None:
    """The image whose patches are tokens of a batch of one; several of one size make one."""
    if batch.own is not None and batch.own.images:
        return None if model.image_texts is None else _mosaic(batch.own, model.image_texts.pixels(batch.own))
    if model.reader is None or batch.own is None:
        return None
    grid, pixels = model.reader.geometry(batch.own).grid, model.reader.pixels(batch.own)
    if grid is None or pixels is None:
        return None
    before = batch.input_ids.shape[1] - math.prod(grid)
    if batch.units is not None:
        side = int((batch.units[0, before : before + grid[1]] == batch.units[0, before]).sum())
        height, width = pixels.shape[0] // grid[0], pixels.shape[1] // grid[1]
        (rows, columns), grid = grid, _regions(grid, side)
        below, right = (grid[0] * side - rows) * height, (grid[1] * side - columns) * width
        pixels = np.pad(pixels, ((0, below), (0, right), (0, 0)), constant_values=255)
    return PatchedImage(pixels, grid, tuple(range(before, before + math.prod(grid))), batch.own.titles[0])


def _mosaic(own: OwnInput, pictures: Sequence[np.ndarray]) -> PatchedImage | None:
    """The images within a text that have the size of the first one: the tiles of an image where they belong.

    Args:
        pictures: What is seen on each.
    """
    first, size = own.images[0], pictures[0].shape
    if first.grid is None:
        return None
    both = [*zip(own.images, pictures, strict=True)]
    alike = [image for image, seen in both if image.grid == first.grid and seen.shape == size]
    frames = np.stack([seen for image, seen in both if image in alike])
    across = _columns(frames)
    rows = -(-len(alike) // across)
    blank = rows * across - len(alike)
    frames = np.concatenate([frames, np.full((blank, *size), 255, dtype=np.uint8)])
    places = np.full((rows * across, *first.grid), PatchedImage.BLANK)
    places[: len(alike)] = [np.reshape(each.places, first.grid) for each in alike]
    pixels, joined = _tiled(frames, across), _tiled(places, across)
    at = tuple(joined.flatten().tolist())
    return PatchedImage(pixels, (joined.shape[0], joined.shape[1]), at, own.titles[0], within_text=True)


def _tiled(frames: np.ndarray, across: int) -> np.ndarray:
    """Frames of one size as a single one: frame, row, column, …, with so many in a row."""
    lines = frames.reshape(-1, across, *frames.shape[1:]).swapaxes(1, 2)
    return lines.reshape(lines.shape[0] * lines.shape[1], across * frames.shape[2], *frames.shape[3:])


def _columns(frames: np.ndarray) -> int:
    """How many of some images are shown in a row: as many as make the smoothest seams between tiles that the whole image
    follows."""
    tiles = frames[:-1].astype(float)
    if len(tiles) < 2:
        return len(frames)

    def roughness(across: int) -> float:
        lines = tiles.reshape(-1, across, *tiles.shape[1:])
        seams = lines[:, :-1, :, -1] - lines[:, 1:, :, 0], lines[:-1, :, -1] - lines[1:, :, 0]
        return float(np.abs(np.concatenate([each.ravel() for each in seams])).mean())

    return min((count for count in range(1, len(tiles) + 1) if len(tiles) % count == 0), key=roughness)


def _annotated(batch: Batch) -> tuple[tuple[int, ...], DependencyTree] | None:
    """The words of the corpus and their tree, of a batch of one; None without a tree."""
    (sentence,), words = batch.sentences, batch.words
    heads = None if sentence is None else sentence.annotation.heads
    if sentence is None or words is None or heads is None:
        return None
    annotation = sentence.annotation
    numbers = unit_numbers(words[0].tolist()).tolist()
    of_word = {word: number for word, number in zip(words[0].tolist(), numbers, strict=True) if word != NO_WORD}
    relations = annotation.columns.get("deprel", ("",) * len(annotation.spans))
    ends = [of_word.get(owner) for owner in sentence.owners]
    arcs = [
        (dependent, ends[head], relation)
        for dependent, head, relation in zip(ends, heads, relations, strict=True)
        if head != ROOT
    ]
    joined = tuple((d, h, r) for d, h, r in arcs if d is not None and h is not None and d != h)
    return tuple(numbers), DependencyTree(tuple(of_word.values()), joined)
