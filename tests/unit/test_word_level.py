"""`level=word`: which tokens are words, and everything that is measured of them against vectors of all pairs of tokens."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from normscope.analyses.pairs import Pairs
from normscope.api import SimilarityTo, load
from normscope.data.batching import Batch, collate, unpacked
from normscope.data.corpora import open_corpus
from normscope.data.encoding import Encoder
from normscope.data.examples import CorpusCounts, Example
from normscope.data.options import DatasetKind, DatasetOptions, Level, Segmentation
from normscope.data.token_sequence import TokenSequence
from normscope.data.token_texts import BYTES
from normscope.data.words import NO_WORD, mark_of, marked_words, unit_numbers, unit_texts
from normscope.errors import InputError
from normscope.maths import attention_weights, group_batches
from normscope.maths.partition import Partition, merged_weights
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.models.observe.observer import Observer
from normscope.results.figures import Lines
from normscope.results.findings import Sentence
from normscope.results.parts import about_words
from normscope.results.result import Result
from tests.end_to_end.shell import run_here
from tests.one_text import attribute, attribution_maps, decompose
from tests.oracles import specimens
from tests.oracles.specimens import Specimen
from tests.oracles.words import WordSequence
from tests.tiny import facts_for, token_batch
from tests.treebank import write_treebank
from tests.unit.test_data import Reader

LENGTHS = (9, 6)
UNITS = torch.tensor([[0, 1, 1, 2, 3, 3, 3, 4, 5], [0, 1, 2, 2, 3, 4, -1, -1, -1]])
FAMILIES = [
    "bert",
    "gpt_neox",
    "olmo2",
    "qwen3",
    "deberta",
]  # post, parallel, branch, pre, and one whose weights are its own


def observed(family, model, visit):
    """Visits the blocks of a padded batch whose second word has two tokens, and others more or fewer."""
    inputs = token_batch(model, LENGTHS)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    categories = torch.arange(max(LENGTHS)).remainder(3).expand(2, -1).masked_fill(~mask, -1)
    batch = Batch(inputs["input_ids"], None, mask, categories, (1, 2), units=UNITS)
    with Observer(model, facts_for(family), [model.config.num_hidden_layers]) as observer:
        observer.run(inputs, lambda block: visit(block, batch))


class Words:
    """One sequence by brute force: the vectors that each token takes from each other, and sums over the tokens of words."""

    def __init__(self, block, row):
        self.tokens = LENGTHS[row]
        some = slice(0, self.tokens)
        units = UNITS[row, some].numpy()
        self.members = [np.flatnonzero(units == unit) for unit in range(units.max() + 1)]
        self.alpha = block.weights[row, :, some, some].numpy()
        self.f = block.transformed()[row, :, some].numpy()
        self.x = block.inputs[row, some].numpy()
        parts = np.einsum("hqk,hkm->hqkm", self.alpha, self.f)
        self.heads = parts
        self.stages = self._stages(block, row, parts.sum(axis=0))

    def _stages(self, block, row, vectors):
        """V_ij of every pair, by method."""
        own = np.arange(self.tokens)
        residual = vectors.copy()
        residual[own, own] += self.x
        norm, position = block.parameters.normalisation, block.parameters.norm_position
        stages = {"attn_n": vectors} | ({} if position == "branch" else {"attnres_n": residual})
        if position not in ("post", "branch"):
            return stages
        output = block.attention_output[row, : self.tokens].numpy()
        whole = output if position == "branch" else output + self.x
        gamma = norm.weight.numpy()
        if norm.centred:
            whole = whole - whole.mean(axis=-1, keepdims=True)
        sigma = np.sqrt((whole**2).mean(axis=-1) + norm.epsilon)
        scaled = vectors if position == "branch" else residual
        scaled = (scaled - scaled.mean(axis=-1, keepdims=True)) if norm.centred else scaled
        normed = scaled * gamma / sigma[:, None, None]
        if position == "branch":
            normed[own, own] += self.x
        return stages | {"attnresln_n": normed}

    def merged(self, pairs):
        """Mean over the tokens of each row's word, sum over those of each column's: pairs begin with the axes query and key."""
        summed = np.stack([pairs[:, keys].sum(axis=1) for keys in self.members], axis=1)
        return np.stack([summed[queries].mean(axis=0) for queries in self.members])

    def ratios(self, nowhere):
        heads = self.merged(self.alpha.transpose(1, 2, 0)).mean(axis=-1)
        own = heads.diagonal()
        assert nowhere is None
        ratios = {"attn_w": 1 - own, "attnres_w": (1 - own) / 2}
        for method, vectors in self.stages.items():
            merged = self.merged(vectors)
            words = range(len(self.members))
            others = [np.linalg.norm(merged[word].sum(axis=0) - merged[word, word]) for word in words]
            mine = [np.linalg.norm(merged[word, word]) for word in words]
            ratios[method] = np.array(others) / (np.array(others) + np.array(mine))
        return ratios


@pytest.mark.spread(3)
@pytest.mark.parametrize("family", FAMILIES, scope="session")
def test_everything_of_words_is_that_of_merged_vectors(family, family_model, monkeypatch):
    observed(family, family_model, check_maps)
    observed(family, family_model, check_pairs)
    # Strips of few words at a time change nothing.
    monkeypatch.setitem(attention_weights.WEIGHTS_AT_ONCE, "cpu", 50)
    observed(family, family_model, check_pairs)


def check_maps(block, batch):
    of_words = GroupedBlock(block, batch.partition, batch.partition)
    maps, heads, ratios = of_words.maps(), of_words.head_maps(), of_words.mixing_ratios()
    for row in range(2):
        words = Words(block, row)
        some = slice(0, len(words.members))
        alpha = words.merged(words.alpha.transpose(1, 2, 0))
        close(maps["attn_w"][row, some, some], alpha.mean(axis=-1))
        for method, vectors in words.stages.items():
            close(maps[method][row, some, some], np.linalg.norm(words.merged(vectors), axis=-1))
        close(heads[0][row, :, some, some].permute(1, 2, 0), alpha)
        norms = np.linalg.norm(words.merged(words.heads.transpose(1, 2, 0, 3)), axis=-1)
        close(heads[1][row, :, some, some].permute(1, 2, 0), norms)
        expected = words.ratios(block.weight_to_nowhere)
        assert expected.keys() == set(map(str, ratios))
        for method, values in expected.items():
            close(ratios[method][row, some], values)
        if block.mask is not None and block.mask.causal:
            assert float(ratios["attn_n"][row, 0]) == 0


@pytest.mark.parametrize("family", FAMILIES, scope="session")
def test_words_of_one_token_are_tokens(family, family_model):
    """Whether or not tokens are said to be merged, and for some of the tokens."""

    def check(block, _batch):
        mask, places = block.token_mask, torch.tensor([3, 1])
        single = Partition.of(torch.arange(mask.shape[1]).expand(len(mask), -1).masked_fill(~mask, -1), mask.shape[1])
        words = measured(GroupedBlock(block, single, single), mask)
        tokens = measured(GroupedBlock.of_tokens(block), mask)
        some = measured(GroupedBlock.of_tokens(block, places), mask)
        assert words.keys() == tokens.keys() == some.keys()
        for name, values in tokens.items():
            close(words[name], values)
            chosen = values[:, :, places] if values.dim() == 4 else values[:, places]
            close(some[name], chosen)

    observed(family, family_model, check)


def measured(block, mask):
    """Everything that is measured of a block, 0 at padding."""
    heads = dict(zip(("α", "‖αf(x)‖"), block.head_maps(), strict=True))
    maps = {**block.maps(), **heads, "share of pairs": block.pair_shares()}
    parts = {
        f"{method} {part}": values for method, of in block.shares().items() for part, values in of._asdict().items()
    }
    rows = mask if block.queries.places in (None, slice(None)) else mask[:, block.queries.places]
    pairs = rows[:, :, None] & mask[:, None]
    return {name: values * (pairs if values.dim() == 3 else pairs[:, None]) for name, values in maps.items()} | {
        name: values * rows for name, values in {**block.mixing_ratios(), **parts}.items()
    }


def check_pairs(block, batch):
    pairs = Pairs(block, batch)
    assert pairs.keys is pairs.batch is batch.measured
    parts = list(pairs.parts())
    for row in range(2):
        words = Words(block, row)
        some = slice(0, len(words.members))
        alpha = words.merged(words.alpha.transpose(1, 2, 0))
        norms = np.linalg.norm(words.merged(words.heads.transpose(1, 2, 0, 3)), axis=-1)
        close(pairs.received[row, :, some].T, alpha.sum(axis=0))
        close(pairs.received_norms[row, :, some].T, norms.sum(axis=0))
        means = np.stack([words.f[:, word].mean(axis=1) for word in words.members], axis=1)
        close(pairs.norms[row, :, some], np.linalg.norm(means, axis=-1))
        inputs = np.stack([words.x[word].mean(axis=0) for word in words.members])
        close(pairs.input_norms[row, some], np.linalg.norm(inputs, axis=-1))
        of_row = [
            (part.first[row - start], part.known().expand(-1, 1, *part.first.shape[2:])[row - start])
            for part in parts
            if (start := part.sequences.start) <= row < part.sequences.stop
        ]
        close(torch.cat([weights for weights, _ in of_row], dim=1)[:, some, some].permute(1, 2, 0), alpha)
        seen = torch.cat([mask for _, mask in of_row], dim=1)[0, some, some]
        assert torch.equal(seen, torch.from_numpy((alpha > 0).any(axis=-1)))
        chosen_keys = torch.zeros_like(pairs.keys.token_mask)
        chosen_keys[row, some] = torch.arange(len(alpha)) % 3 != 1
        visible = (alpha > 0).any(axis=-1) & chosen_keys[row, some].numpy()
        assert pairs.visible_counts(pairs.keys.token_mask)[row, some].tolist() == (
            (alpha > 0).any(axis=-1).sum(axis=-1).tolist()
        )
        assert pairs.visible_counts(chosen_keys)[row, some].tolist() == visible.sum(axis=-1).tolist()
        chosen = np.array([4, 1])
        rows = torch.cat([part.first[0] for part in pairs.of_queries(row, chosen)], dim=1)
        close(rows[:, :, some].permute(1, 2, 0), alpha[chosen])
        query, rank = torch.tensor([4, 2, 1]), torch.tensor([1, 1, 0])
        key = [np.flatnonzero(visible[q])[r] for q, r in zip(query, rank, strict=True)]
        places = torch.stack([torch.full((3,), row), torch.ones(3).long(), query, rank])
        *place, weights = pairs.single(places, chosen_keys)
        assert torch.stack(place).tolist() == [[row] * 3, [1] * 3, key]
        close(weights, alpha[query, key, 1])


@pytest.mark.parametrize("family", FAMILIES, scope="session")
def test_maps_of_words_through_whole_layers(family, family_model, monkeypatch):
    """Words of one token are tokens, norms of sums are at most sums of norms, and strips of few words change nothing."""
    # Two words of two tokens, one of three that are not all neighbours, and one of padding alone in the second sequence.
    merged = Partition.of(torch.tensor([[0, 0, 1, 2, 2, 3, 4, 3, 3], [0, 1, 1, 2, 3, 3, -1, -1, -1]]), 5)

    def visit(block):
        mask = block.attention.token_mask
        single = Partition.of(torch.arange(9).expand(2, -1).masked_fill(~mask, -1), 9)
        of_tokens, of_singles, of_words = (
            block.pair_maps(),
            block.pair_maps(single, single),
            block.pair_maps(merged, merged),
        )
        assert of_tokens.keys() == of_singles.keys() == of_words.keys()
        pairs = mask[:, :, None] & mask[:, None, :]
        for stage, values in of_tokens.items():
            torch.testing.assert_close(of_singles[stage] * pairs, values * pairs, rtol=1e-9, atol=1e-9)
            assert (of_words[stage] <= merged_weights(values * pairs, merged, merged) + 1e-9).all()
        with monkeypatch.context() as strips:
            strips.setattr(group_batches, "_AT_ONCE", 500)
            for stage, values in block.pair_maps(merged, merged).items():
                torch.testing.assert_close(values, of_words[stage], rtol=1e-12, atol=1e-12)

    last = family_model.config.num_hidden_layers
    with Observer(family_model, facts_for(family), [last], feed_forward=True) as observer:
        observer.run(token_batch(family_model, LENGTHS), lambda _block: None, None, visit)


def close(one, other):
    np.testing.assert_allclose(one.double().numpy(), other, rtol=1e-9, atol=1e-11)


SENTENCE = "The hippopotamuses don't sing 'unhappily' in 2024, l’homme."
WRITTEN = ["the", "hippopotamuses", "don't", "sing", "'", "unhappily", "'", "in", "2024", ",", "l’homme", "."]


class LongReader(Reader):
    """Reads longer texts."""

    max_length = 200

    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.takes_segments = "token_type_ids" in tokenizer.model_input_names


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes whose words are those of GPT-2."""
    vocabulary = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=["input_ids"])


