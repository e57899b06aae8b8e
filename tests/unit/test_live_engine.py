"""One computation at a time: what is outdated is dropped, the last results are kept, and closing waits for nobody."""

import threading
import time
import weakref

import pytest

import normscope
from normscope.live.engine import Ask, Busy, Engine, Outdated

ONCE = Ask(None, 0)


@pytest.fixture
def engine():
    engine = Engine(kept=3)
    yield engine
    assert engine.close(5)


class Held:
    """A computation that goes on until it is let go."""

    def __init__(self, engine, ask=ONCE, key="held"):
        self.started, self.go = threading.Event(), threading.Event()
        self.future = engine.submit(ask, key, self.compute)
        assert self.started.wait(5)

    def compute(self, go_on):
        self.started.set()
        while not self.go.wait(0.005):
            go_on()
        return "held"


def test_results_are_computed_once_and_the_last_ones_are_kept(engine):
    computed = []

    def ask(key):
        return engine.submit(ONCE, key, lambda _: computed.append(key) or key).result(5)

    assert [ask(key) for key in (1, 2, 3, 1, 4, 1, 2)] == [1, 2, 3, 1, 4, 1, 2]
    # 1 was used after 2, so 4 took the place of 2.
    assert computed == [1, 2, 3, 4, 2]


def test_results_that_are_not_kept_are_let_go(engine):
    class Result:
        pass

    kept = weakref.ref(engine.submit(ONCE, 0, lambda _: Result()).result(5))
    assert kept() is not None
    for key in range(1, 4):
        engine.submit(ONCE, key, lambda _: key).result(5)  # noqa: B023
    deadline = time.monotonic() + 5
    while kept() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kept() is None


def test_the_same_question_at_the_same_time_is_computed_once(engine):
    held = Held(engine)
    futures = [engine.submit(ONCE, "held", lambda _: "again") for _ in range(3)]
    held.go.set()
    assert [future.result(5) for future in futures] == ["held"] * 3


def test_a_newer_question_makes_older_ones_outdated_but_not_those_of_other_tabs(engine):
    held = Held(engine, Ask("tab", 1))
    waiting = engine.submit(Ask("tab", 2), "waiting", lambda _: "waiting")
    other = engine.submit(Ask("other tab", 1), "other", lambda _: "other")
    newest = engine.submit(Ask("tab", 3), "newest", lambda _: "newest")
    for outdated in (held.future, waiting):
        with pytest.raises(Outdated):
            outdated.result(5)
    assert other.result(5) == "other"
    assert newest.result(5) == "newest"
    # One that was sent before, and comes late.
    with pytest.raises(Outdated):
        engine.submit(Ask("tab", 2), "late", lambda _: "late").result(5)


def test_what_runs_for_an_older_question_goes_on_if_a_newer_one_needs_it_too(engine):
    held = Held(engine, Ask("tab", 1))
    again = engine.submit(Ask("tab", 2), "held", lambda _: "computed twice")
    held.go.set()
    assert again.result(5) == "held"
    with pytest.raises(Outdated):
        held.future.result(5)


def test_who_comes_for_what_is_being_left_gets_it_computed_again(engine):
    started, left, go = threading.Event(), threading.Event(), threading.Event()
    times = []

    def compute(turn):
        times.append(None)
        started.set()
        try:
            while len(times) == 1:
                turn()
        except Outdated:
            left.set()
            assert go.wait(5)
            raise
        return "result"

    first = engine.submit(Ask("tab", 1), "key", compute)
    assert started.wait(5)
    engine.submit(Ask("tab", 2), "another", lambda _: None)
    assert left.wait(5)
    second = engine.submit(Ask("tab", 2), "key", compute)
    go.set()
    assert second.result(5) == "result"
    with pytest.raises(Outdated):
        first.result(5)
    assert len(times) == 2


def test_answers_share_results_that_are_kept(engine):
    computed = []

    def ask(key):
        return engine.submit(
            ONCE, key, lambda turn: turn.kept("shared", lambda: computed.append(key) or "part")
        ).result(5)

    assert [ask(1), ask(2)] == ["part", "part"]
    assert computed == [1]


def test_passes_of_a_model_ask_whether_to_go_on(engine, saved_model):
    model = normscope.load(str(saved_model))
    started, done = threading.Event(), []

    def compute(_):
        while True:  # each pass asks at each of its layers
            normscope.decompose(model, "We swam.")
            done.append(None)
            started.set()

    future = engine.submit(Ask("tab", 1), "passes", compute)
    assert started.wait(20)
    assert engine.submit(Ask("tab", 2), "newer", lambda _: "newer").result(5) == "newer"
    with pytest.raises(Outdated):
        future.result(5)


def test_an_error_is_passed_on_and_the_next_computation_runs(engine):
    def fail(_):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        engine.submit(ONCE, 1, fail).result(5)
    assert engine.submit(ONCE, 1, lambda _: "yes").result(5) == "yes"


def test_too_many_requests_are_refused(engine):
    held = Held(engine)
    futures = [engine.submit(ONCE, number, lambda _: None) for number in range(64)]
    with pytest.raises(Busy, match="64 requests are waiting"):
        engine.submit(ONCE, 64, lambda _: None)
    held.go.set()
    for future in futures:
        future.result(5)


def test_closing_drops_what_waits_and_what_runs():
    engine = Engine()
    held = Held(engine)
    waiting = engine.submit(ONCE, "waiting", lambda _: "waiting")
    begun = time.monotonic()
    assert engine.close(5)
    assert time.monotonic() - begun < 1
    for future in (held.future, waiting, engine.submit(ONCE, "late", lambda _: "late")):
        with pytest.raises(Outdated):
            future.result(5)


def test_closing_does_not_wait_for_a_computation_without_end():
    engine, go = Engine(), threading.Event()
    future = engine.submit(ONCE, "deaf", lambda _: go.wait(30))
    time.sleep(0.05)
    assert not engine.close(0.1)
    with pytest.raises(Outdated):
        future.result(0)
    go.set()
