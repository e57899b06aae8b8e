"""Looks at a few sentences pair by pair, for the explorer of a report and for `normscope.decompose`."""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from normscope.data.batching import collate
from normscope.data.encoding import Encoder
from normscope.data.examples import Corpus, CorpusCounts, Example
from normscope.data.sequences import TokenSequence
from normscope.errors import InputError
from normscope.maths.norms import pair_norms, replaced_diagonal, scaled_output_weight
from normscope.models.block import AttentionBlock
from normscope.models.loaded import LoadedModel
from normscope.models.observer import Observer
from normscope.reporting.explorer import ExploredSentence
from normscope.schema import ReportOptions

# Examples among which short ones are looked for.
_LOOKED_AT = 500


def chosen_sequences(corpus: Corpus, encoder: Encoder, options: ReportOptions) -> list[TokenSequence]:
    """The sentences of a report: the user's, or the corpus's first that are short enough, or else its shortest.

    Raises:
        InputError: If the user's text cannot be shown to the model.
    """
    encoder = encoder.unmasked()
    if options.text is not None:
        source, _, target = options.text.partition(" ||| ")
        found = encoder.encode([Example(source, target or None)], counts := CorpusCounts())
        if not found or counts.cut:
            raise InputError(
                f"report.text: expected one text that the model takes whole, or `text ||| second text`; it has "
                f"{'too many' if counts.cut else 'no'} tokens for this model"
            )
        return found
    short: list[TokenSequence] = []
    others: list[TokenSequence] = []
    for example in itertools.islice(corpus.examples(), _LOOKED_AT):
        if len(short) == options.examples:
            break
        found = [] if isinstance(example, str) else encoder.encode([example], CorpusCounts())[:1]
        for sequence in found:
            (short if _length(sequence) <= options.tokens else others).append(sequence)
    return [*short, *sorted(others, key=_length)][: options.examples]


def _length(sequence: TokenSequence) -> int:
    return max(len(sequence.input_ids), 0 if sequence.source_ids is None else len(sequence.source_ids))


def explored(
    model: LoadedModel, encoder: Encoder, sequences: Sequence[TokenSequence], layers: Sequence[int]
) -> list[ExploredSentence]:
    """Every pair of tokens of some sequences, layer by layer."""
    observer = Observer(model.model, model.layout, layers)
    sentences = []
    for sequence in sequences:
        batch = collate([sequence], encoder)
        found: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []

        def visit(block: AttentionBlock, found=found) -> None:  # type: ignore[no-untyped-def]
            maps = pair_maps(block)
            del maps["weights"]
            found.append((block.weights[0].float().cpu(), block.transformed_norms[0].float().cpu(), maps))

        with observer:
            observer.run(batch.to(model.device).model_inputs(), visit)
        sides = [batch] if batch.source is None else [batch.source, batch]
        words = [model.tokenizer.convert_ids_to_tokens(side.input_ids[0].tolist()) for side in (batch, batch.keys)]
        sentences.append(
            ExploredSentence(
                title=" → ".join(_text(model, side.input_ids[0].tolist()) for side in sides),
                queries=tuple(map(str, words[0])),
                keys=tuple(map(str, words[1])),
                crosses=batch.crosses,
                layers=tuple(layers),
                weights=np.stack([weights.numpy() for weights, _, _ in found]),
                norms=np.stack([norms.numpy() for _, norms, _ in found]),
                maps={
                    name: np.stack([maps[name].float().numpy() for _, _, maps in found])
                    for name in found[0][2]
                    if all(name in maps for _, _, maps in found)
                },
            )
        )
    return sentences


def _text(model: LoadedModel, tokens: list[int]) -> str:
    return str(model.tokenizer.decode(tokens, skip_special_tokens=True))


def pair_maps(block: AttentionBlock) -> dict[str, Tensor]:
    """Norms of every pair's vectors in a block of one sequence, as far as it has them; `weights`: the mean over heads.

    Added up in float64 from the model's own activations.
    """
    weights, value = block.weights.cpu().double(), block.value.cpu().double()
    output_weight = block.parameters.output_weight.cpu().double()
    preserving, inputs = block.preserving.cpu().double(), block.inputs.cpu().double()
    vectors = pair_norms(weights, value, output_weight)
    maps = {"weights": weights.mean(dim=1), "attn_n": vectors}
    if block.crosses:  # what is kept comes from no key
        return {name: tensor[0] for name, tensor in maps.items()}
    if block.norm_position != "branch":
        maps["attnres_n"] = replaced_diagonal(vectors, torch.linalg.vector_norm(preserving + inputs, dim=-1))
    if block.normalisation is not None:
        norm = block.normalisation._replace(weight=block.normalisation.weight.cpu().double())
        deviation = block.deviation.cpu().double().unsqueeze(-1)
        scaled = pair_norms(weights, value, scaled_output_weight(output_weight, norm)) / deviation
        if block.norm_position == "branch":
            own = norm.scaled(preserving) / deviation + inputs
        else:
            own = norm.scaled(preserving + inputs) / deviation
        maps["attnresln_n"] = replaced_diagonal(scaled, torch.linalg.vector_norm(own, dim=-1))
    return {name: tensor[0] for name, tensor in maps.items()}
