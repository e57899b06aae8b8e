"""The comparison of what is observed with what the model does, on the texts that it is run on.

The proof at load sees a few short probes. A model may do something else with a longer text, or with one that holds some token,
so whatever a pass promises is compared in that pass: what attention and the network read, the values, Σ αf(x), the block's sum
and its norm, what the network computes, what leaves the layer, and what the next one reads. In Python every token is compared,
and every layer with that of the untouched model on the same input (`untouched.py`). In runs, every batch is compared at some
of its tokens, and every text that is longer or shorter than all before it, or drawn, as in Python.
"""

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.maths.attention_weights import LARGE_SCORES
from normscope.maths.composition import after_norm, read_by_norm
from normscope.maths.normalisation import Normalisation
from normscope.models.blocks.block import AttentionBlock, full_precision
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.identities import Difference, Rest, difference_in_words, rebuilt, row_error, side_by_side
from normscope.models.sites.block_modules import BlockModules
from normscope.models.sites.layer_hooks import vectors_from
from normscope.models.sites.layout import ModelLayout, by_size

ROWS_OF_A_TEXT = 1
"""Tokens of every text of a batch that are compared in runs, beside one new token id for every fourth text."""

_QUERIES_OF_LONGEST = 32
"""Queries, spread evenly, whose α are added up in a text that is longer than all before: attention may be local in it."""

_STREAM = "stream"
"""The part that lies between a layer and the one before it."""


class Check(enum.Enum):
    """How much of a pass is compared."""

    NOTHING = enum.auto()
    SOME = enum.auto()
    """Some tokens of every text, new positions, and some token ids that no earlier pass has compared."""
    TEXTS = enum.auto()
    """All tokens, and every layer with that of the untouched model."""


