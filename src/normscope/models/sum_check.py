"""The comparison of Σ αf(x) with the attention output while a model runs on a corpus."""

from collections.abc import Sequence

from torch import Tensor

from normscope.errors import InputError
from normscope.models.block import AttentionBlock, full_precision
from normscope.models.identities import sampled_sum_error


class SumCheck:
    """Compares Σ αf(x) with the attention output on the first batch, and on every batch longer than all before it.

    Args:
        name: The model's name, for messages.
        bound: The relative difference from which on the comparison fails.
    """

    def __init__(self, name: str, bound: float) -> None:
        self._name, self._bound = name, bound
        self._compared = 0
        """Length of the longest sequence whose vectors were added up."""
        self._row = 0
        self.errors: dict[int, Tensor] = {}
        """Relative differences of the current pass, by layer."""

    def is_due(self, token_mask: Tensor, keys: int, masks_on_host: Sequence[Tensor]) -> bool:
        """Whether to add up the vectors of a pass: those of its longest sequence.

        Args:
            token_mask: Tokens that are not padding.
            keys: Number of keys.
            masks_on_host: Masks in CPU memory, from which the longest sequence is known without waiting for the device.
        """
        self.errors = {}
        if keys <= self._compared or token_mask.device.type == "meta":
            return False
        self._compared = keys
        tokens = next((mask for mask in masks_on_host if mask.shape == token_mask.shape), token_mask)
        self._row = int(tokens.sum(dim=1).argmax())
        return True

    def add(self, block: AttentionBlock) -> None:
        """Add up the vectors of a block."""
        self.errors[block.layer] = sampled_sum_error(block, self._row)

    def compare_stream(self, layer: int, left: Tensor, read: Tensor, token_mask: Tensor) -> None:
        """Compare what a layer reads with what the previous layer returned.

        Raises:
            InputError: If something else has written to the hidden vectors.
        """
        if left is read or left.shape != read.shape:
            return
        difference = (full_precision(left) - full_precision(read))[token_mask].norm()
        if float(difference) >= self._bound * float(full_precision(read)[token_mask].norm()):
            raise InputError(
                f"{self._name} cannot be observed exactly on these texts: layer {layer} does not read what layer {layer - 1} "
                "returns, so something between them changes the hidden vectors"
            )

    def require(self) -> None:
        """Check that the vectors of the pass add up to the attention output."""
        for layer, error in self.errors.items():
            if float(error) >= self._bound:  # analyses reject NaN
                raise InputError(
                    f"{self._name} cannot be observed exactly on texts of {self._compared} tokens: in layer {layer}, Σ αf(x) "
                    f"differs from the attention output by {float(error):.1e} (relative, at most {self._bound:.0e}), so "
                    "attention depends on the length; set dataset.max_length to a length at which the two agree"
                )
