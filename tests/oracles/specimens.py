"""Tiny models with a small corpus each, and what an analysis returns of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
)

from normscope.analyses.base import Analysis, AnalysisContext, load_state, merge_state, state_of
from normscope.analyses.registry import analyses
from normscope.data.batching import Batch, batches
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions
from normscope.data.token_texts import Vocabulary
from normscope.models.load.interventions import InterventionRunner
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.task_heads import Head
from normscope.models.observe.observer import Observer
from normscope.results.parts import rolled_up
from normscope.results.result import Result
from normscope.running.memory import run_batch
from tests.oracles import activations
from tests.oracles.activations import Sequence_
from tests.tiny import facts_for, tiny_model

WORDS = ["cat", "river", "walks", "old", "sees", "blue", "we", "run", "on", "it", ",", "."]

# Lengths and first words differ, and no word stands twice at one place: no two tokens have the same vectors, whose order
# would be left to rounding. One text has no comma or period.
TEXTS = [
    ("cat sees , old river .", None),
    ("river walks on", None),
    ("we run , it [MASK] . blue cat", "old it sees it ."),
    ("old cat walks . on we , it sees it .", "blue river ,"),
    ("it on we [MASK] river old run", "on , it"),
]

# Sources and targets of different lengths. Targets repeat no word of the first place.
TRANSLATIONS = [
    ("cat sees , old river .", "river walks on"),
    ("river walks on", "we run , it sees . blue cat"),
    ("we run , it [MASK] . blue cat", "old it sees it ."),
    ("on it", "blue river , on it"),
    ("it on we [MASK] river old run", "it . on"),
]


@dataclasses.dataclass(frozen=True, eq=False)
class Specimen:
    """A tiny model in float64, its corpus, and the brute force that knows its architecture."""

    loaded: LoadedModel
    brute_force: Callable[[Any, Mapping[str, torch.Tensor]], Sequence_]
    names: tuple[str, ...]
    """Token categories."""
    category_of: Callable[[int, str], str]
    """From the position and the text of a token."""
    texts: Sequence[tuple[str, str | None]]

    @cached_property
    def sequences(self) -> list[Sequence_]:
        """Every sequence of the corpus, without padding."""
        return [self.brute_force(self.loaded.model, self._inputs(*text)) for text in self.texts]

    def _inputs(self, text: str, text_pair: str | None) -> Mapping[str, torch.Tensor]:
        tokenizer, start = self.loaded.tokenizer, self.loaded.decoder_inputs
        if start is None:
            return tokenizer(*([text] if text_pair is None else [text, text_pair]), return_tensors="pt")
        target = torch.tensor([start(tokenizer(text_pair)["input_ids"])])
        return {"input_ids": torch.tensor([tokenizer(text)["input_ids"]]), "decoder_input_ids": target}

    def categories(self, sequence: Sequence_) -> np.ndarray:
        """The category of each token."""
        return self._categories(sequence.ids)

    def key_categories(self, sequence: Sequence_) -> np.ndarray:
        """The category of each token that queries attend to."""
        return self._categories(sequence.ids if sequence.source_ids is None else sequence.source_ids)

    def _categories(self, ids: np.ndarray) -> np.ndarray:
        tokens = self.loaded.tokenizer.convert_ids_to_tokens(ids.tolist())
        return np.array([self.category_of(position, token) for position, token in enumerate(tokens)])

    def is_special(self, token: int) -> bool:
        """Whether a token is one of the tokenizer's special ones."""
        return str(self.loaded.tokenizer.convert_ids_to_tokens(token)).startswith("[")

    @cached_property
    def encoder(self) -> Encoder:
        """Makes batches."""
        return Encoder(self.loaded, DatasetOptions(kind=DatasetKind.text, seed=0))

    @cached_property
    def batches(self) -> list[Batch]:
        """The corpus in padded batches of two or three sequences."""
        examples = [Example(*text) for text in self.texts]
        return list(batches(examples, self.encoder, 45, CorpusCounts()))

    def findings(self, name: str, chosen: Any, layers: Sequence[int], categories: Sequence[str], **more: Any) -> Result:
        """What an analysis returns."""
        needs = analyses()[name].load().requirements(chosen, self.loaded.facts)
        observer = Observer(
            self.loaded.model,
            self.loaded.facts,
            layers,
            range(self.loaded.layers + 1),
            feed_forward=needs.feed_forward,
        )
        context = AnalysisContext(
            layers=layers,
            categories=categories,
            parameters=observer.parameters,
            methods=self.loaded.facts.methods,
            depth=self.loaded.layers,
            dtype=torch.float64,
            names=self.encoder.categories.names,
            vocabulary=Vocabulary(
                size=len(self.loaded.tokenizer),
                special=self.encoder.categories.special,
                mask=self.loaded.tokenizer.mask_token_id,
                first=self.encoder.first_token,
                text=lambda token: str(self.loaded.tokenizer.convert_ids_to_tokens(token)),
            ),
            **more,
        )
        merged = analysed(name, chosen, context, observer, self.batches)
        merged.intervene(InterventionRunner(self.loaded, self.encoder, layers, 45))
        return rolled_up(name, merged.info.declared, merged.result())


