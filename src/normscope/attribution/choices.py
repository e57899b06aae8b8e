"""The methods that are defined for a model."""

from collections.abc import Collection

from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.methods import MapMethod, MapStage, check_defined, check_supported
from normscope.errors import InputError
from normscope.models.frozen_layers import FrozenConvolutions
from normscope.models.layout import BlockLayout


def defined_methods(
    layout: BlockLayout, wanted: Collection[MapMethod] | None, stage: MapStage, model: PreTrainedModel | None = None
) -> list[MapMethod]:
    """The wanted methods, or all that are defined.

    Args:
        wanted: Methods that must be defined; None means all that are.
        stage: The stage of `norm_rollout`.
        model: The base model, which shows whether it has a convolution; None assumes that it has none.

    Raises:
        InputError: If a wanted method or the stage is not defined, or attribution cannot follow the model.
    """
    check_supported(layout)
    convolution = model is not None and bool(FrozenConvolutions(model, layout))
    defined: list[MapMethod] = []
    for method in MapMethod if wanted is None else wanted:
        try:
            check_defined(method, stage, layout, convolution=convolution)
        except InputError:
            depends_on_the_family = convolution or method is MapMethod.GLOBENC
            if wanted is not None or not depends_on_the_family:
                raise
        else:
            defined.append(method)
    return defined
