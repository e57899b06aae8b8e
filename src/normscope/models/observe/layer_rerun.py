"""Reruns a layer on one text, with other attention outputs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from normscope.linear.axes import Axes
from normscope.linear.layer_calls import LayerCall, vectors_of
from normscope.linear.rules import with_tensors
from normscope.models.observe.attention_function import MaskTensor, unobserved


class LayerRerun(NamedTuple):
    """Runs a layer again."""

    call: LayerCall
    """As the model called it."""
    texts: int
    heads: int
    axes: Axes
    """Where the axes of the model's vectors are."""
    keeps_texts: bool
    """Whether as many texts leave the layer as enter it even if W_O returns more; see `WholeLayers.keeps_texts`."""
    replaced: Callable[[Callable[[Tensor], Tensor]], AbstractContextManager[None]]
    """Returns a context in which a function of the output of W_O replaces it, and in which nothing is observed."""

    def outputs(
        self, text: int, attention: Float[Tensor, "variant token model"]
    ) -> Float[Tensor, "variant token model"]:
        """What leaves the layer for a text whose attention outputs are replaced, in the model's dtype.

        Args:
            text: The text's index in the batch.
            attention: Outputs of W_O, one for each variant.
        """
        # What comes before W_O is the same for all variants, so a single text goes in, and all variants come out of W_O,
        # if the layer can go on with more texts than have entered it.
        copies = len(attention) if self.keeps_texts else 1
        vectors, own = self.axes.by_text(self.call.vectors, self.texts)[text].repeat(copies, 1, 1), self.call.vectors
        vectors = self.axes.by_model(vectors, (copies, *own.shape[1:]) if own.ndim > 3 else None)
        layer, *given = self.call
        args, kwargs = (self._of_text(each, text, copies) for each in given)
        call = LayerCall(layer, args, kwargs).having(vectors)

        def variants(output: Tensor) -> Tensor:
            made = self.axes.by_model(attention.to(output))
            return made if output.ndim == made.ndim else made.reshape(-1, *output.shape[1:])

        # A decoder's self-attention runs before the cross-attention whose output is replaced.
        with unobserved(), self.replaced(variants):
            output = layer(*call.args, **call.kwargs)
        left = vectors_of(output)
        assert left is not None
        return self.axes.by_text(left, len(attention))

    def _of_text(self, given: Any, text: int, copies: int) -> Any:
        """The arguments of a layer for copies of one text. The first of several axes counts texts, or texts and their heads."""
        texts, heads = self.texts, self.heads

        def of_one(tensor: Tensor) -> Tensor:
            if isinstance(tensor, MaskTensor):
                lengths = (copies, *tensor.shape[2:])
                return MaskTensor(tensor.rule.of_text(text, copies), lengths, tensor.dtype, tensor.device)
            if tensor.ndim < 2:
                return tensor
            if tensor.ndim == 3 and len(tensor) == texts * heads and heads > 1:
                own = tensor[text * heads : (text + 1) * heads]
            elif len(tensor) == texts:
                own = tensor[text : text + 1]
            else:
                return tensor
            return own.repeat(copies, *[1] * (tensor.ndim - 1)) if copies > 1 else own

        return with_tensors(given, of_one)