def spaces_only() -> PreTrainedTokenizerFast:
    """A tokenizer of characters whose words end at spaces alone, as SentencePiece's do; its spaces are tokens."""
    characters = sorted({*SENTENCE, "▁"})
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((character, -1.0) for character in characters)], 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=["input_ids"])


@pytest.mark.parametrize("make", [None, byte_level, spaces_only])
def test_words_of_a_tokenizer(make, tokenizer):
    """A contraction is one word, and a number; punctuation is no part of words, whatever the tokenizer takes for one."""
    chosen = tokenizer if make is None else make()
    written = WRITTEN if make is None else ["The", *WRITTEN[1:]]
    encoder = Encoder(LongReader(chosen), DatasetOptions(kind=DatasetKind.text, seed=0), level=Level.word)
    [sequence] = encoder.encode([Example(SENTENCE)], CorpusCounts())
    texts = unit_texts(chosen, sequence.input_ids.tolist(), sequence.units.tolist())
    assert [text for text in texts if text not in ("[CLS]", "[SEP]", "Ġ", "▁")] == written
    assert sequence.units.tolist() == sorted(sequence.units.tolist())


def test_both_texts_of_a_pair_windows_and_cut_texts_have_words(tokenizer):
    def encoded(example, **options):
        given = DatasetOptions(kind=DatasetKind.text, seed=0, **options)
        made = Encoder(LongReader(tokenizer), given, level=Level.word).encode([example], CorpusCounts())
        return [unit_texts(tokenizer, one.input_ids.tolist(), one.units.tolist()) for one in made]

    pair = Example("It isn't.", "'s it")
    assert encoded(pair) == [("[CLS]", "it", "isn't", ".", "[SEP]", "'", "s", "it", "[SEP]")]
    text = Example("The cats don't sing unhappily")
    cut = ("[CLS]", "the", "cats", "don'", "[SEP]")
    assert encoded(text, max_length=6) == [cut]
    windows = encoded(text, max_length=6, segmentation=Segmentation.window)
    assert windows[:2] == [cut, ("[CLS]", "t", "sing", "unhappily"[: len(windows[1][3])], "[SEP]")]


