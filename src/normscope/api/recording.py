"""What each new token receives from regions of the text while the user's own model generates with its cache."""

import contextlib
import dataclasses
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import BatchEncoding
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.api.arguments import checked, in_terms_of_arguments
from normscope.api.attention_values import Asked, AttentionValues, array_of, asked_of, reduced
from normscope.api.regions import Read, Regions, asks_for_words, image_token, regions_of
from normscope.data.options import Level
from normscope.data.words import unit_texts
from normscope.errors import InputError
from normscope.maths.choices import PairMeasure
from normscope.maths.masks import additive_mask
from normscope.maths.norms import transformed_norms
from normscope.maths.shares import along, pair_readout
from normscope.maths.tensors import pieces
from normscope.models.blocks.block import GATED, BlockParameters, full_precision
from normscope.models.load.adapters import without_peft
from normscope.models.load.loaded import LoadedModel
from normscope.models.load.text_batches import batch_from_texts
from normscope.models.load.wrapping import check_eager, wrap_model
from normscope.models.observe.attention_function import HARMLESS_KEYWORDS
from normscope.models.sites.block_modules import BlockModules, bind_blocks
from normscope.models.stored.text_tower import base_of, text_tower

_EAGER = "eager_attention_forward"
"""The attention function in a family's own file, which is not in transformers' registry."""

_KEYS_AT_ONCE = 8192
"""Keys that are converted to float32 at once if the cache has half precision."""


@checked
@contextlib.contextmanager
def record_attention(
    model: LoadedModel | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    keys: Any = ("prompt", "answer"),
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    measure: str = "weight",
    reduce: str | None = None,
    top: int | None = None,
) -> Iterator[list[AttentionValues]]:
    """Record what each new token receives from regions while a model generates with its cache.

    The model is your own, and keeps its attention kernel and its cache. Alongside each call of the kernel, one row of α is
    computed from the same queries and keys. The first row is that of the prompt's last token, which predicts the first new one.

    Args:
        model: A causal language model of transformers, whose `generate` you call within the context; or what `load` or `wrap`
            returns, whose `next_token_head` you call.
        tokenizer: The model's tokenizer, for words and the names of tokens.
        keys: Which tokens or regions of the prompt, as in `attention`; spans are spans of tokens. `"prompt"` is the whole
            prompt, `"answer"` the tokens generated so far, `"tokens"` each token of both separately.
        layers: Which layers, from 1; all by default.
        heads: Which heads, from 1; all by default.
        measure: See `attention`.
        reduce: See `attention`.
        top: See `attention`.

    Yields:
        A list. Each call of `generate` appends a result as `attention` returns it, with one query for each new token; a
        generation loop of your own appends one for all its passes when the context ends.

    Examples:
        >>> import normscope, torch, transformers
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
        ... )
        >>> model = transformers.LlamaForCausalLM(config).eval()
        >>> with normscope.record_attention(model, reduce="mean") as recorded:
        ...     ids = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=4, min_new_tokens=4)
        >>> recorded[0].values.shape, recorded[0].axes["key"]
        ((2, 4, 2), ('prompt', 'answer'))

    Raises:
        InputError: If the model is compiled, is not a causal language model or computes attention in its own code; if layers
            have no softmax attention; if regions overlap, are empty or lie outside the prompt; if several texts or beams are
            generated at once; or if the cache belongs to another model.
    """
    with in_terms_of_arguments():
        models = _models(model, tokenizer)
        recorder = _Recorder(models, tokenizer, keys, asked_of(models[-1], layers, heads, measure, reduce, top))
    with recorder.installed():
        yield recorder.finished
        recorder.finish()