def analysed(name: str, options: Any, context: AnalysisContext, observer: Observer, parts: Sequence[Batch]) -> Analysis:
    """An analysis that has seen a corpus: batches go to two processes in turn, whose sums are saved, loaded and merged."""
    one, other = (analyses()[name].load()(options, context) for _ in range(2))
    with observer:
        for number, batch in enumerate(parts):
            run_batch(observer, batch, [(one, other)[number % 2]])
    merge_state([one], state_of([other]))
    load_state([one], state_of([one]))
    return one


def bert() -> Specimen:
    """A BERT with a head that predicts masked tokens."""
    return _bert(BertForMaskedLM, Head.MASKED_TOKEN)


def classifier() -> Specimen:
    """A BERT with a head that puts texts into three classes."""
    return _bert(BertForSequenceClassification, Head.CLASS)


def _bert(kind: Any, head: Head) -> Specimen:
    special = ["[PAD]", "[UNK]", "[SEP]", "[CLS]", "[MASK]"]
    # [CLS] stands at the end: at the front its first vectors would be the same in every sequence.
    template = processors.TemplateProcessing(
        single="$A [SEP] [CLS]",
        pair="$A [SEP] $B:1 [SEP]:1 [CLS]:1",
        special_tokens=[("[SEP]", 2), ("[CLS]", 3)],
    )
    tokenizer = _tokenizer([*special, *WORDS], template)
    for name in special:
        tokenizer.add_special_tokens({f"{name.strip('[]').lower()}_token": name})
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "bert",
        vocab_size=len(tokenizer),
        hidden_size=12,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=16,
        max_position_embeddings=32,
        num_labels=3,
    )
    whole = kind(config).double().eval().requires_grad_(False)
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    own = {"[CLS]": "cls", "[SEP]": "sep", "[MASK]": "mask", ",": "punctuation", ".": "punctuation"}
    return Specimen(
        _loaded(whole.bert, tokenizer, "bert", {head: whole}),
        activations.bert,
        ("cls", "sep", "mask", "punctuation", "other"),
        lambda _, token: own.get(token, "other"),
        TEXTS,
    )


