"""Reruns a layer on one text, with other attention outputs."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from normscope.linear.rules import with_tensors
from normscope.models.observe.attention_function import AttentionCall, MaskTensor, active
from normscope.models.sites.block_modules import BlockModules
from normscope.models.sites.layer_hooks import vectors_from, vectors_in, with_vectors


class _Silent:
    """Stands in for attention whose output is replaced."""

    masks_on_host = ()

    def attend(self, _module: nn.Module, call: AttentionCall) -> Tensor:
        """Zeros."""
        texts, heads, queries, _ = call.query.shape
        return call.value.new_zeros(texts, queries, heads, call.value.shape[-1])


class LayerRerun(NamedTuple):
    """A layer as the model called it."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    modules: BlockModules
    texts: int
    paused: Callable[[], AbstractContextManager[None]]
    """Returns a context in which the hooks of the observer do nothing."""

    def outputs(
        self, text: int, attention: Float[Tensor, "variant token model"]
    ) -> Float[Tensor, "variant token model"]:
        """What leaves the layer for a text whose attention outputs are replaced, in the model's dtype.

        Args:
            text: The text's index in the batch.
            attention: Outputs of W_O, one for each variant.
        """
        # What comes before W_O is the same for all variants, so a single text goes in, and all variants come out of W_O,
        # unless they would be added in place to what was made of the single text.
        layout, heads = self.modules.layout, self.modules.site.attention.heads
        copies = len(attention) if layout.stream.changes_in_place else 1
        args, kwargs = (_of_text(given, text, self.texts, heads) for given in (self.args, dict(self.kwargs)))
        vectors = layout.by_text(vectors_in(self.args, self.kwargs))[text].expand(copies, -1, -1)
        args, kwargs = with_vectors(args, kwargs, layout.by_text(vectors))

        def replaced(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            variants = layout.by_text(attention.to(output), "attention output")
            return variants if output.ndim == variants.ndim else variants.reshape(-1, *output.shape[1:])

        handle = self.modules.output.register_forward_hook(replaced)
        token = active.set(_Silent())
        try:
            with self.paused():
                output = self.layer(*args, **kwargs)
        finally:
            active.reset(token)
            handle.remove()
        return layout.by_text(vectors_from(output))


def _of_text(given: Any, text: int, texts: int, heads: int) -> Any:
    """The arguments of a layer for one text. The first of several axes counts texts, or texts and their heads."""

    def of_one(tensor: Tensor) -> Tensor:
        if isinstance(tensor, MaskTensor) or tensor.ndim < 2:
            return tensor
        if tensor.ndim == 3 and len(tensor) == texts * heads and heads > 1:
            return tensor[text * heads : (text + 1) * heads]
        return tensor if len(tensor) != texts else tensor[text : text + 1]

    return with_tensors(given, of_one)
