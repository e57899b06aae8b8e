"""A joint subword vocabulary for two languages."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"


def joint_vocabulary(lines: Iterable[str], size: int, longest: int) -> PreTrainedTokenizerFast:
    """A byte-pair-encoding tokenizer, trained on both languages together.

    No subword spans two words or a word and a punctuation mark, so each belongs to one word.

    Args:
        lines: Texts of both languages.
        size: Maximum number of subwords.
        longest: Maximum number of tokens in a text.

    Source: Sennrich et al. 2016 (arXiv:1508.07909), section 3.2, for the joint encoding.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END, UNKNOWN, PADDING], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        unk_token=UNKNOWN,
        pad_token=PADDING,
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
    )
