"""The attention blocks of a forward pass, one by one."""

from collections.abc import Iterator

from transformers import BatchEncoding

from normscope.api.arguments import in_terms_of_arguments
from normscope.api.calls import checked
from normscope.data.batching import Batch
from normscope.models.block import AttentionBlock
from normscope.models.forward_pass import Visitor
from normscope.models.loaded import LoadedModel
from normscope.models.observer import Observer
from normscope.models.text_batches import Text, batch_from_texts
from normscope.models.text_check import Check


@checked
def observe(model: LoadedModel, texts: Text | list[Text] | BatchEncoding | Batch) -> Iterator[AttentionBlock]:
    """Iterate over the attention blocks of one forward pass, layer by layer.

    A block holds its layer's activations, so use it inside the loop and do not keep it. The pass advances only when the next
    block is requested.

    Args:
        model: See `load` and `wrap`.
        texts: A text, a pair (tuple) of texts, a list of these, a BatchEncoding from the model's tokenizer, or a Batch.

    Examples:
        >>> import normscope
        >>> model = normscope.load()
        >>> for block in normscope.observe(model, "A short text."):
        ...     weights = block.weights  # text, head, query, key
        >>> block.layer, tuple(weights.shape)
        (6, (1, 12, 6, 6))

    Raises:
        InputError: If `texts` is anything else, a text is too long for the model, or another call is using the model.
            Raised when the first block is requested.
    """

    def run(visit: Visitor) -> None:
        with in_terms_of_arguments({"model.name": "model"}):
            batch = texts if isinstance(texts, Batch) else batch_from_texts(model, texts)
        with Observer(model.model, model.layout) as observer:
            inputs = batch.to(model.device).model_inputs()
            observer.run(
                inputs, lambda _block: None, check=Check.TEXTS
            )  # compared before the first block is handed out
            observer.run(inputs, visit, check=Check.NOTHING)

    return model.blocks(run)
