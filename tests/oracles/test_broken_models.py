"""Every analysis refuses numbers that cannot be right, and names the layer where it can."""

import dataclasses

import pytest
import torch

from normscope.analyses.declarations.frequency import FrequencyOptions
from normscope.analyses.declarations.mixing import MixingOptions
from normscope.analyses.declarations.norms import NormsOptions
from normscope.analyses.declarations.outliers import OutliersOptions
from normscope.analyses.declarations.score import ScoreOptions
from normscope.analyses.frequency import FREQUENCIES
from normscope.data.token_frequencies import TokenFrequencies
from normscope.errors import InputError
from tests.oracles import frequency_oracle, specimens

ANALYSES = {
    "mixing": (MixingOptions(), "activations of layer 2"),
    "norms": (NormsOptions(seed=0), "layer 2"),
    "frequency": (FrequencyOptions(seed=0), "activations"),
    "outliers": (OutliersOptions(), "hidden vectors of layer 2"),
    "score": (ScoreOptions(seed=0, interventions=False), "hidden vectors of layer 2"),
}


@pytest.fixture(scope="module")
def broken():
    """A model whose second block gives infinite vectors, and whole frequencies of its corpus."""
    specimen = specimens.bert()
    rank, count = frequency_oracle.counted(specimen, [])
    with torch.no_grad():
        specimen.loaded.model.encoder.layer[1].attention.output.dense.weight[3, 1] = float("inf")
    return specimen, TokenFrequencies(rank, count)


@pytest.mark.spread(4)
@pytest.mark.parametrize("categories", [["other", "all"], ["other"]])
@pytest.mark.parametrize("name", ANALYSES)
def test_nonfinite_activations_are_refused(broken, name, categories):
    specimen, frequencies = broken
    options, place = ANALYSES[name]
    options = dataclasses.replace(options)
    with pytest.raises(InputError, match=rf"NaN or infinity in the {place}|NaN or infinity in {place}"):
        specimen.findings(name, options, (1, 2, 3), categories, resources={FREQUENCIES: frequencies}, options=[options])