def qwen2() -> Specimen:
    """A causal model with rotary positions, biases, grouped heads, windows in its first and last layer, and a head."""
    tokenizer = _tokenizer(["[UNK]", *WORDS], None)
    tokenizer.add_special_tokens({"unk_token": "[UNK]"})
    config = {
        "model_type": "qwen2",
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 32,
        "use_sliding_window": True,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
    model = tiny_model(config, torch.float64)
    whole = Qwen2ForCausalLM(model.config).double().eval().requires_grad_(False)
    torch.nn.init.normal_(whole.lm_head.weight, std=0.4)
    whole.model = model

    def category_of(position: int, token: str) -> str:
        return "first" if position == 0 else "punctuation" if token in (",", ".") else "other"

    # The tokenizer does not know the word: a token with the number 0 is a token like any other.
    texts = [(text.replace("[MASK]", "fish"), None) for text, _ in TEXTS]
    return Specimen(
        _loaded(model, tokenizer, "qwen2", {Head.NEXT_TOKEN: whole}),
        activations.qwen2,
        ("cls", "sep", "mask", "punctuation", "other", "first"),
        category_of,
        texts,
    )


def answered() -> Specimen:
    """The same causal model, and texts with answers."""
    texts = [
        ("cat sees , old river .", "river walks"),
        ("river walks on", "we"),
        ("we run , it fish . blue cat", "old it sees it ."),
        ("on it old", "blue river"),
    ]
    return dataclasses.replace(qwen2(), texts=texts)


def massive() -> Specimen:
    """The same causal model with massive activations: two dimensions of one word's embedding are huge."""
    specimen = qwen2()
    model: Any = specimen.loaded.model
    word = specimen.loaded.tokenizer.convert_tokens_to_ids("sees")
    model.embed_tokens.weight[word, 5], model.embed_tokens.weight[word, 11] = 2500.0, -900.0
    return specimen


def marian() -> Specimen:
    """The cross-attention of a translation model whose decoder has fewer layers than its encoder."""
    special = ["[PAD]", "[UNK]", "[SEP]", "[CLS]", "[MASK]"]
    template = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 2)])
    tokenizer = _tokenizer([*special, *WORDS], template)
    for name in special:
        tokenizer.add_special_tokens({f"{name.strip('[]').lower()}_token": name})
    config = {
        "model_type": "marian",
        "vocab_size": len(tokenizer),
        "d_model": 12,
        "encoder_layers": 4,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 20,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 3,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
    }
    own = {"[CLS]": "cls", "[SEP]": "sep", "[MASK]": "mask", ",": "punctuation", ".": "punctuation"}
    return Specimen(
        _loaded(tiny_model(config, torch.float64), tokenizer, "marian", {}, "cross"),
        activations.marian,
        ("cls", "sep", "mask", "punctuation", "other"),
        lambda _, token: own.get(token, "other"),
        TRANSLATIONS,
    )


def translations() -> Specimen:
    """The same translation model with its head; words may have several tokens, which are joined by underscores."""
    specimen = marian()
    tokenizer = specimen.loaded.tokenizer
    split = pre_tokenizers.Split("_", "removed")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    torch.manual_seed(3)
    whole = MarianMTModel(specimen.loaded.model.config).double().eval().requires_grad_(False)
    whole.model = specimen.loaded.model
    for layer in specimen.loaded.model.decoder.layers:  # otherwise outputs take next to nothing from the target
        layer.encoder_attn.out_proj.weight.mul_(0.05)
    for tensor in (whole.lm_head.weight, whole.final_logits_bias):
        torch.nn.init.normal_(tensor, std=0.4)
    texts = [
        ("cat_sees , old_river_.", "river walks_on"),
        ("river_walks on", "we_run , it_sees_._blue cat"),
        ("we_run , it_[MASK] . blue_cat", "old_it sees it_."),
        ("on it", "blue river_, on it"),
        ("it_on we [MASK] river_old_run", "it . on_river"),
    ]
    return dataclasses.replace(
        specimen,
        loaded=_loaded(whole.model, tokenizer, "marian", {Head.TRANSLATION: whole}, "cross"),
        texts=texts,
    )


def _tokenizer(vocabulary: list[str], template: Any) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template is not None:
        tokenizer.post_processor = template
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=32,
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"]
        if template
        else ["input_ids", "attention_mask"],
    )


def _loaded(
    model: Any, tokenizer: Any, family: str, heads: Mapping[Head, Any], stack: str | None = None
) -> LoadedModel:
    return LoadedModel(model, tokenizer, facts_for(family, stack, model.config), "tiny", None, 32, load_head=heads.get)


_MADE = {"bert": bert, "qwen2": qwen2, "marian": marian, "classifier": classifier, "massive": massive}


@cache
def made(name: str) -> Specimen:
    """One of the above, which tests share and do not change."""
    return _MADE[name]()


CHOICES = {"everything": ((1, 2, 3), None), "some": ((2, 3), ["punctuation", "other"]), "all": ((2,), ["all"])}
"""Layers; categories, all of the specimen's where none are named."""


def reported(specimen: Specimen, categories: Sequence[str] | None = None) -> Sequence[str]:
    """The categories that are given, or all of the specimen's."""
    return [*specimen.names, "all"] if categories is None else categories
