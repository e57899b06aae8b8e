"""Any module that maps token ids to vectors, as a model that can be observed like a transformers model."""

import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter
from transformers import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel

from normscope.data.token_sequence import Batching
from normscope.errors import InputError, one_line
from normscope.models.infer.graph import NotInferredError
from normscope.models.load.plain_operations import PlainOperations
from normscope.models.prove.padding import batching_of
from normscope.models.sites.block_modules import bind_blocks
from normscope.models.sites.layer_hooks import layer_hooks, vectors_from, vectors_in
from normscope.models.sites.layout import ModelLayout
from normscope.models.sites.positions import Lookups
from normscope.models.stored.model_code import model_code
from normscope.rounding import counted

Inputs = Callable[[Tensor, Tensor], Any]
"""What a module's `forward` is given: keyword arguments, positional arguments or one tensor, from ids and mask."""

_PROBE = (2, 5)
"""Number of texts and of tokens in the batch that is used to find the parts of a module."""


_LONGEST_PROBE = 11
"""Number of tokens of the longest text in any probe."""


@dataclasses.dataclass
class VectorsOutput(BaseModelOutput):
    """The vectors of the last layer or norm, and those that the module returns if they are others of the same size."""

    returned: Tensor | None = None


def returned_vectors(output: Any) -> Tensor | None:
    """The vectors that a model itself returns, from its output; None if it returns none, as heads do."""
    own: Tensor | None = getattr(output, "returned", None)
    return getattr(output, "last_hidden_state", None) if own is None else own


