"""Connections of strangers, and of clients that are slow or leave: the owner gets the page, and the terminal stays quiet."""

import asyncio
import contextlib
import json
import resource
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

import normscope
from normscope.errors import InputError
from normscope.live import server
from normscope.live.server import TOKEN_HEADER, Access, Server, bound
from normscope.live.session import Session
from normscope.models.observe.cancelling import check_cancelled

TEXT = "The old bridge was closed, so we crossed the river."


class Running:
    """A server in a thread, and raw requests to it."""

    def __init__(self, model):
        self.session, self._listening = Session([model], 24), bound("127.0.0.1", 0)
        self.access = Access.of(self._listening, "127.0.0.1")
        self.port = self._listening.getsockname()[1]
        self.server = Server(self.session, self.access)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self._listening])))
        self._clients = contextlib.ExitStack()
        self._thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def connect(self, beginning: bytes = b"") -> socket.socket:
        client = self._clients.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=10))
        client.sendall(beginning)
        return client

    def request(self, part="maps", **state) -> bytes:
        body = json.dumps({"part": part, "state": {"text": TEXT} | state}).encode()
        return self.head(len(body)) + body

    def head(self, length: int) -> bytes:
        return (
            f"POST /answer HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"{TOKEN_HEADER}: {self.access.token}\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def page(self) -> int:
        address = f"http://127.0.0.1:{self.port}/"
        with urllib.request.urlopen(
            urllib.request.Request(address, headers={TOKEN_HEADER: self.access.token}), timeout=10
        ) as answer:
            return answer.status

    def stop(self) -> float:
        begun = time.monotonic()
        self.server.stop()
        self._thread.join(10)
        self._clients.close()
        self._listening.close()
        assert not self._thread.is_alive()
        assert self.session.engine.close(10)
        return time.monotonic() - begun


@pytest.fixture(scope="module")
def model(saved_model):
    return normscope.load(str(saved_model), device="cpu")


@pytest.fixture
def running(model):
    running = Running(model)
    yield running
    running.stop()


def is_closed(client: socket.socket) -> bool:
    """Whether the other end closes a connection before its own time-out, and nothing more comes."""
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


def read(client: socket.socket) -> str:
    """The first line and the body of an answer."""
    with client.makefile("rb") as lines:
        first, length = lines.readline().decode(), 0
        while line := lines.readline().strip().lower():
            length = int(line.partition(b":")[2]) if line.startswith(b"content-length") else length
        return first + lines.read(length).decode()


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"POST /answer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["nothing", "letter", "headers", "body"],
)
def test_unfinished_requests_keep_nobody_out(running, capsys, beginning):
    process, (_, most) = psutil.Process(), resource.getrlimit(resource.RLIMIT_NOFILE)
    before = process.num_fds()
    count = min(1100, most // 2 - 200)
    with contextlib.ExitStack() as held:
        for number in range(count):
            client = held.enter_context(contextlib.closing(socket.socket()))
            client.connect(("127.0.0.1", running.port))
            with contextlib.suppress(OSError):  # it is closed already
                client.sendall(beginning)
            if number % 100 == 99:
                assert running.page() == 200
        assert running.page() == 200
        assert process.num_fds() - before - count <= server.CONNECTIONS + 2 * running.server.config.backlog
    assert len(capsys.readouterr().err.splitlines()) <= 1  # that a request without the token is refused


@pytest.mark.spread(1)
@pytest.mark.parametrize("drips", [False, True])
@pytest.mark.parametrize("part", ["headers", "body", "next headers"])
def test_a_request_that_takes_too_long_is_closed(running, monkeypatch, part, drips):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.4)
    beginning = {
        "headers": b"GET / HTTP/1.1\r\nX: ",
        "body": running.head(900),
        "next headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }[part]
    client = running.connect(beginning)
    if part == "next headers":
        assert " 403 " in read(client)
    begun = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while drips and time.monotonic() - begun < 2:
            client.sendall(b"x")
            time.sleep(0.05)
    assert is_closed(client)
    assert 0.2 < time.monotonic() - begun < 1.5


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_closed(running, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.3)
    client = running.connect()
    page = f"GET / HTTP/1.1\r\nHost: localhost\r\n{TOKEN_HEADER}: {running.access.token}\r\n\r\n".encode()
    client.sendall(100 * page)
    end = time.monotonic() + 5
    while time.monotonic() < end and not running.server.server_state.connections:
        time.sleep(0.01)
    while time.monotonic() < end and running.server.server_state.connections:
        time.sleep(0.01)
    assert not running.server.server_state.connections
    client.close()


@pytest.mark.slow
def test_what_is_slower_than_the_time_for_headers_is_still_answered(running, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.1)

    def slow(*_):
        time.sleep(0.5)
        return {"slow": True}

    monkeypatch.setattr(running.session.answers, "maps", slow)
    client = running.connect(running.request())
    assert " 200 " in read(client)
    client.close()


@pytest.mark.slow
def test_what_a_client_that_left_waited_for_is_not_computed(running, monkeypatch):
    """Thirty requests of half a second each, whose clients leave, cost the next one no more than a layer."""
    computed, begun = [], threading.Event()

    def slow(side, *_):
        begun.set()
        for _ in range(50):  # layers
            check_cancelled()
            time.sleep(0.01)
        computed.append(side.text)
        return {"text": side.text}

    monkeypatch.setattr(running.session.answers, "maps", slow)
    left = [running.connect(running.request(text=f"left {number}")) for number in range(30)]
    assert begun.wait(5)
    time.sleep(0.1)
    for client in left:
        client.close()
    asked = time.monotonic()
    client = running.connect(running.request(text="stays"))
    assert " 200 " in read(client)
    assert time.monotonic() - asked < 1.5
    assert computed == ["stays"]
    client.close()


@pytest.mark.slow
def test_one_that_stays_gets_what_another_that_left_has_asked_for_too(running, monkeypatch):
    begun = threading.Event()

    def slow(*_):
        begun.set()
        for _ in range(30):
            check_cancelled()
            time.sleep(0.01)
        return {"shared": True}

    monkeypatch.setattr(running.session.answers, "maps", slow)
    leaves = running.connect(running.request())
    assert begun.wait(5)
    stays = running.connect(running.request())
    time.sleep(0.1)
    leaves.close()
    assert " 200 " in read(stays)
    stays.close()


@pytest.mark.spread(1)
@pytest.mark.parametrize("sent", ["headers", "body", "question", "nothing read"])
def test_stopping_while_a_client_is_slow_is_quiet_and_quick(model, capfd, monkeypatch, sent):
    running = Running(model)
    if sent == "question":

        def slow(*_):
            while True:
                check_cancelled()
                time.sleep(0.01)

        monkeypatch.setattr(running.session.answers, "maps", slow)
    beginning = {
        "headers": b"GET / HTTP/1.1\r\nX: ",
        "body": running.head(900) + b"x",
        "question": running.request(),
        "nothing read": 50
        * f"GET / HTTP/1.1\r\nHost: localhost\r\n{TOKEN_HEADER}: {running.access.token}\r\n\r\n".encode(),
    }[sent]
    client = running.connect(beginning)
    time.sleep(0.2)
    assert running.stop() < 1.5
    client.close()
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_many_at_once_are_all_answered(running):
    with ThreadPoolExecutor(40) as clients:
        assert set(clients.map(lambda _: running.page(), range(200))) == {200}


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("a..b", "cannot be resolved"),
        ("a" * 64, "cannot be resolved"),
        ("ä" * 64 + ".example", "cannot be resolved"),
        ("a\0b", "cannot be resolved"),
        ("\udcff", "cannot be resolved"),
        ("8.8.8.8", "expected an address of this machine, such as 127.0.0.1 or 0.0.0.0: "),
    ],
)
def test_a_host_that_cannot_be_listened_on_is_named(host, message):
    with pytest.raises(InputError, match=f"^live.host=[^:]*: {message}"):
        bound(host, 0)
