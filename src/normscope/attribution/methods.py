"""The methods of attribution, and the families for which each is defined."""

import enum
from collections.abc import Collection

from normscope.errors import InputError
from normscope.linear.refusals import not_measured
from normscope.maths.layer_composition import WHOLE_LAYER
from normscope.models.blocks.block import GATED, NOT_LINEAR
from normscope.models.facts import ModelFacts


class MapMethod(enum.StrEnum):
    """A method that gives a map (query, key) of the whole model."""

    ROLLOUT = "rollout"
    """Attention weights with the residual connection (Abnar & Zuidema 2020)."""
    NORM_ROLLOUT = "norm_rollout"
    """Norms of the layer's vectors, row by row (Kobayashi et al. 2021, 2024)."""
    GLOBENC = "globenc"
    """Norms after both layer normalisations (Modarressi et al. 2022)."""
    ALTI = "alti"
    """How much each token reduces the L1 distance to the block's output (Ferrando et al. 2022)."""
    VALUE_ZEROING = "value_zeroing"
    """Change of the layer's output without a token's value (Mohebbi et al. 2023)."""
    DECOMPX = "decompx"
    """The vectors themselves, carried through every layer (Modarressi et al. 2023)."""


class MapStage(enum.StrEnum):
    """The stage whose norms `norm_rollout` multiplies."""

    RESIDUAL = "attnres_n"
    """Attention with the residual connection."""
    NORMALISED = "attnresln_n"
    """After the layer normalisation of the attention block."""
    BLOCK = "block"
    """After the attention block, its last stage."""
    LAYER = WHOLE_LAYER
    """After the whole layer, the family's last stage."""


NEEDS_FEED_FORWARD = frozenset({MapMethod.GLOBENC, MapMethod.VALUE_ZEROING})
"""The methods that need the layers' feed-forward networks."""


NEEDS_VECTORS_OF_KEYS = frozenset(MapMethod) - {MapMethod.ROLLOUT, MapMethod.DECOMPX}
"""The methods that need the contribution of each key to be a multiple of one vector, which it is not with gates."""


def check_defined_for_translations(method: MapMethod) -> None:
    """Check that a method maps the outputs of a decoder to the tokens of source and target."""
    if method is not MapMethod.ALTI:
        raise InputError(
            f"{method} is not defined for translations; use alti, or load the model with stack='encoder' to map its encoder"
        )


def check_followed(facts: ModelFacts) -> None:
    """Check that vectors can be followed through a stack from its first layer to its last.

    Raises:
        InputError: If they cannot; the message says why.
    """
    if facts.stack in ("decoder", "cross"):
        raise InputError(
            f"attribution follows one stack from its first layer to its last; stack={facts.stack} of {facts.family} "
            "alternates self-attention and cross-attention; set stack=encoder, or attribute translations with stack=cross"
        )


def _why_undefined(method: MapMethod, facts: ModelFacts) -> str | None:
    """Why a family has no maps of a method; None if it has them."""
    if method is MapMethod.DECOMPX:  # which follows the model's own code
        return None
    if facts.not_measured:
        return f"{not_measured(facts.not_measured)}; use decompx"
    if facts.has_other_layers:
        return "more than one network follows the attention block of a layer; use decompx"
    if facts.writes_between:
        return "a convolution beside its first layer mixes tokens past attention; use decompx"
    if method is MapMethod.ROLLOUT:
        return None
    if not facts.has_value_weights:
        return f"{NOT_LINEAR.format('values')}; use rollout or decompx"
    if facts.is_gated and method in NEEDS_VECTORS_OF_KEYS:
        return f"{GATED}; use rollout or decompx"
    if not facts.has_networks and method in NEEDS_FEED_FORWARD:
        return (
            "its layers have no feed-forward network that can be observed; use rollout, norm_rollout, alti or decompx"
        )
    if method is MapMethod.VALUE_ZEROING and not facts.in_modules:
        return "it reruns layers, but no module runs a whole layer; use rollout, norm_rollout, alti or decompx"
    if method is MapMethod.GLOBENC and facts.norm_positions != ("post",):
        return (
            "it needs layer normalisations that follow both residual connections (post-LN), and this family normalises "
            "elsewhere; use norm_rollout, alti or decompx"
        )
    return None


def check_defined(method: MapMethod, stage: MapStage, facts: ModelFacts) -> None:
    """Check that a method is defined for a family.

    Args:
        stage: The stage for `norm_rollout`.
        facts: What the model is.

    Raises:
        InputError: If it is not; the message says why.
    """
    check_followed(facts)
    why = _why_undefined(method, facts)
    if why is not None:
        raise InputError(f"{method} is not defined for this {facts.family}: {why}")
    always = (MapStage.BLOCK, MapStage.LAYER)
    stages = [each for each in MapStage if each in always or str(each) in map(str, facts.methods)]
    if method is MapMethod.NORM_ROLLOUT and stage not in stages:
        raise InputError(f"stage={stage} is not defined for {facts.family}; expected one of {', '.join(stages)}")


def defined_methods(facts: ModelFacts, wanted: Collection[MapMethod] | None, stage: MapStage) -> list[MapMethod]:
    """The wanted methods, or all that are defined.

    Args:
        wanted: Methods that must be defined; None means all that are.
        stage: The stage of `norm_rollout`.

    Raises:
        InputError: If a wanted method or the stage is not defined, or vectors cannot be followed through the stack.
    """
    check_followed(facts)
    methods = [each for each in MapMethod if _why_undefined(each, facts) is None] if wanted is None else [*wanted]
    for method in methods:
        check_defined(method, stage, facts)
    return methods
