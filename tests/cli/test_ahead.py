"""Several batches under way at the same time: in order, not too far ahead, and over when it is over."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from regard.cli.ahead import ahead
from tests.signals import heard

AT_ONCE = pytest.mark.parametrize("at_once", [1, 2, 3])


def at_work() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "regard-ahead"]


@AT_ONCE
def test_in_order_whoever_is_faster(at_once: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.01 * (number % 3 == 0))
        return number * number

    assert [(number, found.result()) for number, found in ahead(work, range(12), at_once)] == [(n, n * n) for n in range(12)]
    assert list(ahead(work, [], at_once)) == []
    assert at_work() == []


@AT_ONCE
def test_reads_no_further_than_it_should(at_once: int) -> None:
    """What is under way and what was just given out are never more than asked for, also while others wait."""
    read: list[int] = []

    def batches() -> Iterator[int]:
        for number in range(8):
            read.append(number)
            yield number

    for given_out, (number, _) in enumerate(ahead(lambda number: number, batches(), at_once), 1):
        assert number == given_out - 1
        assert len(read) == min(8, number + at_once)
        time.sleep(0.005)
        assert len(read) == min(8, number + at_once)


def test_they_do_run_beside_each_other() -> None:
    """Each waits until another is there as well: one after the other, nobody would ever come."""
    meeting = threading.Barrier(2, timeout=20)
    assert [found.result() for _, found in ahead(lambda _: meeting.wait() >= 0, range(6), 2)] == [True] * 6


def test_answers_are_let_go() -> None:
    class Answer:
        def __init__(self) -> None:
            alive.add(self)

    alive: weakref.WeakSet[Answer] = weakref.WeakSet()
    gc.disable()  # they go by themselves, without anybody looking for them
    try:
        for _, found in ahead(lambda _: Answer(), range(10), 2):
            time.sleep(0.005)
            assert found.result() in alive
            assert len(alive) <= 2
            del found
    finally:
        gc.enable()


@AT_ONCE
def test_nothing_is_held_back_while_the_next_is_not_there(at_once: int) -> None:
    given_out: list[int] = []

    def batches() -> Iterator[int | None]:
        for number in range(6):
            yield number
            if number in (0, 3, 5):
                yield None
                assert given_out == list(range(number + 1))

    for number, found in ahead(lambda number: number + 1, batches(), at_once):
        assert found.result() == number + 1
        given_out.append(number)
    assert given_out == list(range(6))


@AT_ONCE
def test_an_error_comes_in_its_turn(at_once: int) -> None:
    def work(number: int) -> int:
        if number == 3:
            raise ValueError(f"made to fail at {number}")
        time.sleep(0.01)
        return number

    seen: list[int] = []
    with closing(ahead(work, range(8), at_once)) as given_out, pytest.raises(ValueError, match="made to fail at 3"):
        seen.extend(found.result() for _, found in given_out)
    assert seen == [0, 1, 2]
    assert at_work() == []


@AT_ONCE
def test_trouble_in_reading_comes_after_all_that_was_read(at_once: int) -> None:
    def batches() -> Iterator[int]:
        yield from range(3)
        raise OSError("the disk is gone")

    seen: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        seen.extend(found.result() for _, found in ahead(lambda number: number, batches(), at_once))
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt])
def test_whatever_ends_a_thread_is_told(ends: type[BaseException]) -> None:
    def work(_: int) -> None:
        raise ends

    [(_, found)] = ahead(work, [0], 2)
    assert isinstance(found.exception(timeout=5), ends)


def test_closing_ends_what_is_under_way() -> None:
    ended: list[int] = []

    def work(number: int) -> int:
        try:
            for _ in range(3000 * (number > 0)):
                time.sleep(0.01)
        finally:
            ended.append(number)
        return number

    begun, interval = time.monotonic(), sys.getswitchinterval()
    with closing(ahead(work, range(8), 3)) as some:
        assert next(some)[0] == 0
    assert time.monotonic() - begun < 5
    assert sorted(ended) == [0, 1, 2]
    assert at_work() == []
    assert sys.getswitchinterval() == interval


def test_who_waits_for_a_turn_ends_too() -> None:
    turn = threading.Lock()

    def work(number: int) -> int:
        with turn:
            for _ in range(3000 * (number > 0)):
                time.sleep(0.01)
        return number

    begun = time.monotonic()
    with closing(ahead(work, range(8), 3)) as some:
        assert next(some)[0] == 0
        time.sleep(0.05)
    assert time.monotonic() - begun < 5
    assert not turn.locked()
    assert at_work() == []


def test_ctrl_c() -> None:
    program = """
        import sys, time
        from contextlib import closing
        from regard.cli.ahead import ahead

        def work(number):
            try:
                for _ in range(3000):
                    time.sleep(0.01)
            finally:
                time.sleep(0.3)  # who ends is waited for
                print("ended", flush=True)

        with closing(ahead(work, range(8))) as some:
            print("begun", flush=True)
            next(some)
    """
    command: list[Any] = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    with subprocess.Popen(heard(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        shown, said = process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT
    assert shown == "ended\n" * 2
    assert said.count("Traceback") == 1  # ours alone: threads end in silence
    assert said.rstrip().endswith("KeyboardInterrupt")
