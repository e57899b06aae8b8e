"""Embeddings of texts, and what tokens contribute to them.

The modules that follow pooling run their own code, with everything that is not linear held fixed: a norm's deviation, an
activation's slope, a length. The parts of the pooled vector therefore give parts of the embedding, which add up to the
embedding exactly.
"""

import copy
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.linear.rules import HeldFixed, Kind, Stack, kind_of, marked, parts_from, stack_of
from normscope.maths.choices import Pooling
from normscope.maths.embedder import Embedder, pooled
from normscope.maths.tensors import wide


def embedding(
    embedder: Embedder,
    hidden: Float[Tensor, "batch token model"],
    token_mask: Bool[Tensor, "batch token"],
    prompt: int | Int[Tensor, " batch"] | None = None,
) -> Float[Tensor, "batch *token made"]:
    """The embeddings of texts, in the dtype of the hidden vectors.

    Gradients hold fixed what is not linear, so gradient × input misses only the constants of the modules.

    Args:
        embedder: How embeddings are made.
        hidden: The last hidden vectors.
        token_mask: True at tokens, False at padding.
        prompt: Number of tokens that a prompt takes at the start of a text: one number for all texts, or one for each.

    Raises:
        InputError: If a module's output is not an affine map of the pooled vector, even with what is not linear held fixed.
    """
    vectors = wide(pooled(embedder.weights(hidden, token_mask, prompt), hidden))
    for module in _in_float64(embedder.modules, vectors.device):
        given = marked(vectors.clone(), Kind.LINEAR)
        with HeldFixed(module, shifted=True):
            vectors = _made(module, given)
    return vectors.to(hidden.dtype)


def parts_of_embedding(
    embedder: Embedder,
    parts: Float[Tensor, "batch source *token model"],
    whole: Float[Tensor, "batch *token model"],
) -> tuple[Float[Tensor, "batch source *token made"], Float[Tensor, "batch *token made"]]:
    """What tokens and biases contribute to embeddings, and the embeddings.

    Args:
        embedder: How embeddings are made.
        parts: What each token, and last the bias, contributes to the pooled vectors, in float64.
        whole: The pooled vectors, in float64.

    Raises:
        InputError: If a module's output is not an affine map of the pooled vector, even with what is not linear held fixed.
    """
    stack = parts.movedim(1, 0)
    for module in _in_float64(embedder.modules, whole.device):
        given = marked(whole.detach().clone(), Kind.LINEAR)
        given._stack = start = Stack(None)
        with HeldFixed(module, carries=True, shifted=True), torch.no_grad():
            made = _made(module, given)
        (stack,), whole = parts_from({start: stack}, [stack_of(made)], bias=True), made.detach()
    return stack.movedim(0, 1), whole


def _in_float64(modules: Sequence[nn.Module], device: torch.device) -> Iterator[nn.Module]:
    """Copies, made anew each time: the modules belong to the user, who may change their weights."""
    for module in modules:
        yield copy.deepcopy(module).to(device, torch.float64).eval().requires_grad_(False)


def _made(module: nn.Module, vectors: Tensor) -> Tensor:
    fault, made = "computes no affine map even with norms and slopes held fixed", None
    try:
        made = module(vectors)
    except KeyError as error:
        fault = f"reads or writes another feature than the embedding ({error})"
    if isinstance(made, Tensor) and kind_of(made) is Kind.LINEAR:
        return made
    inner = getattr(module, "module", module)
    raise InputError(
        f"pooling: {type(inner).__name__}, which follows the pooling, {fault}; to leave it out, set pooling to one of "
        f"{', '.join(Pooling)}"
    )
