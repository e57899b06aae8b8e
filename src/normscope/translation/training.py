"""Trains a small translation model with Marian's architecture from scratch, with the Hugging Face trainer."""

import dataclasses
import enum
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from normscope.config.rules import AboveZero, Count, Options, Seed, Share
from normscope.config.schema import difference, plain
from normscope.data.tokenization import encoded
from normscope.errors import InputError
from normscope.translation.vocabulary import joint_vocabulary
from normscope.untrusted.plain_data import MIB, json_mapping
from normscope.untrusted.writing import write_file

_RECIPE = "recipe.json"
"""The recipe of the checkpoints beside it."""

Pair = tuple[str, str]
"""A text and its translation."""


class Schedule(enum.StrEnum):
    """How the learning rate changes after the warm-up."""

    linear = "linear"
    """It falls linearly to zero."""
    inverse_sqrt = "inverse_sqrt"
    """It falls with the inverse square root of the number of steps."""


@dataclasses.dataclass(frozen=True)
class Recipe(Options):
    """The shape of a translation model and how it is trained."""

    epochs: Count = 10
    vocabulary: Count = 6000
    """Maximum size of the joint vocabulary, in subwords."""
    model: Count = 256
    """Size of the hidden vectors."""
    feed_forward: Count = 512
    """Size of the feed-forward networks' hidden vectors."""
    heads: Count = 4
    encoder_layers: Count = 3
    decoder_layers: Count = 4
    dropout: Share = 0.2
    label_smoothing: Share = 0.1
    longest: Count = 128
    """Maximum number of tokens in a text; longer texts are truncated."""
    batch_pairs: Count = 64
    """Pairs in a batch of each process, if `batch_tokens` is null."""
    batch_tokens: Count | None = None
    """Tokens in a step of all processes together, counted on the longer side of each pair, with padding."""
    pass_tokens: Count = 4096
    """At most how many of these tokens a process reads at once; it reads as often as a step needs."""
    learning_rate: AboveZero = 7e-4
    """Peak learning rate, after the warm-up."""
    schedule: Schedule = Schedule.linear
    """How the learning rate changes after the warm-up: `linear`, to zero, or `inverse_sqrt`."""
    warmup_steps: Count = 500
    """Steps in which the learning rate rises linearly."""
    bfloat16: bool = False
    """Whether to train in bfloat16 mixed precision."""
    seed: Seed = 1


RECIPES = {
    "small": Recipe(),
    # As printed in Table 5 of Kobayashi et al. 2020, with the feed-forward networks of a Transformer-base. The authors' code
    # has a vocabulary of 10,000 for each language; here the two share one.
    "kobayashi2020": Recipe(
        epochs=40,
        vocabulary=20_000,
        model=512,
        feed_forward=2048,
        heads=8,
        encoder_layers=6,
        decoder_layers=6,
        dropout=0.3,
        label_smoothing=0.1,
        longest=512,
        batch_tokens=2**15,
        learning_rate=1e-4,
        schedule=Schedule.inverse_sqrt,
        warmup_steps=4000,
    ),
}
"""Recipes by name."""


class TokenBatches(Sampler[list[int]]):
    """Batches of pairs of similar length, in a new random order in each epoch.

    Args:
        lengths: The number of tokens on the longer side of each pair.
        tokens: At most how many tokens a batch has, with padding; a longer pair is a batch of its own.
        seed: Seed of the order.
        processes: Each gets as many batches as the others; some are repeated, if need be.
    """

    def __init__(self, lengths: Sequence[int], tokens: int, seed: int, processes: int) -> None:
        self._seed, self._epoch, self._processes = seed, 0, processes
        self._batches: list[list[int]] = [[]]
        for pair in np.argsort(lengths, kind="stable").tolist():
            if self._batches[-1] and lengths[pair] * (len(self._batches[-1]) + 1) > tokens:
                self._batches.append([])
            self._batches[-1].append(pair)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return -(-len(self._batches) // self._processes) * self._processes

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self._batches))
        return (self._batches[place] for place in np.resize(order, len(self)))


