"""Trains a small translation model with Marian's architecture from scratch, with the Hugging Face trainer."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
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

from normscope.data.tokenization import encoded
from normscope.translation.vocabulary import joint_vocabulary

Pair = tuple[str, str]
"""A text and its translation."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The shape of a translation model and how it is trained."""

    epochs: int
    vocabulary: int = 6000
    """Maximum size of the joint vocabulary, in subwords."""
    model: int = 256
    """Size of the hidden vectors."""
    feed_forward: int = 512
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 4
    dropout: float = 0.2
    label_smoothing: float = 0.1
    longest: int = 128
    """Maximum number of tokens in a text; longer texts are truncated."""
    batch_pairs: int = 64
    learning_rate: float = 7e-4
    """Peak learning rate, after the warm-up; it then decays linearly to zero."""
    warmup_steps: int = 500
    bfloat16: bool = False
    """Whether to train in bfloat16 mixed precision."""
    seed: int = 1


def train(
    pairs: Sequence[Pair],
    recipe: Recipe,
    folder: Path,
    *,
    save_every: int = 0,
    keep: int | None = 2,
    callbacks: Callable[[PreTrainedTokenizerFast], Sequence[TrainerCallback]] = lambda _: (),
    say: Callable[[str], None] = print,
) -> None:
    """Train a model and save it in a folder, ready for `model.name=<folder>`.

    If the folder has checkpoints of the same training, it resumes from the last one.

    Args:
        pairs: Texts and their translations.
        recipe: Shape and training; the seed makes it reproducible on one machine.
        folder: Where the model, tokenizer and checkpoints are saved.
        save_every: Steps between two checkpoints; 0 saves none.
        keep: How many checkpoints to keep, the last; None keeps all, to measure the model over its training.
        callbacks: The trainer's callbacks, given the tokenizer; `normscope.Callback` measures the model while it trains.
        say: Called with messages about progress.
    """
    torch.manual_seed(recipe.seed)
    checkpoints = folder / "checkpoints"
    tokenizer = joint_vocabulary((text for pair in pairs for text in pair), recipe.vocabulary, recipe.longest)
    model = _model(tokenizer, recipe)
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(checkpoints),
            num_train_epochs=float(recipe.epochs),
            per_device_train_batch_size=recipe.batch_pairs,
            train_sampling_strategy="group_by_length",
            learning_rate=recipe.learning_rate,
            lr_scheduler_type="linear",
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
            logging_steps=100,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=_encoded(pairs, tokenizer, recipe.longest),
        processing_class=tokenizer,  # checkpoints are complete
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        callbacks=[_Progress(say), *callbacks(tokenizer)],
    )
    trainer.remove_callback(PrinterCallback)  # prints dictionaries
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class _Progress(TrainerCallback):
    """Reports how far training has progressed whenever the trainer logs its loss."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def on_log(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Report the step and the mean loss since the last message."""
        if "loss" in kwargs["logs"]:
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
