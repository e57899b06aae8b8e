"""What a user would write for the same task with each tool. Nothing is imported before a tool is asked for."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Numbers = Mapping[str, np.ndarray]
"""What a tool finds, by name: the same name stands for the same numbers."""
Work = Callable[[Sequence[Any]], Numbers]
"""From inputs to numbers. Everything that is done once, however many inputs there are, has been done before."""

ENCODER, CAUSAL = "encoder", "causal"
"""The folders of the models: the default model, and a causal language model with random weights."""

STEPS = 50
"""Steps of integrated gradients; the default of Captum and of inseq."""
OURS = "normscope"

_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Tool:
    """One way to do a task."""

    name: str
    """The package; a comma and what it is used for may follow."""
    prepare: Callable[[Path], Work]
    """Imports the package, loads the models from a folder, and returns what does the work."""

    @property
    def package(self) -> str:
        """The package."""
        return self.name.split(",")[0]


@dataclasses.dataclass(frozen=True)
class Task:
    """Something that several tools do."""

    name: str
    inputs: Callable[[], list[Any]]
    """Returns the inputs, read from the sample corpus."""
    tools: tuple[Tool, ...]


def lines() -> list[str]:
    """Every text of the sample corpus."""
    return [text for row in _sample() for text in row.values()]


def _sample() -> Iterator[dict[str, str]]:
    sample = Path(__file__).parents[1] / "src" / "normscope" / "data" / "sample.jsonl"
    return map(json.loads, sample.read_text(encoding="utf-8").splitlines())


def _pairs() -> list[tuple[str, str]]:
    return [(row["text"], row["text_pair"]) for row in _sample() if "text_pair" in row][:20]


def words(text: str) -> list[str]:
    """A text as the tokens of the causal model."""
    from tokenizers.pre_tokenizers import BertPreTokenizer

    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(text)]


def _prompts() -> list[tuple[str, str]]:
    """The first 32 words of texts, and the word that follows."""
    texts = [split for split in map(words, lines()) if len(split) > 32]
    return [(" ".join(split[:32]), split[32]) for split in texts[:5]]


def save_causal(folder: Path) -> None:
    """Save a causal language model with MiniLM's width and depth and random weights, whose tokens are the sample's words.

    GPT-J is one of the few families that all these tools can read.
    """
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from transformers import AutoModelForCausalLM, GPTJConfig, PreTrainedTokenizerFast

    special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    known = sorted({word for text in lines() for word in words(text)})
    vocabulary = {word: number for number, word in enumerate([*special.values(), *known])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    config = GPTJConfig(
        vocab_size=len(vocabulary),
        n_positions=512,
        n_embd=384,
        n_layer=6,
        n_head=12,
        n_inner=1536,
        rotary_dim=16,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=1,
        use_cache=False,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def _encoder(folder: Path, attention: str = "eager") -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    path = folder / ENCODER
    return AutoModel.from_pretrained(path, attn_implementation=attention).eval(), AutoTokenizer.from_pretrained(path)


def _causal(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = folder / CAUSAL
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(path)


def _passes_alone(folder: Path) -> Work:
    import torch

    model, tokenizer = _encoder(folder, "sdpa")

    def work(texts: Sequence[str]) -> Numbers:
        with torch.inference_mode():
            for text in texts:
                model(**tokenizer(text, return_tensors="pt"))
        return {}

    return work


def _looped(size: int) -> Callable[[Path], Work]:
    """Transformers' own attention weights, in batches of texts in their order."""

    def prepare(folder: Path) -> Work:
        import torch

        model, tokenizer = _encoder(folder)

        def work(texts: Sequence[str]) -> Numbers:
            totals, count = torch.zeros(model.config.num_hidden_layers, dtype=torch.float64), 0
            for start in range(0, len(texts), size):
                batch = tokenizer(list(texts[start : start + size]), return_tensors="pt", padding=True)
                token_mask = batch["attention_mask"].bool()
                with torch.inference_mode():
                    output = model(**batch, output_attentions=True)
                for layer, weights in enumerate(output.attentions):
                    own = weights.diagonal(dim1=-2, dim2=-1).mean(dim=1)
                    totals[layer] += (1 - own)[token_mask].double().sum()
                count += int(token_mask.sum())
            return {"mixing ratios of the weights": (totals / count).numpy()}

        return work

    return prepare


