"""An analysis of another package, as short as one can be: the mean length of what enters each block."""

import dataclasses

import pandas as pd
import torch

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import Paper
from normscope.errors import InputError
from normscope.results.figures import Lines
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.statistics.mean import Mean


@dataclasses.dataclass
class PlantedOptions(AnalysisConfig):
    power: float = 2.0

    def validate(self, _run):
        if self.power < 1:
            raise InputError(f"analysis.planted.power={self.power}: expected a number of at least 1")


INFO = AnalysisInfo(
    name="planted",
    title="Length of inputs",
    question="How long are the vectors that enter a block?",
    options=PlantedOptions,
    implementation="planted_analysis:PlantedAnalysis",
    papers=(Paper("planted1999", "@misc{planted1999, title = {A planted paper}}"),),
)


class PlantedAnalysis(Analysis):
    info = INFO

    def __init__(self, options: PlantedOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._lengths = Mean(len(context.layers), 1)
        self._outputs = Mean(1, 1)
        self.accumulators = {"lengths": self._lengths, "outputs": self._outputs}

    @classmethod
    def requirements(cls, _options, _model):
        return Requirements(hidden=True, feed_forward=True, all_layers=True)

    def start_batch(self, _batch):
        self._seen = []

    def update_attention(self, block, batch):
        lengths = torch.linalg.vector_norm(block.inputs, ord=self.options.power, dim=-1)[batch.token_mask].double()
        self._lengths.update(self.context.index(block.layer), lengths.sum()[None], batch.token_mask.sum()[None])
        self._seen.append(f"attention {block.layer}")
        self._attention = block

    def update_feed_forward(self, block, batch):
        # The attention block of the same layer is still alive, and what both make of a token is what leaves the layer.
        assert block.attention is self._attention
        self._seen.append(f"network {block.layer}")
        self._left = block.vectors(block.stages[-1])[batch.token_mask]

    def update_hidden(self, layer, vectors, batch):
        self._seen.append(f"hidden {layer}")
        if layer:
            torch.testing.assert_close(self._left, vectors[batch.token_mask], rtol=1e-4, atol=1e-4)

    def end_batch(self, batch):
        of_layers = [
            part
            for layer in self.context.layers
            for part in (f"hidden {layer - 1}", f"attention {layer}", f"network {layer}")
        ]
        assert self._seen == [*of_layers, f"hidden {self.context.depth}"]
        self._outputs.update(0, torch.ones(1, dtype=torch.float64) * batch.sequences, torch.tensor([batch.sequences]))

    def result(self) -> Result:
        means = self._lengths.compute().mean[:, 0].tolist()
        table = pd.DataFrame({"layer": list(self.context.layers), "length": means})
        curve = table.set_index("layer")["length"]
        return Result(
            tables={"by_layer": table},
            metrics={"length/mean": float(curve.mean())},
            curves={"length": curve},
            figures={
                "by_layer": Lines(table.assign(line="x"), "layer", "length", "line", "How long inputs are.", "length")
            },
            summaries={"planted": Summary(table.set_index("layer"))},
            sentences=[f"Inputs are {curve.mean():.3f} long."],
            notes=["planted: read this beside the numbers"],
        )
