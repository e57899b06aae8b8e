"""One attention block between words: what tokens take from each other, merged by word (see `maths/words.py`)."""

import dataclasses
from collections.abc import Collection, Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.mixing import CROSS_ATTENTION_METHODS, OF_STAGE, Method, word_mixing_ratios
from normscope.maths.norms import norm_factors
from normscope.maths.shares import Shares, block_shares
from normscope.maths.tensors import as_double
from normscope.maths.words import WordGroups, merged_head_norms, word_weights
from normscope.models.blocks.block import AttentionBlock
from normscope.models.blocks.token_block import TokenBlock


@dataclasses.dataclass(frozen=True, eq=False)
class WordBlock:
    """An attention block, and the words of its tokens."""

    block: AttentionBlock
    groups: WordGroups

    def __post_init__(self) -> None:
        self.block.require_vectors_of_keys()

    def maps(
        self, methods: Collection[Method] | None = None, *, in_double: bool = True
    ) -> dict[Method, Float[Tensor, "batch word unit"]]:
        """How much every word takes from every other: α averaged over heads, and ‖V_IJ‖ at every stage.

        Args:
            methods: Which norms to return; all by default.
            in_double: Whether to compute in float64 on the CPU, or as the model does.
        """
        block, alpha = self.block, self.block.alpha
        composition, value, output_weight = block.composition, block.value, block.parameters.output_weight
        if in_double:
            composition, value, output_weight = as_double(composition), as_double(value), as_double(output_weight)
        groups = self.groups.like(value)
        stages = None if methods is None else [stage for stage, method in OF_STAGE.items() if method in methods]
        norms = composition.word_norms(alpha.rows, value, output_weight, groups, stages)
        means = torch.cat([weights.to(value).mean(dim=1) for _, weights in alpha.strips()], dim=1)
        weights = word_weights(means.unsqueeze(1), groups).squeeze(1)
        return {Method.ATTN_W: weights} | {OF_STAGE[stage]: maps for stage, maps in norms.items()}

    def head_maps(
        self, *, in_double: bool = True
    ) -> tuple[Float[Tensor, "batch head word unit"], Float[Tensor, "batch head word unit"]]:
        """α and ‖αf(x)‖ of single heads between words.

        Args:
            in_double: Whether to compute in float64 on the CPU, or as the model does.
        """
        value, factors = self.block.value, self.block.parameters.norm_factors
        if in_double:
            value, factors = as_double(value), norm_factors(as_double(self.block.parameters.output_weight))
        groups = self.groups.like(value)
        means = groups.rows.unsqueeze(1) @ self.block.alpha.rows(slice(None)).to(value)
        return groups.sums(means), merged_head_norms(means, value @ factors, groups)

    def mixing_ratios(self) -> Mapping[Method, Float[Tensor, "batch word"]]:
        """The mixing ratio of every word by the methods of `AttentionBlock.mixing_ratios`.

        What the word's tokens take from one another counts as taken from the word itself.
        """
        block, alpha = self.block, self.block.alpha
        groups = self.groups.like(block.value)
        if block.is_cross_attention:
            ratios = word_mixing_ratios(alpha.own, block.composition, groups.rows, alpha.to_nowhere)
            return {method: ratio for method, ratio in ratios.items() if method in CROSS_ATTENTION_METHODS}
        weights, vectors = self._within(groups)
        preserving = dataclasses.replace(block.composition, preserving=vectors)
        ratios = word_mixing_ratios(weights, preserving, groups.rows, alpha.to_nowhere)
        alone = self._see_only_their_word(groups)
        return {method: ratio.masked_fill(alone, 0) for method, ratio in ratios.items()}

    def shares(self) -> Mapping[Method, Shares]:
        """The signed shares of the parts of every word's output, by the methods of `AttentionBlock.shares`.

        The output of a word is the mean of its tokens' outputs.
        """
        block, groups = self.block, self.groups.like(self.block.value)
        composition = block.composition
        if not block.is_cross_attention:
            composition = dataclasses.replace(composition, preserving=self._within(groups)[1])
        shares = {OF_STAGE[stage]: parts for stage, parts in block_shares(composition, groups.rows).items()}
        if block.is_cross_attention:
            return {method: parts for method, parts in shares.items() if method in CROSS_ATTENTION_METHODS}
        return shares

    def pair_shares(self) -> Float[Tensor, "batch word unit"]:
        """The signed share of every source word in the output of every target word; see `TokenBlock.pair_shares`."""
        shares = TokenBlock(self.block).pair_shares(self.groups.rows)
        return word_weights(shares.unsqueeze(1), self.groups.like(shares)).squeeze(1)

    def _within(
        self, groups: WordGroups
    ) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch query model"]]:
        """Each token's weight on all tokens of its word, by head, and the vector that it takes from them."""
        alpha, value = self.block.alpha, self.block.value
        weights = alpha.own.to(value).clone()
        values = weights.unsqueeze(-1) * value
        row, query, key = groups.ordered_siblings
        for head in range(weights.shape[1]):
            shares = alpha.at(row, torch.full_like(row, head), query, key).to(weights)
            weights[:, head].index_put_((row, query), shares, accumulate=True)
            values[:, head].index_put_((row, query), shares[:, None] * value[row, head, key], accumulate=True)
        return weights, torch.einsum("bhqd,hdm->bqm", values, self.block.parameters.output_weight)

    def _see_only_their_word(self, groups: WordGroups) -> Bool[Tensor, "batch word"]:
        """Words none of whose tokens sees another word."""
        row, query, key = groups.ordered_siblings
        seen = self.block.alpha.seen
        inside = seen.queries.long()
        inside.index_put_((row, query), seen.pairs(row, query, key).long(), accumulate=True)
        others = (seen.counts - inside).to(groups.rows.dtype)
        return (groups.rows @ others.unsqueeze(-1)).squeeze(-1) == 0


def between(
    block: AttentionBlock, groups: WordGroups | None, queries: Int[Tensor, " chosen"] | None = None
) -> TokenBlock | WordBlock:
    """A block, measured between words or, without any, between tokens.

    Args:
        queries: The tokens whose rows maps have; all by default. Maps of words have all rows.

    Raises:
        InputError: If words are measured and the block has a gate.
    """
    return TokenBlock(block, queries) if groups is None else WordBlock(block, groups)
