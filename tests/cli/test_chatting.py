"""A model that writes as one watches: conversations and continuations, at a terminal and in a pipe."""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.cli import chatting, main
from regard.door import load
from regard.door.chat import Conversation
from tests.cli.running import run
from tests.door.talker import talker
from tests.signals import heard


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talker(tmp_path_factory.mktemp("talker"))


TURNS = ["Where are you going?", "And then?"]
LIKELIEST = ("--temperature", "0", "--max-length", "12")


def replies(bundle: Path, system: str | None = None) -> list[str]:
    talk = Conversation(load(bundle, device="cpu"), system, temperature=0, max_length=12)
    return ["".join(talk.say(turn)) for turn in TURNS]


def one_line(text: str) -> str:
    return text.replace("\n", " ")


def test_a_turn_a_line(bundle: Path) -> None:
    done = run("generate", "--chat", "--model", bundle, *LIKELIEST, stdin="\n".join(TURNS) + "\n")
    assert (done.code, done.lines) == (0, [one_line(reply) for reply in replies(bundle)])
    named = run("generate", "--chat", "--model", bundle, *LIKELIEST, *TURNS)
    assert named.out == done.out


def test_what_the_model_is_told_first_and_json(bundle: Path) -> None:
    stdin = f"{TURNS[0]}\n\n{TURNS[1]}\n"
    done = run("generate", "--chat", "--system", "Be brief.", "--format", "json", "--model", bundle, *LIKELIEST, stdin=stdin)
    first, second = replies(bundle, "Be brief.")
    assert first != replies(bundle)[0]
    wanted = [{"role": "assistant", "content": text} for text in (first, "", second)]  # an empty line is no turn, and has an empty reply
    assert [json.loads(line) for line in done.lines] == wanted


def test_what_can_not_be(bundle: Path, tmp_path: Path) -> None:
    assert "--system is said before a conversation; add --chat" in run("generate", "x", "--system", "y", "--model", bundle).err
    done = run("generate", "--chat", "Hello", "--model", talker(tmp_path, None))
    assert done.code == 1
    assert "it has no chat template" in done.err
    done = run("generate", "--chat", "Hello", "--model", bundle, "--beam-size", "3")
    assert (done.code, done.out) == (1, "")
    assert "a beam knows its best words only at the end" in done.err


class Keyboard(io.StringIO):
    """A terminal's standard input; what is typed may be Ctrl-C."""

    def isatty(self) -> bool:
        return True


class Screen(io.StringIO):
    """A terminal's standard output, which keeps when each piece came."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.flushed.append(self.getvalue())


def at_terminal(monkeypatch: pytest.MonkeyPatch, typed: list[str | type[BaseException]], *arguments: str | Path) -> Screen:
    """Runs regard with somebody at the keyboard."""
    coming, screen = iter(typed), Screen()

    def typing(sign: str = "") -> str:
        print(sign, end="", flush=True)
        each = next(coming, EOFError)
        if not isinstance(each, str):
            raise each
        return each

    monkeypatch.setattr(builtins, "input", typing)
    monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
    monkeypatch.setattr(sys, "stdin", Keyboard())
    monkeypatch.setattr(sys, "stdout", screen)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return screen


def test_a_conversation_at_a_terminal(bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    screen = at_terminal(monkeypatch, [TURNS[0], "   ", TURNS[1]], "generate", "--chat", "--model", bundle, *LIKELIEST)
    first, second = replies(bundle)
    assert screen.getvalue() == f"> {first}\n> > {second}\n> \n"
    assert len(set(screen.flushed)) > 10  # word by word
    assert "Ctrl-C breaks off a reply, Ctrl-D ends" in capsys.readouterr().err


def test_ctrl_c(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the model speaks, it breaks off the reply; at the prompt, it ends the conversation."""
    said = Conversation.say

    def interrupted(self: Conversation, text: str) -> object:
        pieces = said(self, text)
        if text == TURNS[0]:
            yield next(pieces)
            pieces.close()  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        yield from pieces

    monkeypatch.setattr(Conversation, "say", interrupted)
    screen = at_terminal(monkeypatch, [TURNS[0], TURNS[1], KeyboardInterrupt, "never"], "generate", "--chat", "--model", bundle, *LIKELIEST)
    turns = screen.getvalue().split("> ")
    assert turns[1].endswith(" …\n")
    assert len(turns) == 4
    assert turns[-1] == "\n"


def test_a_turn_that_is_too_long_is_not_the_end(bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    screen = at_terminal(monkeypatch, ["long " * 300, TURNS[0]], "generate", "--chat", "--model", bundle, *LIKELIEST)
    assert replies(bundle)[0] in screen.getvalue()
    assert "has a context of 256" in capsys.readouterr().err


def test_prompts_at_a_terminal(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are continued word by word, whether they are typed or given."""
    model = load(bundle, device="cpu")
    typed = at_terminal(monkeypatch, ["Once upon", "the sea"], "generate", "--model", bundle, *LIKELIEST)
    wanted = [prompt + model.generate(prompt, temperature=0, max_length=12).text for prompt in ("Once upon", "the sea")]
    assert typed.getvalue() == f"> {wanted[0]}\n> {wanted[1]}\n> \n"
    assert len(set(typed.flushed)) > 10
    given = at_terminal(monkeypatch, [], "generate", "Once upon", "--model", bundle, *LIKELIEST)
    assert given.getvalue() == wanted[0] + "\n"
    assert len(set(given.flushed)) >= 3


def test_nobody_at_the_keyboard_is_no_terminal() -> None:
    assert not chatting.typed()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_real_terminal(bundle: Path) -> None:
    """A conversation in a process of its own, at a pseudo-terminal: a turn, Ctrl-C while it replies, a turn, Ctrl-D."""
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "regard", "generate", "--chat", "--model", str(bundle), "--device", "cpu"]
    command += ["--min-length", "190", "--max-length", "200"]
    process = subprocess.Popen(heard(command), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = b""

    def until(done: Callable[[bytes], bool]) -> None:
        nonlocal seen
        end = time.monotonic() + 120
        while not done(seen):
            assert time.monotonic() < end, seen
            seen += os.read(ours, 1 << 12)

    until(lambda text: b"> " in text)
    os.write(ours, b"Where are you going?\n")
    until(lambda text: text.count(b"\n") >= 2 and len(text.partition(b"going?")[2]) > 5)
    process.send_signal(signal.SIGINT)
    until(lambda text: text.rstrip(b" ").endswith(b">") and text.count(b"> ") >= 2)
    os.write(ours, b"\x04")
    assert process.wait(60) == 0, seen
    os.close(ours)