class _Answer:
    """What has been recorded for one text.

    Args:
        prompt: The number of its tokens before the first new one.
        keys: The regions of the prompt's tokens.
        grows: The region of new tokens; None if every new token is a region of its own; −1 if new tokens are in no region.
    """

    def __init__(self, prompt: int, keys: Regions, grows: int | None) -> None:
        self.prompt, self.keys, self.grows = prompt, keys, grows
        self.rows: dict[int, dict[int, Float[Tensor, "head region"]]] = {}
        """Values by the position of the query, then by layer."""

    def owners(self, count: int) -> Int[Tensor, " token"]:
        """The region of every token of a text of this length."""
        new = max(0, count - len(self.keys.owners))
        if self.grows is None:
            added = torch.arange(len(self.keys.owners), len(self.keys.owners) + new)
        else:
            added = torch.full((new,), self.grows)
        return torch.cat([self.keys.owners[:count], added])

    def regions(self, count: int) -> int:
        """The number of regions of a text of this length."""
        return max(len(self.keys.names), count) if self.grows is None else len(self.keys.names)


@dataclasses.dataclass
class _Pass:
    """The current pass."""

    begins: int
    """The position of its first token in the text."""
    rows: range
    """The positions of the recorded queries."""
    owners: Int[Tensor, " token"]
    """The region of each token; for tokens in no region, the number of regions."""
    regions: int
    held: dict[int, tuple[Tensor, Tensor]] = dataclasses.field(default_factory=dict)
    """For shares: α and values of layers whose output projection has not run yet."""