def _explicit(folder: Path) -> Work:
    """The papers' way: every vector of every pair is built, text by text."""
    from benchmarks.straightforward import METHODS, mixing_ratios

    model, tokenizer = _encoder(folder)

    def work(texts: Sequence[str]) -> Numbers:
        ratios = np.concatenate(
            [mixing_ratios(model, tokenizer(text, return_tensors="pt"))[:, :, 0].numpy() for text in texts], axis=-1
        )
        means = dict(zip(METHODS, ratios.mean(axis=-1, dtype=np.float64), strict=True))
        return {"mixing ratios of the weights": means["attn_w"], "mixing ratios of blocks": means["attnresln_n"]}

    return work


def _analysed(*analyses: str, **options: Any) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        import normscope

        model = normscope.load(folder / ENCODER, device="cpu")

        def work(texts: Sequence[str]) -> Numbers:
            results = normscope.run(list(analyses), texts=list(texts), model=model, **options)
            table = results.tables["mixing_by_layer"]
            of_all = table[table["category"] == "all"].sort_values("layer")
            methods = {"mixing ratios of the weights": "attn_w", "mixing ratios of blocks": "attnresln_n"}
            return {name: of_all.loc[of_all["method"] == each, "mean"].to_numpy() for name, each in methods.items()}

        return work

    return prepare


def _each(name: str, measured: Callable[[str], Any]) -> Work:
    """Measures one text, or the prompt of each word, at a time."""

    def work(texts: Sequence[str | tuple[str, str]]) -> Numbers:
        prompts = [text if isinstance(text, str) else text[0] for text in texts]
        return {name: np.concatenate([np.asarray(measured(prompt)) for prompt in prompts])}

    return work


def _bertviz(folder: Path) -> Work:
    import torch
    from bertviz import head_view
    from bertviz.util import format_attention

    model, tokenizer = _encoder(folder)

    def shown(text: str) -> Any:
        batch = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            weights = model(**batch, output_attentions=True).attentions
        head_view(weights, tokenizer.convert_ids_to_tokens(batch["input_ids"][0]), html_action="return")
        return format_attention(weights).flatten()

    return _each("attention weights", shown)


def _explored(folder: Path) -> Work:
    import normscope

    model = normscope.load(folder / ENCODER, device="cpu")

    def shown(text: str) -> Any:
        decomposition = normscope.decompose(model, text, heads=True)
        _ = decomposition.explorer().page
        return decomposition.maps[0].head_maps["attn_w"].ravel()

    return _each("attention weights", shown)


def _encoded(folder: Path) -> Work:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder / ENCODER), device="cpu")

    def work(pairs: Sequence[tuple[str, str]]) -> Numbers:
        first, second = (
            model.encode([pair[side] for pair in pairs], batch_size=_BATCH, convert_to_tensor=True) for side in (0, 1)
        )
        return {"similarities": model.similarity_pairwise(first, second).numpy()}

    return work


