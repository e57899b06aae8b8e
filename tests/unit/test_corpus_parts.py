"""Corpora that several processes read in parts."""

import collections
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from normscope.data import hub, text_files
from normscope.data.corpora import open_corpus
from normscope.data.options import DatasetKind, DatasetOptions, Segmentation
from normscope.data.resources import Readers, Resource, ResourceContext, prepare_resources
from normscope.errors import InputError
from normscope.running.ranks import ProcessGroup

TEXTS = [f"sentence {number} of the {'naïve ' * (number % 7)}corpus" if number % 5 else "" for number in range(60)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(text_files, "PART_BYTES", 97)
    monkeypatch.setattr(hub, "PART_ROWS", 7)


def corpus(path, kind=DatasetKind.text, **more):
    return open_corpus(DatasetOptions(kind=kind, path=str(path), seed=0, **more))


def write(folder, ending, texts=TEXTS, line_end="\n"):
    path = folder / f"corpus{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=7)
        return path
    rows = {"jsonl": [json.dumps({"text": text}, ensure_ascii=False) for text in texts], "csv": ["text", *texts]}
    content = ("\ufeff" + line_end.join(rows.get(ending.split(".")[1], texts))).encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    return path


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".parquet", ".csv", ".jsonl.gz"])
def test_parts_are_the_corpus_in_order(tmp_path, ending, line_end):
    whole = corpus(write(tmp_path, ending, line_end=line_end))
    parts = [list(whole.part(index).examples()) for index in range(whole.parts)]
    assert [example for part in parts for example in part] == list(whole.examples())
    assert (len(parts) > 5) == (ending in (".txt", ".jsonl", ".parquet"))


@pytest.mark.parametrize("size", [1, 2, 3, 96, 98, 10**6])
def test_boundaries_anywhere(monkeypatch, tmp_path, size):
    monkeypatch.setattr(text_files, "PART_BYTES", size)
    whole = corpus(write(tmp_path, ".txt"))
    parts = [example for index in range(whole.parts) for example in whole.part(index).examples()]
    assert parts == list(whole.examples())


def test_the_parts_of_a_folder_are_those_of_its_files(tmp_path):
    for ending in (".txt", ".csv", ".jsonl.gz", ".parquet"):
        write(tmp_path, ending)
    whole = corpus(tmp_path, segmentation=Segmentation.sentence)
    parts = [example for index in range(whole.parts) for example in whole.part(index).examples()]
    assert parts == list(whole.examples())
    assert whole.parts > 20


def test_a_part_is_read_without_the_others(tmp_path):
    path = write(tmp_path, ".txt")
    whole = corpus(path)
    last = list(whole.part(whole.parts - 1).examples())
    content = path.read_bytes()
    path.write_bytes(b"\xff" * 200 + content[200:])
    assert list(whole.part(whole.parts - 1).examples()) == last


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 41 is not JSON"), ('{"other": 1}', "row 41 of .* has no such column"), ("\udcff", "line 41, byte")],
)
def test_messages_number_lines_from_the_start_of_the_file(tmp_path, line, message):
    path = tmp_path / "corpus.jsonl"
    rows = [json.dumps({"text": text}) for text in TEXTS]
    path.write_bytes("\n".join([*rows[:40], line, *rows[41:]]).encode(errors="surrogateescape"))
    whole = corpus(path)
    with pytest.raises(InputError, match=message):
        collections.deque(example for index in range(whole.parts) for example in whole.part(index).examples())


def test_a_hub_dataset_is_read_in_parts(monkeypatch):
    import datasets

    rows = datasets.Dataset.from_list([{"text": text} for text in TEXTS])
    monkeypatch.setattr(hub, "hub_reachable", lambda: True)
    for given, parts in ((rows, 9), (rows.to_iterable_dataset(num_shards=4), 4)):
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, given=given, **__: given)
        whole = corpus("some/data", kind=DatasetKind.hub)
        assert whole.parts == parts
        found = [example for index in range(parts) for example in whole.part(index).examples()]
        assert found == list(whole.examples())


def test_large_files_that_cannot_be_divided_say_why(tmp_path):
    whole = corpus(write(tmp_path, ".jsonl.gz"), segmentation=Segmentation.sentence)
    assert "corpus.jsonl.gz: a compressed file" in whole.undivided
    assert "corpus.csv: cells may contain line breaks" in corpus(write(tmp_path, ".csv")).undivided
    assert not corpus(write(tmp_path, ".jsonl")).undivided
    assert not corpus(write(tmp_path, ".txt.gz", TEXTS[:2])).undivided


def test_corpora_that_need_their_start_are_not_divided(tmp_path):
    path = write(tmp_path, ".txt")
    assert corpus(path, limit=5).parts is None
    assert corpus(path, pair_path=str(path)).parts is None


@pytest.mark.parametrize("shares", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("parts", [0, 1, 2, 3, 7, 8, 9, 40])
def test_every_part_belongs_to_one_share_or_to_several_that_share_it(parts, shares):
    portions = collections.defaultdict(list)
    for number in range(shares):
        mine = list(ProcessGroup(number, shares).portions(parts))
        assert len(mine) <= parts // shares + 1
        for index, share in mine:
            portions[index].append(share)
    assert sorted(portions) == list(range(parts))
    for found in portions.values():
        assert found == [ProcessGroup(number, len(found)) for number in range(len(found))]
    assert all(len(found) <= -(-shares // max(1, parts % shares)) for found in portions.values())


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_shares_count_the_tokens_of_the_corpus_once(tmp_path, ending):
    """Three processes, each of which reads its share, against one."""

    class Letters(Resource):
        reads_corpus = divisible = True

        def start(self, _context):
            self.counts = torch.zeros(128, dtype=torch.int64)

        def read(self, examples):
            for example in examples:
                if not isinstance(example, str):
                    self.counts[[ord(letter) % 128 for letter in example.text]] += 1
                    self.counts[0] += 1

        def state(self):
            return {"counts": self.counts}

        def add(self, state):
            self.counts = self.counts + state["counts"]

        def finish(self):
            return self.counts.tolist()

        def digest(self, value):
            return str(value)

    whole = corpus(write(tmp_path, ending))
    context = ResourceContext(None, None, 0)
    alone = prepare_resources({"letters": Letters()}, context, lambda _: whole)["letters"]
    sent = []
    for number in range(3):
        readers = Readers(ProcessGroup(number, 3).windows, gathered=lambda states: sent.append(states) or sent)
        together = prepare_resources({"letters": Letters()}, context, lambda _: whole, readers)["letters"]
    assert together.value == alone.value
    assert sum(states["letters"]["counts"][0] > 0 for states in sent) == (3 if ending == ".txt" else 1)
