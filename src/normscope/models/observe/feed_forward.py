"""What a layer has made of its attention block: the feed-forward network, and the end of the layer."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.errors import InputError
from normscope.linear.axes import USUAL, Axes
from normscope.linear.layers import Followed, FollowedLayer, Given
from normscope.linear.rules import Factored, dense
from normscope.maths.layer_composition import LAYER_STAGES, LayerComposition, LayerStage, Parts
from normscope.maths.normalisation import Normalisation
from normscope.maths.partition import Partition
from normscope.maths.shares import Shares, layer_shares
from normscope.maths.tensors import to_device
from normscope.models.blocks.block import AttentionBlock, full_precision
from normscope.models.observe.layer_rerun import LayerRerun

PAIR_ENTRIES = {"cpu": 2**19}
"""Entries of pairs' vectors to make at once, by device. The network makes several times as many along the way."""

PAIR_ENTRIES_ON_ACCELERATORS = 2**24
"""The same on other devices, which need large pieces of work to stay busy."""


@dataclasses.dataclass(frozen=True, eq=False)
class FeedForwardBlock:
    """What a layer has made of its attention block.

    It is valid only while the model leaves the layer, and must not be kept: it holds the layer's activations. Everything is
    computed on first use. Rows of padding hold finite but meaningless numbers.
    """

    attention: AttentionBlock
    """The attention block of the same layer."""
    followed: FollowedLayer
    axes: Axes
    """Where the axes of the model's vectors are."""
    find_output_norm: Callable[[], Normalisation]
    """Finds the norm whose output leaves the layer, if there is one."""
    rerun: LayerRerun | None
    """Runs the layer again; None if no module runs it."""

    @property
    def layer(self) -> int:
        """Counted from 1."""
        return self.attention.layer

    @property
    def token_mask(self) -> Bool[Tensor, "batch token"]:
        """True at tokens, False at padding."""
        return self.attention.token_mask

    @property
    def stages(self) -> tuple[LayerStage, ...]:
        """The stages of the layer."""
        return LAYER_STAGES[self.attention.parameters.norm_position]

    @property
    def is_parallel(self) -> bool:
        """Whether the network reads the same vectors as attention."""
        return self.attention.parameters.norm_position == "parallel"

    @cached_property
    def _tensors(self) -> dict[LayerStage, Sequence[Followed]]:
        """The tensors whose sum is the vector at a stage.

        If norms of the network are placed differently from those of the block, they are part of the stage that they end.
        """
        followed, normed = self.followed, LayerStage.NORMALISED in self.stages
        networks = [network.unnormed if normed else network.added for network in followed.networks]
        before = followed.before_norm if normed and followed.before_norm is not None else followed.output
        of = {LayerStage.NETWORK: networks, LayerStage.RESIDUAL: [before], LayerStage.NORMALISED: [followed.output]}
        return {stage: of[stage] for stage in self.stages[1:]}

    def composition(self) -> LayerComposition:
        """The parts of the layer's output."""
        block, stages = self.attention.composition, [*self._tensors]
        own = self._parts(stages, self._given(block.inputs[None], block.preserving[None]))
        later = {}
        for stage in stages:
            whole, mine, none = self.vectors(stage), own[stage][0], self._constants[stage][0]
            if any(self.followed.reads_attention(each) for each in self._tensors[stage]):
                later[stage] = Parts(mine, (whole - mine).sub_(none), none, whole)
            else:
                later[stage] = Parts(whole - none, torch.zeros_like(whole), none, whole)
        return LayerComposition(block, later)

    def vectors(self, stage: LayerStage) -> Float[Tensor, "batch token model"]:
        """Every token's vector at a stage, as the model computed it."""
        if stage is LayerStage.BLOCK and self.is_parallel:  # which computes no such vector
            return self.attention.composition.block_output
        like = self.attention.inputs.dtype  # some families round inside a layer
        return _total([self._by_token(each.value.to(like)[None])[0] for each in self._of(stage)])

    def _of(self, stage: LayerStage) -> Sequence[Followed]:
        return [self.followed.residual] if stage is LayerStage.BLOCK else self._tensors[stage]

    def error(self) -> Float[Tensor, "batch token"]:
        """The difference between the sum of all parts and what leaves the layer, relative to the largest; 0 at padding."""
        block, last = self.attention, self.stages[-1]
        bias = block.parameters.output_bias
        attended = block.attention_output if bias is None else block.attention_output - bias
        from_tokens = self._parts([last], self._given(block.inputs[None], attended[None]))[last]
        whole = self.vectors(last)
        made = torch.cat([from_tokens, self._constants[last]])
        size = torch.linalg.vector_norm(torch.cat([made, whole[None]]), dim=-1).amax(dim=0)
        error = torch.linalg.vector_norm(made.sum(dim=0) - whole, dim=-1)
        return (error / size.clamp(min=torch.finfo(size.dtype).tiny)).masked_fill(~self.token_mask, 0)

    @cached_property
    def last_norm(self) -> tuple[Normalisation, Float[Tensor, "batch token"]]:
        """The norm whose output leaves the layer, and its deviations. Only `post` layers have one."""
        assert self.followed.before_norm is not None
        read = self._by_token(self.followed.before_norm.value.to(self.attention.inputs)[None])[0]
        norm = self.find_output_norm()
        return norm, norm.deviation(read)

    def untouched(self, text: int) -> Float[Tensor, "1 query model"]:
        """What leaves the layer when it is rerun with nothing missing.

        Args:
            text: The text's index in the batch.
        """
        return self._again(text, self.attention.attention_output[text].unsqueeze(0))

    def without_values(
        self, text: int, keys: slice, weights: Float[Tensor, "head query key"]
    ) -> Float[Tensor, "key query model"]:
        """What leaves the layer without the value of each key: the layer is rerun with attention outputs that lack F_ij.

        Args:
            text: The text's index in the batch.
            keys: The keys.
            weights: α of these keys.
        """
        block, weight = self.attention, self.attention.parameters.output_weight
        vectors = torch.bmm(block.value[text, :, keys].to(weight), weight).transpose(0, 1)
        given = block.attention_output[text].expand(len(vectors), -1, -1)
        return self._again(text, torch.baddbmm(given, weights.to(weight).permute(2, 1, 0), vectors, alpha=-1))

    def _again(self, text: int, attention: Float[Tensor, "variant query model"]) -> Tensor:
        if self.rerun is None:
            raise InputError(
                f"layer {self.layer} cannot be run again with other attention outputs: no module runs it as a whole"
            )
        return full_precision(self.rerun.outputs(text, attention))

    def shares(self) -> dict[LayerStage, Shares]:
        """The signed shares of the parts of every token's vector, from the end of the attention block on; they add up to 1."""
        return layer_shares(self.composition())

    def pair_maps(
        self,
        queries: Partition | None = None,
        keys: Partition | None = None,
        *,
        stages: Collection[LayerStage] | None = None,
        in_double: bool = True,
    ) -> dict[LayerStage, Float[Tensor, "batch target source"]]:
        """How much every target takes from every source at every stage from the end of the attention block on.

        In cross-attention, what a token takes from itself belongs to no pair.

        Args:
            queries: The targets; the tokens by default.
            keys: The sources; likewise.
            stages: The stages to measure; all by default.
            in_double: True computes in float64 if the device supports it, False in the model's precision.
        """
        self.attention.require_vectors_of_keys()
        members, rows = self._members(keys), None if queries is None else queries.rows(self.attention.value)
        chosen = [LayerStage.BLOCK, *self._tensors] if stages is None else [*stages]
        found: dict[LayerStage, list[Tensor]] = {stage: [] for stage in chosen}
        dtype = self._wide if in_double else self.attention.inputs.dtype
        weights, vectors = self._weights(dtype), self._vectors(dtype)
        for units in members.split(self._units_at_once(members.shape[-1]), dim=1):
            for stage, parts in self._parts(chosen, self._of_keys(units, weights, vectors)).items():
                merged = parts if rows is None else rows.to(parts) @ parts
                found[stage].append(torch.linalg.vector_norm(merged, dim=-1))
        return {stage: torch.cat(norms).movedim(0, -1) for stage, norms in found.items()}

    def _members(self, keys: Partition | None) -> Int[Tensor, "#batch source member"]:
        """The tokens of each source, and −1 where it has fewer than others."""
        device = self.attention.value.device
        if keys is None or keys.places is not None:
            return torch.arange(self.attention.value.shape[2], device=device).view(1, -1, 1)
        order = keys.host.members.to(torch.int8)
        most = int(order.sum(dim=-1).max())
        members = order.argsort(dim=-1, descending=True, stable=True)[..., :most]
        return to_device(members.masked_fill(order.gather(-1, members) == 0, -1), device)

    @property
    def _wide(self) -> torch.dtype:
        return torch.float32 if self.attention.inputs.device.type == "mps" else torch.float64

    def _units_at_once(self, members: int) -> int:
        device, entries = self.attention.inputs.device.type, self.attention.inputs.numel()
        return max(1, PAIR_ENTRIES.get(device, PAIR_ENTRIES_ON_ACCELERATORS) // (entries * members))

    def _weights(self, dtype: torch.dtype) -> Float[Tensor, "batch key query head"]:
        """α."""
        return torch.cat([some.to(dtype) for _, some in self.attention.alpha.strips()], dim=2).permute(0, 3, 2, 1)

    def _vectors(self, dtype: torch.dtype) -> Float[Tensor, "batch key head model"]:
        """f(x) of every head."""
        values, weight = self.attention.value.to(dtype), self.attention.parameters.output_weight.to(dtype)
        return torch.einsum("bhkd,hdm->bkhm", values, weight)

    def _of_keys(
        self,
        units: Int[Tensor, "#batch unit member"],
        weights: Float[Tensor, "batch key query head"],
        transformed: Float[Tensor, "batch key head model"],
    ) -> Given:
        """What units of keys contribute to every query: a few vectors, with factors."""
        block, dtype = self.attention, weights.dtype
        texts, _, queries, _ = weights.shape
        units = units.expand(texts, -1, -1)
        at = units.clamp(min=0).flatten(1)
        text = torch.arange(texts, device=at.device)[:, None]

        def by_unit(values: Tensor) -> Tensor:
            """(text, unit · member, query, head) to (unit, text, query, member · head)."""
            return values.unflatten(1, units.shape[1:]).permute(1, 0, 3, 2, 4).flatten(3)

        used = (units >= 0).flatten(1).to(dtype)[..., None, None]
        chosen = weights[text, at]
        vectors = transformed[text, at].unflatten(1, units.shape[1:]).transpose(0, 1).flatten(2, 3)
        attention = Factored(by_unit(chosen if units.shape[-1] == 1 else chosen.mul_(used)), vectors)
        if block.is_cross_attention:
            nothing = weights.new_zeros(units.shape[1], texts, queries, 0)
            return self._given(
                Factored(nothing, block.inputs.new_zeros(units.shape[1], 1, 0, block.inputs.shape[-1])), attention
            )
        own = (at[..., None] == torch.arange(queries, device=at.device)).to(dtype)[..., None] * used
        inputs = block.inputs.to(dtype)[text, at].unflatten(1, units.shape[1:]).transpose(0, 1)
        return self._given(Factored(by_unit(own), inputs), attention)

    @cached_property
    def _constants(self) -> dict[LayerStage, Float[Tensor, "1 batch token model"]]:
        """What the vectors at every stage take from no token."""
        return self._parts([*self._tensors], self._of_no_token(), bias=True)

    def _of_no_token(self) -> Given:
        """What the block takes from no token: b_O."""
        block = self.attention
        ones = block.inputs.new_ones(1, *block.inputs.shape[:2], 1)
        size = block.inputs.shape[-1]
        nothing = Factored(ones[..., :0], ones.new_zeros(1, 1, 0, size))
        bias = block.parameters.output_bias
        if bias is None:
            return self._given(nothing, nothing)
        return self._given(nothing, Factored(ones, bias.view(1, 1, 1, -1)))

    def _given(self, inputs: Tensor | Factored, attention: Tensor | Factored) -> Given:
        """Parts with the axes of the model."""
        return Given(
            _by_model(inputs, self.followed.inputs, self.axes), _by_model(attention, self.followed.attention, self.axes)
        )

    def _by_token(self, parts: Tensor) -> Float[Tensor, "source batch token model"]:
        return self.axes.by_text(parts, len(self.token_mask), stacked=True)

    def _parts(
        self, stages: Sequence[LayerStage], given: Given, *, bias: bool = False
    ) -> dict[LayerStage, Float[Tensor, "source batch token model"]]:
        """What the vectors at some stages take from given parts."""
        tensors = [self._of(stage) for stage in stages]
        made: Iterator[Tensor] = iter(
            self.followed.parts([each for some in tensors for each in some], given, bias=bias)
        )
        parts = {
            stage: self._by_token(_total([next(made) for _ in some]))
            for stage, some in zip(stages, tensors, strict=True)
        }
        if LayerStage.BLOCK in parts and self.is_parallel:
            parts[LayerStage.BLOCK] = self._by_token(dense(given.inputs)) + self._by_token(dense(given.attention))
        return parts


def _by_model(parts: Tensor | Factored, like: Followed, axes: Axes) -> Tensor | Factored:
    """Parts with the axes of the model."""
    shape = like.value.shape
    return parts if axes == USUAL and len(shape) == 3 else axes.by_model(dense(parts), shape)


def _total(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of tensors, which is no copy of a single one."""
    return functools.reduce(torch.add, tensors)
