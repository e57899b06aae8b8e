"""Attribution maps of a whole model: which tokens each output comes from."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pandas as pd
from jaxtyping import Float
from transformers import BatchEncoding

from normscope.analyses.findings import WordMaps
from normscope.api.choices import chosen, single_text, tokens_of
from normscope.api.picture import Picture
from normscope.attribution.methods import NEEDS_FEED_FORWARD, BiasRule, MapMethod, MapStage, check_supported
from normscope.attribution.model_maps import ModelMaps, model_maps
from normscope.models.loaded import LoadedModel
from normscope.models.text_batches import Text
from normscope.statistics.tidy import tidy

_TITLES = {
    MapMethod.ROLLOUT: "rollout of the weights",
    MapMethod.NORM_ROLLOUT: "rollout of the norms",
    MapMethod.GLOBENC: "GlobEnc",
    MapMethod.ALTI: "ALTI",
    MapMethod.VALUE_ZEROING: "value zeroing",
    MapMethod.DECOMPX: "DecompX",
}


@dataclasses.dataclass(frozen=True, eq=False)
class AttributionMap:
    """How much each token contributes to each output vector of a model, by one method. Rows are the outputs."""

    method: str
    tokens: tuple[str, ...]
    total: Float[np.ndarray, "query key"]
    """Through all layers; `decompx` has one more column, for the bias."""
    layers: Float[np.ndarray, "layer query key"] | None
    """The map of each layer alone; None where a method has none (`decompx`)."""
    cumulative: Float[np.ndarray, "layer query key"]
    """From the input up to each layer."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the columns: the tokens and, for `decompx`, the bias."""
        return (*self.tokens, "bias") if self.total.shape[1] > len(self.tokens) else self.tokens

    @property
    def table(self) -> pd.DataFrame:
        """One row per output and source, through all layers; tokens are numbered from 0."""
        return tidy(
            {
                "query_token": np.array(self.tokens, dtype=object)[:, None],
                "key_token": np.array(self.sources, dtype=object),
                "value": self.total,
            },
            query=range(len(self.tokens)),
            key=range(len(self.sources)),
        )

    def figure(self) -> Picture:
        """The map through all layers, as a figure."""
        title = _TITLES[MapMethod(self.method)]
        return Picture(
            WordMaps(
                table=self.table.assign(frame="none", panel=title),
                panel="panel",
                panel_titles={title: title},
                caption="How much of each output (row) comes from each token (column), through all layers; darker is more.",
            )
        )

    def _repr_html_(self) -> str:
        return self.figure()._repr_html_()

    def __repr__(self) -> str:
        table = pd.DataFrame(self.total, index=list(self.tokens), columns=list(self.sources))
        return f"{self.method}\n{table.to_string(float_format='{:.3f}'.format)}"


def attribution_maps(
    model: LoadedModel,
    text: Text | BatchEncoding,
    methods: Iterable[str] = ("rollout", "norm_rollout", "alti", "decompx"),
    *,
    bias: str = "token",
    stage: str = "layer",
) -> dict[str, AttributionMap]:
    """Map how much of each output vector of a model comes from each token of a text, through all layers.

    Args:
        model: See `load`.
        text: A text, a pair (tuple) of texts, or a BatchEncoding of one from the model's tokenizer.
        methods: `rollout`, `norm_rollout`, `globenc`, `alti`, `value_zeroing`, `decompx`.
        bias: Where `decompx` puts the value biases: all in the bias column (`token`), or those of the first layer with the
            tokens whose values they belong to (`decompx`), as the authors' code does.
        stage: The vectors whose norms `norm_rollout` multiplies: `attnres_n`, `attnresln_n`, or the whole `layer`.

    Returns:
        A map for each method, in the order of `methods`.

    Raises:
        InputError: If an argument is invalid, a method is not defined for the model's family, or the text is too long.
    """
    names = [methods] if isinstance(methods, str) else list(methods)
    wanted = [chosen("methods", name, MapMethod) for name in names]
    at_stage, rule = chosen("stage", stage, MapStage), chosen("bias", bias, BiasRule)
    check_supported(model.layout)
    batch = single_text(model, text, "attribution_maps")
    if any(method in NEEDS_FEED_FORWARD or method is MapMethod.NORM_ROLLOUT for method in wanted):
        _ = model.layers_verification
    maps = model_maps(model.model, model.layout, batch.model_inputs(), wanted, stage=at_stage, bias=rule, keep=True)
    tokens = tokens_of(model, batch)
    return {str(method): _attribution_map(method, tokens, found) for method, found in maps.items()}


def _attribution_map(method: MapMethod, tokens: tuple[str, ...], maps: ModelMaps) -> AttributionMap:
    assert maps.cumulative is not None
    return AttributionMap(
        method=str(method),
        tokens=tokens,
        total=maps.total[0].cpu().numpy(),
        layers=None if maps.layers is None else np.stack([layer[0].cpu().numpy() for layer in maps.layers]),
        cumulative=np.stack([layer[0].cpu().numpy() for layer in maps.cumulative]),
    )