def test_a_corpus_has_words_of_its_own(tmp_path, tokenizer):
    given = DatasetOptions(kind=DatasetKind.conllu, path=str(write_treebank(tmp_path)), seed=0)
    encoder = Encoder(LongReader(tokenizer), given, level=Level.word)
    examples = list(open_corpus(given).examples())
    first, second, *_ = encoder.encode(examples, CorpusCounts())
    texts = unit_texts(tokenizer, first.input_ids.tolist(), first.units.tolist())
    assert texts == ("[CLS]", "the", "old", "cat", "doesn", "'t", "see", "the", "river", ".", "[SEP]")
    # `zu` and `dem` share the tokens of `zum`: one unit.
    texts = unit_texts(tokenizer, second.input_ids.tolist(), second.units.tolist())
    assert texts == ("[CLS]", "we", "walk", "zum", "river", ",", "they", "run", "!", "[SEP]")
    batch = collate([first, second], encoder)
    assert batch.units[1, -1] == NO_WORD
    assert batch.partition.count == 11
    # A word has the category of its first token; samples of sequences keep the words.
    names = [encoder.categories.names[index] for index in batch.measured.categories[0].tolist()]
    assert names == ["cls", *["other"] * 8, "punctuation", "sep"]
    assert batch.measured.token_mask[1].tolist() == [True] * 10 + [False]
    again = collate([unpacked(batch.packed()[:, row]) for row in range(2)], encoder)
    assert torch.equal(again.units, batch.units)
    assert torch.equal(batch.part(1, 2).units, batch.units[1:, : len(second.units)])
    masked = {"units": None, "words": None}
    assert collate([dataclasses.replace(first, **masked)], encoder).partition.places == slice(None)


