"""A loaded model, with its tokenizer and what it is."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from normscope.data.examples import AS_GIVEN, TextRule
from normscope.data.token_sequence import Batching
from normscope.data.tokenization import encoded
from normscope.errors import InputError, escaped
from normscope.maths.choices import Pooling
from normscope.maths.embedder import Embedder
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.models.load.image_texts import ImageTextReader
from normscope.models.load.input_reading import InputReader
from normscope.models.load.task_heads import Head
from normscope.models.load.tokenizer_loading import TokenNames
from normscope.models.observe.check import Check
from normscope.models.observe.exclusive import Exclusive
from normscope.models.observe.observer import Observer, Visitor
from normscope.models.observe.reading import stacks_of
from normscope.models.options import Tower
from normscope.models.probes import Lookups, embeddings_of, equal_tokens
from normscope.models.prove.padding import batching_of
from normscope.models.prove.verification import Verification, verify
from normscope.models.stored.decoder_start import decoder_shift
from normscope.models.stored.embedder_files import embedder_of
from normscope.models.stored.model_code import model_code
from normscope.models.stored.random_state import drawing
from normscope.models.stored.stored_weights import execution_device, number_format, weights_digest
from normscope.models.stored.weight_checks import UNOBSERVED_PARTS, check_finite
from normscope.rounding import counted, number


@dataclasses.dataclass(frozen=True)
class TokenTypes:
    """What a model makes of `token_type_ids`."""

    number: int | None
    """How many different ids it can look up; None if it looks them up nowhere."""
    segments: bool
    """Whether they say which text of a pair a token belongs to."""


def tables_of_token_types(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor] | None:
    """The weights of the embeddings in which a model looks up `token_type_ids`; None if it takes no such ids for a text.

    Args:
        model: A model whose `forward` has an argument of this name.
        inputs: Its other inputs.
    """
    given = torch.zeros_like(inputs["input_ids"])
    try:
        with torch.inference_mode(), Lookups() as lookups:
            model(**inputs, token_type_ids=given)
    except Exception:  # TAPAS takes seven ids for each token
        return None
    place = given.untyped_storage().data_ptr()
    return [weight for weight, ids in lookups.found if ids.untyped_storage().data_ptr() == place]


class Drawn(NamedTuple):
    """Random weights."""

    seed: int
    digest: str


T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LoadedModel:
    """A model that is ready to observe, with all that is needed to encode its inputs and identify it in results."""

    model: PreTrainedModel
    """The base model, in evaluation mode and without gradients."""
    tokenizer: PreTrainedTokenizerBase
    facts: ModelFacts
    name: str
    revision: str | None
    """Commit of the Hub repository; None for weights from elsewhere."""
    max_length: int | None
    """The longest sequence that the model and its tokenizer accept, in tokens; None without a limit."""

    load_head: Callable[[Head], PreTrainedModel | None] = lambda _head: None
    """Loads a head around `model`; returns None if the checkpoint has none of this kind."""

    folder: Path | None = None
    """The checkpoint's files; None for weights that were not read from files."""

    files_sha256: str | None = None
    """Digest of the weight files, by which published weights are known; None for other origins, or with an adapter."""

    given_embedder: Embedder | None = None
    """What makes embeddings, if the model was part of a SentenceTransformer in memory."""

    drawn: "Drawn | None" = None
    """The weights as they were drawn at random; None if they were read from files, or were in memory already."""

    require_current: Callable[[], None] = lambda: None
    """Raises InputError if `model` stands for another model in memory that has changed since."""

    rule: TextRule = AS_GIVEN
    """How the model's files or modules write texts before the tokenizer reads them."""

    reader: InputReader | None = None
    """What makes inputs of images or audio, if it reads these instead of texts."""

    image_texts: ImageTextReader | None = None
    """What makes inputs of texts with images, if it reads these as well as texts."""

    tower: Tower | None = None
    """Which of its towers it is, if it is part of a model that embeds images and texts."""

    of_tower: "Callable[[Tower], LoadedModel] | None" = None
    """Returns either tower of that model; None for any other model."""

    _exclusive: Exclusive = dataclasses.field(default_factory=Exclusive, init=False, repr=False)

    def __repr__(self) -> str:
        """One line: name, family, size, dtype and device, and how closely observation matches the untouched model."""
        heads = f"{'up to ' * self.facts.heads_differ}{counted(self.facts.heads, 'head')}"
        tower = "" if self.tower is None else f" ({self.tower} tower)"
        text = f"{self.name}{tower}: {self.facts.family}, {counted(self.layers, 'layer')}, {heads}"
        proof = next((proof for proof in vars(self).values() if isinstance(proof, Verification)), None)
        matched = "" if proof is None else f", matches the untouched model to {number(proof.error, digits=2)}"
        return f"LoadedModel({escaped(text)}, {number_format(self.model)} on {self.device}{matched})"

    def exclusively(self, call: Callable[[], T]) -> T:
        """Call a function that uses the model, or its tokenizer; see `Exclusive`.

        Raises:
            InputError: If another call is using the model.
        """
        with model_code(self.model):
            return self._exclusive.call(call, functools.partial(_in_memory, self))

    def blocks(self, run: Callable[[Visitor], None]) -> Iterator[AttentionBlock]:
        """Iterate over the blocks of a pass, which uses the model until the loop ends; see `Exclusive`.

        Args:
            run: Runs the pass, and calls a visitor with each block.

        Raises:
            InputError: If another call is using the model.
        """
        with model_code(self.model):
            yield from self._exclusive.blocks(run, functools.partial(_in_memory, self))

    def weights(self) -> dict[str, str]:
        """Digests of the weights as they are now: those of `model`, and of what each head that has been loaded adds to them.

        A pooler counts as a part of heads: not every class of a model has one.
        """
        unobserved = [part for name, part in self.model.named_modules() if f"{name}.".startswith(UNOBSERVED_PARTS)]
        observed = set(self.model.modules()).difference(unobserved)
        parts = {name: value for name, value in vars(self).items() if isinstance(value, PreTrainedModel)}
        return {
            name: weights_digest(part, unobserved if part is self.model else observed) for name, part in parts.items()
        }

    def require_finite_weights(self) -> None:
        """Check that no weight has become NaN or infinite since the model was loaded or wrapped.

        Raises:
            InputError: If one has; it is named.
        """
        for model in _in_memory(self):
            check_finite(model, self.name)

    def _head(self, kind: Head) -> PreTrainedModel | None:
        """A head whose parameters autograd may record later, wherever it is first asked for."""
        with torch.inference_mode(False), drawing():
            return self.load_head(kind)

    @cached_property
    def masked_language_head(self) -> PreTrainedModel | None:
        """The masked language model around `model`; None if the checkpoint has no weights for its head."""
        return self._head(Head.MASKED_TOKEN)

    @cached_property
    def next_token_head(self) -> PreTrainedModel | None:
        """The causal language model around `model`; None if the checkpoint has none, or its tokens see later ones."""
        return self._head(Head.NEXT_TOKEN) if self.causal else None

    @cached_property
    def prefix_head(self) -> PreTrainedModel | None:
        """What predicts the token after a text with images whose own tokens see later ones (PaliGemma); None for others."""
        return self._head(Head.NEXT_TOKEN) if self.image_texts is not None and not self.causal else None

    @cached_property
    def classifier(self) -> PreTrainedModel | None:
        """The classifier of texts around `model`; None if the checkpoint has no weights for its head."""
        return self._head(Head.CLASS)

    @cached_property
    def translator(self) -> PreTrainedModel | None:
        """The encoder–decoder with its head around `model`; None without one, or if only the encoder is observed."""
        return self._head(Head.TRANSLATION) if self.facts.reads_target else None

    @cached_property
    def embedder(self) -> Embedder:
        """What makes the embedding of a text out of its last hidden vectors.

        Raises:
            InputError: If the model's files do not say, or name something that cannot be split into parts.
        """
        embedder = self.any_embedder
        if embedder.head is not None:
            raise InputError(
                f"pooling: the embeddings of {self.name} are made by its own code from one text or image at a time; compare "
                f"them with normscope.similarity, or set pooling to one of {', '.join(Pooling)}"
            )
        if embedder.pooling is None:
            raise InputError(
                f"pooling: {self.name} keeps a vector for each token (late interaction), expected one embedding for each text; "
                f"compare its texts with normscope.similarity, or set pooling to one of {', '.join(Pooling)}"
            )
        return embedder

    @cached_property
    def any_embedder(self) -> Embedder:
        """The same as `embedder`, or what makes the vectors that late interaction compares.

        Raises:
            InputError: If the model's files do not say, or name something that cannot be split into parts.
        """
        return self.given_embedder or embedder_of(self.folder, self.name)

    def guessed_embedder(self) -> tuple[Embedder, bool]:
        """`embedder`, or the last token's vector of a causal model and the mean of others; and whether it is this guess."""
        try:
            return self.embedder, False
        except InputError:
            return Embedder(Pooling.last if self.causal else Pooling.mean), True

    @cached_property
    def verification(self) -> Verification:
        """Proof that attention blocks are observed exactly. It is made once."""
        return verify(self.model, self.facts, self.name)

    @cached_property
    def layers_verification(self) -> Verification:
        """Proof that whole layers, with their feed-forward networks, are observed exactly. It is made once.

        Raises:
            InputError: If they are not, or a layer has no network that can be observed.
        """
        return verify(self.model, self.facts, self.name, feed_forward=True)

    @cached_property
    def stacks_verification(self) -> Verification:
        """Proof that the attention blocks of all stacks of an encoder–decoder are observed exactly. It is made once."""
        verifications = [verify(stack.model, stack.facts, self.name) for stack in stacks_of(self.model).values()]
        return max(verifications, key=lambda verification: verification.error)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.facts.layers

    @property
    def vocabulary(self) -> int:
        """The number of token embeddings; the larger of encoder and decoder if the decoder is observed."""
        readers = [self.model, self.model.get_decoder()] if self.facts.reads_target else [self.model]
        return max(embeddings_of(reader).num_embeddings for reader in readers)

    @cached_property
    def takes_segments(self) -> bool:
        """Whether the model reads the segment ids of its tokenizer, as in `model(**tokenizer(text))`."""
        return self.token_types is not None and (self.token_types.segments or bool(self.segments_note))

    @cached_property
    def segments_note(self) -> str:
        """A sentence if the model looks the segment ids of its tokenizer up among its tokens; otherwise empty."""
        known = self.token_types
        among = known is not None and (known.number or 0) > 1 and not known.segments
        if not among or "token_type_ids" not in self.tokenizer.model_input_names:
            return ""
        return (
            "texts are read with the tokenizer's token_type_ids, for which this model adds embeddings of tokens, as in "
            "model(**tokenizer(text)); a pipeline that passes no such ids measures something else"
        )

    @cached_property
    def token_types(self) -> TokenTypes | None:
        """What the model makes of `token_type_ids`; None if it takes none.

        Config keys and tokenizers contradict the modules, so the model is run to see which embedding looks them up.
        """
        if "token_type_ids" not in inspect.signature(self.model.forward).parameters:
            return None
        tables = tables_of_token_types(self.model, equal_tokens(self.model, 2, reads_target=self.facts.reads_target))
        if tables is None:
            return None
        if not tables:  # as in attention that compares the ids
            named = "token_type_ids" in self.tokenizer.model_input_names
            return TokenTypes(None, segments=named and getattr(self.model.config, "type_vocab_size", 2) > 1)
        # GPT-2 looks them up among its tokens: it adds the embedding of token 0 wherever they are 0.
        of_tokens = embeddings_of(self.model).weight
        number = min(map(len, tables))
        return TokenTypes(number, segments=number > 1 and all(table is not of_tokens for table in tables))

    @cached_property
    def batching(self) -> Batching:
        """Which texts may be in one batch; it is tested once."""
        return batching_of(
            self.model,
            padding=self.tokenizer.pad_token_id,
            reads_target=self.facts.reads_target,
            routed=self.facts.routed,
        )

    @property
    def translates(self) -> bool:
        """Whether the model is an encoder–decoder."""
        return self.facts.stack is not None

    @cached_property
    def causal(self) -> bool:
        """Whether tokens see only earlier tokens.

        Config keys and modules contradict each other, so this is read from the attention mask of two tokens.
        """
        if self.is_cross_attention:
            return False
        visible: list[torch.Tensor] = []
        inputs = equal_tokens(self.model, 2, reads_target=self.facts.reads_target)
        with Observer(self.model, self.facts, self.facts.attends[:1]) as observer:
            observer.run(inputs, lambda block: visible.append(block.alpha.seen.of()[0, 0]), check=Check.NOTHING)
        return bool(visible[0][1, 0]) and not bool(visible[0][0, 1])

    @property
    def ending(self) -> tuple[int, ...]:
        """The special tokens that the tokenizer puts behind a text, such as [SEP]: a next token follows the text instead."""
        if self.tokenizer is None or isinstance(self.tokenizer, TokenNames):
            return ()
        whole, plain = (encoded(self.tokenizer, "a", special=special)["input_ids"] for special in (True, False))
        # Not by which tokens are special: the text itself may be unknown to the tokenizer.
        after = (at + len(plain) for at in range(len(whole)) if whole[at : at + len(plain)] == plain)
        return tuple(map(int, whole[next(after, len(whole)) :])) if plain else ()

    def without_ending(self, ids: list[int]) -> list[int]:
        """The tokens of a text without those that the tokenizer puts behind it, if it has any others."""
        ending = self.ending
        return ids[: -len(ending)] if 0 < len(ending) < len(ids) and tuple(ids[-len(ending) :]) == ending else ids

    @property
    def retrieves(self) -> bool:
        """Whether it reads pages (images) and queries (texts), each by itself, to compare their vectors."""
        return self.image_texts is not None and self.image_texts.alone

    @property
    def is_cross_attention(self) -> bool:
        """Whether the decoder's cross-attention is observed."""
        return self.facts.is_cross_attention

    @cached_property
    def decoder_inputs(self) -> Callable[[list[int]], list[int]] | None:
        """Shifts the target's tokens into the decoder's input; None if no decoder is observed.

        Row t of the decoder's attention then predicts token t of the target.
        """
        return decoder_shift(self.model.config) if self.facts.reads_target else None

    @property
    def device(self) -> torch.device:
        """The device on which the model runs."""
        return execution_device(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.model.dtype


def _in_memory(loaded: LoadedModel) -> list[PreTrainedModel]:
    """The base model, and the heads that have been loaded around it."""
    return [value for value in vars(loaded).values() if isinstance(value, PreTrainedModel)]
