"""Train a German–English translation model, or one of any two languages, and measure its BLEU.

python experiments/translation/train.py --train train.de.gz train.en.gz --test test.de.gz test.en.gz --output outputs/de-en
torchrun --nproc-per-node 4 experiments/translation/train.py --recipe kobayashi2020 --train de en --output outputs/europarl
"""

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

import normscope
from normscope.config.keys import keys_of
from normscope.config.schema import plain, read_values
from normscope.data.lines import Malformed, lines
from normscope.data.toy_corpus import ToyCorpus
from normscope.errors import InputError
from normscope.translation import toy
from normscope.translation.training import RECIPES, Pair, Recipe, train

HERE = Path(__file__).parent


def main() -> None:
    """Train, translate the test set, and write both into the output folder."""
    disable_progress_bar()  # of every checkpoint's shards
    arguments = _arguments()
    recipe = _recipe(arguments)
    pairs = _toy_pairs(toy.PAIRS, recipe.seed) if arguments.toy else _pairs(*arguments.train)
    tests = _pairs(*arguments.test) if arguments.test else []
    if tests and importlib.util.find_spec("sacrebleu") is None:
        raise InputError("--test: BLEU needs sacrebleu, which is not installed; run `pip install sacrebleu`")
    train(
        pairs,
        recipe,
        arguments.output,
        save_every=arguments.save_every,
        log_every=arguments.log_every,
        keep=None if arguments.keep_all else 2,
        callbacks=lambda tokenizer: _measurements(tokenizer, arguments.measure_every),
    )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    if tests and os.environ.get("RANK", "0") == "0":
        translations = translate([source for source, _ in tests], arguments.output)
        (arguments.output / "test.txt").write_text("\n".join(translations) + "\n")
        score = _bleu(translations, [target for _, target in tests])
        (arguments.output / "bleu.json").write_text(json.dumps(score, indent=2) + "\n")
        print(f"BLEU {score['bleu']:.1f} ({score['signature']})")


def _recipe(arguments: argparse.Namespace) -> Recipe:
    """The named recipe with the options that were given.

    Raises:
        InputError: If an option is not what it should be.
    """
    if arguments.toy and arguments.recipe is not None:
        raise InputError("--toy has a recipe of its own; leave out --recipe")
    named = toy.RECIPE if arguments.toy else RECIPES[arguments.recipe or "small"]
    given = {name: getattr(arguments, name) for name in keys_of(Recipe)}
    changed = {name: yaml.safe_load(value) for name, value in given.items() if value is not None}
    recipe: Recipe = read_values(Recipe, plain(named) | changed, "recipe")
    if recipe.model % recipe.heads:
        raise InputError(f"model={recipe.model}: expected a multiple of heads={recipe.heads}")
    return recipe


def _measurements(tokenizer: PreTrainedTokenizerFast, every: int) -> list[normscope.Callback]:
    """Mixing ratios of the encoder and alignment error on the captions of this folder, every so many steps."""
    if not every:
        return []
    captions = [line.strip().split(" ||| ") for line in lines(HERE / "captions.de-en.txt")]
    pairs = [(source, target) for source, target in captions]
    sources = [source for source, _ in pairs]
    gold = {"gold": {"path": HERE / "captions.gold", "base": 1}, "words": "punctuated"}
    return [
        normscope.Callback("mixing", texts=sources, tokenizer=tokenizer, every=every, name="encoder"),
        normscope.Callback("alignment", texts=pairs, tokenizer=tokenizer, every=every, name="alignment", **gold),
    ]


@torch.inference_mode()
def translate(sources: list[str], folder: Path, beams: int = 5, batch: int = 50) -> list[str]:
    """Translations by beam search, in the order of the sources."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    translations = [""] * len(sources)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        inputs = tokenizer([sources[index] for index in chosen], return_tensors="pt", padding=True, truncation=True)
        output = model.generate(**inputs, num_beams=beams, max_length=tokenizer.model_max_length)
        for index, text in zip(chosen, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
            translations[index] = text
    return translations


def _bleu(translations: list[str], references: list[str]) -> dict[str, object]:
    import sacrebleu

    metric = sacrebleu.BLEU()
    score = metric.corpus_score(translations, [references])
    return {"bleu": score.score, "sentences": len(references), "signature": str(metric.get_signature())}


def _toy_pairs(number: int, seed: int) -> list[Pair]:
    """Pairs of the toy corpus that are not those of `dataset=toy` with this seed."""
    return [(example.text, example.text_pair or "") for example in ToyCorpus(number, seed + 1).examples()]


def _pairs(source: Path, target: Path) -> list[Pair]:
    try:
        sides = list(lines(source)), list(lines(target))
    except Malformed as error:
        raise InputError(f"{source}, {target}: {error}") from error
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{source} has {len(sides[0]):,} lines, {target} has {len(sides[1]):,}; expected as many in both"
        )
    pairs = [(first.strip(), second.strip()) for first, second in zip(*sides, strict=True)]
    pairs = [pair for pair in pairs if all(pair)]
    if not pairs:
        raise InputError(f"{source}, {target}: expected lines of text, got none in both")
    return pairs


def _steps(text: str) -> int:
    """A number of steps from the command line."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text}")
    return int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus = parser.add_mutually_exclusive_group(required=True)
    corpus.add_argument("--train", nargs=2, type=Path, metavar=("SOURCE", "TARGET"))
    corpus.add_argument("--toy", action="store_true", help="train the toy model on the toy corpus, in two minutes")
    parser.add_argument("--test", nargs=2, type=Path, metavar=("SOURCE", "TARGET"), help="measure BLEU on these")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of the model; interrupted training resumes from here"
    )
    parser.add_argument("--recipe", choices=list(RECIPES), help="shape and training of the model (default: small)")
    group = parser.add_argument_group("the recipe", "each of these changes one of its values")
    for name, key in keys_of(Recipe).items():
        meaning = f"{key.meaning.rstrip('.')} " if key.meaning else ""
        # A bare --bfloat16 is true.
        bare = {"nargs": "?", "const": "true"} if isinstance(key.default, bool) else {}
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, metavar="VALUE", help=f"{meaning}({key.expected})", **bare)
    parser.add_argument("--save-every", type=_steps, default=500, help="steps between two checkpoints; 0: none")
    parser.add_argument(
        "--log-every", type=_steps, default=100, help="steps between two messages about the loss; 0: none"
    )
    parser.add_argument("--keep-all", action="store_true", help="keep every checkpoint, not only the last two")
    parser.add_argument(
        "--measure-every",
        type=_steps,
        default=0,
        help="steps between two measurements of mixing ratios and alignment error, which go to CSV files; 0: none",
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(2)
