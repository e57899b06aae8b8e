"""The shape of a model, known from its config before its weights are loaded."""

import dataclasses

from transformers import PretrainedConfig

from normscope.models.sites.layout import ModelLayout


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """The shape of the stack that a run observes."""

    name: str
    layers: int
    heads: int
    """The largest number of heads of a layer."""
    hidden_size: int
    """Number of dimensions of a hidden vector."""
    is_cross_attention: bool = False
    """Whether the run observes the decoder's cross-attention."""
    has_feed_forward: bool = True
    """Whether a feed-forward network follows the attention of a layer. In a decoder, cross-attention follows self-attention."""
    layout: ModelLayout | None = None
    """The layout of its family."""

    @classmethod
    def of(cls, name: str, config: PretrainedConfig, layout: ModelLayout) -> "ModelInfo":
        """The shape that a transformers config describes."""
        return cls(
            name=name,
            layers=len(layout.stream.layers),
            heads=layout.heads,
            hidden_size=int(config.hidden_size),
            is_cross_attention=layout.is_cross_attention,
            has_feed_forward=layout.has_networks,
            layout=layout,
        )