class _Recorder:
    """Wraps the attention function of a model, and keeps rows of what it computes."""

    def __init__(
        self,
        models: tuple[PreTrainedModel, PreTrainedModel, LoadedModel],
        tokenizer: PreTrainedTokenizerBase | None,
        keys: object,
        asked: Asked,
    ) -> None:
        self.outer, base, self.loaded = models
        self.asked = asked
        self._check()
        bound = {modules.layer: modules for modules in bind_blocks(self.loaded.model, self.loaded.layout)}
        paths = {id(module): path for path, module in self.loaded.model.named_modules()}
        self.modules: dict[int, BlockModules] = {layer: bound[layer] for layer in self.asked.layers}
        self.layers = {id(base.get_submodule(paths[id(each.attention)])): n for n, each in self.modules.items()}
        """Layers by the attention module of the user's model."""
        self.outputs = {n: base.get_submodule(paths[id(each.output)]) for n, each in self.modules.items()}
        self.implementation = base.config._attn_implementation
        self.image = image_token(self.outer.config, tokenizer)
        every = len(self.asked.heads) == self.loaded.layout.heads
        self.heads = slice(None) if every else torch.tensor(self.asked.heads) - 1
        self.named_keys = keys
        self.finished: list[AttentionValues] = []
        self.ids: list[int] = []
        """The tokens of the text so far."""
        self.length: int | None = None
        """The number of tokens that `generate` was given; None outside `generate`."""
        self.answer: _Answer | None = None
        self.running: _Pass | None = None
        self.parameters: dict[int, BlockParameters] = {}
        self.norms: dict[int, Tensor] = {}
        """‖f(x_j)‖ of the tokens so far, by layer."""

    def _check(self) -> None:
        layout = self.loaded.layout
        if layout.stack is not None or not self.loaded.causal:
            raise InputError(f"model: expected a causal language model, which can generate, got {self.loaded.name}")
        if not layout.registry:
            raise InputError(
                f"model: {layout.family} computes attention in its own code, which cannot be recorded; call "
                "normscope.attention on the finished text"
            )
        if layout.is_gated and self.asked.measure in (PairMeasure.norm, PairMeasure.share):
            raise InputError(f"measure={self.asked.measure}: {GATED}; choose weight or score")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Context in which passes of the model are recorded; the model is left as it was."""
        name = self.implementation
        before = ALL_ATTENTION_FUNCTIONS.get(name, None)
        if isinstance(getattr(before, "__self__", None), _Recorder):
            raise InputError("model: another recording is running; end that one first")
        self._before: Callable[..., Any] | None = before
        with contextlib.ExitStack() as stack:
            stack.callback(self._remove, name, before)
            ALL_ATTENTION_FUNCTIONS[name] = self._attend
            for handle in self._hooks():
                stack.callback(handle.remove)
            if hasattr(self.outer, "generate"):
                stack.callback(self.outer.__dict__.pop, "generate", None)
                self.outer.__dict__["generate"] = functools.partial(self._generate, self.outer.generate)
            yield

    @staticmethod
    def _remove(name: str, before: Callable[..., Any] | None) -> None:
        del ALL_ATTENTION_FUNCTIONS[name]
        if before is not None and ALL_ATTENTION_FUNCTIONS.get(name) is not before:
            ALL_ATTENTION_FUNCTIONS[name] = before  # the one that was there before

    def _hooks(self) -> Iterator[Any]:
        yield self.outer.register_forward_pre_hook(self._begin, with_kwargs=True)
        yield self.outer.register_forward_hook(self._end, always_call=True)
        if self.asked.measure is PairMeasure.share:
            for layer, module in self.outputs.items():
                yield module.register_forward_hook(functools.partial(self._take_output, layer))

    def _generate(self, generate: Callable[..., Any], inputs: Tensor | None = None, *args: Any, **keywords: Any) -> Any:
        """The model's own `generate`, which makes one recording."""
        given = inputs if inputs is not None else keywords.get("input_ids")
        self.finish()
        self.length = None if given is None else given.shape[-1]
        self.ids = [] if given is None else given.reshape(-1).tolist()
        keywords.setdefault("disable_compile", True)  # nothing can be read inside a compiled pass
        result = generate(inputs, *args, **keywords)
        sequences = getattr(result, "sequences", result)
        self.finish(int(sequences.shape[-1]) if isinstance(sequences, Tensor) else None)
        return result

    def _begin(self, _module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """A pass begins."""
        ids = args[0] if args else keywords.get("input_ids")
        if not isinstance(ids, Tensor):
            raise InputError("input_ids: expected token ids, got vectors (inputs_embeds); pass ids")
        if len(ids) != 1:
            raise InputError(
                f"input_ids: expected one text at a time, got {len(ids)}; generate one answer to one text, without beams"
            )
        past = self._past(keywords.get("past_key_values"))
        new = ids[0].tolist()
        if (
            past == 0 and self.length is None and self.ids != new[: len(self.ids)]
        ):  # the user's own loop begins another text
            self.finish()
        if self.answer is None:
            self._begin_text(past, new)
        assert self.answer is not None
        self.ids[past:] = new
        count = len(self.ids)
        owners, regions = self.answer.owners(count), self.answer.regions(count)
        self.running = _Pass(
            begins=past,
            rows=range(max(self.answer.prompt - 1, past), count),
            owners=torch.where(owners < 0, regions, owners).to(ids.device),
            regions=regions,
        )
        self.norms = {layer: norms[:, :past] for layer, norms in self.norms.items()}

    def _past(self, cache: Any) -> int:
        """The number of tokens in the cache.

        Raises:
            InputError: If the cache cannot belong to this text and model.
        """
        if cache is None:
            return 0
        past = int(cache.get_seq_length())
        layout = self.loaded.layout
        if past and self.answer is None:
            filled = [each.keys for each in cache.layers if isinstance(getattr(each, "keys", None), Tensor)]
            shapes = {(len(keys), keys.shape[1]) for keys in filled}
            expected = {(1, site.attention.key_heads) for site in layout.sites}
            if len(cache.layers) != self.loaded.layers or not shapes <= expected or past >= len(self.ids):
                raise InputError(
                    f"past_key_values: expected the cache of {self.loaded.name}, {self.loaded.layers} layers with "
                    f"{layout.sites[0].attention.key_heads} heads of keys, and fewer than the text's {len(self.ids)} tokens; "
                    f"got {len(cache.layers)} layers with {', '.join(str(heads) for _, heads in sorted(shapes))} heads and "
                    f"{past} tokens; pass a cache that this model has filled with the beginning of this text, or no cache"
                )
        return past

    def _begin_text(self, past: int, new: list[int]) -> None:
        """Find the regions of a prompt, which hold for all later passes."""
        ids = self.ids if self.length is not None else [*self.ids[:past], *new]
        if len(ids) < past + len(new):
            raise InputError(
                "past_key_values: the text in the cache is unknown; call generate with all tokens of that text"
            )
        words = asks_for_words(self.named_keys)
        with in_terms_of_arguments():
            batch = batch_from_texts(
                self.loaded, BatchEncoding({"input_ids": [ids]}), Level.word if words else Level.token
            )
        tokens = dataclasses.replace(batch, units=None).unit_texts(self.loaded.tokenizer)
        spelt = batch.unit_texts(self.loaded.tokenizer) if words else ()
        read = Read(self.loaded, None, batch, tokens, spelt, image=self.image, is_prompt=True)
        every = self.named_keys is None or self.named_keys == "tokens"
        keys = regions_of("keys", self.named_keys, read)
        empty = [number for number, size in enumerate(keys.sizes) if size == 0]
        self.answer = _Answer(len(ids), keys, None if every else next(iter(empty), -1))

    def _end(self, _module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        self.running = None

    def _attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *args: Any,
        **keywords: Any,
    ) -> Any:
        """Any model's attention function; our rows are computed alongside."""
        before = self._before or getattr(sys.modules[type(module).__module__], _EAGER)
        result = before(module, query, key, value, attention_mask, *args, **keywords)
        layer = self.layers.get(id(module))
        if layer is not None and self.running is not None and len(self.running.rows):
            with torch.inference_mode():
                self._take(layer, self.running, query, key, value, attention_mask, keywords)
        return result

    def _take(
        self,
        layer: int,
        running: _Pass,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        keywords: Mapping[str, Any],
    ) -> None:
        """Compute the rows to record."""
        unknown = [name for name in keywords.keys() - _KNOWN if keywords[name] is not None]
        if unknown or not (mask is None or isinstance(mask, Tensor)):
            what = ", ".join(sorted(unknown)) or type(mask).__name__
            raise InputError(
                f"model: its attention function gets {what}, whose effect is unknown; load the model with sdpa attention"
            )
        count = len(running.owners)
        first = max(0, count - key.shape[2])  # a sliding cache has dropped the earlier keys
        last = min(count - first, key.shape[2])  # a static cache has free slots after the text
        rows = slice(query.shape[2] - len(running.rows), query.shape[2])
        places = slice(first, first + last), slice(running.rows.start, count)
        window = None if mask is not None and mask.ndim > 2 else keywords.get("sliding_window")
        term = _term(_seen(*places, window, query.device), mask, rows, last, keywords.get("position_bias"))
        scale = keywords.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = _scores(full_precision(query[0, :, rows]), key[0, :, :last], scale)[self.heads]
        cap, sinks = keywords.get("softcap"), keywords.get("s_aux")
        scores = scores if cap is None else cap * (scores / cap).tanh()
        if term is not None:
            scores = scores + (term if len(term) == 1 else term[self.heads]).to(scores)
        if self.asked.measure is PairMeasure.score:
            self._keep(layer, running, scores, first)
            return
        if sinks is not None:
            sink = full_precision(sinks).reshape(-1)[self.heads][:, None, None].expand(*scores.shape[:2], 1)
            scores = torch.cat([scores, sink], dim=-1)
        weights = scores.softmax(dim=-1)[..., :last]
        match self.asked.measure:
            case PairMeasure.norm:
                weights = weights * self._norms_of(layer, value[:, :, :last], first)[self.heads][:, None]
            case PairMeasure.share:
                running.held[layer] = weights, value[0, :, :last]
                return
        self._keep(layer, running, weights, first)

    def _norms_of(
        self, layer: int, value: Float[Tensor, "batch kv_head key size"], first: int
    ) -> Float[Tensor, "head key"]:
        """‖f(x_j)‖ of the keys that attention is given; the norms from earlier passes are known."""
        parameters = self._parameters(layer)
        groups = len(parameters.output_weight) // value.shape[1]
        known = self.norms.get(layer)
        begin = 0 if known is None else max(0, known.shape[1] - first)
        made = full_precision(value[:, :, begin:]).repeat_interleave(groups, dim=1)
        new = transformed_norms(made, parameters.norm_factors.to(made))[0]
        before = new.new_zeros(len(new), first) if known is None else known
        if before.shape[1] < first:  # keys that a window has dropped are not needed again
            before = _widened(before, first, 0)
        self.norms[layer] = torch.cat([before[:, : first + begin], new], dim=1)
        return self.norms[layer][:, first:]

    def _take_output(self, layer: int, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        """Take the output of W_O, along which shares are measured."""
        running = self.running
        if running is None or layer not in running.held:
            return
        weights, value = running.held.pop(layer)
        weight, scale = self._parameters(layer).output_weight, self.modules[layer].scale
        with torch.inference_mode():
            output = full_precision(output.reshape(1, -1, output.shape[-1])[:, -len(running.rows) :]) * scale
            readers = pair_readout(along(output), weight)[0]
            groups = len(readers) // len(value)
            shares = torch.cat(
                [
                    (readers.unflatten(0, (-1, groups)) @ full_precision(value[:, part]).unsqueeze(1).mT).flatten(0, 1)
                    for part in pieces(slice(0, value.shape[1]), _KEYS_AT_ONCE)
                ],
                dim=-1,
            )
            self._keep(layer, running, shares[self.heads] * weights, len(running.owners) - value.shape[1])

    def _parameters(self, layer: int) -> BlockParameters:
        if layer not in self.parameters:
            self.parameters[layer] = self.modules[layer].parameters()
        return self.parameters[layer]

    def _keep(self, layer: int, running: _Pass, values: Float[Tensor, "head row key"], first: int) -> None:
        """Add up the keys of each region, and keep the sums."""
        assert self.answer is not None
        owners = running.owners[first:]
        score = self.asked.measure is PairMeasure.score
        seen = values.isfinite() if score else None
        sums = _sums(values if seen is None else values.masked_fill(~seen, 0), owners, running.regions)
        if seen is not None:
            visible = _sums(seen.to(values.dtype), owners, running.regions)
            sums = (sums / visible).masked_fill(visible == 0, float("-inf"))
        kept = reduced(sums, self.asked.reduction)
        for number, place in enumerate(running.rows):
            self.answer.rows.setdefault(place, {})[layer] = kept[:, number]

    def finish(self, length: int | None = None) -> None:
        """End a recording, if one has begun.

        Args:
            length: The final number of tokens. No pass has read the last token, which may also have been dropped.
        """
        answer, ids = self.answer, self.ids
        self.answer, self.length, self.ids = None, None, []
        self.norms.clear()
        if answer is None or not answer.rows:
            return
        places = [place for place in sorted(answer.rows) if length is None or place < length - 1]
        ids = ids[: places[-1] + 1]
        regions = answer.regions(len(ids))
        invisible = float("-inf") if self.asked.measure is PairMeasure.score else 0.0
        layers = [
            torch.stack([_widened(answer.rows[place][layer], regions, invisible) for place in places], dim=1)
            for layer in self.asked.layers
        ]
        values, strongest = torch.stack(layers).cpu(), None
        if self.asked.top is not None:
            values, strongest = values.topk(min(self.asked.top, regions), dim=-1)
        tokens = unit_texts(self.loaded.tokenizer, ids, None)
        owners = torch.full((len(ids),), -1)
        owners[places] = torch.arange(len(places))
        names = tokens if answer.grows is None else answer.keys.names
        self.finished.append(
            array_of(
                values,
                strongest,
                self.asked,
                Regions(tuple(tokens[place] for place in places), owners),
                Regions(tuple(names), answer.owners(len(ids))),
                str(self.loaded.tokenizer.decode(ids, skip_special_tokens=True)),
            )
        )


_KNOWN = HARMLESS_KEYWORDS | {"scaling", "dropout", "is_causal", "softcap", "s_aux", "position_bias"}


def _models(
    model: LoadedModel | nn.Module, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedModel, PreTrainedModel, LoadedModel]:
    """The model that generates, the part of it that has layers, and what is known of its attention."""
    if isinstance(model, LoadedModel):
        outer = model.next_token_head
        if outer is None:
            raise InputError(f"model: expected a causal language model, which can generate, got {model.name}")
        return outer, model.model, model
    check_eager(model)
    given = without_peft(model)
    if not isinstance(given, PreTrainedModel):
        raise InputError(f"model: expected a causal language model of transformers, got {type(model).__name__}")
    tower = text_tower(given)
    return given, base_of(tower), _wrapped(model, tokenizer, keep=tower is given)


_known: "weakref.WeakKeyDictionary[nn.Module, tuple[LoadedModel, object]]" = weakref.WeakKeyDictionary()
"""Models that have been recorded, with their tokenizers: finding out where a model attends takes a second or more."""


def _wrapped(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None, *, keep: bool) -> LoadedModel:
    """What is known of a model's attention, found out again if the model has changed since.

    Args:
        keep: Whether to keep it for the next recording, as far as it does not hold the model itself.
    """
    loaded, of_tokenizer = _known.get(model, (None, None))
    if loaded is not None and of_tokenizer is tokenizer:
        with contextlib.suppress(InputError):
            loaded.require_current()
            return loaded
    loaded = wrap_model(model, tokenizer)
    if keep:
        _known[model] = loaded, tokenizer
    return loaded


def _seen(keys: slice, queries: slice, window: int | None, device: torch.device) -> Bool[Tensor, "row key"] | None:
    """Which keys a causal model's queries see; None if they see all keys.

    Args:
        window: How many keys a query sees, if the kernel is told so and no mask says it.
    """
    if queries.stop - queries.start == 1 and (window is None or keys.stop - keys.start <= window):
        return None
    key, query = (torch.arange(part.start, part.stop, device=device) for part in (keys, queries))
    seen = key <= query[:, None]
    return seen if window is None else seen & (key > query[:, None] - window)


def _term(
    seen: Bool[Tensor, "row key"] | None, mask: Tensor | None, rows: slice, keys: int, bias: Tensor | None
) -> Float[Tensor, "#head row key"] | None:
    """The term that is added to the scores of some rows; None if there is none.

    Args:
        mask: What the model gives its kernel: True where visible, or numbers to add; of padding alone if it has two axes.
        keys: The number of keys.
        bias: The positional bias.
    """
    terms = [] if seen is None else [additive_mask(seen, torch.float32)[None]]
    if mask is not None and mask.ndim == 2:
        terms.append(additive_mask(mask[:1, None, -keys:].bool(), torch.float32))
    elif mask is not None and mask.dtype is torch.bool:
        terms.append(additive_mask(mask[0, :, rows, :keys], torch.float32))
    elif mask is not None:
        added = mask[0, :, rows, :keys]
        terms.append(added.masked_fill(added <= torch.finfo(mask.dtype).min / 2, float("-inf")))
    if bias is not None:
        terms.append(bias[0, :, rows, :keys])
    return sum(terms[1:], terms[0]) if terms else None


def _scores(
    query: Float[Tensor, "head row size"], key: Float[Tensor, "kv_head key size"], scale: float
) -> Float[Tensor, "head row key"]:
    """scale · q·k, where several query heads may share one key head."""
    grouped = (query * scale).reshape(len(key), -1, query.shape[-1])
    parts = [grouped @ full_precision(key[:, part]).mT for part in pieces(slice(0, key.shape[1]), _KEYS_AT_ONCE)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).view(*query.shape[:2], -1)


def _sums(
    values: Float[Tensor, "head row key"], owners: Int[Tensor, " key"], regions: int
) -> Float[Tensor, "head row region"]:
    """The sums over each region. Tokens in no region come last, and are dropped."""
    sums = values.new_zeros(*values.shape[:2], regions + 1)
    return sums.scatter_add_(2, owners[: values.shape[-1]].expand_as(values), values)[..., :regions]


def _widened(values: Float[Tensor, "head region"], regions: int, fill: float) -> Float[Tensor, "head wider"]:
    """Values of a shorter text, filled up for regions that were not visible yet."""
    return torch.nn.functional.pad(values, (0, regions - values.shape[-1]), value=fill)
