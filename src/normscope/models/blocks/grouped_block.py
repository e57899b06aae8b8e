"""One attention block between groups of tokens: how much each takes from each other (see `maths/partition.py`)."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.composition import Composition, Stage
from normscope.maths.mixing import OF_STAGE, Method, mixing_ratios
from normscope.maths.norms import norm_factors
from normscope.maths.partition import Partition, merged_head_norms, merged_weights
from normscope.maths.shares import Shares, block_readout, block_shares, pair_readout
from normscope.maths.tensors import as_double, pieces, widened
from normscope.models.blocks.block import AttentionBlock


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedBlock:
    """An attention block between groups of its tokens: between words, for instance, or between the tokens themselves.

    The weights of single heads are materialised in strips of queries, never for all pairs at once. The output of a group is the
    mean of its tokens' outputs.

    Raises:
        InputError: If tokens are merged and the block has a gate.
    """

    block: AttentionBlock
    queries: Partition
    """The targets. If they merge tokens, the sources do as well; in self-attention, the first sources are then the targets."""
    keys: Partition
    """The sources."""

    def __post_init__(self) -> None:
        if self._merges:
            self.block.require_vectors_of_keys()

    @classmethod
    def of_tokens(cls, block: AttentionBlock, queries: Int[Tensor, " chosen"] | None = None) -> "GroupedBlock":
        """The block between its tokens.

        Args:
            queries: The places of some targets; all tokens by default.
        """
        return cls(block, Partition.tokens(block.token_mask, queries), Partition.tokens(block.key_mask))

    @property
    def _merges(self) -> bool:
        return self.queries.places is None

    def mixing_ratios(self) -> Mapping[Method, Float[Tensor, "batch target"]]:
        """The mixing ratio of every target by the methods of `AttentionBlock.mixing_ratios`.

        What the tokens of a group take from one another counts as taken from the group itself.
        """
        block, rows = self.block, self.queries.rows(self.block.value)
        if rows is None:
            return {method: self._chosen(ratios) for method, ratios in block.mixing_ratios.items()}
        weights, composition = self._within()
        ratios = block.defined(mixing_ratios(weights, composition, block.alpha.to_nowhere, rows))
        if block.is_cross_attention:
            return ratios
        alone = self._see_only_their_group(rows)
        return {method: ratio.masked_fill(alone, 0) for method, ratio in ratios.items()}

    def shares(self) -> Mapping[Method, Shares]:
        """The signed shares of the parts of every target's output, by the methods of `AttentionBlock.shares`."""
        rows = self.queries.rows(self.block.value)
        if rows is None:
            return {method: Shares(*map(self._chosen, parts)) for method, parts in self.block.shares.items()}
        shares = block_shares(self._within()[1], rows)
        return self.block.defined({OF_STAGE[stage]: parts for stage, parts in shares.items()})

    def maps(
        self, methods: Collection[Method] | None = None, *, in_double: bool = True
    ) -> dict[Method, Float[Tensor, "batch target source"]]:
        """How much every target takes from every source: α averaged over heads, and ‖V_IJ‖ at every stage.

        Args:
            methods: Which norms; all by default. α is always there.
            in_double: Whether to compute in float64 on the CPU, or as the model does. Between tokens, it is always float64.
        """
        stages = None if methods is None else [stage for stage, method in OF_STAGE.items() if method in methods]
        weights, norms = self._merged_maps(stages, in_double) if self._merges else self._maps_of_tokens(stages)
        return {Method.ATTN_W: weights} | {OF_STAGE[stage]: maps for stage, maps in norms.items()}

    def _maps_of_tokens(self, stages: Collection[Stage] | None) -> tuple[Tensor, dict[Stage, Tensor]]:
        block = self.block
        means: list[Tensor] = []

        def strips() -> Iterator[Tensor]:
            for _, weights in self._strips():
                means.append(widened(weights.mean(dim=1), block.key.shape[2]))
                yield weights

        norms = as_double(block.composition).pair_norms(
            strips(),
            as_double(block.value),
            as_double(block.parameters.output_weight),
            is_cross_attention=block.is_cross_attention,
            queries=self._places,
            gate=as_double(block.gate),
            stages=stages,
        )
        return torch.cat(means, dim=1), norms

    def _merged_maps(self, stages: Collection[Stage] | None, in_double: bool) -> tuple[Tensor, dict[Stage, Tensor]]:
        block = self.block
        composition, value, output_weight = block.composition, block.value, block.parameters.output_weight
        if in_double:
            composition, value, output_weight = as_double(composition), as_double(value), as_double(output_weight)
        norms = composition.merged_norms(
            block.alpha.rows,
            value,
            output_weight,
            self.queries,
            self.keys,
            is_cross_attention=block.is_cross_attention,
            stages=stages,
        )
        means = torch.cat([weights.to(value).mean(dim=1) for _, weights in block.alpha.strips()], dim=1)
        return merged_weights(means, self.queries, self.keys), norms

    def head_maps(
        self, *, in_double: bool = True
    ) -> tuple[Float[Tensor, "batch head target source"], Float[Tensor, "batch head target source"]]:
        """α and ‖αf(x)‖ of single heads.

        Args:
            in_double: Whether to compute in float64 on the CPU, or as the model does. Between tokens, it is always the latter.
        """
        block = self.block
        if not self._merges:
            places = self._places
            weights = block.weights if places is None else block.alpha.rows(places.to(block.value.device))
            return weights, block.head_norms(weights, places)
        value, factors = block.value, block.parameters.norm_factors
        if in_double:
            value, factors = as_double(value), norm_factors(as_double(block.parameters.output_weight))
        means = self.queries.means(block.alpha.rows(slice(None)).to(value))
        return self.keys.sums(means), merged_head_norms(means, value @ factors, self.keys)

    def pair_shares(self) -> Float[Tensor, "batch target source"]:
        """The signed share of every source in every target's output at the block's last stage, in float64 on the CPU.

        With the share of the biases, those of a target add up to 1. In self-attention, the residual connection belongs to the
        token itself; in cross-attention, it belongs to no pair.
        """
        block = self.block
        composition, stage = as_double(block.composition), block.composition.stages[-1]
        readout = block_readout(composition, stage, self.queries.rows(composition.inputs))
        read = block.gated(pair_readout(readout.attended, block.parameters.output_weight.cpu().double()))
        values = as_double(block.value).transpose(-1, -2)
        shares = torch.cat(
            [
                widened(
                    (read[:, :, some] @ values[..., : weights.shape[-1]]).mul_(weights).sum(dim=1), values.shape[-1]
                )
                for some, weights in self._strips()
            ],
            dim=1,
        )
        if not block.is_cross_attention and stage is not Stage.ATTENTION:
            carried = torch.linalg.vecdot(composition.inputs, readout.carried)
            places = self._places
            own = torch.arange(shares.shape[2]) if places is None else places
            shares[:, torch.arange(len(own)), own] += carried[:, own]
        return merged_weights(shares, self.queries, self.keys) if self._merges else shares

    @property
    def _places(self) -> Int[Tensor, " chosen"] | None:
        """The places of the targets, in CPU memory, if these are some of the tokens; None for all tokens and for groups."""
        places = self.queries.places
        return places.cpu() if isinstance(places, Tensor) else None

    def _chosen(self, of_tokens: Float[Tensor, "batch query"]) -> Float[Tensor, "batch target"]:
        return of_tokens[:, slice(None) if self.queries.places is None else self.queries.places]

    def _strips(self) -> Iterator[tuple[slice | Int[Tensor, " some"], Float[Tensor, "batch head some key"]]]:
        """α of the tokens in float64 on the CPU, a few at a time.

        Later keys, which no query of a strip sees, are left out.
        """
        block, alpha, queries = self.block, self.block.alpha, self._places
        at_once = max(1, alpha.queries_at_once // len(block.query))
        if queries is None:
            causal = block.mask is not None and block.mask.causal
            for strip in pieces(slice(0, block.query.shape[2]), at_once):
                seen = slice(0, strip.stop) if causal else None
                yield strip, alpha.rows(strip, keys=seen).cpu().double()
            return
        for some in queries.split(at_once):
            yield some, alpha.rows(some.to(block.query.device)).cpu().double()

    def _within(self) -> tuple[Float[Tensor, "batch head query"], Composition]:
        """Each token's weight on all tokens of its group, by head, and the block with what it takes from them: `preserving`."""
        block, alpha, value = self.block, self.block.alpha, self.block.value
        if block.is_cross_attention:
            return alpha.own, block.composition
        weights = alpha.own.to(value).clone()
        values = weights.unsqueeze(-1) * value
        row, query, key = self.keys.ordered_siblings
        for head in range(weights.shape[1]):
            shares = alpha.at(row, torch.full_like(row, head), query, key).to(weights)
            weights[:, head].index_put_((row, query), shares, accumulate=True)
            values[:, head].index_put_((row, query), shares[:, None] * value[row, head, key], accumulate=True)
        preserving = torch.einsum("bhqd,hdm->bqm", values, block.parameters.output_weight)
        return weights, dataclasses.replace(block.composition, preserving=preserving)

    def _see_only_their_group(self, rows: Float[Tensor, "batch target query"]) -> Bool[Tensor, "batch target"]:
        """Targets none of whose tokens sees another group."""
        row, query, key = self.keys.ordered_siblings
        seen = self.block.alpha.seen
        inside = seen.queries.long()
        inside.index_put_((row, query), seen.pairs(row, query, key).long(), accumulate=True)
        others = (seen.counts - inside).to(rows.dtype)
        return (rows @ others.unsqueeze(-1)).squeeze(-1) == 0
