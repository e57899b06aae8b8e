"""Models of an image tower and a text tower whose embeddings are compared, such as CLIP and SigLIP.

Either tower is observed as a model of its own. Its embedding is what the whole model's own code makes of it: pooling by [CLS],
by the end of a text or by an attention head, the last norm and the projection need no description.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from transformers import AutoModel, PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.maths.embedder import Embedder
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.task_heads import Head, head_class
from normscope.models.load.vectors import Around, VectorModel
from normscope.models.options import Tower
from normscope.models.stored.text_tower import base_of, class_of
from normscope.untrusted.images import is_image


def has_towers(config: PretrainedConfig) -> bool:
    """Whether models of a config embed images and texts, each with a tower, and generate nothing."""
    kind = class_of(AutoModel, config)
    embeds = all(callable(getattr(kind, _method(tower), None)) for tower in Tower)
    return embeds and head_class(Head.NEXT_TOKEN, config) is None


def check_tower(tower: Tower | None, kind: str) -> None:
    """Check that no tower is chosen of a model that has none.

    Raises:
        InputError: If one is.
    """
    if tower is not None:
        raise InputError(
            f"model.tower={tower}: expected a model with an image tower and a text tower, such as CLIP, got {kind}; leave it "
            "out"
        )


def text_part(whole: PreTrainedModel) -> PreTrainedModel:
    """The text tower: the part that reads token ids and nothing else."""
    for part in whole.modules():
        if isinstance(part, PreTrainedModel) and part is not whole:
            arguments = inspect.signature(part.forward).parameters
            if "input_ids" in arguments and "pixel_values" not in arguments:
                return base_of(part)
    raise InputError(f"model: expected a text tower in {type(whole).__name__}, got none")


class _Features(Around):
    """The embedding that a model makes with one of its towers."""

    def __init__(self, whole: PreTrainedModel, tower: Tower) -> None:
        super().__init__(PretrainedConfig(name_or_path=whole.config.name_or_path), whole)
        self._method = _method(tower)

    def forward(self, **inputs: Any) -> BaseModelOutput:
        """The embedding, (input, dimension), in place of hidden vectors."""
        made = getattr(self.model, self._method)(**inputs)
        return BaseModelOutput(last_hidden_state=getattr(made, "pooler_output", made))


def _method(tower: Tower) -> str:
    return f"get_{tower}_features"


def two_towers(whole: PreTrainedModel, tower: Tower, load: Mapping[Tower, Callable[[], LoadedModel]]) -> LoadedModel:
    """A tower that is ready to be observed, with the other one at hand.

    Args:
        whole: The model, which contains both.
        tower: The one to observe.
        load: Makes either ready.
    """

    @functools.cache
    def made(which: Tower) -> LoadedModel:
        loaded = load[which]()
        head: PreTrainedModel = _Features(whole, which)
        if isinstance(loaded.model, VectorModel):
            head = VectorModel(head, loaded.model.probe, loaded.model)
        return dataclasses.replace(loaded, given_embedder=Embedder(None, head=head), tower=which, of_tower=made)

    return made(tower)


def tower_for(model: LoadedModel, given: object) -> LoadedModel:
    """The tower of a model that reads an input, or the model itself if it has only one.

    Args:
        given: An image (a file, its name, a `PIL.Image` or an array of pixels), or a text.
    """
    if model.of_tower is None:
        return model
    return model.of_tower(Tower.image if is_image(given) else Tower.text)
