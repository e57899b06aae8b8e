"""Tiny random vision–language models with their processors, around the tokenizer of the default model."""

import contextlib
import copy
from collections.abc import Iterator

import numpy as np
import torch
import transformers
from PIL import Image
from torch import nn
from transformers.masking_utils import eager_mask

VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
QUESTION = "Is there a dog, please?"


def picture(seed: int = 0, size: tuple[int, int] = (32, 32)) -> Image.Image:
    """A picture of noise, rows × columns."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def _tokenizer(plain, *tokens: str):
    own = copy.deepcopy(plain)
    own.add_special_tokens({"additional_special_tokens": list(tokens)})
    return own


def llava(plain):
    tokenizer = _tokenizer(plain, "<image>")
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("IMAGE", "<image>"),
    )
    config = transformers.LlavaConfig(
        text_config=TEXT | {"model_type": "llama", "vocab_size": len(tokenizer)},
        vision_config=VISION | {"model_type": "clip_vision_model"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration(config), processor


def idefics3(plain):
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    tokenizer = _tokenizer(plain, "<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *rows)
    images = transformers.Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    processor = transformers.Idefics3Processor(
        images, tokenizer, image_seq_len=4, chat_template=TEMPLATE.replace("IMAGE", "<image>")
    )
    config = transformers.Idefics3Config(
        text_config=TEXT | {"model_type": "llama", "vocab_size": len(tokenizer)},
        vision_config=VISION,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )
    return transformers.Idefics3ForConditionalGeneration(config), processor


def _without_videos(kind):
    """A processor that takes none that reads videos, for which torchvision would be needed."""
    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda _self, _name, given: type(given)})


def _qwen(plain, name: str, vision: dict):
    tokens = {f"{kind}_token_id": f"<|{kind}_pad|>" for kind in ("image", "video")}
    tokens |= {f"vision_{end}_token_id": f"<|vision_{end}|>" for end in ("start", "end")}
    tokenizer = _tokenizer(plain, *tokens.values())
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, temporal_patch_size=2, merge_size=2, size={"shortest_edge": 24 * 24, "longest_edge": 48 * 48}
    )
    template = TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = _without_videos(getattr(transformers, f"{name}Processor"))(
        images, tokenizer, None, chat_template=template
    )
    rotation = {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]}
    ends = {"bos_token_id": 101, "eos_token_id": 102}
    config = getattr(transformers, f"{name}Config")(
        text_config=TEXT | ends | {"vocab_size": len(tokenizer), "head_dim": 8, "rope_scaling": rotation},
        vision_config={"depth": 2, "num_heads": 4, "patch_size": 4, "temporal_patch_size": 2, **vision},
        **{each: tokenizer.convert_tokens_to_ids(token) for each, token in tokens.items()},
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config), processor


def qwen2_vl(plain):
    return _qwen(plain, "Qwen2VL", {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2})


def qwen3_vl(plain):
    """A model that adds vectors of the image between its layers (DeepStack)."""
    vision = {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32}
    return _qwen(plain, "Qwen3VL", vision | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64})


def gemma3(plain):
    """A model whose image tokens see one another."""
    tokens = {"image": "<image_soft_token>", "boi": "<start_of_image>", "eoi": "<end_of_image>"}
    tokenizer = _tokenizer(plain, *tokens.values())
    for kind, token in tokens.items():
        setattr(tokenizer, f"{kind}_token", token)
        setattr(tokenizer, f"{kind}_token_id", tokenizer.convert_tokens_to_ids(token))
    images = transformers.Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, image_seq_length=4)
    template = TEMPLATE.replace("IMAGE", tokens["boi"])
    processor = transformers.Gemma3Processor(images, tokenizer, image_seq_length=4, chat_template=template)
    config = transformers.Gemma3Config(
        text_config=TEXT | {"vocab_size": len(tokenizer), "head_dim": 8, "query_pre_attn_scalar": 8},
        vision_config=VISION,
        mm_tokens_per_image=4,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )
    return transformers.Gemma3ForConditionalGeneration(config), processor


def _paligemma(plain):
    """The config of a model whose tokens all see one another, and what its processor is made of."""
    tokenizer = _tokenizer(plain, "<image>")
    tokenizer.bos_token, tokenizer.image_token = "[CLS]", "<image>"
    tokenizer.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
    images = transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    config = transformers.PaliGemmaConfig(
        text_config=TEXT | {"model_type": "gemma", "vocab_size": len(tokenizer) + 1152, "head_dim": 8},
        vision_config=VISION | {"model_type": "siglip_vision_model", "vision_use_head": False},
        image_token_index=tokenizer.image_token_id,
        projection_dim=32,
    )
    return config, images, tokenizer


def paligemma(plain):
    config, images, tokenizer = _paligemma(plain)
    processor = transformers.PaliGemmaProcessor(images, tokenizer)
    return transformers.PaliGemmaForConditionalGeneration(config), processor


def colpali(plain):
    config, images, tokenizer = _paligemma(plain)
    processor = transformers.ColPaliProcessor(images, tokenizer)
    return transformers.ColPaliForRetrieval(transformers.ColPaliConfig(vlm_config=config, embedding_dim=12)), processor


def colqwen2(plain):
    base, whole = _qwen(plain, "Qwen2VL", {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2})
    processor = transformers.ColQwen2Processor(whole.image_processor, whole.tokenizer, chat_template=TEMPLATE)
    processor.tokenizer.chat_template = TEMPLATE
    config = transformers.ColQwen2Config(vlm_config=base.config.to_dict(), embedding_dim=12)
    return transformers.ColQwen2ForRetrieval(config), processor


def colmodernvbert(plain):
    _, whole = idefics3(plain)
    processor = transformers.ColModernVBertProcessor(whole.image_processor, whole.tokenizer, image_seq_len=4)
    text = {"pad_token_id": 0, "cls_token_id": 101, "sep_token_id": 102, "bos_token_id": None, "eos_token_id": None}
    config = transformers.ModernVBertConfig(
        text_config=TEXT | text | {"model_type": "modernbert", "vocab_size": len(whole.tokenizer)},
        vision_config=VISION | {"model_type": "siglip_vision_model"},
        image_token_id=whole.tokenizer.convert_tokens_to_ids("<image>"),
        pixel_shuffle_factor=2,
    )
    config = transformers.ColModernVBertConfig(vlm_config=config, embedding_dim=12)
    return transformers.ColModernVBertForRetrieval(config), processor


MODELS = {each.__name__: each for each in (llava, idefics3, qwen2_vl, qwen3_vl, gemma3)}
RETRIEVERS = {each.__name__: each for each in (colqwen2, colpali, colmodernvbert)}
_OTHERS = {"paligemma": paligemma}


def made(name: str, plain) -> tuple[nn.Module, object]:
    """A model in float64 with random weights, all of them large enough to matter, and its processor."""
    torch.manual_seed(0)
    model, processor = (MODELS | RETRIEVERS | _OTHERS)[name](plain)
    model = model.eval().double().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.__class__ = type(type(module).__name__, (type(module),), {"forward": _norm})
    return model, processor


def _norm(self, vectors: torch.Tensor) -> torch.Tensor:
    """A norm without transformers' rounding to float32."""
    size = (
        vectors.square().mean(dim=-1, keepdim=True) + getattr(self, "eps", 0) + getattr(self, "variance_epsilon", 0)
    ).sqrt()
    return vectors / size * (self.weight + ("Gemma" in type(self).__name__))


@contextlib.contextmanager
def attention_noted(language: nn.Module) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Context in which a language model attends in float64: weights (head, query, key) and values (head, key, dimension)."""
    noted = []

    def attend(_module, query, key, value, attention_mask, scaling, **_others):
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
        weights = (query @ key.mT * scaling + attention_mask).softmax(dim=-1)
        noted.append((weights[0], value[0]))
        return (weights @ value).transpose(1, 2), weights

    transformers.AttentionInterface.register("noted", attend)
    transformers.AttentionMaskInterface.register("noted", eager_mask)
    before = language.config._attn_implementation
    language.set_attn_implementation("noted")
    try:
        yield noted
    finally:
        language.set_attn_implementation(before)


def asked(processor, image: Image.Image, question: str = QUESTION) -> dict[str, torch.Tensor]:
    """A question about an image as the processor itself makes it."""
    content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    inputs = processor.apply_chat_template(
        [[{"role": "user", "content": content}]],
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
        processor_kwargs={"add_special_tokens": False},
    )
    return {name: each.double() if each.is_floating_point() else each for name, each in inputs.items()}
