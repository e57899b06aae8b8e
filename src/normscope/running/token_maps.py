"""Looks at a few sentences pair by pair, for the explorer of a report and for `normscope.decompose`."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from normscope.config.schema import ReportOptions
from normscope.config.validation import FEWEST_TOKENS
from normscope.data.batching import collate
from normscope.data.encoding import Encoder
from normscope.data.examples import Corpus, CorpusCounts, Example
from normscope.data.token_sequence import TokenSequence
from normscope.errors import InputError
from normscope.maths.mixing import Method
from normscope.models.block import AttentionBlock
from normscope.models.loaded import LoadedModel
from normscope.models.observer import Observer
from normscope.reporting.explorer import TokenMaps

# Examples among which short ones are looked for.
_LOOKED_AT = 500

# Numbers of all texts together: the page holds each in 2.7 bytes, the table in ten at most.
_BUDGET = 1_900_000
# Maps of a block: its mean weights, and norms of F, R and T.
_MAPS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class ExplorerText:
    """A text of the corpus, or the user's, for the explorer."""

    sequence: TokenSequence
    cut: bool
    """Whether it goes on after these tokens."""

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key; in cross-attention the keys are the source's."""
        sequence = self.sequence
        return len(sequence.input_ids) * max(
            len(sequence.input_ids), 0 if sequence.source_ids is None else len(sequence.source_ids)
        )


def select_examples(corpus: Corpus, encoder: Encoder, options: ReportOptions, layers: int) -> list[ExplorerText]:
    """The texts of the explorer: the user's, or the corpus's first that are short enough, and then its first longer ones.

    Longer ones are cut to `report.tokens`, or to what the explorer can hold of so many layers: their numbers are those of a
    text that ends there.

    Args:
        corpus: Where texts are taken from, unless the user has given one.
        encoder: Makes token sequences of them.
        options: How many texts, and of how many tokens.
        layers: Number of layers that are looked at.

    Raises:
        InputError: If the user's text cannot be shown to the model.
    """
    window = encoder.windowed(max(FEWEST_TOKENS, min(options.tokens, math.isqrt(_BUDGET // (_MAPS * layers)))))
    if options.text is not None:
        return [_own_text(options.text, encoder.unmasked(), window)]
    short: list[ExplorerText] = []
    cut: list[ExplorerText] = []
    for example in itertools.islice(corpus.examples(), _LOOKED_AT):
        if len(short) == options.examples:
            break
        if isinstance(example, str):  # why it is skipped
            continue
        sequences = window.encode([example], counts := CorpusCounts())
        if sequences:
            (cut if counts.cut else short).append(ExplorerText(sequences[0], bool(counts.cut)))
            del cut[options.examples :]
    return [*short, *cut][: options.examples]


def _own_text(text: str, encoder: Encoder, window: Encoder) -> ExplorerText:
    source, _, target = text.partition(" ||| ")
    example = Example(source, target or None)
    if not encoder.encode([example], counts := CorpusCounts()) or counts.cut:
        raise InputError(
            f"report.text: expected one text that the model takes whole, or `text ||| second text`; it has "
            f"{'too many' if counts.cut else 'no'} tokens for this model"
        )
    (sequence,) = window.encode([example], counts)
    return ExplorerText(sequence, bool(counts.cut))


def token_maps(
    model: LoadedModel, encoder: Encoder, texts: Sequence[ExplorerText], layers: Sequence[int]
) -> tuple[list[TokenMaps], list[str]]:
    """Every pair of tokens of some texts, layer by layer, as far as the report has room for them.

    Returns:
        The texts, and a note for each kind of thing that is not shown. A text whose single heads do not fit is shown
        without them; one of which nothing fits is left out, and the model does not see it.
    """
    observer = Observer(model.model, model.layout, layers)
    heads = observer.parameters[layers[0]].output_weight.shape[0]
    sentences, left_out, room = [], [], _BUDGET
    for number, text in enumerate(texts, start=1):
        numbers = text.pairs * len(layers)
        if numbers * _MAPS > room:
            left_out.append(number)
            continue
        single_heads = numbers * (heads + _MAPS) <= room
        room -= numbers * (_MAPS + single_heads * heads)
        sentences.append(_sentence(model, encoder, text, observer, layers, single_heads))
    return sentences, _notes(texts, sentences, left_out)


def _notes(texts: Sequence[ExplorerText], sentences: Sequence[TokenMaps], left_out: Sequence[int]) -> list[str]:
    shown = [text for number, text in enumerate(texts, start=1) if number not in left_out]
    cut = [number for number, text in enumerate(shown, start=1) if text.cut]
    blocks = [number for number, sentence in enumerate(sentences, start=1) if not sentence.single_heads]
    notes = []
    if cut:
        longest = max(len(shown[number - 1].sequence.input_ids) for number in cut)
        notes.append(f"{_count(cut, 'text')} cut to {longest} tokens at most (report.tokens)")
    if blocks:
        notes.append(f"{_count(blocks, 'text')} shown without single heads")
    if left_out:
        notes.append(f"{_count(left_out, 'more text')} left out for lack of room (report.examples)")
    return notes


def _count(numbers: Sequence[int], noun: str) -> str:
    return f"{len(numbers)} {noun}{' is' if len(numbers) == 1 else 's are'}"


def _sentence(
    model: LoadedModel,
    encoder: Encoder,
    text: ExplorerText,
    observer: Observer,
    layers: Sequence[int],
    single_heads: bool,
) -> TokenMaps:
    batch = collate([text.sequence], encoder)
    weights: list[np.ndarray] = []
    norms: list[np.ndarray] = []
    block_maps: list[dict[str, np.ndarray]] = []

    def visit(block: AttentionBlock) -> None:
        maps = {str(method): values[0].float().numpy() for method, values in block.pair_maps().items()}
        mean = maps.pop(Method.ATTN_W)
        block_maps.append(maps)
        weights.append(block.weights[0].float().cpu().numpy() if single_heads else mean[None])
        norms.append(block.transformed_norms[0].float().cpu().numpy())

    with observer:
        observer.run(batch.to(model.device).model_inputs(), visit)
    sides = [batch] if batch.source is None else [batch.source, batch]
    words = [model.tokenizer.convert_ids_to_tokens(side.input_ids[0].tolist()) for side in (batch, batch.keys)]
    title = " → ".join(_text(model, side.input_ids[0].tolist()) for side in sides)
    return TokenMaps(
        title=f"{title} …" if text.cut else title,
        queries=tuple(map(str, words[0])),
        keys=tuple(map(str, words[1])),
        is_cross_attention=batch.is_cross_attention,
        layers=tuple(layers),
        single_heads=single_heads,
        weights=np.stack(weights),
        norms=np.stack(norms),
        maps={
            name: np.stack([maps[name] for maps in block_maps])
            for name in block_maps[0]
            if all(name in maps for maps in block_maps)
        },
    )


def _text(model: LoadedModel, tokens: list[int]) -> str:
    return str(model.tokenizer.decode(tokens, skip_special_tokens=True))