def test_marks_of_tokenizers_without_offsets():
    assert unit_numbers([NO_WORD, 4, 4, NO_WORD, 0, 4]).tolist() == [0, 1, 1, 2, 3, 1]
    tokens = ["[CLS]", "un", "##happi", "##ly", "old", "[SEP]", "##x"]
    assert marked_words(tokens, {"[CLS]", "[SEP]"}, "##").tolist() == [-1, 0, 0, 0, 1, -1, 2]
    assert marked_words(["▁un", "happi", "ly", "▁", "old", "</s>", "x"], {"</s>"}, "▁").tolist() == [
        0,
        0,
        0,
        -1,
        1,
        -1,
        2,
    ]
    # Punctuation is no part of a word, an apostrophe between letters is.
    pieces = ["▁the", "▁river", ",", "▁don", "'", "t", ".", "'", "▁", "4", "2", "km", "</s>", "."]
    assert marked_words(pieces, {"</s>"}, "▁").tolist() == [0, 1, 2, 3, 3, 3, 4, 5, -1, 6, 6, 6, -1, 7]
    # A dash in three tokens, a quotation mark after a letter, and a character that was cut off.
    assert marked_words(["ĠcafÃ", "©", ",", "Ġâ", "Ģ", "ĵ"], (), "Ġ").tolist() == [0, 0, 1, 2, 2, 2]
    assert set(BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
    quoted = byte_level().convert_ids_to_tokens(byte_level()("ja“né “é")["input_ids"])
    assert marked_words(quoted, (), "Ġ").tolist() == [0, 0, 1, 1, 1, 2, 2, 2, -1, 3, 3, 3, 4, 4]
    assert marked_words(["</s>", "a", "</s>", "bÃ", "</s>", "ĠÃ"], {"</s>"}, "Ġ").tolist() == [-1, 0, -1, 1, -1, 2]
    assert marked_words(["un", "happily</w>", "old</w>", "x"], set(), "</w>").tolist() == [0, 0, 1, 2]
    assert [mark_of(words) for words in (["a", "##b"], ["▁", "▁a"], ["Ġa"], ["a", "b</w>"], ["##", "a"])] == [
        *("##", "▁", "Ġ", "</w>"),
        None,
    ]


def test_tokenizers_that_do_not_show_words_are_refused():
    class Plain(Reader):
        name = "plain"

    reader = Plain(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))))
    encoder = Encoder(reader, DatasetOptions(kind=DatasetKind.text, seed=0), level=Level.word)
    with pytest.raises(InputError, match="level=word: the tokenizer of plain does not show where words begin"):
        encoder.with_units(TokenSequence(np.array([0, 1])))