class _Trainer(Seq2SeqTrainer):
    """Trains on batches of so many tokens, if the recipe says how many."""

    def __init__(self, recipe: Recipe, args: Seq2SeqTrainingArguments, **given: Any) -> None:
        self._recipe, self._tokens = recipe, 0
        if recipe.batch_tokens is not None:
            share = -(-recipe.batch_tokens // args.world_size)
            args.gradient_accumulation_steps = -(-share // recipe.pass_tokens)
            self._tokens = -(-share // args.gradient_accumulation_steps)
        super().__init__(args=args, **given)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The batches of this process."""
        if not self._tokens:
            return super().get_train_dataloader()
        examples: Any = self.train_dataset
        lengths = [max(map(len, example.values())) for example in examples]
        batches = TokenBatches(lengths, self._tokens, self._recipe.seed, self.args.world_size)
        loader = DataLoader(examples, batch_sampler=batches, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


def train(
    pairs: Sequence[Pair],
    recipe: Recipe,
    folder: Path,
    *,
    save_every: int = 0,
    log_every: int = 100,
    keep: int | None = 2,
    callbacks: Callable[[PreTrainedTokenizerFast], Sequence[TrainerCallback]] = lambda _: (),
    say: Callable[[str], None] = print,
) -> None:
    """Train a model and save it in a folder, ready for `model.name=<folder>`.

    If the folder has checkpoints of the same training, it resumes from the last one. Under torchrun, all processes share the
    work, and the first one saves and says.

    Args:
        pairs: Texts and their translations.
        recipe: Shape and training; the seed makes it reproducible on one machine.
        folder: Where the model, tokenizer and checkpoints are saved.
        save_every: Steps between two checkpoints; 0 saves none.
        log_every: Steps between two messages about the loss; 0 writes none.
        keep: How many checkpoints to keep, the last; None keeps all, to measure the model over its training.
        callbacks: The trainer's callbacks, given the tokenizer; `normscope.Callback` measures the model while it trains.
        say: Called with messages about progress.

    Raises:
        InputError: If the folder has checkpoints of another recipe.
    """
    torch.manual_seed(recipe.seed)
    checkpoints = folder / "checkpoints"
    _check_recipe(recipe, checkpoints)
    tokenizer = joint_vocabulary((text for pair in pairs for text in pair), recipe.vocabulary, recipe.longest)
    model = _model(tokenizer, recipe)
    trainer = _Trainer(
        recipe,
        model=model,
        args=_arguments(recipe, checkpoints, save_every, log_every, keep),
        train_dataset=_encoded(pairs, tokenizer, recipe.longest),
        processing_class=tokenizer,  # checkpoints are complete
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        callbacks=[_Progress(say), *callbacks(tokenizer)],
    )
    trainer.remove_callback(PrinterCallback)  # prints dictionaries
    if trainer.is_world_process_zero():
        checkpoints.mkdir(parents=True, exist_ok=True)
        write_file(checkpoints, _RECIPE, f"{json.dumps(plain(recipe), indent=2)}\n".encode())
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None)
    if trainer.is_world_process_zero():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _check_recipe(recipe: Recipe, checkpoints: Path) -> None:
    """Check that the checkpoints of a folder, if there are any, are those of a recipe; only the number of epochs may differ."""
    if not (checkpoints / _RECIPE).is_file():
        return
    before = json_mapping(checkpoints / _RECIPE, MIB)
    changed = difference(before | {"epochs": recipe.epochs}, plain(recipe), "in its checkpoints")
    if changed:
        raise InputError(f"{checkpoints.parent}: {changed}; expected the same recipe, to resume, or another folder")


def _arguments(
    recipe: Recipe, folder: Path, save_every: int, log_every: int, keep: int | None
) -> Seq2SeqTrainingArguments:
    return Seq2SeqTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=float(recipe.epochs),
        per_device_train_batch_size=recipe.batch_pairs,
        train_sampling_strategy="group_by_length",
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=str(recipe.schedule),
        warmup_steps=recipe.warmup_steps,
        label_smoothing_factor=recipe.label_smoothing,
        bf16=recipe.bfloat16,
        use_cpu=not torch.accelerator.is_available(),
        optim="adamw_torch",
        adam_beta2=0.98,
        weight_decay=0.0,
        seed=recipe.seed,
        save_strategy="steps" if save_every else "no",
        save_steps=save_every or 500,
        save_total_limit=keep,
        logging_strategy="steps" if log_every else "no",
        logging_steps=log_every or 1,
        ddp_find_unused_parameters=False,
        report_to=[],
        disable_tqdm=True,
    )


class _Progress(TrainerCallback):
    """Reports how far training has progressed whenever the trainer logs its loss."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def on_log(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Report the step and the mean loss since the last message."""
        if "loss" in kwargs["logs"] and state.is_world_process_zero:
            loss = float(kwargs["logs"]["loss"])
            self._say(f"training: step {state.global_step:,} of {state.max_steps:,}, loss {loss:.2f}")


def _model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> MarianMTModel:
    padding, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=recipe.model,
        encoder_layers=recipe.encoder_layers,
        decoder_layers=recipe.decoder_layers,
        encoder_attention_heads=recipe.heads,
        decoder_attention_heads=recipe.heads,
        encoder_ffn_dim=recipe.feed_forward,
        decoder_ffn_dim=recipe.feed_forward,
        dropout=recipe.dropout,
        max_position_embeddings=recipe.longest,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=padding,
        eos_token_id=end,
        forced_eos_token_id=None,
        decoder_start_token_id=padding,  # Marian's convention
        init_std=recipe.model**-0.5,
    )
    return MarianMTModel(config)


def _encoded(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast, longest: int) -> list[dict[str, list[int]]]:
    sources, targets = zip(*pairs, strict=True)
    source_ids, target_ids = (
        encoded(tokenizer, list(side), truncation=True, max_length=longest)["input_ids"] for side in (sources, targets)
    )
    return [{"input_ids": source, "labels": target} for source, target in zip(source_ids, target_ids, strict=True)]
