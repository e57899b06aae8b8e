"""Feed-forward networks taken apart into weights, by paths that are written down here: nothing of the product finds them.

With y for what a network reads, it is g(u) W_2 + b_2 with u = y W_1 + b_1 or, if it is gated, (g(u) ⊙ w) W_2 + b_2 with
w = y V + c. A mixture of experts is one such network with the neurons of all experts, each multiplied by the weight that the
router gives its expert.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normscope.maths.normalisation import Normalisation
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from tests.family_modules import layers_of


class Form(NamedTuple):
    """Paths in a layer."""

    input: str
    """W_1; of a fused network V as well."""
    output: str
    """W_2."""
    activation: str
    norm: str | None = None
    """The norm after the residual connection (`post`), or of what the network reads."""
    multiplier: str | None = None
    """V."""
    fused: bool = False
    output_norm: str | None = None
    experts: bool = False
    shared: "Form | None" = None
    shared_gate: str | None = None


_BERT = Form("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn", "output.LayerNorm")
_LLAMA = Form("mlp.gate_proj", "mlp.down_proj", "mlp.act_fn", "post_attention_layernorm", "mlp.up_proj")
_FUSED = Form("mlp.gate_up_proj", "mlp.down_proj", "mlp.activation_fn", "post_attention_layernorm", fused=True)
_GEMMA = _LLAMA._replace(norm="pre_feedforward_layernorm", output_norm="post_feedforward_layernorm")
_OPT = Form("fc1", "fc2", "activation_fn", "final_layer_norm")
_NEOX = Form("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "mlp.act", "post_attention_layernorm")
_EXPERTS = Form("mlp.experts", "mlp.experts", "mlp.experts.act_fn", "post_attention_layernorm", experts=True)
_BESIDE = Form(
    "mlp.shared_expert.gate_proj",
    "mlp.shared_expert.down_proj",
    "mlp.shared_expert.act_fn",
    multiplier="mlp.shared_expert.up_proj",
)


def _t5(number: int, *, gated: bool = False) -> Form:
    inside = f"layer.{number}.DenseReluDense"
    names = (f"{inside}.wi_0", f"{inside}.wi_1") if gated else (f"{inside}.wi", None)
    return Form(names[0], f"{inside}.wo", f"{inside}.act", f"layer.{number}.layer_norm", names[1])


FORMS: Mapping[str, Form] = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "camembert", "electra", "mpnet", "deberta", "deberta-v2"), _BERT
    ),
    "roberta-prelayernorm": _BERT._replace(norm="intermediate.LayerNorm"),
    "distilbert": Form("ffn.lin1", "ffn.lin2", "ffn.activation", "output_layer_norm"),
    "albert": Form("ffn", "ffn_output", "activation", "full_layer_layer_norm"),
    "modernbert": Form("mlp.Wi", "mlp.Wo", "mlp.act", "mlp_norm", fused=True),
    **dict.fromkeys(
        ("eurobert", "llama", "mistral", "qwen2", "qwen3", "gemma", "olmo", "smollm3", "granite", "stablelm"), _LLAMA
    ),
    **dict.fromkeys(("olmo2", "olmo3"), _GEMMA._replace(norm=None)),
    **dict.fromkeys(("gemma2", "gemma3_text"), _GEMMA),
    **dict.fromkeys(("cohere", "cohere2"), _LLAMA._replace(norm="input_layernorm")),
    "glm4": _FUSED._replace(output_norm="post_mlp_layernorm"),
    "phi3": _FUSED,
    "gpt2": Form("mlp.c_fc", "mlp.c_proj", "mlp.act", "ln_2"),
    "starcoder2": Form("mlp.c_fc", "mlp.c_proj", "mlp.act", "post_attention_layernorm"),
    "gptj": Form("mlp.fc_in", "mlp.fc_out", "mlp.act", "ln_1"),
    "phi": Form("mlp.fc1", "mlp.fc2", "mlp.activation_fn", "input_layernorm"),
    "gpt_neox": _NEOX,
    "bloom": _NEOX._replace(activation="mlp.gelu_impl"),
    "falcon": _NEOX._replace(norm="ln_mlp"),
    **dict.fromkeys(("opt", "marian", "bart", "mbart", "m2m_100"), _OPT),
    **dict.fromkeys(("mixtral", "qwen3_moe"), _EXPERTS),
    "qwen2_moe": _EXPERTS._replace(shared=_BESIDE, shared_gate="mlp.shared_expert_gate"),
}
"""By family."""

_INPUT_NORMS = ("input_layernorm", "ln_1", "self_attn_layer_norm", "attn_norm")
"""What layers call the norm before attention; after attention, some use the last name for that of the sum."""


def form_of(facts: Any, layer: nn.Module) -> Form:
    """The form of a layer's network."""
    if facts.family in ("t5", "mt5", "umt5"):
        number = 2 if facts.stack == "cross" else 1
        return _t5(number, gated=hasattr(layer.layer[number].DenseReluDense, "wi_0"))  # type: ignore[union-attr,index]
    form = FORMS[facts.family]
    if facts.family in ("falcon", "stablelm") and getattr(layer, form.norm or "", None) is None:
        parallel = facts.norm_positions == ("parallel",)
        return form._replace(norm="input_layernorm" if parallel else "post_attention_layernorm")
    return form


