"""Which texts are read, and how."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from omegaconf import II, MISSING
from pydantic import Field

from normscope.config.rules import OWN, BlankText, Count, Expected, FilePath, Options, Seed, Share
from normscope.errors import InputError


class Level(enum.StrEnum):
    """What maps and norms are about: tokens, or the words that they spell."""

    token = "token"
    word = "word"


class DatasetKind(enum.StrEnum):
    """Where examples come from."""

    sample = "sample"
    text = "text"
    hub = "hub"
    conllu = "conllu"
    parallel = "parallel"
    toy = "toy"
    images = "images"
    audio = "audio"


class Segmentation(enum.StrEnum):
    """How documents are split into examples."""

    none = "none"
    sentence = "sentence"
    pair = "pair"
    window = "window"


class Quoting(enum.StrEnum):
    """What quotation marks mean in a .csv or .tsv."""

    standard = "standard"
    """They enclose a cell, as in RFC 4180. A row of many lines is an error: its closing mark is probably missing."""
    multiline = "multiline"
    """They enclose a cell, and a row may have any number of lines."""
    none = "none"
    """They are ordinary characters, and every line is a row."""


class Segments(enum.StrEnum):
    """Segment ids of the second text of a pair."""

    pair = "pair"
    zero = "zero"


OneCharacter = Annotated[BlankText, Field(max_length=1), Expected("one character")]


def _are_categories(given: Any) -> bool:
    return isinstance(given, Mapping) or (isinstance(given, str) and bool(given.strip()))


_CATEGORIES = Expected(
    "the name of a column of annotated words, or categories by name: +dataset.categories.NAME=[token,token]",
    _are_categories,
)


@dataclass
class DatasetOptions(Options):
    """Which texts are read, and how."""

    kind: DatasetKind = MISSING
    """Where examples come from; presets set it."""
    path: FilePath | None = None
    """For `text`, a file (.txt, .jsonl, .csv or .tsv, optionally gzipped; .parquet), a folder or a glob pattern; for `images`
    and `audio`, a file, a folder or a glob pattern, and for `audio` also a .jsonl file of recordings with transcripts; for
    `hub`, the dataset's name; for `conllu`, the treebank."""
    pair_path: FilePath | None = None
    """File of the second texts, line by line with those of `path`."""
    separator: BlankText | None = None
    """Separates a text from its translation, if `parallel` has both on one line."""
    config: str | None = None
    """Configuration of a Hub dataset."""
    split: str = "train"
    """Split of a Hub dataset."""
    revision: str | None = None
    """Revision of a Hub dataset."""
    text_column: str | int | None = None
    """Column of the text; by default `text`, or the first column of a file without a header."""
    pair_column: str | int | None = None
    """Column of the second text of a pair; by default `text_pair`, if it exists."""
    score_column: str | int | None = None
    """Column of the gold score of a pair: a number that says how similar its texts are."""
    header: bool = True
    """Whether the first line of a .csv or .tsv names the columns."""
    delimiter: OneCharacter | None = None
    """Separates the cells of a .csv or .tsv."""
    quoting: Quoting | None = None
    """What quotation marks mean; by default `standard` in .csv, `none` in .tsv."""
    wikitext: bool = False
    """Whether the lines are WikiText: headings are dropped, and punctuation is detokenized."""
    segmentation: Segmentation = Segmentation.none
    """What makes an example: the whole document (`none`), a `sentence`, a `pair` of paragraphs, or a `window` of tokens."""
    chat_template: bool = False
    """Whether rows hold conversations (`messages`), which are written in the tokenizer's chat template."""
    stride: int = 0
    """Tokens by which a window overlaps the one before it."""
    limit: Count | None = None
    """Maximum number of examples."""
    max_length: Annotated[int, Field(ge=3)] | None = None
    """Maximum number of tokens in an example (by default, the model's); in a pair, the longer text is truncated first."""
    mask_fraction: Share = 0.0
    """Fraction of the ordinary tokens that are masked."""
    segments: Segments = Segments.pair
    """Segment ids of the second text of a pair: 1 (`pair`), or 0 as in the first text (`zero`)."""
    categories: Annotated[Any, _CATEGORIES, OWN] = field(default_factory=dict)
    """User-defined token categories, each a list of tokens, `re:` and a regular expression, or `file:` and a file of tokens;
    or a column of annotated words (`upos`, `deprel`), whose values become categories."""
    name: str | None = None
    """Name of the data, if known: published numbers are compared only with numbers on the same data."""
    seed: Seed = II("seed")
    """Seed of everything that is drawn at random: masked tokens and pairs of paragraphs."""


_READ_BY = {
    "path": {*DatasetKind} - {DatasetKind.sample, DatasetKind.toy},
    "text_column": {DatasetKind.text, DatasetKind.parallel, DatasetKind.hub},
    "pair_column": {DatasetKind.text, DatasetKind.hub},
    "score_column": {DatasetKind.text, DatasetKind.hub},
    "pair_path": {DatasetKind.text, DatasetKind.parallel},
    "separator": {DatasetKind.parallel},
    "delimiter": {DatasetKind.text, DatasetKind.parallel},
    "quoting": {DatasetKind.text, DatasetKind.parallel},
    "config": {DatasetKind.hub},
    "revision": {DatasetKind.hub},
}


def check_dataset(options: DatasetOptions) -> None:
    """Check how the keys of a dataset go together."""
    for key, kinds in _READ_BY.items():
        if getattr(options, key) is not None and options.kind not in kinds:
            raise InputError(
                f"dataset.{key} is set, but dataset={options.kind} does not read it; add dataset={max(kinds, key=str)}"
            )
    if options.score_column is not None and options.pair_path is not None:
        raise InputError(
            "dataset.score_column is set, but the texts of a pair come from two files (dataset.pair_path); expected one file "
            "with this column and both texts"
        )
    if options.kind is DatasetKind.conllu and (options.segmentation is not Segmentation.none or options.wikitext):
        raise InputError(
            "dataset=conllu has sentences of annotated words; leave out dataset.segmentation and dataset.wikitext"
        )
    if options.kind in (DatasetKind.images, DatasetKind.audio):
        _check_inputs(options)
    if options.chat_template:
        _check_conversations(options)
    if options.stride and options.segmentation is not Segmentation.window:
        raise InputError(f"dataset.stride={options.stride} is for dataset.segmentation=window")


def _check_inputs(options: DatasetOptions) -> None:
    of_texts = {
        "max_length": options.max_length is not None,
        "segmentation": options.segmentation is not Segmentation.none,
        "wikitext": options.wikitext,
        "mask_fraction": options.mask_fraction > 0,
    }
    for key, given in of_texts.items():
        if given:
            raise InputError(f"dataset.{key} applies only to texts, not to dataset={options.kind}; leave it out")


def _check_conversations(options: DatasetOptions) -> None:
    if options.kind is not DatasetKind.text:
        raise InputError(f"dataset.chat_template=true: expected dataset=text, got dataset={options.kind}")
    unusable = {
        "segmentation": options.segmentation is not Segmentation.none,
        "wikitext": options.wikitext,
        "pair_path": options.pair_path is not None,
        "pair_column": options.pair_column is not None,
        "score_column": options.score_column is not None,
        "categories": isinstance(options.categories, str),
    }
    for key, given in unusable.items():
        if given:
            raise InputError(
                f"dataset.chat_template=true: a conversation is one example with categories of its own; leave out dataset.{key}"
            )
