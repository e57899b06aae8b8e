"""Attribution where the truth is known: a model that looks an answer up, trained here."""

import numpy as np
import pytest

import normscope
from tests.known_truth import PAIRS, precision, prompts, trained
from tests.one_text import attribute

pytestmark = [pytest.mark.slow, pytest.mark.networks]


@pytest.fixture(scope="module")
def retriever():
    found = trained()
    assert found.accuracy > 0.95, "the model has not learned the task, so nothing is known about what it reads"
    return found


def test_methods_find_the_words_that_decide_an_answer(retriever):
    pytest.importorskip("captum")
    found = {row["way"]: row["precision"] for row in precision(retriever, 60)}
    assert found["decompx"] > 0.5
    assert found["decompx"] > 3 * found["random"]
    assert found["random"] == pytest.approx(2 / (3 * PAIRS), abs=0.1)


def test_a_changed_word_changes_the_answer_as_attributed(retriever):
    """Masking the city that decides takes the answer away; masking another city does not."""
    stream = prompts(np.random.default_rng(5))
    kept, lost = [], []
    for _ in range(20):
        prompt, answer, (_, place) = next(stream)
        words = prompt.split()
        others = [number for number in range(1, 3 * PAIRS, 3) if number != place]
        for erased, found in ((place, lost), (others[0], kept)):
            changed = [*words[:erased], "[UNK]", *words[erased + 1 :]]
            said = attribute(retriever.model, " ".join(changed), normscope.NextToken())
            found.append(said.what.startswith(f"logit of {answer!r}"))
    assert np.mean(lost) < 0.2
    assert np.mean(kept) > 0.8


def test_the_heads_that_look_it_up(retriever):
    """The strongest heads are of the second layer, and without these the model no longer knows the answer."""
    stream = prompts(np.random.default_rng(7))
    drawn = [next(stream)[:2] for _ in range(20)]
    prompt, answer = drawn[0]
    target = normscope.NextToken(answer)
    before = attribute(retriever.model, prompt, target, by=["layer", "head"])
    assert before.strongest(2)["layer"].tolist() == [2, 2]
    output = retriever.model.model.layers[1].self_attn.o_proj.weight.data
    kept = output.clone()
    output.zero_()
    try:
        after = attribute(retriever.model, prompt, target)
        said = [attribute(retriever.model, asked, normscope.NextToken()).what for asked, _ in drawn]
    finally:
        output.copy_(kept)
    assert after.target < before.target / 2
    right = [what.startswith(f"logit of {known!r}") for what, (_, known) in zip(said, drawn, strict=True)]
    assert np.mean(right) < 0.5  # it can still guess
