"""What is printed reaches whoever can be reached, escapes what is not ours, and never changes an exit status."""

import io
import os
import pty
import subprocess
import sys

import pandas as pd
import pytest

from normscope.errors import escaped, printable
from normscope.reporting import terminal
from normscope.results.findings import Summary
from normscope.streams import _SPELLED, Printed

HOSTILE = "\x1b]0;title\x07 \x1b[2J\ta\rb\x9b1m\u202eevil\u2028line\u2066x\x00\x7f"
"""Sequences that set a title, clear the screen, move the cursor, turn text around and begin lines."""

ALLOWED = {"\u200c", "\u200d"}


def acts(text: str, but: str = "\n") -> list[str]:
    """The characters of a text that a terminal would act upon."""
    return [sign for sign in text if not sign.isprintable() and sign not in but and sign not in ALLOWED]


def test_nothing_of_others_acts_on_a_terminal():
    shown = escaped(HOSTILE)
    assert acts(shown, but="") == []
    assert shown == r"\x1b]0;title\x07 \x1b[2J\ta\rb\x9b1m\u202eevil\u2028line\u2066x\x00\x7f"
    assert acts(printable(HOSTILE, 1000), but="") == []


@pytest.mark.parametrize("text", ["ordinary text", "naïve – α ≥ 0", "می‌خواهم", "👩‍🔬", "北京", "हिन्दी"])
def test_text_of_every_script_stays(text):
    assert escaped(text) == text


def test_what_a_run_prints_is_escaped(capsys):
    table = pd.DataFrame({HOSTILE: ["a", HOSTILE], "n": [1, 2]}, index=pd.Index([HOSTILE, "b\nc"], name="token"))
    terminal.show_table(HOSTILE, Summary(table, digits=2, caption=HOSTILE))
    terminal.show_table("twice", Summary(pd.DataFrame([["a", "\x1b"]], columns=["x", "x"]), digits=2))
    terminal.show_sentence(HOSTILE)
    terminal.say(HOSTILE, "a\nb")
    printed = capsys.readouterr()
    assert acts(printed.out + printed.err) == []
    assert "b\\nc" in printed.out
    assert "a\\nb" in printed.err


def run_python(code: str, **options: object) -> "subprocess.CompletedProcess[bytes]":
    program = f"from normscope.streams import open_streams; open_streams(); import os, sys\n{code}"
    return subprocess.run([sys.executable, "-c", program], check=False, **options)  # type: ignore[call-overload]


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "redirection",
    [">&-", "2>&-", ">&- 2>&- <&-", "| head -c 1 >/dev/null", "2>&1 | head -c 1 >/dev/null"],
)
def test_lost_output_changes_no_status(redirection):
    code = (
        "from normscope.streams import open_streams; open_streams(); import sys\n"
        "for _ in range(20_000): print('x' * 100)\n"
        "print('error', file=sys.stderr); sys.exit(3)"
    )
    command = f'set -o pipefail; "$0" -c "$1" {redirection}'
    done = subprocess.run(["bash", "-c", command, sys.executable, code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.spread(1)
@pytest.mark.parametrize("words", ["help", "--nope"])
def test_a_full_disk_is_an_error(words):
    command = f'"$0" -m normscope {words} {"2" if words == "--nope" else ""}>/dev/full'
    done = subprocess.run(["bash", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    if words == "help":
        assert done.stderr == "normscope: <stdout>: cannot be written to: [Errno 28] No space left on device\n"


def test_a_file_that_is_opened_is_not_the_closed_output(tmp_path):
    code = f"from normscope.streams import open_streams; open_streams(); f = open({str(tmp_path / 'x')!r}, 'w'); print('lost')"
    subprocess.run(["bash", "-c", '"$0" -c "$1" >&- 2>&-', sys.executable, code], check=True)
    assert (tmp_path / "x").read_bytes() == b""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp1252"])
def test_every_encoding_prints(encoding):
    text = "α‖αf‖ − 北 naïve …█"
    done = run_python(f"print({text!a})", capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    names = {"α": "alpha"} | _SPELLED
    spelled = "".join(sign if can(sign, encoding) else names.get(sign, ascii(sign)[1:-1]) for sign in text)
    assert done.stdout.decode(encoding) == f"{spelled}\n"


def test_powers_and_greek_letters_are_spelled():
    signs = "2.0×10⁻⁶ 10¹² ² ρ Σ ά"
    done = run_python(f"print('{signs}')", capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.stdout == b"2.0x10^-6 10^12 ^2 rho sigma alpha with tonos\n"


def can(sign: str, encoding: str) -> bool:
    try:
        sign.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def test_our_signs_are_spelled_in_ascii():
    assert all(spelled.isascii() and not sign.isascii() for sign, spelled in _SPELLED.items())


def test_programs_get_names_that_are_no_text_as_they_are():
    name = os.fsdecode(b"caf\xe9")
    done = run_python(f"print({name!a})", capture_output=True)
    assert done.stdout == b"caf\xe9\n"


def test_streams_are_escaped_whoever_prints():
    done = run_python(f"print({HOSTILE!a}); raise ValueError({HOSTILE!a})", capture_output=True)
    assert done.returncode == 1
    assert acts((done.stdout + done.stderr).decode()) == []


def test_progress_bars_redraw_on_a_terminal_and_nothing_else_acts():
    main, other = pty.openpty()
    try:
        with open(other, "w", encoding="utf-8", closefd=False) as terminal:
            stream = Printed(terminal)
            stream._redraws = True  # as of standard error
            stream.write(f"\r50%\x1b[A\n{HOSTILE}")
            stream.flush()
        got = os.read(main, 10_000).decode()
    finally:
        os.close(main)
        os.close(other)
    assert got.startswith("\r50%\x1b[A")
    assert got.count("\x1b") == 1


def test_a_terminal_that_has_gone_ends_nothing():
    main, other = pty.openpty()
    with open(other, "w", encoding="utf-8") as terminal:
        os.close(main)
        stream = Printed(terminal)
        stream.write("lost\n")
        stream.flush()


def test_streams_of_tests_and_notebooks_stay(monkeypatch):
    from normscope.streams import open_streams

    own = io.StringIO()
    monkeypatch.setattr(sys, "stdout", own)
    open_streams()
    assert sys.stdout is own


@pytest.mark.draws
@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["SOURCE_DATE_EPOCH", "MPLBACKEND"])
def test_variables_that_libraries_parse_do_not_end_a_run(monkeypatch, name):
    from normscope import cli
    from normscope.reporting.drawing import drawn
    from tests.unit.test_figures import CURVES

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "abc")
    assert all(drawn(CURVES, ["pdf", "svg", "png"]))  # also in Python, where the variable stays
    assert os.environ["SOURCE_DATE_EPOCH"] == "abc"
    monkeypatch.setenv(name, "abc")
    monkeypatch.setattr(sys, "argv", ["normscope", "--help"])
    with pytest.raises(SystemExit):
        cli.run(lambda: None)
    assert name not in os.environ


def test_results_are_read_without_a_large_buffer(tmp_path):
    """With little memory left after a run, its results can still be read."""
    import tracemalloc

    from normscope.untrusted.plain_data import text

    (tmp_path / "results.json").write_text("{}")
    tracemalloc.start()
    assert text(tmp_path / "results.json", 64 * 2**20) == "{}"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20
