"""Where a run gets its model and its texts: from what the config names, or from memory."""

import abc
import dataclasses
from functools import cached_property

from normscope.data.corpora import arranged, open_corpus
from normscope.data.examples import Corpus
from normscope.data.options import DatasetOptions
from normscope.models.factories import BuiltModel
from normscope.models.loaded import LoadedModel
from normscope.models.loading import OpenedModel, open_model
from normscope.models.model_info import ModelInfo
from normscope.models.options import DeviceOptions, ModelOptions
from normscope.reporting.terminal import say
from normscope.running.distributed import ProcessGroup


class Inputs(abc.ABC):
    """The model and the texts of a run."""

    @property
    @abc.abstractmethod
    def info(self) -> ModelInfo:
        """The model's shape, known before its weights are loaded."""

    @abc.abstractmethod
    def load(self) -> LoadedModel:
        """The model with its weights.

        Raises:
            InputError: If it cannot be loaded.
        """

    @abc.abstractmethod
    def open_corpus(self, options: DatasetOptions) -> Corpus:
        """The corpus that dataset options describe."""


class ConfiguredInputs(Inputs):
    """The model and the corpus that a config names.

    Args:
        group: The processes of the run; each has a device of its own.
    """

    def __init__(self, model: ModelOptions, device: DeviceOptions, group: ProcessGroup) -> None:
        self._model, self._device, self._group = model, device, group

    @property
    def info(self) -> ModelInfo:
        """The shape in the model's config."""
        return self._opened.info

    def load(self) -> LoadedModel:
        """Load the model, on this process's device."""
        device = self._group.local_device(self._device)
        loaded = self._opened.load(device, devices=self._group.local_devices(self._device))
        return dataclasses.replace(loaded, name=self._model.name)

    def open_corpus(self, options: DatasetOptions) -> Corpus:
        """Open the corpus."""
        return open_corpus(options)

    @cached_property
    def _opened(self) -> OpenedModel | BuiltModel:
        if self._model.factory is not None:
            return BuiltModel(self._model)
        return open_model(_trained(self._model))


@dataclasses.dataclass(frozen=True)
class InputsInMemory(Inputs):
    """A loaded model and texts in memory."""

    model: LoadedModel
    corpus: Corpus

    @property
    def info(self) -> ModelInfo:
        """The model's shape."""
        return ModelInfo.of(self.model.name, self.model.model.config, self.model.layout)

    def load(self) -> LoadedModel:
        """The model; it must not have changed since it was wrapped."""
        self.model.require_current()
        return self.model

    def open_corpus(self, options: DatasetOptions) -> Corpus:
        """The texts, segmented and limited as the options say."""
        return arranged(self.corpus, options)


def _trained(options: ModelOptions) -> ModelOptions:
    """The options of the model; the toy model is trained first."""
    if not options.toy:
        return options
    from normscope.translation.toy import toy_model  # the trainer takes seconds to import

    return dataclasses.replace(options, name=str(toy_model(options.seed, say)))
