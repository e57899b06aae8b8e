"""Sounds: frames with their times, silence, files, and the words that a speech model's heads find in them."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from tokenizers import pre_tokenizers

import normscope
from normscope.alignment.words_in_sounds import proposed_heads, sentences_of
from normscope.data.encoding import Encoder
from normscope.data.given_texts import GivenTexts
from normscope.data.input_files import InputFiles, recording
from normscope.data.options import DatasetKind, DatasetOptions, check_dataset
from normscope.data.sounds import Sound, sound_of, time_names
from normscope.errors import InputError
from normscope.maths.norms import weighted_norms
from normscope.models.load.text_batches import batch_from_texts, example_of
from normscope.reporting.options import ReportOptions
from normscope.running.token_maps import select_examples, token_maps
from tests.contract.test_configs import composed
from tests.contract.test_vectors import made
from tests.end_to_end.shell import run_here

RATE = 16_000
HEADS, WIDTH = 4, 32
WORDS = "the old bridge"
TIMES = [[0.1, 0.3], [0.35, 0.5], [0.55, 0.8]]
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|zh|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]


def sound(seconds: float = 0.9, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).normal(size=round(seconds * RATE)).astype(np.float32)


def extractor(**more):
    return transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1, sampling_rate=RATE, **more)


def tokenizer_of_bytes():
    """Whisper's, with bytes for words: what is one token in its vocabulary is several here."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = transformers.WhisperTokenizer(
        vocab={name: number for number, name in enumerate(letters)}, merges=[], pad_token="<|endoftext|>"
    )
    tokenizer.add_tokens([transformers.AddedToken(name, special=True) for name in SPECIAL], special_tokens=True)
    tokenizer.set_prefix_tokens(language=None, task=None, predict_timestamps=False)
    return tokenizer


def whisper():
    tokenizer = tokenizer_of_bytes()
    config = transformers.WhisperConfig(
        d_model=WIDTH, encoder_layers=2, encoder_attention_heads=HEADS, encoder_ffn_dim=48, decoder_layers=2,
        decoder_attention_heads=HEADS, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=50,
        max_target_positions=64, vocab_size=len(tokenizer), pad_token_id=None, bos_token_id=None, eos_token_id=None,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|startoftranscript|>"),
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config), {}


@pytest.fixture(scope="module")
def speaking():
    return spoken_to()


def spoken_to():
    model = made(whisper)[0]
    model.generation_config.alignment_heads = [[0, 1], [1, 3]]
    return normscope.wrap(model, transformers.WhisperProcessor(extractor(), tokenizer_of_bytes()), stack="cross")


@pytest.fixture(scope="module")
def hearing():
    return normscope.wrap(made(whisper)[0], extractor())


def test_frames_are_named_by_when_they_begin(hearing):
    assert hearing.reader.seconds == pytest.approx(0.02)
    assert hearing.reader.names == tuple(f"{number / 50:.2f} s" for number in range(50))
    assert time_names(3, 0.0125) == ["0.0000 s", "0.0125 s", "0.0250 s"]
    assert time_names(2, 0.04) == ["0.00 s", "0.04 s"]


def test_frames_are_silent_40_decibels_below_the_loudest_and_after_the_recording():
    samples = np.concatenate([np.full(4, 0.5), np.full(4, 0.0051), np.full(4, 0.0049), np.full(2, -0.5)])
    heard = Sound.of(samples, rate=4, frames=5, seconds=1.0)
    np.testing.assert_allclose(heard.loudness, [0.5, 0.0051, 0.0049, math.sqrt(0.125), 0.0])
    assert heard.silent.tolist() == [False, False, True, False, True]
    assert heard.extremes[3].tolist() == [-0.5, 0.0]
    assert (heard.frames, heard.duration) == (4, 3.5)
    assert Sound.of(np.zeros(8), 4, 2, 1.0).silent.all()


