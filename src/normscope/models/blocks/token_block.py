"""One attention block between tokens: how much each takes from each other (`word_block.py` has the same between words)."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.maths.composition import Stage
from normscope.maths.mixing import OF_STAGE, Method
from normscope.maths.shares import Shares, block_readout, pair_readout
from normscope.maths.tensors import as_double, pieces, widened
from normscope.models.blocks.block import AttentionBlock


@dataclasses.dataclass(frozen=True, eq=False)
class TokenBlock:
    """An attention block, measured between tokens.

    The weights of single heads are materialised in strips of queries, never for all pairs at once.
    """

    block: AttentionBlock
    queries: Int[Tensor, " chosen"] | None = None
    """The queries of maps; None for all."""

    def mixing_ratios(self) -> Mapping[Method, Float[Tensor, "batch query"]]:
        """The mixing ratio of every token."""
        return self.block.mixing_ratios

    def shares(self) -> Mapping[Method, Shares]:
        """The signed shares of the parts of every token's output."""
        return self.block.shares

    def maps(self, methods: Collection[Method] | None = None) -> dict[Method, Float[Tensor, "batch chosen key"]]:
        """How much every query takes from every key: α averaged over heads, and ‖V_ij‖ at every stage, in float64 on the CPU.

        Args:
            methods: Which norms; all by default. α is always there.
        """
        block = self.block
        means: list[Tensor] = []

        def strips() -> Iterator[Tensor]:
            for _, weights in self._strips():
                means.append(widened(weights.mean(dim=1), block.key.shape[2]))
                yield weights

        norms = as_double(block.composition).pair_norms(
            strips(),
            block.value.cpu().double(),
            block.parameters.output_weight.cpu().double(),
            is_cross_attention=block.is_cross_attention,
            queries=self.queries,
            gate=None if block.gate is None else block.gate.cpu().double(),
            stages=None if methods is None else [stage for stage, method in OF_STAGE.items() if method in methods],
        )
        return {Method.ATTN_W: torch.cat(means, dim=1)} | {OF_STAGE[stage]: maps for stage, maps in norms.items()}

    def head_maps(self) -> tuple[Float[Tensor, "batch head chosen key"], Float[Tensor, "batch head chosen key"]]:
        """α and ‖αf(x)‖ of single heads."""
        block, queries = self.block, self.queries
        weights = block.weights if queries is None else block.alpha.rows(queries.to(block.value.device))
        return weights, block.head_norms(weights, queries)

    def pair_shares(self, rows: Float[Tensor, "batch word query"] | None = None) -> Float[Tensor, "batch chosen key"]:
        """The signed share of every key in every query's output at the block's last stage, in float64 on the CPU.

        With the share of the biases, those of a query add up to 1. In self-attention, the residual connection belongs to the
        token itself; in cross-attention, it belongs to no pair.

        Args:
            rows: The share of each token in its word, to read out along the outputs of words, which are the means of their
                tokens'.
        """
        block = self.block
        composition, stage = as_double(block.composition), block.composition.stages[-1]
        readout = block_readout(composition, stage, None if rows is None else rows.cpu().double())
        read = block.gated(pair_readout(readout.attended, block.parameters.output_weight.cpu().double()))
        values = block.value.cpu().double().transpose(-1, -2)
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
            own = torch.arange(shares.shape[2]) if self.queries is None else self.queries
            shares[:, torch.arange(len(own)), own] += carried[:, own]
        return shares

    def _strips(self) -> Iterator[tuple[slice | Int[Tensor, " some"], Float[Tensor, "batch head some key"]]]:
        """α of the queries in float64 on the CPU, a few at a time.

        Later keys, which no query of a strip sees, are left out.
        """
        block, alpha, queries = self.block, self.block.alpha, self.queries
        at_once = max(1, alpha.queries_at_once // len(block.query))
        if queries is None:
            causal = block.mask is not None and block.mask.causal
            for strip in pieces(slice(0, block.query.shape[2]), at_once):
                seen = slice(0, strip.stop) if causal else None
                yield strip, alpha.rows(strip, keys=seen).cpu().double()
            return
        for some in queries.split(at_once):
            yield some, alpha.rows(some.to(block.query.device)).cpu().double()
