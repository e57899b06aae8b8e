"""Any module that maps token ids to vectors, as a model that can be observed like a transformers model."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter
from transformers import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel

from normscope.data.token_sequence import Batching
from normscope.errors import InputError, one_line
from normscope.linear.blocks import BlockRecogniser
from normscope.linear.layer_calls import LayerCalls
from normscope.linear.provenance import Made, made_of
from normscope.models.probes import Lookups, lookup_of
from normscope.models.prove.padding import batching_of
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


class PlainModule(PreTrainedModel):
    """A module that is given vectors, and looks like a transformers model from outside.

    Args:
        module: The module, in evaluation mode.
    """

    config_class = PretrainedConfig

    def __init__(self, module: nn.Module) -> None:
        config = PretrainedConfig()
        config.model_type = config.name_or_path = type(module).__name__
        config.pad_token_id, config._attn_implementation = None, "eager"
        super().__init__(config)
        self.model = module

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return False

    def set_experts_implementation(self, experts_implementation: Any) -> None:
        """Do nothing: the module has no other implementations to choose from."""

    def forward(self, *args: Any, **inputs: Any) -> BaseModelOutput:
        """Run the module. Its output is the first tensor that it returns."""
        tensors = (each for each in tree_iter(self.model(*args, **inputs)) if isinstance(each, Tensor))
        return BaseModelOutput(last_hidden_state=next(tensors, None))


class AnyModule(PlainModule):
    """A module that looks like a transformers model from outside.

    Args:
        module: The module, in evaluation mode.
        inputs: A function of ids and mask, both (text, token), that returns what the module is called with. By default, the
            ids, and the mask if `forward` has a parameter `attention_mask`.

    Raises:
        InputError: If the module cannot be called, returns no vectors, or looks up no token embedding.
    """

    def __init__(self, module: nn.Module, inputs: Inputs | None = None) -> None:
        super().__init__(module)
        self.inputs = inputs
        self.vectors: str | None = None
        """The path of the last layer, or of the norm after it, if the module returns something else than that gives."""
        self.vectors_are_read = False
        """Whether that module reads the vectors, because none gives them."""
        self.changes_vectors = False
        """Whether that is other vectors of the same size, which it makes of those."""
        self.tokens_first = self.layers_tokens_first = False
        """Whether the vectors that it returns, and those of its layers, have the axis of tokens before that of texts."""
        self.embedding: nn.Embedding | None = None
        self.looks_up_itself = False
        """Whether the module looks its token ids up without calling the embedding."""
        self.pads = True
        """Whether texts may be followed by padding."""
        self.longest_probe: int | None = None
        """The longest text of a probe that the module takes; None if it takes all probes."""

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
        with self._captured() as captured:
            output = self._explained(input_ids, mask)
        returned = self._vectors(output, input_ids.shape) if self.changes_vectors or not captured else None
        if returned is not None and self.tokens_first:
            returned = returned.transpose(0, 1)
        if not captured:
            return VectorsOutput(last_hidden_state=returned)
        found = captured[-1].transpose(0, 1) if self.layers_tokens_first else captured[-1]
        return VectorsOutput(last_hidden_state=found, returned=returned)

    def _explained(self, ids: Tensor, mask: Tensor) -> Any:
        """Run the module; whatever its own code raises becomes an input error."""
        with model_code(self.model, f"{counted(len(ids), 'text')} of {counted(ids.shape[1], 'token')}"):
            return self._run(ids, mask)

    def _run(self, ids: Tensor, mask: Tensor) -> Any:
        given = self._default(ids, mask) if self.inputs is None else self.inputs(ids, mask)
        with _ThroughEmbedding(self.embedding) if self.looks_up_itself else contextlib.nullcontext():
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
        if self.vectors_are_read:
            handle = module.register_forward_pre_hook(lambda _module, args: outputs.append(args[0]))
        else:
            handle = module.register_forward_hook(lambda _module, _args, output: outputs.append(_first(output)))
        try:
            yield outputs
        finally:
            handle.remove()

    def _vectors(self, output: Any, size: torch.Size) -> Tensor:
        size = size[::-1] if self.tokens_first else size
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
        """Find the token embedding, what the module returns, and how long a probe may be.

        Raises:
            InputError: If the module cannot be called, returns no vectors, or looks up no token embedding.
        """
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        ids = torch.arange(_PROBE[0] * _PROBE[1], device=device).view(_PROBE) % 2
        try:
            with torch.no_grad(), Lookups() as lookups:
                output = self._run(ids, torch.ones_like(ids))
        except InputError:
            raise
        except Exception as error:  # somebody else's code
            raise InputError(
                f"model: {type(self.model).__name__} fails on token ids of shape {_PROBE}: {one_line(error)}; pass "
                "inputs=, a function of ids and mask that returns the arguments of its forward"
            ) from error
        self._find_axes(output, ids.shape)
        looked_up = [
            weight
            for weight, read in lookups.found
            if any(torch.equal(read, given) for given in (ids, ids.T))  # shapes are compared as well
        ]
        tables = [module for module in self.model.modules() if isinstance(module, nn.Embedding)]
        self.embedding = next((table for table in tables if any(table.weight is each for each in looked_up)), None)
        if self.embedding is None and looked_up:
            self.embedding, self.looks_up_itself = nn.Embedding.from_pretrained(looked_up[0]).eval(), True
            self.embedding.weight = looked_up[0]
        if self.embedding is None:
            raise InputError(
                f"model: {type(self.model).__name__} does not look up its token ids in a table, so its vocabulary is "
                "unknown; embed the ids with an nn.Embedding"
            )
        self.config.vocab_size, self.config.hidden_size = self.embedding.weight.shape
        last = _LastVectors(self)
        with torch.no_grad():
            output = last.find(lambda: self._run(ids, torch.ones_like(ids)))
        self.layers_tokens_first = last.vectors is not None and last.vectors.shape[:2] == ids.T.shape
        self._find_returned(last, self._vectors(output, ids.shape))
        self.longest_probe = self._longest_probe(device)
        self.pads = batching_of(self) is Batching.PADDED

    def _find_axes(self, output: Any, size: torch.Size) -> None:
        """Find out which axis of the returned vectors is that of the tokens."""
        try:
            self._vectors(output, size)
        except InputError as error:
            self.tokens_first = True
            try:
                self._vectors(output, size)
            except InputError:
                raise error from None

    def _find_returned(self, last: "_LastVectors", returned: Tensor) -> None:
        """Find out whether the module returns what its last layer, or the norm after that, gives."""
        if last.vectors is None or last.path is None:
            return
        vectors = last.vectors if self.layers_tokens_first == self.tokens_first else last.vectors.transpose(0, 1)
        if vectors.shape == returned.shape and torch.equal(vectors, returned):
            return
        self.vectors, self.vectors_are_read = last.path, last.are_read
        # Vectors of another size are the logits of a head.
        self.changes_vectors = vectors.shape == returned.shape

    def _longest_probe(self, device: torch.device) -> int | None:
        """The longest text that the module takes, if it has fewer positions than the longest probe has tokens."""
        for length in range(_LONGEST_PROBE, _PROBE[1], -1):
            ids = torch.arange(length, device=device)[None] % self.config.vocab_size
            try:
                with torch.no_grad():
                    self._run(ids, torch.ones_like(ids))
            except Exception:  # somebody else's code; too long for its table of positions, most likely
                continue
            return None if length == _LONGEST_PROBE else length
        return _PROBE[1]


class _ThroughEmbedding(TorchFunctionMode):
    """Lets an embedding look up what a module looks up in its table by itself, so that the embedding can be hooked."""

    def __init__(self, embedding: nn.Embedding | None) -> None:
        super().__init__()
        self._embedding = embedding

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        table, ids = lookup_of(function, args, kwargs or {}) or (None, None)
        if self._embedding is not None and table is self._embedding.weight:
            return self._embedding(ids)
        return function(*args, **(kwargs or {}))


class _LastVectors:
    """Finds which module of a model gives the last vectors, or reads them.

    They are those of its last layer, or of a norm that reads what leaves that.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._called: list[tuple[nn.Module, Made | None, Any, Made | None]] = []
        """The modules that were called, with how what each read was made, what it returned first, and how that was made."""
        self.vectors: Tensor | None = None
        self._made: Made | None = None
        """How they were made. What is changed in place is the same tensor."""
        self.path: str | None = None
        self.are_read = False
        """Whether the module reads them."""

    def find(self, run: Callable[[], Any]) -> Any:
        """Run the model, and return its output."""
        in_layers: list[bool] = []
        calls = LayerCalls(self._model, _PROBE[0], end=self._ends)
        recogniser = BlockRecogniser(
            self._model, _PROBE[0], lambda block: in_layers.append(block.trail.in_layer), lambda: calls.number
        )
        with contextlib.ExitStack() as exit_:
            for module in self._model.modules():
                exit_.callback(module.register_forward_hook(self._note).remove)
            with calls, recogniser:
                output = run()
        if self.vectors is None or not all(in_layers):
            self.vectors, self._made = recogniser.last, made_of(recogniser.last)
        self._find_module()
        return output

    def _note(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        returned = _first(output)
        self._called.append((module, made_of(args[0]) if args else None, returned, made_of(returned)))

    def _ends(self, _layer: int, vectors: Tensor) -> None:
        self.vectors, self._made = vectors, made_of(vectors)

    def _find_module(self) -> None:
        paths = {module: path for path, module in self._model.named_modules()}
        for module, read, returned, made in self._called if self._made is not None else ():
            is_norm = read is self._made and all(each.ndim < 2 for each in module.parameters())
            if made is self._made or (is_norm and isinstance(returned, Tensor)):
                self.vectors, self._made, self.path, self.are_read = returned, made, paths[module], False
            elif read is self._made and self.path is None:
                self.path, self.are_read = paths[module], True


def _first(output: Any) -> Any:
    """The vectors that a module has returned: its output, or the first of several."""
    return output[0] if isinstance(output, tuple | list) else output