def test_frames_and_silence_are_categories(hearing):
    samples = sound(0.5)
    samples[RATE // 5 : RATE * 3 // 10] *= 1e-3  # 0.2 to 0.3 s
    result = normscope.run("norms", model=hearing, texts=[samples])
    table = result.tables.get("shares", result.table)
    assert {"frame", "silence"} <= set(table["category"])
    batch = batch_from_texts(hearing, samples)
    names = ("cls", "sep", "mask", "punctuation", "other", "frame", "silence")
    silent = [names[number] == "silence" for number in batch.categories[0].tolist()]
    assert silent == [0.2 <= round(number / 50, 2) < 0.3 or number >= 25 for number in range(50)]


def hooked(model, features, ids):
    """α and ‖αf(x)‖ of the cross-attention of every layer, from what its projections return."""
    kept, hooks = [], []
    for layer in model.model.decoder.layers:
        found, attention = {}, layer.encoder_attn
        kept.append((found, attention.out_proj.weight))
        for name in ("q_proj", "k_proj", "v_proj"):
            hook = getattr(attention, name).register_forward_hook
            hooks.append(hook(lambda _module, _args, output, found=found, name=name: found.__setitem__(name, output)))
    with torch.no_grad():
        model(input_features=features, decoder_input_ids=ids)
    for hook in hooks:
        hook.remove()
    for found, weight in kept:
        query, key, value = (
            found[name][0].unflatten(-1, (HEADS, -1)).transpose(0, 1) for name in ("q_proj", "k_proj", "v_proj")
        )
        alpha = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
        transformed = torch.einsum("hkd,mhd->hkm", value, weight.unflatten(-1, (HEADS, -1)))
        yield alpha, torch.einsum("hqk,hkm->hqkm", alpha, transformed).norm(dim=-1)


def prompt(text):
    tokenizer = tokenizer_of_bytes()
    return torch.tensor([tokenizer(f" {text}").input_ids])


def test_cross_attention_to_a_sound_is_that_of_the_model(speaking):
    model, samples = made(whisper)[0], sound()
    features = extractor()(samples, sampling_rate=RATE, return_tensors="pt")["input_features"].double()
    ids = prompt(WORDS)[:, :-1]
    assert tokenizer_of_bytes().convert_ids_to_tokens(ids[0, :2].tolist()) == [
        "<|startoftranscript|>",
        "<|notimestamps|>",
    ]
    blocks = normscope.observe(speaking, (samples, WORDS))
    for block, (alpha, norms) in zip(blocks, hooked(model, features, ids), strict=True):
        torch.testing.assert_close(block.weights[0], alpha, rtol=0, atol=1e-10)
        torch.testing.assert_close(weighted_norms(block.weights, block.transformed_norms)[0], norms, rtol=0, atol=1e-10)


def row(seed=0, seconds=0.9):
    return {"audio": sound(seconds, seed), "text": WORDS, "times": TIMES}


def measured():
    """Everything that `alignment` publishes of sounds."""
    return normscope.run("alignment", model=spoken_to(), texts=[row(), row(1, 0.82)], tolerance=0.05)


def test_heads_find_the_words_in_whose_time_their_largest_value_lies(speaking):
    model, rows = made(whisper)[0], [row(), row(1, 0.82)]
    result = normscope.run("alignment", model=speaking, texts=rows, tolerance=0.05)
    ids = prompt(WORDS)
    tokens = tokenizer_of_bytes().convert_ids_to_tokens(ids[0].tolist())
    owners, word = [], -1
    for token in tokens:
        word += token == "Ġ"
        owners.append(-1 if token in SPECIAL else word)
    right = {}
    for each in rows:
        features = extractor()(each["audio"], sampling_rate=RATE, return_tensors="pt")["input_features"].double()
        heard = math.ceil(len(each["audio"]) / RATE * 50)
        for layer, maps in enumerate(hooked(model, features, ids[:, :-1]), start=1):
            for method, values in zip(("attn_w", "attn_n"), maps, strict=True):
                for setting, shift in (("awo", 1), ("awi", 0)):
                    for head in range(HEADS):
                        for number, (start, end) in enumerate(TIMES):
                            at = [place - shift for place, owner in enumerate(owners) if owner == number]
                            middle = 0.02 * (int(values[head, at, :heard].sum(0).argmax()) + 0.5)
                            found = start - 0.05 < middle < end + 0.05
                            right.setdefault((layer, head + 1, method, setting), []).append(found)
    heads = result.tables["alignment_heads"]
    places = list(zip(heads["layer"], heads["head"], heads["method"], heads["setting"], strict=True))
    assert places == list(dict.fromkeys(places))
    assert set(places) == set(right)
    np.testing.assert_allclose(heads["right"], [np.mean(right[place]) for place in places])
    assert set(heads["words"]) == {6}
    published = heads[heads["published"]]
    assert set(zip(published["layer"], published["head"], strict=True)) == {(1, 2), (2, 4)}
    for _, group in heads.groupby(["method", "setting"]):
        assert group["rank"].tolist() == [1 + int((group["right"] > own).sum()) for own in group["right"]]
    check_times(result.tables["alignment_times"], heads, right)
    best = heads[(heads["method"] == "attn_n") & (heads["setting"] == "awi")]["right"].max()
    assert result.metrics["alignment/attn_n/awi/found/right"] == pytest.approx(best)


def check_times(times, heads, right):
    for (method, setting), group in times.groupby(["method", "setting"]):
        of_map = heads[(heads["method"] == method) & (heads["setting"] == setting)]
        (place,) = {*zip(group["layer"], group["head"], strict=True)}
        assert np.mean(right[(*place, method, setting)]) == of_map["right"].max()
        assert group["right"].tolist() == right[(*place, method, setting)]
        assert group["text"].tolist() == 2 * WORDS.split()
        assert group[["start", "end"]].to_numpy().tolist() == 2 * TIMES
        inside = (group["seconds"] > group["start"] - 0.05) & (group["seconds"] < group["end"] + 0.05)
        assert inside.tolist() == group["right"].tolist()


def test_published_heads_have_ranks_and_others_are_proposed():
    shares = {(1, 1): 0.5, (1, 2): 0.95, (2, 1): 0.25, (2, 2): 1.0}
    heads = pd.DataFrame(
        {"layer": layer, "head": head, "method": method, "setting": setting, "right": share, "words": 20}
        for (layer, head), share in shares.items()
        for method in ("attn_w", "attn_n")
        for setting in ("awo", "awi")
    )
    heads["published"] = (heads["layer"] == 1) & (heads["head"] == 1) | (heads["layer"] == 2) & (heads["head"] == 2)
    heads["rank"] = heads.groupby(["method", "setting"])["right"].rank(method="min", ascending=False).astype(int)
    assert proposed_heads(heads) == [[1, 1], [0, 1]]
    first, _, published, last = sentences_of(heads, 0.1)
    assert first == (
        "In the position that predicts a word, the best head has its largest value in a frame inside the word (± 0.1 s) for "
        "100% by weights (layer 2, head 2) and 100% by vectors (layer 2, head 2) of 20 words."
    )
    assert published == (
        "By weights in the position that predicts a word, the 2 heads that the model's generation config names rank 1, 3 of 4: "
        "they find 75.0% of the words on average, the others 60.0%."
    )
    assert last.endswith("alignment_heads=[[1, 1], [0, 1]].")


def test_a_prompt_has_the_language_that_is_asked_for():
    model, tokenizer = made(whisper)[0], tokenizer_of_bytes()
    model.generation_config.lang_to_id = {name: tokenizer.convert_tokens_to_ids(name) for name in ("<|en|>", "<|de|>")}
    with pytest.raises(InputError, match="target_language: expected the language .* knows 2 languages.*got none"):
        normscope.wrap(model, transformers.WhisperProcessor(extractor(), tokenizer), stack="cross")
    tokenizer.set_prefix_tokens(language="de", task="transcribe", predict_timestamps=False)
    wrapped = normscope.wrap(model, transformers.WhisperProcessor(extractor(), tokenizer), stack="cross")
    ids = batch_from_texts(wrapped, (sound(), "ja")).input_ids[0].tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == [SPECIAL[1], *SPECIAL[4:], "Ġ", "j", "a"]


def test_what_is_no_recording_is_one_line(speaking, hearing):
    for given, line in (
        (sound().reshape(2, -1), r"one-dimensional .* average channels first\), got an array of shape \(2, 7200\)"),
        (np.zeros(0, dtype=np.float32), "audio: expected a sound, got no samples"),
        (np.full(9, np.nan, dtype=np.float32), "expected finite samples"),
        (np.zeros(9, dtype=np.int16), "got an array of shape .* of int16"),
        ("nothing.wav", "nothing.wav: expected an audio file; there is no such file"),
    ):
        with pytest.raises(InputError, match=line):
            normscope.decompose(hearing, given)
    for given, line in (
        (sound(), "needs a recording and its transcript: pass a pair"),
        ({"text": WORDS}, 'expected {"audio": FILE'),
        ({**row(), "times": TIMES[:2]}, "of the 3 words between spaces in the text, got 2"),
        ({**row(), "times": [[0.3, 0.1]] * 3}, r"expected \[\[start, end\], ...\] in seconds, got \[0.3, 0.1\]"),
        ({**row(), "text": " "}, "text: expected a transcript"),
        ({**row(), "text": "a" * 70, "times": None}, "has 73 tokens, expected at most 64; split the recording"),
    ):
        with pytest.raises(InputError, match=line):
            batch_from_texts(speaking, given)
    with pytest.raises(InputError, match="row 1: expected word times"):
        normscope.run("alignment", model=speaking, texts=[(sound(), WORDS)])
    with pytest.raises(InputError, match=r"sentences=\[9\]: expected the row of a recording"):
        normscope.run("alignment", model=speaking, texts=[row()], sentences=[9])
    with pytest.raises(InputError, match="measured by alignment alone, not by norms"):
        normscope.run("norms", model=speaking, texts=[row()])
    with pytest.raises(InputError, match="stack=decoder: expected encoder or cross"):
        normscope.wrap(made(whisper)[0], extractor(), stack="decoder")
    with pytest.raises(InputError, match="expected a processor with a tokenizer"):
        normscope.wrap(made(whisper)[0], extractor(), stack="cross")


@pytest.mark.parametrize("key", ["gold.path=links", "smoothgrad=3"])
def test_keys_of_translations_are_refused_with_sounds(key):
    options = composed("analysis=alignment", "dataset=audio", "dataset.path=sounds", f"analysis.alignment.{key}")
    with pytest.raises(InputError, match="applies only to translations, not to dataset=audio"):
        options.analysis.alignment.validate(options)
    check_dataset(options.dataset)


def test_rows_name_files_beside_them(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        "\n".join([json.dumps({"audio": "a.wav", "text": WORDS, "times": TIMES}), "", json.dumps({"audio": "/b.wav"})])
    )
    first, empty, last = InputFiles.recordings(str(tmp_path / "rows.jsonl")).examples()
    assert (first.given, first.text, first.text_pair, first.row) == (tmp_path / "a.wav", "a.wav", WORDS, 1)
    assert first.annotation.times == tuple(map(tuple, TIMES))
    assert empty == "empty"
    assert (str(last.given), last.text_pair, last.row) == ("/b.wav", None, 3)
    (tmp_path / "rows.jsonl").write_text("a text")
    with pytest.raises(InputError, match='line 1: expected {"audio": FILE'):
        list(InputFiles.recordings(str(tmp_path / "rows.jsonl")).examples())
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        InputFiles.recordings(str(tmp_path / "none.jsonl"))
    assert recording({"audio": "c.wav"}, "here").given.name == "c.wav"


def test_files_are_mixed_and_resampled_and_say_so(hearing, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    soxr = pytest.importorskip("soxr")
    samples = np.stack([sound(0.4), sound(0.4, 1)], axis=1)
    soundfile.write(tmp_path / "one.wav", samples, RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "two.flac", samples[:, 0], 8000)
    (tmp_path / "notes.txt").write_text("not a sound")
    found, title, remark = sound_of(tmp_path / "one.wav", RATE)
    np.testing.assert_array_equal(found, samples.mean(axis=1))
    assert (title, remark) == ("one.wav", "mixed to mono, the mean of 2 channels")
    found, _, remark = sound_of(str(tmp_path / "two.flac"), RATE)
    stored, _ = soundfile.read(tmp_path / "two.flac", dtype="float32")
    np.testing.assert_array_equal(found, soxr.resample(stored, 8000, RATE))
    assert remark == "resampled from 8,000 to 16,000 Hz"
    assert [path.name for path in InputFiles.recordings(str(tmp_path)).paths] == ["one.wav", "two.flac"]
    result = normscope.run("norms", model=hearing, texts=[str(tmp_path / "one.wav"), str(tmp_path / "two.flac")])
    assert "1 example mixed to mono, the mean of 2 channels" in result.notes
    (tmp_path / "broken.wav").write_bytes(b"RIFF0000WAVE")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    (tmp_path / "cut.wav").write_bytes(b"")
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    for name, line in (
        ("broken.wav", "cannot read this as audio"),
        ("empty.wav", "expected a sound, got no samples"),
        ("cut.wav", "cannot read this as audio .*: the file is empty$"),
        ("film.mp4", "[^.]; extract the audio of the video"),
    ):
        with pytest.raises(InputError, match=line):
            normscope.decompose(hearing, tmp_path / name)
    (tmp_path / "texts").mkdir()
    with pytest.raises(InputError, match="expected audio files .* found none"):
        InputFiles.recordings(str(tmp_path / "texts"))


def wav2vec2():
    config = transformers.Wav2Vec2Config(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=48, conv_dim=(8,) * 7,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, vocab_size=40,
    )  # fmt: skip
    return transformers.Wav2Vec2Model(config), {}


@pytest.mark.slow
def test_sounds_that_are_not_padded_have_frames_for_their_length(tmp_path):
    made(wav2vec2)[0].float().save_pretrained(tmp_path)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    model = normscope.load(tmp_path)
    assert model.reader.seconds == pytest.approx(0.02)
    for samples in (12_345, 16_000):
        (found,) = normscope.decompose(model, sound(samples / RATE)).maps
        frames = (samples - 400) // 320 + 1  # the field of view of wav2vec 2.0, and the step between frames
        assert found.keys == tuple(f"{number / 50:.2f} s" for number in range(frames))
    result = normscope.run("mixing", model=model, texts=[sound(0.5), sound(0.501, 1), sound(0.8, 2)])
    assert result.facts["sequences"] == 3


@pytest.mark.slow
def test_a_speech_model_is_read_from_its_files(tmp_path, speaking):
    model = made(whisper)[0].float()
    start = model.config.decoder_start_token_id
    model.generation_config = transformers.GenerationConfig(alignment_heads=[[0, 1]], decoder_start_token_id=start)
    model.save_pretrained(tmp_path)
    transformers.WhisperProcessor(extractor(), tokenizer_of_bytes()).save_pretrained(tmp_path)
    loaded = normscope.load(tmp_path, stack="cross")
    assert loaded.model.generation_config.alignment_heads == [[0, 1]]
    ours, theirs = (normscope.run("alignment", model=each, texts=[row()]) for each in (loaded, speaking))
    weights = [each.tables["alignment_heads"].query("method == 'attn_w'")["right"].tolist() for each in (ours, theirs)]
    assert weights[0] == weights[1]
    tokenizer = normscope.load(tmp_path, stack="cross", target_language="de").tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("a").input_ids)[1:3] == ["<|de|>", "<|transcribe|>"]
    with pytest.raises(InputError, match="target_language=xx: the tokenizer has no such language"):
        normscope.load(tmp_path, stack="cross", target_language="xx")


def test_a_sound_is_drawn_over_time(hearing, tmp_path):
    result = normscope.decompose(hearing, sound(0.5), layers=[2])
    (found,), figure = result.maps, result.maps[0].figure(layer=2, measure="attn_n")
    norms = found.maps["attn_n"][0]
    np.testing.assert_allclose(figure.rows_of("attn_n").to_numpy()[0], norms[:25, :25].mean(axis=0))
    behind = norms[:25, 25:].sum() / norms[:25].sum()
    assert figure.panel_titles["attn_n"].endswith(f"; {behind:.1%} from padding after the sound")
    np.testing.assert_allclose(figure.high[3], sound(0.5)[960:1280].max(), atol=1e-6)
    assert (len(figure.low), figure.seconds, figure.wave_seconds) == (25, pytest.approx(0.02), pytest.approx(0.02))
    result.save(tmp_path)
    again = normscope.read(tmp_path).maps[0]
    assert again.sound.keys == 25
    np.testing.assert_allclose(again.sound.high, found.sound.high, atol=5e-4)
    picture = result.figure(layer=2)
    picture.save(tmp_path / "sound.svg")
    assert "<image" not in (tmp_path / "sound.svg").read_text()


def test_words_are_drawn_below_the_wave_where_they_are_spoken(speaking):
    figure = normscope.run("alignment", model=speaking, texts=[row()], sentences=[1]).figures["alignment_sound"]
    assert (figure.starts, figure.ends) == tuple(zip(*TIMES, strict=True))
    rows = figure.rows_of("attn_w")
    assert rows.index.tolist() == WORDS.split()
    assert rows.shape == (3, 45)


def test_the_explorer_merges_frames_into_stretches(hearing, speaking):

    for model, given in ((hearing, sound(0.5)), (speaking, row(0, 0.5))):
        encoder = Encoder(model, DatasetOptions(kind=DatasetKind.audio, seed=0))
        corpus = GivenTexts((example_of(model, given),))
        options = ReportOptions(tokens=8, examples=1)
        layers = model.facts.attends
        ((shown,), _) = token_maps(model, encoder, select_examples(corpus, encoder, options, len(layers)), layers)
        (whole,) = normscope.decompose(model, given).maps if model is hearing else (None,)
        assert shown.keys == ("0.00 s", "0.08 s", "0.16 s", "0.24 s", "0.32 s", "0.40 s", "0.48 s")
        assert (shown.sound.keys, shown.sound.seconds, len(shown.sound.low)) == (7, pytest.approx(0.08), 25)
        if whole is None:
            assert shown.unit == "token"
            continue
        assert shown.unit == "stretch"
        of_second = whole.maps["attn_w"][:, 4:8]
        expected = of_second[:, :, 8:12].sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(shown.maps["attn_w"][:, 1, 2], expected, rtol=1e-5)


def test_a_sound_is_explained_from_the_command_line(saved_model, capsys, monkeypatch, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    made(wav2vec2)[0].float().save_pretrained(tmp_path)
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    soundfile.write(tmp_path / "a.wav", sound(0.4), RATE)
    told, out = str(tmp_path / "a.wav"), f"output_dir={tmp_path / 'out'}"
    outcome = run_here(capsys, monkeypatch, "explain", told, f"model.name={tmp_path}", out)
    assert outcome.status == 0, outcome.err
    page = (tmp_path / "out" / "explain.html").read_text()
    assert re.search(r'"sound":\s*\{.*"keys":\s*19\b', page)  # a frame every 0.02 s of 0.4 s, but for the last
    outcome = run_here(capsys, monkeypatch, "explain", told, f"model.name={saved_model}", out)
    assert outcome.status == 2
    assert "reads texts, not sounds; set model.name to a model of audio" in " ".join(outcome.err.split())