@dataclasses.dataclass(eq=False)
class NetworkBlock:
    """A layer as it was observed, with its network in weights. Everything else is the block's."""

    block: FeedForwardBlock
    facts: Any
    scale: float
    """The multiplier of what is added to the residual connection."""
    form: Form
    module: nn.Module
    inputs: Tensor
    """y."""
    output: Tensor
    """What the network adds, before a norm of its own."""
    routes: tuple[Tensor, Tensor] | None
    factor: Tensor | None
    """That of the network beside the experts."""

    def __post_init__(self) -> None:
        # The block must not be read later: what it holds may have changed.
        self._composition, self._pair_maps = self.block.composition(), self.block.pair_maps()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.block, name)

    def composition(self) -> Any:
        return self._composition

    def pair_maps(self, **_given: Any) -> Any:
        return self._pair_maps

    @cached_property
    def parameters(self) -> SimpleNamespace:
        """The weights."""
        facts, scale = self.facts, self.scale
        norms = (None if path is None else self._part(path) for path in (self.form.norm, self.form.output_norm))
        norm, output_norm = (None if each is None else norm_weights(each, facts) for each in norms)
        weights = _wide(self) if self.form.experts else _dense(self._part, self.form)
        weights = {name: None if each is None else each.to(self.inputs) for name, each in weights.items()}
        output, bias = weights.pop("output_weight") * scale, weights.pop("output_bias")
        return SimpleNamespace(
            **weights,
            output_weight=output,
            output_bias=None if bias is None else bias * scale,
            activation=self._activation,
            gated=weights["multiplier_weight"] is not None,
            norm_position=self.block.attention.parameters.norm_position,
            normalisation=norm,
            output_normalisation=output_norm,
        )

    def _part(self, path: str) -> Any:
        return attrgetter(path)(self.module)

    @property
    def input_norm(self) -> Normalisation | None:
        """The norm of what attention reads."""
        norms = (getattr(self.module, name, None) for name in _INPUT_NORMS)
        norm = next((norm for norm in norms if norm is not None and not isinstance(norm, nn.Identity)), None)
        return None if norm is None or self.parameters.norm_position == "post" else norm_weights(norm, self.facts)

    @property
    def _activation(self) -> Callable[[Tensor], Tensor]:
        return copy.deepcopy(self._part(self.form.activation)).to(self.inputs.dtype)

    @property
    def pre_activations(self) -> Tensor:
        """u."""
        made = self.inputs @ self.parameters.input_weight
        return made if self.parameters.input_bias is None else made + self.parameters.input_bias

    @property
    def multipliers(self) -> Tensor | None:
        """w."""
        weights = self.parameters
        if weights.multiplier_weight is None:
            return None
        made = self.inputs @ weights.multiplier_weight
        return made if weights.multiplier_bias is None else made + weights.multiplier_bias

    @cached_property
    def routing(self) -> Tensor | None:
        """The weight of each neuron's expert."""
        if self.routes is None:
            return None
        chosen, weights = self.routes
        experts = self._part(self.form.input).down_proj
        own = experts.shape[0] * (experts.numel() // experts.shape[0] // self.inputs.shape[-1])
        by_expert = weights.new_zeros(len(weights), len(experts)).scatter_add(1, chosen, weights)
        routing = by_expert.repeat_interleave(own // len(experts), dim=1)
        beside = self.parameters.input_weight.shape[1] - own
        if beside:
            factor = weights.new_ones(len(weights), 1) if self.factor is None else self.factor.reshape(-1, 1)
            routing = torch.cat([routing, factor.expand(-1, beside)], dim=1)
        return routing.view(*self.inputs.shape[:2], -1)

    @property
    def activations(self) -> Tensor:
        """What W_2 reads."""
        made = self.parameters.activation(self.pre_activations)
        for factor in (self.multipliers, self.routing):
            made = made if factor is None else made * factor
        return made

    @property
    def residual_sum(self) -> Tensor:
        """s + network(y)."""
        norm = self.parameters.output_normalisation
        added = self.output if norm is None else norm.normalised(self.output)
        return self.block.attention.composition.block_output + added

    @property
    def norm_inputs(self) -> Tensor:
        """What the norm reads."""
        match self.parameters.norm_position:
            case "post":
                return self.residual_sum
            case "parallel":
                return self.block.attention.inputs
            case _:
                return self.block.attention.composition.block_output


def network_blocks(
    model: Any, facts: Any, inputs: Mapping[str, Tensor], layers: Sequence[int] | None = None
) -> list[NetworkBlock]:
    """The layers of a model, observed in one pass."""
    blocks: list[NetworkBlock] = []
    calls: dict[nn.Module, tuple[Any, Any]] = {}
    modules, scale = layers_of(model, facts.stack), getattr(model.config, "residual_multiplier", 1.0)

    def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls[module] = [*args, *kwargs.values()], output.clone()

    def visit(block: FeedForwardBlock) -> None:
        module = modules[block.layer - 1]
        form, axes = form_of(facts, module), block.attention.inputs.shape[:2]
        part = lambda path: attrgetter(path)(module)  # noqa: E731
        (read, *routes), _ = calls[part(form.input)]
        output, factor = calls[part(form.output)][1], None
        if form.shared is not None:
            beside = calls[part(form.shared.output)][1].reshape(-1, output.shape[-1])
            factor = None if form.shared_gate is None else calls[part(form.shared_gate)][1].sigmoid()
            output = output + (beside if factor is None else beside * factor.reshape(-1, 1))
        blocks.append(
            NetworkBlock(
                block,
                facts,
                scale,
                form,
                module,
                read.reshape(*axes, -1).to(block.attention.inputs),
                output.reshape(*axes, -1).to(block.attention.inputs) * scale,
                tuple(routes) if form.experts else None,  # type: ignore[arg-type]
                factor,
            )
        )

    handles = []
    for layer in {*modules}:
        form = form_of(facts, layer)
        beside = [] if form.shared is None else [form.shared.output, form.shared_gate]
        for part in {form.input, form.output, *beside} - {None}:
            handles.append(attrgetter(part)(layer).register_forward_hook(called, with_kwargs=True))
    try:
        with Observer(model, facts, layers, feed_forward=True) as observer:
            observer.run(inputs, lambda _block: None, None, visit)
    finally:
        for handle in handles:
            handle.remove()
    return blocks


def weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """W (input, output) and b of a linear layer, or of GPT-2's `Conv1D`, which stores W this way."""
    weight, bias = layer.weight.detach(), layer.bias
    return weight.T if isinstance(layer, nn.Linear) else weight, None if bias is None else bias.detach()  # type: ignore[return-value]


def norm_weights(norm: nn.Module, facts: Any) -> Normalisation:
    """γ, β and ε of a module of transformers, and whether it centres: an RMSNorm, T5's among them, does not."""
    epsilon = next((getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name)), 1e-5)
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if weight is None:  # OLMo's
        weight = torch.ones(norm.normalized_shape, dtype=torch.float64)  # type: ignore[arg-type]
    weight = weight + 1 if facts.family.startswith("gemma") else weight
    centred = "RMS" not in type(norm).__name__ and "T5" not in type(norm).__name__
    return Normalisation(weight, bias, epsilon, centred)  # type: ignore[arg-type]


def _dense(part: Callable[[str], Any], form: Form) -> dict[str, Any]:
    input_weight, input_bias = weight_and_bias(part(form.input))
    multiplier_weight = multiplier_bias = None
    if form.fused:
        input_weight, multiplier_weight = input_weight.chunk(2, dim=1)
        if input_bias is not None:
            input_bias, multiplier_bias = input_bias.chunk(2)
    elif form.multiplier is not None:
        multiplier_weight, multiplier_bias = weight_and_bias(part(form.multiplier))
    output_weight, output_bias = weight_and_bias(part(form.output))
    return {
        "input_weight": input_weight,
        "input_bias": input_bias,
        "multiplier_weight": multiplier_weight,
        "multiplier_bias": multiplier_bias,
        "output_weight": output_weight,
        "output_bias": output_bias,
    }


def _wide(network: NetworkBlock) -> dict[str, Any]:
    """The weights of all experts side by side, and of the network beside them."""
    module = network._part(network.form.input)
    read, written = module.gate_up_proj.detach(), module.down_proj.detach()
    if not module.is_transposed:
        read, written = read.transpose(1, 2), written.transpose(1, 2)
    first, second = (half.transpose(0, 1).flatten(1) for half in read.chunk(2, dim=2))
    last = written.flatten(0, 1)
    if network.form.shared is not None:
        beside = _dense(network._part, network.form.shared)
        first = torch.cat([first, beside["input_weight"]], dim=1)
        second = torch.cat([second, beside["multiplier_weight"]], dim=1)
        last = torch.cat([last, beside["output_weight"]])
    nothing = dict.fromkeys(("input_bias", "multiplier_bias", "output_bias"))
    return nothing | {"input_weight": first, "multiplier_weight": second, "output_weight": last}