class TextCheck:
    """Compares passes, and knows which token ids and positions have been compared.

    Args:
        name: The model's name, for messages.
        bound: The relative difference from which on a comparison fails.
        dtype: That of the model.
        layout: Its layout.
        modules: The modules of all layers that have a block.
    """

    def __init__(
        self,
        name: str,
        bound: float,
        dtype: torch.dtype,
        layout: ModelLayout,
        modules: Mapping[int, BlockModules],
    ) -> None:
        self.name, self.bound, self.dtype = name, bound, dtype
        self.layout, self.modules = layout, modules
        self.rest: Mapping[int, Rest] = {}
        """What computes the rest of each layer, where the proof has found it."""
        self.large: dict[int, bool] = {}
        """Whether some scores of each layer have been large, by layer."""
        self.only: Int[Tensor, " token"] | None = None
        """The tokens of the first text that `Check.SOME` compares; it chooses some itself if this is None."""
        self._output_norms: dict[int, Normalisation] = {}
        self._ids = torch.zeros(0, dtype=torch.bool)
        """Token ids that have been compared."""
        self._positions = 0
        """Number of positions that have been compared."""
        self._generator = torch.Generator().manual_seed(0)
        self._passes = 0

    def watched(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """The modules whose inputs are compared, and those whose outputs are, once each."""
        read: dict[int, nn.Module] = {}
        written: dict[int, nn.Module] = {}
        for modules in self.modules.values():
            for module in (modules.norm, modules.sum_consumer, modules.output_norm):
                if module is not None:
                    read[id(module)] = module
            if modules.norm is not None:
                written[id(modules.norm)] = modules.norm
        written |= {id(rest.module): rest.module for rest in self.rest.values()}
        return [*read.values()], [*written.values()]

    def output_norm(self, modules: BlockModules, device: torch.device) -> Normalisation:
        """The weights of the norm whose output leaves a layer."""
        if modules.layer not in self._output_norms:
            self._output_norms[modules.layer] = self.layout.normalisation(modules.output_norm, device)
        return self._output_norms[modules.layer]

    def begin(
        self, check: Check, token_mask: Tensor, on_host: Mapping[str, Tensor] | None, ids: Tensor
    ) -> "PassCheck | None":
        """What compares the next pass; None if nothing is to be compared, or the device has no numbers.

        Args:
            token_mask: Tokens that are not padding.
            on_host: The inputs in CPU memory, where they can be read without waiting for the device.
            ids: The ids of the tokens.
        """
        if check is Check.NOTHING or token_mask.device.type == "meta":
            return None
        width = token_mask.shape[1]
        if check is not Check.SOME:
            places, queries, longest = token_mask.flatten().nonzero().flatten(), None, None
        elif self.only is not None:
            places, queries, longest = self.only.to(token_mask.device), self.only.to(token_mask.device), 0
        else:
            host_mask, host_ids = (
                next((given for name, given in (on_host or {}).items() if name in names), tensor).cpu()
                for tensor, names in (
                    (token_mask, ("decoder_attention_mask",) if self.layout.reads_target else ("attention_mask",)),
                    (ids, ("decoder_input_ids",) if self.layout.reads_target else ("input_ids",)),
                )
            )
            longest = int(host_mask.sum(dim=1).argmax()) if width > self._positions else None
            places, queries = self._some(host_mask.bool(), host_ids)
            places, queries = (part.to(token_mask.device, non_blocking=True) for part in (places, queries))
        begun = PassCheck(self, check, (len(token_mask), width), places, queries, longest)
        if check is Check.SOME:
            # It costs about as much as all other measurements of a layer, so layers take turns.
            layers = sorted(self.modules)
            begun.whole_layers = frozenset({layers[self._passes % len(layers)]})
            self._passes += 1
        return begun

    def _some(self, token_mask: Tensor, ids: Tensor) -> tuple[Int[Tensor, " place"], Int[Tensor, " query"]]:
        """The tokens of a batch that are compared, counted from the first text's, and the queries whose α are added up."""
        lengths, width = token_mask.sum(dim=1), token_mask.shape[1]
        drawn = (torch.rand(len(lengths), ROWS_OF_A_TEXT, generator=self._generator) * lengths[:, None]).long()
        places = [(torch.arange(len(lengths))[:, None] * width + drawn).flatten()]
        longer = width > self._positions
        if longer:  # positions that are new, in the longest text
            places.append(int(lengths.argmax()) * width + torch.arange(self._positions, width))
            self._positions = width
        if int(ids.max()) >= len(self._ids):
            self._ids = torch.cat([self._ids, self._ids.new_zeros(int(ids.max()) + 1 - len(self._ids))])
        new = (~self._ids[ids] & token_mask).flatten().nonzero().flatten()
        place_of = torch.full((len(self._ids),), -1)
        place_of[ids.flatten()[new]] = new
        known = (place_of >= 0).nonzero().flatten()
        # The first batches hold thousands of new ids; those that are left out have their turn when they come again.
        known = known[torch.randperm(len(known), generator=self._generator)[: 1 + len(lengths) // 4]]
        self._ids[known] = True
        places.append(place_of[known])
        chosen = torch.cat(places).unique()
        ends = torch.tensor([int(lengths.min()), width])  # a query of every text, and one that only long texts may have
        queries = (torch.rand(2, generator=self._generator) * ends).long()
        if longer:
            queries = torch.cat([queries, torch.linspace(0, width - 1, _QUERIES_OF_LONGEST).round().long()])
        return chosen[token_mask.flatten()[chosen]], queries.unique()

    def require(self, compared: Sequence[Difference], scores: Mapping[int, Tensor]) -> None:
        """Check that everything that was compared is equal up to rounding.

        Args:
            compared: All comparisons of a pass.
            scores: The size of the largest scores of each layer.

        Raises:
            InputError: If something is not; the layer and the part are named.
        """
        found = [*(torch.as_tensor(each.error) for each in compared), *scores.values()]
        device = found[0].device if found else None
        values = torch.stack([value.detach().double().to(device) for value in found]).tolist() if found else []
        errors, sizes = values[: len(compared)], dict(zip(scores, values[len(compared) :], strict=True))
        for layer, size in sizes.items():
            self.large[layer] = self.large.get(layer, False) or size > LARGE_SCORES
        for difference, error in zip(compared, errors, strict=True):
            if error >= self.bound:  # analyses reject NaN
                layer, what = difference.layer, difference.what
                if difference.part == _STREAM:
                    what = f"layer {layer} does not read what layer {layer - 1} returns, which"
                raise InputError(self.refusal(what, error, sizes.get(layer, 0.0)))

    def refusal(self, part: str, error: float, score: float = 0.0) -> str:
        """The message about a part that differs.

        Args:
            part: What differs.
            score: The size of the layer's largest scores.
        """
        otherwise = ", so the model does something with these texts that it did not do with the probes of the proof"
        differs = difference_in_words(part, error, self.bound, self.dtype, score, otherwise)
        return f"{self.name} cannot be observed exactly on these texts: {differs}"


@dataclasses.dataclass(eq=False)
class _Layer:
    """What has been seen of the layer that is running, at the tokens that are compared."""

    number: int
    modules: BlockModules
    total: Tensor | None = None
    """The sum of residual and attention output, or the attention output alone if the block's norm reads that."""
    normed: Tensor | None = None
    """What the block's norm makes of it."""
    output: Tensor | None = None
    """The block's output, made of its parts."""
    awaits: bool = False
    """Whether the model has not yet shown its own sum or output of the block."""
    added: Tensor | None = None
    """What one module adds to the block's output, the rest of the layer."""
    before_norm: Tensor | None = None
    """What the norm of the layer's output reads."""


class PassCheck:
    """Compares one pass; the pass calls its methods as the model goes on."""

    def __init__(
        self,
        check: TextCheck,
        kind: Check,
        size: tuple[int, int],
        places: Int[Tensor, " place"],
        queries: Int[Tensor, " query"] | None,
        longest: int | None,
    ) -> None:
        self._longest = longest
        """The row of a text that is longer than all before it; None if there is none."""
        self._check, self.kind, self._size = check, kind, size
        self._places, self._queries = {places.device: places}, queries
        self._layer: _Layer | None = None
        self.compared: list[Difference] = []
        self.scores: dict[int, Tensor] = {}
        self.inputs: dict[int, Tensor] = {}
        """What each layer read, of all tokens; kept if layers are to be compared with those of the untouched model."""
        self.attention_outputs: dict[int, Tensor] = {}
        """The attention output of each layer at the tokens that are compared, likewise."""
        self.outputs: dict[int, Tensor] = {}
        """What each layer returned, likewise."""
        self.whole_layers = frozenset(check.modules)
        """The layers whose parts are added up."""
        self.ending = False
        """Whether the pass ends as soon as nothing is awaited."""

    def known_large(self, layer: int) -> bool | None:
        """Whether the scores of a layer are large, if that must not be looked up: a run would wait for its device."""
        lookup = self.kind is not Check.SOME or next(iter(self._places)).type == "cpu"
        return None if lookup else self._check.large.get(layer)

    @property
    def waits(self) -> bool:
        """Whether the model has yet to show something of the last layer that is compared."""
        return self._layer is not None and (self.kind is not Check.SOME or self._layer.awaits)

    def enter(self, layer: int, vectors: Tensor, left: Tensor | None) -> None:
        """A layer begins: compare what it reads with what the last one returned."""
        modules = self._check.modules.get(layer)
        self._layer = None if modules is None else _Layer(layer, modules)
        if self.kind is Check.TEXTS:
            self.inputs[layer] = vectors.clone()
        if left is not None and left is not vectors and left.shape == vectors.shape:
            self._compare(layer, _STREAM, self.taken(left), self.taken(vectors))

    def add(self, block: AttentionBlock, attended: Tensor | None) -> None:
        """The attention block of the layer has its output.

        Args:
            attended: What the attention function has returned, (batch, query, head, dimension); None outside the registry.
        """
        if self._layer is None:
            return
        state, parameters = self._layer, block.parameters
        inputs, output = self.taken(block.inputs), self.taken(block.attention_output)
        assert inputs is not None
        assert output is not None
        if self.kind is Check.TEXTS:
            self.attention_outputs[state.number] = output
        self._note_scores(block)
        self._compare_read(block, inputs)
        self._compare_projections(block)
        if self.kind is Check.SOME and attended is not None:  # which cannot add up α at every place
            self._compare_projected(block, attended, output)
        for texts, queries, weights in self._weights(block, attended):
            heads = weights @ block.value[texts].to(weights.dtype)
            heads = heads if block.gate is None else heads * block.gate[texts][:, :, queries].to(heads)
            made = torch.einsum("bhqd,hdm->bqm", heads, parameters.output_weight.to(heads))
            made = made if parameters.output_bias is None else made + parameters.output_bias
            given, mask = block.attention_output[texts][:, queries], block.token_mask[texts][:, queries]
            error = row_error(made, given, given).masked_fill(~mask, 0)
            self.compared.append(Difference(state.number, "sum of αf(x)", error.max()))
        position, norm = parameters.norm_position, parameters.normalisation
        state.total = read_by_norm(position, inputs, output)
        state.normed = state.total if norm is None else norm.normalised(state.total)
        state.output = after_norm(position, inputs, state.normed)
        state.awaits = state.modules.norm is not None or state.modules.sum_consumer is not None

    def _compare_projected(self, block: AttentionBlock, attended: Tensor, output: Tensor) -> None:
        """Compare the attention output with what W_O makes of what the attention function has returned."""
        places = self._on(attended.device)
        heads = full_precision(attended.flatten(0, 1)[places])
        if block.gate is not None:
            heads = heads * block.gate.transpose(1, 2).flatten(0, 1)[places].to(heads)
        weight, bias = block.parameters.output_weight, block.parameters.output_bias
        made = heads.flatten(1) @ weight.flatten(0, 1).to(heads)
        self._compare(block.layer, "sum of αf(x)", made if bias is None else made + bias, output)

    def _note_scores(self, block: AttentionBlock) -> None:
        if block.alpha.largest is not None:
            self.scores[block.layer] = block.alpha.largest

    def _weights(self, block: AttentionBlock, attended: Tensor | None) -> Iterator[tuple[slice, Any, Tensor]]:
        """Texts and queries whose vectors are added up, and their α."""
        if self._queries is None:
            yield from ((slice(None), *strip) for strip in block.alpha.strips())
        elif attended is None or self._longest is not None:
            # Our own attention does the same with every text; only the longest ones have something new.
            row = None if attended is None else self._longest
            texts = slice(None) if row is None else slice(row, row + 1)
            queries = self._queries.to(block.query.device)
            yield texts, queries, block.alpha.rows(queries, texts)

    def _compare_read(self, block: AttentionBlock, inputs: Tensor) -> None:
        """Compare what attention reads with the block's input or its norm."""
        if block.is_cross_attention or self._layer is None or self._layer.modules.reads_attention_inputs is None:
            return
        norm = block.parameters.input_normalisation
        made = inputs if norm is None else norm.normalised(inputs)
        self._compare(block.layer, "attention input", made, self.taken(block.attention_inputs))

    def _compare_projections(self, block: AttentionBlock) -> None:
        """Compare values with what W_V makes of what attention reads; if all tokens are compared, keys and queries as well."""
        parameters, read = block.parameters, block.attention_inputs
        if self.kind is not Check.SOME:
            for part, made, given, mask in rebuilt(block, None if block.is_cross_attention else read):
                error = row_error(made, given, given).masked_fill(~mask, 0)
                self.compared.append(Difference(block.layer, part, error.max()))
        elif parameters.value is not None and not block.is_cross_attention:
            places, width = self._on(block.value.device), read.shape[1]
            made = side_by_side(parameters.values(read.flatten(0, 1)[places].unsqueeze(0)))[0]
            self._compare(block.layer, "value", made, block.value[places // width, :, places % width].flatten(1))

    def read(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A module that is watched begins."""
        state = self._layer
        if state is None or state.output is None:
            return
        vectors = args[0] if args else kwargs.get("hidden_states")
        if module is state.modules.output_norm:
            state.before_norm = self.taken(vectors)
        if not state.awaits:
            return
        if module is state.modules.norm:
            self._compare(state.number, "input of the block's norm", state.total, self.taken(vectors))
        elif state.modules.norm is None and module is state.modules.sum_consumer:
            state.awaits = False
            self._compare(state.number, "block output", state.output, self.taken(vectors))

    def wrote(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """A module that is watched ends."""
        state = self._layer
        if state is None or state.output is None:
            return
        vectors = vectors_from(output)
        rest = self._check.rest.get(state.number)
        if rest is not None and module is rest.module:
            taken = self.taken(vectors)
            state.added = None if taken is None else taken * rest.scale
        if state.awaits and module is state.modules.norm:
            state.awaits = False
            self._compare(state.number, "output of the block's norm", state.normed, self.taken(vectors))

    def add_network(self, block: FeedForwardBlock) -> None:
        """The feed-forward network of the layer is complete."""
        if block.layer in self.whole_layers:
            self.compared.append(Difference(block.layer, "sum of the layer's parts", block.error().max()))

    def leave(self, vectors: Tensor) -> None:
        """The layer ends: compare what it returns."""
        state = self._layer
        if state is None:
            return
        leaving = self.taken(vectors)
        if self.kind is Check.TEXTS and leaving is not None:
            self.outputs[state.number] = leaving
        if state.output is not None:
            if state.awaits and state.modules.site.residual.sum_consumer == "":
                state.awaits = False
                self._compare(state.number, "block output", state.output, leaving)
            elif state.awaits:
                part = "norm of the block" if state.modules.norm is not None else "reader of its sum"
                self._refuse_skipped(state.number, part)
            elif state.added is not None:
                made = state.output + state.added
                if state.modules.output_norm is None:
                    self._compare(state.number, "layer output", made, leaving)
                else:
                    self._compare(state.number, "input of the layer's last norm", made, state.before_norm)
                    norm = self._check.output_norm(state.modules, made.device)
                    self._compare(state.number, "layer output", norm.normalised(made), leaving)
        self._layer = None

    def _refuse_skipped(self, layer: int, part: str) -> None:
        raise InputError(
            f"{self._check.name} cannot be observed exactly on these texts: layer {layer} does not run the {part}, which "
            "it did with the probes of the proof"
        )

    def _compare(self, layer: int, part: str, got: Tensor | None, wanted: Tensor | None) -> None:
        if got is None or wanted is None or not wanted.numel():
            return
        if got.shape != wanted.shape:
            self.compared.append(Difference(layer, part, torch.tensor(torch.inf)))
        else:
            self.compared.append(Difference(layer, part, row_error(got.to(wanted.device), wanted, wanted).max()))

    def compare_untouched(self, layer: int, part: Literal["attention output", "layer output"], vectors: Tensor) -> None:
        """Compare what a layer of the untouched model makes of the same input."""
        known = self.attention_outputs if part == "attention output" else self.outputs
        if layer in known:
            taken = self.taken(vectors)
            self._compare(layer, part, known[layer].to(vectors.device), taken)

    def _on(self, device: torch.device) -> Int[Tensor, " place"]:
        if device not in self._places:
            self._places[device] = next(iter(self._places.values())).to(device)
        return self._places[device]

    def taken(self, vectors: Any) -> Float[Tensor, "place size"] | None:
        """A copy of the vectors of the tokens that are compared; None if there is not one for each token."""
        (texts, tokens), swapped = self._size, bool(self._check.layout.stream.swapped)
        if not isinstance(vectors, Tensor) or vectors.numel() % (texts * tokens) or vectors.ndim < 2:
            return None
        if swapped and texts == tokens > 1 and vectors.ndim == 3 and vectors.shape[:2] == self._size:
            return None  # the axes cannot be told apart
        return full_precision(by_size(vectors, self._size).reshape(texts * tokens, -1)[self._on(vectors.device)])
