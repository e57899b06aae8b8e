"""One BlockLayout literal per architecture family. CONTRIBUTING.md says how to add one."""

import dataclasses

from normscope.errors import InputError
from normscope.models.layout import BlockLayout

_MODELS = "https://github.com/huggingface/transformers/blob/main/src/transformers/models"


def _bert_like(model_type: str) -> BlockLayout:
    """BERT's block, which its relatives copied word for word."""
    return BlockLayout(
        model_type=model_type,
        layers="encoder.layer",
        attention="attention.self",
        key="attention.self.key",
        value="attention.self.value",
        output="attention.output.dense",
        norm="attention.output.LayerNorm",
        norm_position="post",
        embedding_norm="embeddings.LayerNorm",
        output_norm="output.LayerNorm",
        position_embedding="embeddings.position_embeddings",
        source=f"{_MODELS}/{model_type.replace('-', '_')}/modeling_{model_type.replace('-', '_')}.py",
    )


FAMILIES: dict[str, BlockLayout] = {
    layout.model_type: layout
    for layout in (
        _bert_like("bert"),
        _bert_like("roberta"),
        _bert_like("xlm-roberta"),
        _bert_like("camembert"),
        # ELECTRA projects its embeddings after their norm.
        dataclasses.replace(_bert_like("electra"), embedding_norm=None),
        BlockLayout(
            model_type="distilbert",
            layers="transformer.layer",
            attention="attention",
            key="attention.k_lin",
            value="attention.v_lin",
            output="attention.out_lin",
            norm="sa_layer_norm",
            norm_position="post",
            embedding_norm="embeddings.LayerNorm",
            output_norm="output_layer_norm",
            position_embedding="embeddings.position_embeddings",
            source=f"{_MODELS}/distilbert/modeling_distilbert.py",
        ),
    )
}


def layout_of(model_type: str) -> BlockLayout:
    """The layout of a family.

    Raises:
        InputError: If the family is unknown; it is never guessed.
    """
    try:
        return FAMILIES[model_type]
    except KeyError:
        raise InputError(
            f"model family {model_type!r} is not known; known families: {', '.join(sorted(FAMILIES))}. Set model.name to "
            "a model of one of these, or add the family (CONTRIBUTING.md, 'Add a model family')"
        ) from None