@pytest.mark.slow
def test_decompositions_and_attributions_of_words(saved_model):
    model = load(str(saved_model), device="cpu", dtype="float64")
    text = "The hippopotamus doesn't sing."
    tokens, words = (decompose(model, text, heads=True, feed_forward=True, level=level) for level in Level)
    assert words.tokens == words.key_tokens == ("[CLS]", "the", "hippopotamus", "doesn't", "sing", ".", "[SEP]")
    assert words.map.query_words is None
    # Your own words.
    given = model.tokenizer("The hippopotamus does n't sing .".split(), is_split_into_words=True)
    own = decompose(model, given, level="word")
    assert own.tokens == ("[CLS]", "the", "hippopotamus", "does", "n't", "sing", ".", "[SEP]")
    padded = model.tokenizer([["The", "cats"], ["A"]], is_split_into_words=True, padding=True)
    assert [one.tokens for one in decompose(model, padded, level="word")][1] == ("[CLS]", "a", "[SEP]")
    units = written_units(model.tokenizer, text)
    members = (torch.tensor(units) == torch.arange(7)[:, None]).double()

    def merged(maps):
        return members / members.sum(dim=1, keepdim=True) @ maps @ members.T

    torch.testing.assert_close(words.maps["attn_w"], merged(tokens.maps["attn_w"]))
    torch.testing.assert_close(words.head_maps["attn_w"], merged(tokens.head_maps["attn_w"]))
    assert len(words.map.of_heads("attn_n")[0]) == words.head_maps["attn_w"].shape[1]
    scores = [attribute(model, text, SimilarityTo("A cat.", pooling="mean"), level=level) for level in Level]
    np.testing.assert_allclose(scores[1].scores, np.bincount(units, scores[0].scores))
    assert scores[1].tokens == words.tokens
    maps = [attribution_maps(model, text, ["rollout", "decompx"], level=level) for level in Level]
    rollout = [torch.tensor(of["rollout"].cumulative) for of in maps]
    torch.testing.assert_close(rollout[1], merged(rollout[0]))
    assert maps[1]["decompx"].total.shape == (7, 8)
    assert maps[1]["decompx"].sources[-1] == "bias"
    assert maps[1]["rollout"].shares is None
    for of in maps:
        np.testing.assert_allclose(of["decompx"].shares.sum(axis=1), 1, atol=1e-5)
        assert of["decompx"].table["share"].tolist() == of["decompx"].shares.ravel().tolist()
    words_alone = np.flatnonzero(np.bincount(units) == 1)  # outputs that are single tokens, whose sources are merged
    of_tokens = maps[0]["decompx"].shares[[list(units).index(word) for word in words_alone]]
    merged_shares = np.stack([np.bincount([*units, max(units) + 1], row) for row in of_tokens])
    np.testing.assert_allclose(maps[1]["decompx"].shares[words_alone], merged_shares, atol=1e-6)
    with pytest.raises(InputError, match="level='letter': expected one of token, word"):
        decompose(model, text, level="letter")