class AnyModule(PreTrainedModel):
    """A module that looks like a transformers model from outside; it runs in plain operations.

    Args:
        module: The module, in evaluation mode. It may get submodules for its bare parameters, so it should be a copy.
        inputs: A function of ids and mask, both (text, token), that returns what the module is called with. By default, the
            ids, and the mask if `forward` has a parameter `attention_mask`.

    Raises:
        InputError: If the module cannot be called, returns no vectors, or looks up no token embedding.
    """

    config_class = PretrainedConfig

    def __init__(self, module: nn.Module, inputs: Inputs | None = None) -> None:
        config = PretrainedConfig()
        config.model_type, config.name_or_path = type(module).__name__, type(module).__name__
        config.pad_token_id, config._attn_implementation = None, "eager"
        super().__init__(config)
        self.model = module
        self.inputs = inputs
        self.plain = True
        """Whether the module runs in plain operations."""
        self.vectors: str | None = None
        """The path of the submodule whose output stands for the module's own; None if the module returns vectors."""
        self.changes_vectors = False
        """Whether the module returns other vectors of the same size, which it makes of those."""
        self.returned_swapped: tuple[int, int] | None = None
        """The two axes of what the module returns to swap."""
        self.swapped: tuple[int, int] | None = None
        """The two axes of these vectors to swap, if their shape is not (text, token, dimension)."""
        self.reads_vectors = False
        """Whether it is that submodule's input instead."""
        self.embedding: nn.Embedding | None = None
        self.pads = True
        """Whether texts may be followed by padding."""
        self.longest_probe: int | None = None
        """The longest text of a probe that the module takes; None if it takes all probes."""

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return False

    def set_experts_implementation(self, experts_implementation: Any) -> None:
        """Do nothing: the module has no other implementations to choose from."""

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the tokens."""
        if self.embedding is None:
            raise NotImplementedError
        return self.embedding

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> "VectorsOutput":
        """Run the module.

        Args:
            input_ids: (text, token).
            attention_mask: 1 at tokens and 0 at padding, (text, token).
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        with self.operations(), self._captured() as captured:
            output = self._explained(input_ids, mask)
        vectors = captured[-1] if captured else self._vectors(output, input_ids.shape, self.swapped)
        found = vectors if self.swapped is None else vectors.transpose(*self.swapped)
        if not self.changes_vectors:
            return VectorsOutput(last_hidden_state=found)
        own, axes = self._vectors(output, input_ids.shape, self.returned_swapped), self.returned_swapped
        return VectorsOutput(last_hidden_state=found, returned=own if axes is None else own.transpose(*axes))

    def returning(self, *, plain: bool) -> "AnyModule":
        """The same module, but returning what it returns itself.

        Args:
            plain: Whether it runs in plain operations.
        """
        same = copy.copy(self)
        same.plain, same.vectors, same.swapped = plain, None, self.returned_swapped
        same.changes_vectors = False
        return same

    def operations(self) -> contextlib.AbstractContextManager[object]:
        """Context in which the module, or a part of it, runs as it does in `forward`."""
        return PlainOperations(self.model) if self.plain else contextlib.nullcontext()

    def _explained(self, ids: Tensor, mask: Tensor) -> Any:
        """Run the module; whatever its own code raises becomes an input error."""
        with model_code(self.model, f"{counted(len(ids), 'text')} of {counted(ids.shape[1], 'token')}"):
            return self._run(ids, mask)

    def _run(self, ids: Tensor, mask: Tensor) -> Any:
        given = self._default(ids, mask) if self.inputs is None else self.inputs(ids, mask)
        if isinstance(given, Mapping):
            return self.model(**given)
        return self.model(*given) if isinstance(given, tuple | list) else self.model(given)

    def _default(self, ids: Tensor, mask: Tensor) -> Mapping[str, Tensor]:
        parameters = inspect.signature(self.model.forward).parameters
        names = [
            name for name, each in parameters.items() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        ]
        given = {"input_ids" if "input_ids" in names else next(iter(names), "input_ids"): ids}
        return given | ({"attention_mask": mask} if "attention_mask" in names else {})

    @contextlib.contextmanager
    def _captured(self) -> Iterator[list[Tensor]]:
        outputs: list[Tensor] = []
        if self.vectors is None:
            yield outputs
            return
        module = self.get_submodule(self.vectors)
        if self.reads_vectors:
            handle = module.register_forward_pre_hook(
                lambda _module, args, kwargs: outputs.append(vectors_in(args, kwargs)), with_kwargs=True
            )
        else:
            handle = module.register_forward_hook(lambda _module, _args, output: outputs.append(vectors_from(output)))
        try:
            yield outputs
        finally:
            handle.remove()

    def _vectors(self, output: Any, size: torch.Size, swapped: tuple[int, int] | None) -> Tensor:
        size = size[::-1] if swapped == (0, 1) else size
        if dataclasses.is_dataclass(output) and not isinstance(output, Mapping):
            output = vars(output)
        tensors = [each for each in tree_iter(output) if isinstance(each, Tensor)]
        for tensor in tensors:
            if tensor.is_floating_point() and tensor.ndim == 3 and tensor.shape[0] == size[0]:
                return tensor
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[:3]) or "no tensor"
        raise InputError(
            f"model: expected {type(self.model).__name__} to return a vector for each token, of shape "
            f"({size[0]}, {size[1]}, …), got {shapes}"
        )

    def find_parts(self) -> None:
        """Find the token embedding, the bare parameters that are multiplied with vectors, and how long a probe may be."""
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        ids = torch.arange(_PROBE[0] * _PROBE[1], device=device).view(_PROBE) % 2
        try:
            with torch.no_grad(), Lookups() as lookups, PlainOperations(self.model, discover=True):
                output = self._run(ids, torch.ones_like(ids))
        except InputError:
            raise
        except Exception as error:  # somebody else's code
            raise InputError(
                f"model: {type(self.model).__name__} fails on token ids of shape {_PROBE}: {one_line(error)}; pass "
                "inputs=, a function of ids and mask that returns the arguments of its forward"
            ) from error
        self.eval()  # the new submodules too
        self._find_axes(output, ids.shape)
        self.returned_swapped = self.swapped
        looked_up = [
            weight
            for weight, read in lookups.found
            if any(torch.equal(read, given) for given in (ids, ids.T))  # shapes are compared as well
        ]
        tables = [module for module in self.model.modules() if isinstance(module, nn.Embedding)]
        self.embedding = next((table for table in tables if any(table.weight is each for each in looked_up)), None)
        if self.embedding is None:
            raise InputError(
                f"model: {type(self.model).__name__} does not look up its token ids in an nn.Embedding, so its vocabulary "
                "is unknown; embed the ids with an nn.Embedding"
            )
        self.config.vocab_size, self.config.hidden_size = self.embedding.weight.shape
        self.longest_probe = self._longest_probe(device)

    def _find_axes(self, output: Any, size: torch.Size) -> None:
        """Find out which axis of the returned vectors is that of the tokens."""
        try:
            self._vectors(output, size, self.swapped)
        except InputError as error:
            self.swapped = (0, 1)
            try:
                self._vectors(output, size, self.swapped)
            except InputError:
                raise error from None

    def _longest_probe(self, device: torch.device) -> int | None:
        """The longest text that the module takes, if it has fewer positions than the longest probe has tokens."""
        for length in range(_LONGEST_PROBE, _PROBE[1], -1):
            ids = torch.arange(length, device=device)[None] % self.config.vocab_size
            try:
                with torch.no_grad(), PlainOperations(self.model):
                    self._run(ids, torch.ones_like(ids))
            except Exception:  # somebody else's code; too long for its table of positions, most likely
                continue
            return None if length == _LONGEST_PROBE else length
        return _PROBE[1]

    def settled(self, layout: ModelLayout) -> ModelLayout:
        """Find out what the module returns, and whether texts may be followed by padding.

        Args:
            layout: Where its layers and its last norm are.

        Returns:
            The layout, without a head that the vectors pass through.
        """
        ids = torch.arange(_PROBE[0] * _PROBE[1], device=self.device).view(_PROBE) % self.config.vocab_size
        with torch.no_grad():
            returned = self(ids).last_hidden_state
            stream = layout.stream
            self.vectors = stream.final_norm or (stream.layers[-1] if stream.in_modules else stream.end) or None
            self.reads_vectors = not stream.in_modules and stream.final_norm is None
            returned_with, self.swapped = self.swapped, stream.swapped.get("stream")
            made = self(ids).last_hidden_state
        if returned.shape == made.shape and torch.equal(returned, made):
            self.vectors, self.swapped = None, returned_with
        # Vectors of another size are the logits of a head.
        self.changes_vectors = self.vectors is not None and returned.shape == made.shape
        self._check_rest(layout)
        self.pads = batching_of(self) is Batching.PADDED
        if self.vectors is None:
            return layout
        return dataclasses.replace(layout, stream=dataclasses.replace(stream, output_projection=None))

    def _check_rest(self, layout: ModelLayout) -> None:
        """Check that attention alone mixes tokens: changing one token's attention output changes only that token."""
        ids = torch.arange(_PROBE[1], device=self.device)[None] % self.config.vocab_size
        for modules in bind_blocks(self, layout):
            entry = modules.entry
            outputs: list[Tensor] = []

            def change(_module: nn.Module, _args: Any, output: Tensor, outputs: list[Tensor] = outputs) -> Tensor:
                changed = output.clone()
                layout.by_text(changed, "attention output")[:, 0, ::2] += (
                    1.0 if outputs else 0.0
                )  # a norm would cancel a constant shift
                return changed

            def take(
                module: nn.Module, _args: Any, output: Any, outputs: list[Tensor] = outputs, entry: nn.Module = entry
            ) -> None:
                if module is entry:
                    outputs.append(layout.by_text(vectors_from(output)).clone())

            handles = [
                modules.output.register_forward_hook(change),
                *layer_hooks(self, layout, lambda _module, _args, _kwargs: None, take),
            ]
            try:
                with torch.no_grad():
                    self(ids)
                    self(ids)
            finally:
                for handle in handles:
                    handle.remove()
            before, after = outputs[0], outputs[len(outputs) // 2]
            if (before - after)[:, 1:].norm() > 1e-3 * before.norm():
                raise NotInferredError(f"layer {modules.layer} mixes tokens after attention as well")
