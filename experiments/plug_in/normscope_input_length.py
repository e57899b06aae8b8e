import dataclasses

import pandas as pd
import torch

from normscope.analyses.base import Analysis, AnalysisContext
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.results.axes import LAYER
from normscope.results.declare import Declared, Rollup, Table
from normscope.results.result import Result
from normscope.statistics.mean import Mean


@dataclasses.dataclass
class InputLengthOptions(AnalysisConfig):
    order: float = 2.0


DECLARED = Declared(
    tables={"by_layer": Table(rows=(LAYER,), values={"length": "Mean length of the vectors that enter the block."})},
    metrics=(Rollup("mean", "Mean length over layers.", of="by_layer.length"),),
    curves=(Rollup("length", "Mean length.", of="by_layer.length", label="length"),),
)
INFO = AnalysisInfo(
    "input_length",
    "Length of inputs",
    InputLengthOptions,
    "normscope_input_length:InputLength",
    question="How long are the vectors that enter a block?",
    declared=DECLARED,
)


class InputLength(Analysis):
    info = INFO

    def __init__(self, options: InputLengthOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self.accumulators = {"lengths": Mean(len(context.layers), 1)}

    def update_attention(self, block, batch):
        lengths = torch.linalg.vector_norm(block.inputs, ord=self.options.order, dim=-1)[batch.token_mask]
        layer = self.context.index(block.layer)
        self.accumulators["lengths"].update(layer, lengths.double().sum()[None], batch.token_mask.sum()[None])

    def result(self) -> Result:
        means = self.accumulators["lengths"].compute().mean[:, 0].tolist()
        return Result({"by_layer": pd.DataFrame({"layer": list(self.context.layers), "length": means})})