def test_decompositions_of_translated_words():
    """From source words the sum, of target words the mean, by a tokenizer that marks what continues a word."""
    specimen = specimens.marian()
    plain = specimen.loaded.tokenizer
    pieces = ["[PAD]", "[UNK]", "[SEP]", "[CLS]", "[MASK]", "cat", "##er", "walks", "##ld", "sees", "##ue", "we", "run"]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor, tokenizer.decoder = plain.backend_tokenizer.post_processor, decoders.WordPiece()
    special = {
        name: getattr(plain, name) for name in ("pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
    }
    marked = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **special)
    model = dataclasses.replace(specimen.loaded, tokenizer=marked)
    source, target = "cater seesldue we", "weld run catue"
    decomposition = decompose(model, (source, target), heads=True, level="word")
    assert decomposition.tokens == ("[CLS]", "weld", "run", "catue")
    assert decomposition.key_tokens == ("cater", "seesldue", "we", "[SEP]")
    given = Specimen._inputs(dataclasses.replace(specimen, loaded=model), source, target)
    whole = WordSequence.of(specimen.brute_force(model.model, given), [1, 2, 1, 2], [2, 3, 1, 1])
    for number, block in enumerate(whole.blocks):
        assert set(decomposition.maps) == {"attn_w", "attn_n", "share"}
        for name in ("attn_w", "attn_n"):
            close(decomposition.maps[name][number], block.maps()[name])
        close(decomposition.head_maps["attn_w"][number], block.alpha)
        close(decomposition.head_maps["attn_n"][number], block.weighted)
        for method, ratios in zip(decomposition.methods, decomposition.ratios[:, number], strict=True):
            close(ratios, block.ratios()[method])


def written_units(tokenizer, text):
    encoder = Encoder(LongReader(tokenizer), DatasetOptions(kind=DatasetKind.text, seed=0), level=Level.word)
    return encoder.encode([Example(text)], CorpusCounts())[0].units.tolist()


def test_findings_say_words():
    caption = "All tokens. Special tokens and [SEP] tokens."
    figure = Lines(pd.DataFrame(), "x", "y", "s", y_label="share of tokens", caption=caption)
    sentence = Sentence("A token's part.", table="t", measure="attn_n", surprising=True)
    said = about_words(Result({}, {}, sentences=[sentence], figures={"f": figure}))
    assert (said.sentences[0].measure, said.sentences[0].surprising) == ("attn_n", True)
    assert said.sentences == ["A word's part."]
    assert said.sentences[0].table == "t"
    lines = said.figures["f"]
    assert lines.caption == "All words. Special tokens and [SEP] tokens."
    assert lines.y_label == "share of words"


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["score", "sinks"])
def test_analyses_of_tokens_are_refused(name, tmp_path, capsys, monkeypatch):
    outcome = run_here(capsys, monkeypatch, f"analysis={name}", "level=word", f"output_dir={tmp_path}/run")
    assert outcome.status == 2
    assert outcome.err.strip().count("\n") == 0
    assert f"level=word: analysis={name} is not defined for words" in outcome.err