def _gradients_of_similarity(folder: Path) -> Work:
    import torch
    from captum.attr import LayerIntegratedGradients

    model, tokenizer = _encoder(folder, "sdpa")

    def embedding(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids).last_hidden_state.mean(dim=1)

    def cosine(ids: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.cosine_similarity(embedding(ids), other, dim=-1)

    method = LayerIntegratedGradients(cosine, model.embeddings.word_embeddings)

    def work(pairs: Sequence[tuple[str, str]]) -> Numbers:
        found = []
        for pair in pairs:
            ids, others = (tokenizer(text, return_tensors="pt")["input_ids"] for text in pair)
            with torch.no_grad():
                other = embedding(others)
                found.append(float(cosine(ids, other)))
            baseline = torch.full_like(ids, tokenizer.pad_token_id)
            baseline[:, 0], baseline[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
            method.attribute(ids, baseline, additional_forward_args=(other,), n_steps=STEPS).sum(dim=-1)
        return {"similarities": np.array(found)}

    return work


def _attributed_similarity(folder: Path) -> Work:
    import normscope

    model = normscope.load(folder / ENCODER, device="cpu")

    def work(pairs: Sequence[tuple[str, str]]) -> Numbers:
        found = [normscope.attribute(model, text, normscope.SimilarityTo(other)) for text, other in pairs]
        return {"similarities": np.array([each.metrics["target"] for each in found])}

    return work


def _split_similarity(folder: Path) -> Work:
    import normscope

    model = normscope.load(folder / ENCODER, device="cpu")

    def work(pairs: Sequence[tuple[str, str]]) -> Numbers:
        found = normscope.similarity(model, [text for text, _ in pairs], [other for _, other in pairs])
        return {"similarities": found.tables["ranking"].sort_values("number")["value"].to_numpy()}

    return work


def _gradients_of_word(folder: Path) -> Work:
    import torch
    from captum.attr import LayerIntegratedGradients

    model, tokenizer = _causal(folder)
    model.set_attn_implementation("sdpa")

    def probability(ids: torch.Tensor, word: int) -> torch.Tensor:
        return model(input_ids=ids).logits[:, -1].softmax(dim=-1)[:, word]

    method = LayerIntegratedGradients(probability, model.get_input_embeddings())

    def work(prompts: Sequence[tuple[str, str]]) -> Numbers:
        logits, scores = [], []
        for prompt, word in prompts:
            ids, number = tokenizer(prompt, return_tensors="pt")["input_ids"], tokenizer.convert_tokens_to_ids(word)
            with torch.no_grad():
                logits.append(float(model(input_ids=ids).logits[0, -1, number]))
            baseline = torch.full_like(ids, tokenizer.unk_token_id)
            found = method.attribute(ids, baseline, additional_forward_args=(number,), n_steps=STEPS)
            scores.append(found.sum(dim=-1).flatten())
        return {"logits": np.array(logits), "integrated gradients": torch.cat(scores).numpy()}

    return work


def _inseq(method: str) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        import inseq

        model = inseq.load_model(str(folder / CAUSAL), method)
        settings = {"n_steps": STEPS} if method == "integrated_gradients" else {}

        def work(prompts: Sequence[tuple[str, str]]) -> Numbers:
            found = []
            for prompt, word in prompts:
                result = model.attribute(prompt, f"{prompt} {word}", show_progress=False, **settings)
                # token, generated token, and what the method adds: the last token of the prompt predicts the word.
                found.append(result.sequence_attributions[0].target_attributions[: len(words(prompt)), 0].numpy())
            return _of_inseq(method, found)

        return work

    return prepare


def _of_inseq(method: str, found: Sequence[np.ndarray]) -> Numbers:
    match method:
        case "integrated_gradients":
            return {"integrated gradients": np.concatenate([each.sum(axis=-1) for each in found])}
        case "attention":  # key, layer, head
            return {"attention weights": np.concatenate([each.transpose(1, 2, 0).ravel() for each in found])}
        case _:  # key, layer; after the last layer, the vectors that inseq compares have passed the model's last norm
            return {"value zeroing": np.concatenate([each[:, :-1].T.ravel() for each in found])}


def _attributed_word(folder: Path) -> Work:
    import normscope

    model = normscope.load(folder / CAUSAL, device="cpu")

    def work(prompts: Sequence[tuple[str, str]]) -> Numbers:
        found = [normscope.attribute(model, prompt, normscope.NextToken(word)) for prompt, word in prompts]
        return {"logits": np.array([each.metrics["target"] for each in found])}

    return work


def _last_weights(folder: Path) -> Work:
    import torch

    model, tokenizer = _causal(folder)

    def weights(prompt: str) -> Any:
        with torch.inference_mode():
            output = model(**tokenizer(prompt, return_tensors="pt"), output_attentions=True)
        return torch.stack([of_layer[0, :, -1] for of_layer in output.attentions]).flatten()

    return _each("attention weights", weights)


def _traced(folder: Path) -> Work:
    import torch
    from nnsight import NNsight, save

    model, tokenizer = _causal(folder)
    traced = NNsight(model)

    def weights(prompt: str) -> Any:
        with torch.inference_mode(), traced.trace(**tokenizer(prompt, return_tensors="pt")):
            rows = save([layer.attn.output[1][0, :, -1] for layer in traced.transformer.h])
        return torch.stack(rows).flatten()

    return _each("attention weights", weights)


def _decomposed_last(folder: Path) -> Work:
    import normscope

    model = normscope.load(folder / CAUSAL, device="cpu")

    def weights(prompt: str) -> Any:
        return normscope.decompose(model, prompt, heads=True, queries=[-1]).maps[0].head_maps["attn_w"].ravel()

    return _each("attention weights", weights)


def _zeroed(folder: Path) -> Work:
    import normscope

    model = normscope.load(folder / CAUSAL, device="cpu")

    def last_row(prompt: str) -> Any:
        layers = normscope.attribution_maps(model, prompt, "value_zeroing").tables["layers"]
        last = layers[(layers["query"] == layers["query"].max()) & (layers["layer"] < layers["layer"].max())]
        return last["value"].to_numpy()

    return _each("value zeroing", last_row)


TASKS = {
    "corpus": Task(
        "mixing ratios of a corpus",
        lines,
        (
            Tool("transformers, forward passes alone", _passes_alone),
            Tool("transformers, output_attentions, text by text", _looped(1)),
            Tool(f"transformers, output_attentions, batches of {_BATCH}", _looped(_BATCH)),
            Tool("transformers, every vector explicitly, text by text", _explicit),
            Tool(f"{OURS}, mixing", _analysed("mixing")),
            Tool(f"{OURS}, mixing and norms", _analysed("mixing", "norms")),
        ),
    ),
    "page": Task(
        "a page with the attention of every head",
        lambda: list(itertools.islice(lines(), 20)),
        (Tool("bertviz, head_view", _bertviz), Tool(f"{OURS}, decompose and explorer", _explored)),
    ),
    "similarity": Task(
        "similarity of two texts, and why",
        _pairs,
        (
            Tool("sentence-transformers, encode", _encoded),
            Tool(f"captum, integrated gradients, {STEPS} steps", _gradients_of_similarity),
            Tool(f"{OURS}, attribute", _attributed_similarity),
            Tool(f"{OURS}, similarity", _split_similarity),
        ),
    ),
    "word": Task(
        "why this word is next",
        _prompts,
        (
            Tool(f"captum, integrated gradients, {STEPS} steps", _gradients_of_word),
            Tool(f"inseq, integrated gradients, {STEPS} steps", _inseq("integrated_gradients")),
            Tool(f"{OURS}, attribute", _attributed_word),
        ),
    ),
    "weights": Task(
        "what the last token attends to",
        _prompts,
        (
            Tool("transformers, output_attentions", _last_weights),
            Tool("inseq, attention", _inseq("attention")),
            Tool("nnsight, trace", _traced),
            Tool(f"{OURS}, decompose", _decomposed_last),
        ),
    ),
    "zeroing": Task(
        "value zeroing",
        _prompts,
        (Tool("inseq, value_zeroing", _inseq("value_zeroing")), Tool(f"{OURS}, attribution_maps", _zeroed)),
    ),
}
