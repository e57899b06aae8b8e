"""The parts of an attention block's output: from the token itself, from the other tokens, and from no token.

Row vectors, as in the papers. For token i of one block, summed over its heads,

    F_ij = Σ_h α^h_ij f^h(x_j)                     attention alone
    R_ij = F_ij + δ_ij x_i                         with the residual connection
    T_ij = γ ⊙ (R_ij − mean(R_ij)) / σ_i           with the layer normalisation

Blocks differ in the position of their norm:

    post      y = LN(x + attention(x))    F, R and T
    pre       y = x + attention(LN(x))    F and R: no norm follows the sum
    parallel  the feed-forward network is added to the same sum; as pre
    branch    y = x + LN(attention(x))    F, and T_ij = γ ⊙ (F_ij − mean(F_ij)) / σ_i + δ_ij x_i

At every stage V the vectors add up: own V_ii + others Σ_{j≠i} V_ij + a constant part = the block's output at that stage. Only
F_ii is built, because Σ_{j≠i} F_ij = (attention output − b_O) − F_ii: no tensor has axes query × key × model.

Source: Kobayashi et al. 2021, section 3 (arXiv:2109.07152).
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.maths.group_batches import Strip, group_batches
from normscope.maths.normalisation import Normalisation, scaled_norm
from normscope.maths.norms import (
    gated_pair_norms,
    head_grams,
    norms_from_grams,
    replaced_diagonal,
    scaled_output_weight,
)
from normscope.maths.partition import Partition
from normscope.maths.tensors import widened

NormPosition = Literal["post", "pre", "parallel", "branch"]

ELEMENTS_AT_ONCE = {"cpu": 2**18}
"""Elements of vectors to measure at once, by device; all of them on others."""


class Stage(enum.StrEnum):
    """How far through a block a vector has come."""

    ATTENTION = "attn"
    """F."""
    RESIDUAL = "attnres"
    """R."""
    NORMALISED = "attnresln"
    """T."""


STAGES: Mapping[NormPosition, tuple[Stage, ...]] = {
    "post": (Stage.ATTENTION, Stage.RESIDUAL, Stage.NORMALISED),
    "pre": (Stage.ATTENTION, Stage.RESIDUAL),
    "parallel": (Stage.ATTENTION, Stage.RESIDUAL),
    "branch": (Stage.ATTENTION, Stage.NORMALISED),
}
"""The stages of a block, by the position of its norm."""


def read_by_norm(
    position: NormPosition, inputs: Float[Tensor, "*token model"], attention_output: Float[Tensor, "*token model"]
) -> Float[Tensor, "*token model"]:
    """What the norm of a block reads; what the block hands over if it has none."""
    return attention_output if position == "branch" else inputs + attention_output


def after_norm(
    position: NormPosition, inputs: Float[Tensor, "*token model"], normed: Float[Tensor, "*token model"]
) -> Float[Tensor, "*token model"]:
    """What a block hands over, given its input and what its norm has made of `read_by_norm`."""
    return inputs + normed if position == "branch" else normed


def output_of_block(
    position: NormPosition,
    inputs: Float[Tensor, "*token model"],
    attention_output: Float[Tensor, "*token model"],
    normalisation: Normalisation | None,
) -> Float[Tensor, "*token model"]:
    """What a block hands over."""
    read = read_by_norm(position, inputs, attention_output)
    return after_norm(position, inputs, read if normalisation is None else normalisation.normalised(read))


@dataclasses.dataclass(frozen=True, eq=False)
class Composition:
    """The parts of a block's output."""

    inputs: Float[Tensor, "batch token model"]
    """x_i, which the residual connection adds."""
    attention_output: Float[Tensor, "batch token model"]
    """Σ_j F_ij + b_O, as the model computed it."""
    preserving: Float[Tensor, "batch token model"]
    """F_ii; zero in cross-attention, where no key is the token itself."""
    output_bias: Float[Tensor, " model"] | None
    """b_O."""
    norm_position: NormPosition
    normalisation: Normalisation | None
    """The norm of the block if its position is `post` or `branch`."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the block."""
        return STAGES[self.norm_position]

    @cached_property
    def mixing(self) -> Float[Tensor, "batch token model"]:
        """Σ_{j≠i} F_ij."""
        context = self.attention_output - self.preserving
        return context if self.output_bias is None else context.sub_(self.output_bias)

    @cached_property
    def block_output(self) -> Float[Tensor, "batch token model"]:
        """What the block hands over: the sum of the parts at the last stage, computed from the whole vectors."""
        return output_of_block(self.norm_position, self.inputs, self.attention_output, self.normalisation)

    @cached_property
    def last_deviation(self) -> Float[Tensor, "batch token"] | None:
        """σ_i of the block's norm; None if it has none."""
        if self.normalisation is None:
            return None
        return self.normalisation.deviation(read_by_norm(self.norm_position, self.inputs, self.attention_output))

    @property
    def deviation(self) -> Float[Tensor, "batch token"]:
        """σ_i of the block's norm, which it has."""
        assert self.last_deviation is not None
        return self.last_deviation

    def own(self, stage: Stage) -> Float[Tensor, "batch token model"]:
        """V_ii, what each token takes from itself.

        Raises:
            ValueError: If the block does not have the stage.
        """
        self._check(stage)
        if stage is Stage.ATTENTION:
            return self.preserving
        if stage is Stage.RESIDUAL:
            return self.preserving + self.inputs
        if self.norm_position == "branch":
            return self._normalised(self.preserving).add_(self.inputs)
        return self._norm.scaled_(self.preserving + self.inputs).div_(self.deviation.unsqueeze(-1))

    def others(self, stage: Stage) -> Float[Tensor, "batch token model"]:
        """Σ_{j≠i} V_ij, what each token takes from the others.

        Raises:
            ValueError: If the block does not have the stage.
        """
        self._check(stage)
        return self._normalised(self.mixing) if stage is Stage.NORMALISED else self.mixing

    @cached_property
    def last_parts(self) -> tuple[Float[Tensor, "batch token model"], Float[Tensor, "batch token model"]]:
        """`own` and `others` at the last stage, which the rest of the layer reads more than once."""
        return self.own(self.stages[-1]), self.others(self.stages[-1])

    def constant(self, stage: Stage) -> Float[Tensor, "batch token model"]:
        """The part of the output that comes from no token: b_O; after the norm, γ ⊙ (b_O − mean(b_O)) / σ_i + β.

        Raises:
            ValueError: If the block does not have the stage.
        """
        self._check(stage)
        zero = torch.zeros_like(self.attention_output)
        constant = zero if self.output_bias is None else zero + self.output_bias
        if stage is not Stage.NORMALISED:
            return constant
        constant = self._normalised(constant)
        return constant if self._norm.bias is None else constant + self._norm.bias

    def whole(self, stage: Stage) -> Float[Tensor, "batch token model"]:
        """The block's output at a stage, computed from the whole vectors instead of the parts.

        Raises:
            ValueError: If the block does not have the stage.
        """
        self._check(stage)
        if stage is self.stages[-1]:
            return self.block_output
        return self.attention_output if stage is Stage.ATTENTION else self.inputs + self.attention_output

    def output(self, stage: Stage) -> Float[Tensor, "batch token model"]:
        """The block's output at a stage: the sum of the parts.

        Raises:
            ValueError: If the block does not have the stage.
        """
        return self.own(stage) + self.others(stage) + self.constant(stage)

    def relative_norms(self) -> dict[Stage, tuple[Float[Tensor, "batch token"], Float[Tensor, "batch token"]]]:
        """‖Σ_{j≠i} V_ij‖ and ‖V_ii‖ by stage, up to a factor common to both norms of a token.

        The factor is 1, except after a `post` norm. There it may be σ_i, which cancels in every ratio: unless `last_parts` are
        there already, it is not computed.
        """
        if "last_parts" in vars(self):  # where `cached_property` keeps it
            return self._relative_norms()
        # Some tokens at a time: what one step writes is in the cache when the next one reads it.
        at_once = ELEMENTS_AT_ONCE.get(self.inputs.device.type, self.inputs.numel())
        count = math.ceil(self.inputs.numel() / max(1, at_once))
        if count <= 1:
            return self._relative_norms()
        vectors = (part.flatten(0, 1) for part in (self.inputs, self.attention_output, self.preserving))
        parts = [
            dataclasses.replace(self, inputs=x[None], attention_output=attended[None], preserving=own[None])
            for x, attended, own in zip(*(part.tensor_split(count) for part in vectors), strict=True)
        ]
        by_part, shape = [part._relative_norms() for part in parts], self.inputs.shape[:2]
        norms = {stage: zip(*(part[stage] for part in by_part), strict=True) for stage in by_part[0]}
        return {
            stage: (torch.cat(others, dim=1).view(shape), torch.cat(own, dim=1).view(shape))
            for stage, (others, own) in norms.items()
        }

    def _relative_norms(self) -> dict[Stage, tuple[Float[Tensor, "batch token"], Float[Tensor, "batch token"]]]:
        mixing = _lengths(self.mixing)
        norms = {Stage.ATTENTION: (mixing, _lengths(self.preserving))}
        residual = self.own(Stage.RESIDUAL) if Stage.RESIDUAL in self.stages else None
        if residual is not None:
            norms[Stage.RESIDUAL] = mixing, _lengths(residual)
        if "last_parts" in vars(self):
            own, others = self.last_parts
            norms[self.stages[-1]] = _lengths(others), _lengths(own)
        elif self.norm_position == "post" and residual is not None:
            norms[Stage.NORMALISED] = scaled_norm(self.mixing, self._norm), _lengths(self._norm.scaled_(residual))
        elif self.norm_position == "branch":
            own = _lengths(self.own(Stage.NORMALISED))
            norms[Stage.NORMALISED] = scaled_norm(self.mixing, self._norm) / self.deviation, own
        return norms

    def pair_norms(
        self,
        strips: Iterable[Float[Tensor, "batch head _ key"]],
        value: Float[Tensor, "batch head key head_dim"],
        output_weight: Float[Tensor, "head head_dim model"],
        *,
        is_cross_attention: bool = False,
        queries: Int[Tensor, " query"] | None = None,
        gate: Float[Tensor, "batch head all_queries #head_dim"] | None = None,
        stages: Collection[Stage] | None = None,
    ) -> dict[Stage, Float[Tensor, "batch query key"]]:
        """‖V_ij‖ of every query i and key j, by stage.

        Args:
            strips: α, in strips of queries; keys after the last one that a strip sees may be left out.
            value: v, with b_V inside.
            output_weight: W_O.
            is_cross_attention: Whether no key is the token itself. Then the residual connection belongs to no pair, and F is
                the only stage.
            queries: The queries of the strips, if these are not all.
            gate: By what the heads' sums are multiplied before W_O, for all queries; None without a gate.
            stages: Some of the stages; by default all.
        """
        wanted = [
            stage for stage in self.stages[: 1 if is_cross_attention else None] if stages is None or stage in stages
        ]
        projections = {}
        if {Stage.ATTENTION, Stage.RESIDUAL} & {*wanted}:
            projections[Stage.ATTENTION] = output_weight
        if Stage.NORMALISED in wanted:
            projections[Stage.NORMALISED] = scaled_output_weight(output_weight, self._norm)
        grams = {} if gate is not None else {stage: head_grams(value, each) for stage, each in projections.items()}
        gates = None if gate is None else gate if queries is None else gate[:, :, queries]
        parts: dict[Stage, list[Tensor]] = {stage: [] for stage in projections}
        done = 0
        for weights in strips:
            keys, some = weights.shape[-1], slice(done, done + weights.shape[2])
            done = some.stop
            for stage, projection in projections.items():
                if gates is None:
                    norms = norms_from_grams(weights, grams[stage][:, :keys])
                else:
                    norms = gated_pair_norms(weights, value[:, :, :keys], gates[:, :, some], projection)
                parts[stage].append(widened(norms, value.shape[2]))
        others = {stage: torch.cat(strip, dim=1) for stage, strip in parts.items()}
        if Stage.NORMALISED in others:
            others[Stage.NORMALISED] = others[Stage.NORMALISED] / _of(self.deviation, queries).unsqueeze(-1)
        return {
            stage: others[stage]
            if stage is Stage.ATTENTION
            else replaced_diagonal(
                others[Stage.ATTENTION if stage is Stage.RESIDUAL else stage],
                _of(_lengths(self.own(stage)), queries),
                queries,
            )
            for stage in wanted
        }

    def merged_norms(
        self,
        weights_of: Callable[[slice, slice], Float[Tensor, "batch head _ key"]],
        value: Float[Tensor, "batch head key head_dim"],
        output_weight: Float[Tensor, "head head_dim model"],
        queries: Partition,
        keys: Partition,
        *,
        is_cross_attention: bool = False,
        stages: Iterable[Stage] | None = None,
    ) -> dict[Stage, Float[Tensor, "batch target source"]]:
        """‖V_IJ‖ of every target and source, by stage (see `partition.py`).

        Args:
            weights_of: α of a range of queries of a range of sequences.
            value: v, with b_V inside.
            output_weight: W_O.
            queries: The targets. In self-attention, the first of the sources are the targets.
            keys: The sources.
            is_cross_attention: See `pair_norms`.
            stages: The stages to measure; by default all, in cross-attention only F.
        """
        if stages is None:
            stages = self.stages[:1] if is_cross_attention else self.stages
        stages = list(stages)
        norms = {stage: value.new_zeros(len(value), queries.count, keys.count) for stage in stages}
        own = {} if is_cross_attention else {stage: self.own(stage) for stage in stages}
        width = output_weight.shape[-1]
        for batch in group_batches(queries, keys, value, width, is_cross_attention=is_cross_attention):
            vectors = {
                normed: batch.key_vectors(value, self.stage_weight(output_weight, normed=normed))
                for normed in {stage is Stage.NORMALISED for stage in stages}
            }
            for strip in batch.strips:
                weights = weights_of(strip.queries, strip.sequences).to(value, copy=True)
                if own:  # of a token with itself, which is added to its group's pair with itself below
                    weights.diagonal(strip.queries.start, dim1=-2, dim2=-1).zero_()
                # F and R differ in a group's pair with itself alone.
                pairs: dict[bool, tuple[Tensor, Tensor]] = {}
                for stage in stages:
                    normed = stage is Stage.NORMALISED
                    if normed not in pairs:
                        rows = self._scaled_rows(strip) if normed else strip.rows
                        merged = batch.merged(rows, weights, vectors[normed])
                        pairs[normed] = merged, torch.linalg.vector_norm(merged, dim=-1).transpose(1, 2)
                    lengths = pairs[normed][1]
                    if own:
                        lengths = batch.with_own_norms(*pairs[normed], own[stage], strip)
                    norms[stage][strip.sequences, strip.targets, batch.sources] = lengths
        return norms

    def _scaled_rows(self, strip: Strip) -> Float[Tensor, "batch target query"]:
        """1/σ_i times the share of each of a strip's queries in its targets."""
        return strip.rows / self.deviation[strip.sequences, strip.queries].unsqueeze(1)

    def stage_weight(
        self, output_weight: Float[Tensor, "head head_dim model"], *, normed: bool
    ) -> Float[Tensor, "head head_dim model"]:
        """W_O, followed by γ ⊙ (· − mean) if it is normed."""
        return self._norm.scaled(output_weight) if normed else output_weight

    @property
    def _norm(self) -> Normalisation:
        assert self.normalisation is not None
        return self.normalisation

    def _normalised(self, vectors: Tensor) -> Tensor:
        return self._norm.scaled(vectors).div_(self.deviation.unsqueeze(-1))

    def _check(self, stage: Stage) -> None:
        if stage not in self.stages:
            raise ValueError(f"a block with norm_position={self.norm_position!r} has no stage {stage}")


def _of(values: Float[Tensor, "batch token"], queries: Int[Tensor, " query"] | None) -> Float[Tensor, "batch query"]:
    """Those of some queries, or all."""
    return values if queries is None else values[:, queries]


def _lengths(vectors: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch token"]:
    return torch.linalg.vector_norm(vectors, dim=-1)
