"""What a model makes of one image, for the command line and the live page."""

from typing import Any

from normscope.api.attributed_scores import attribute
from normscope.api.decomposition import decompose
from normscope.api.similarities import similarity
from normscope.live.answers import aimed
from normscope.live.predictions import prediction_of
from normscope.models.load.loaded import LoadedModel
from normscope.results.result import Result


def image_explained(model: LoadedModel, image: Any, text: str = "") -> Result:
    """Which patches a classifier's answer comes from; without one, what tokens take from patches; beside a text, what patches
    and words add to their similarity.
    """
    if text:
        return similarity(model, image, text)
    predicted = prediction_of(model, image)
    if not predicted.choices:
        return decompose(model, image)
    target, against = aimed(predicted, "", "")
    return attribute(model, image, target, against=against or None)
