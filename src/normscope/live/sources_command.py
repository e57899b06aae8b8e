"""`normscope explain PROMPT --sources …`: which passages an answer comes from, in the terminal, as files and a page."""

from collections.abc import Mapping
from pathlib import Path

from normscope.api.answer_sources import GENERATED, RUNNER_UP, SourcesCall, sources_with_progress
from normscope.data.source_files import KINDS, PROMPT, PromptFile, read_sources
from normscope.errors import InputError
from normscope.live.explaining import PAGE
from normscope.live.texts import as_given, require_kind
from normscope.maths.choices import Removed
from normscope.models.load.loading import load
from normscope.reporting.options import Verbosity
from normscope.reporting.page import report
from normscope.running.options import RunOptions
from normscope.running.progress import Phase, Phases
from normscope.untrusted.plain_data import text_in


def show_sources(options: RunOptions, prompt: str | None, asked: Mapping[str, str], folder: Path) -> Path:
    """Print which passages of a prompt an answer comes from, and write the result and its page.

    Args:
        options: The model, the device, `seed` and `dataset.chat_template`; all other options are ignored.
        prompt: The prompt, in which `{sources}` and `{question}` are filled in; with `dataset.chat_template`, a conversation
            (see `live.texts`). None for the default one, around the question of a file.
        asked: `sources`, `answer`, `against`, `check`, `sentences`, `tokens` and `row`, as they were typed.
        folder: The folder to write to, created if needed.

    Raises:
        InputError: If an argument is invalid, or the model gives no answer.
    """
    wanted, given = asked.get("sources"), PromptFile({})
    if wanted == "":
        raise InputError(f"sources: expected a file, a folder, or one of {', '.join(KINDS)}, got nothing")
    if wanted is not None and (wanted not in KINDS or Path(wanted).exists()):
        given = read_sources(Path(wanted), _whole("row", asked.get("row", "1")))
    if "row" in asked and given.question is None:
        raise InputError(
            f"row={asked['row'][:40]}: expected sources=FILE.jsonl, whose rows are questions; otherwise, leave out row"
        )
    if prompt is None and given.question is None:
        raise InputError("explain: expected a prompt, or sources=FILE.jsonl with questions and documents")
    if (check := asked.get("check", Removed.top)) not in list(Removed):
        raise InputError(f"check={check[:40]}: expected one of {', '.join(Removed)}")
    chat = bool(options.dataset.chat_template)
    if wanted == "chat" and not chat:
        raise InputError("sources=chat: expected a conversation; set dataset=text and dataset.chat_template=true")
    said = _text("answer", asked.get("answer", given.answer or GENERATED))
    arguments = SourcesCall(
        passages=given.passages or wanted,
        answer=None if said == GENERATED else said,
        against=_text("against", asked["against"]) if "against" in asked else None,
        check=Removed(check),
        seed=options.seed,
        **{key: _whole(key, asked[key]) for key in ("sentences", "tokens") if key in asked},
    )
    with Phases([Phase.MODEL, Phase.TEXT], shown=options.verbosity is not Verbosity.quiet) as phases:
        model = load(options.model, options.device)
        typed = PROMPT if prompt is None else prompt
        require_kind(model, typed)
        text = as_given(model, typed, chat=chat)
        if isinstance(text, list):
            text = [{**message, "content": given.filled(message["content"])} for message in text]
        elif isinstance(text, str):
            text = given.filled(text)
            arguments = arguments._replace(
                answer=_behind(text, arguments.answer), against=_behind(text, arguments.against)
            )
        phases.begin(Phase.TEXT)
        found = sources_with_progress(model, text, arguments, phases.steps)
    print(f"\n{found}\n")
    if given.rows > 1:
        print(f"{wanted} has {given.rows:,} questions; row=N explains another.")
    return report.write_page(folder, PAGE, lambda: report.page(found), found)


def _text(key: str, typed: str) -> str:
    """The text as typed, or that of the file named after @."""
    said = text_in(Path(typed[1:]), f"{key}={typed[1:]}") if typed.startswith("@") else typed
    if not said.strip():
        raise InputError(f"{key}: expected a text, got an empty one")
    return said


def _behind(prompt: str, answer: str | list[int] | None) -> str | list[int] | None:
    """An answer with the space that separates its first word from the prompt's last."""
    joins = isinstance(answer, str) and answer[:1].isalnum() and prompt[-1:].strip()
    return f" {answer}" if joins and answer not in (RUNNER_UP, GENERATED) else answer


def _whole(key: str, typed: str) -> int:
    if not typed.isdecimal() or int(typed) < 1:
        raise InputError(f"{key}={typed[:40]}: expected a whole number from 1")
    return int(typed)
