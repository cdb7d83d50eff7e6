"""The supervisor of several processes, over small programs in the place of silos."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from farro.silo.cli.stopping import SAME_ACT_S
from tests.acceptance import supervised
from tests.acceptance.programs import Program, has_ended

Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    """Starts a supervisor over fakes; it and they are gone afterwards."""
    programs: list[Program] = []

    def started(*fakes: str) -> Program:
        programs.append(Program([sys.executable, supervised.__file__, str(tmp_path), *fakes], tmp_path))
        return programs[-1]

    yield started
    for program in programs:
        program.close()
    wait_until(lambda: all(map(has_ended, pids(tmp_path))))  # also when the supervisor was killed


def wait_until(holds: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def pids(folder: Path) -> list[int]:
    return [int(line) for path in folder.glob("starts-*") for line in path.read_text().split()]


def starts(folder: Path, place: int) -> int:
    path = folder / f"starts-{place}"
    return len(path.read_text().split()) if path.exists() else 0


# ---------------------------------------------------------------- start and stop


def test_all_start_are_announced_together_and_drain_together(start: Start, tmp_path: Path) -> None:
    program = start("serve", "serve", "serve")
    program.wait_line("3 processes ready at http://127.0.0.1:1, http://127.0.0.1:1, http://127.0.0.1:1")
    assert program.stop() == 0
    assert {f"[{number}] drained" for number in (1, 2, 3)} <= set(program.lines)
    assert program.said("^farro silo: SIGTERM: stopping all processes")
    assert program.said("^farro silo: stopped")


def test_the_first_is_ready_before_the_others_start(start: Start, tmp_path: Path) -> None:
    program = start("exit1,serve", "serve")
    program.wait_line("2 processes ready")
    begins = [line for line in program.lines if "start" in line and line.startswith("[")]
    assert begins == ["[1] start 1: exit1", "[1] start 2: serve", "[2] start 1: serve"]
    assert program.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_all_at_once(start: Start, number: signal.Signals) -> None:
    program = start("stubborn", "stubborn")
    program.wait_line("2 processes ready")
    program.signal(number)
    program.wait_line(f"{number.name}: stopping")
    program.signal(number)  # a wrapper that signals process and group
    with pytest.raises(subprocess.TimeoutExpired):
        program.process.wait(SAME_ACT_S)
    program.signal(number)
    assert program.wait_end(5) == 128 + number


def test_one_that_does_not_keep_its_limit_is_killed_and_the_exit_code_says_so(start: Start) -> None:
    program = start("serve", "stubborn")
    program.wait_line("2 processes ready")
    assert program.stop() == 1


def test_one_that_does_not_end_in_order_is_told_by_the_exit_code(start: Start) -> None:
    program = start("serve", "untidy")
    program.wait_line("2 processes ready")
    assert program.stop() == 1


def test_a_signal_during_the_start_ends_what_has_started(start: Start) -> None:
    program = start("never", "serve")
    program.wait_line(r"\[1\] start 1")
    assert program.stop() == 0
    assert program.said(r"\[2\]") == []


# ---------------------------------------------------------------- processes that die


def test_a_process_that_dies_is_started_again_and_its_signal_told(start: Start, tmp_path: Path) -> None:
    program = start("serve", "crash,crash,serve")
    program.wait_line(r"process 2 ended: SIGKILL; it starts again in 0\.\d s")
    program.wait_line(r"process 2 ended: SIGKILL")
    program.wait_line(r"\[2\] start 3: serve")
    assert program.stop() == 0
    assert starts(tmp_path, 1) == 1, "the other one was left alone"


def test_an_exit_code_is_told(start: Start) -> None:
    program = start("exit3,serve", "serve")
    program.wait_line("process 1 ended: exit code 3; it starts again")
    program.wait_line("2 processes ready")


def test_bad_usage_ends_everything_with_its_reason_and_code(start: Start, tmp_path: Path) -> None:
    program = start("serve", "exit2")
    assert program.wait_end() == 2
    assert program.said(r"^reason: process 2 does not start \(exit code 2\): it is no good")
    assert starts(tmp_path, 2) == 1


def test_failing_again_and_again_at_the_start_ends_everything(start: Start, tmp_path: Path) -> None:
    program = start("exit7")
    assert program.wait_end() == 1
    assert starts(tmp_path, 1) == 3
    assert program.said(r"^reason: process 1 does not start \(exit code 7\): it is no good")


def test_while_others_serve_one_that_cannot_start_is_tried_on(start: Start, tmp_path: Path) -> None:
    program = start("serve", "serve,exit2")
    program.wait_line("2 processes ready")
    first, second = pids_of(tmp_path, 1), pids_of(tmp_path, 2)
    end(second[-1])
    for _ in range(5):
        program.wait_line("process 2 ended: exit code 2; it starts again")
    assert pids_of(tmp_path, 1) == first
    assert program.stop() == 0


def pids_of(folder: Path, place: int) -> list[int]:
    return [int(line) for line in (folder / f"starts-{place}").read_text().split()]


def end(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def test_one_that_drained_by_somebodys_wish_stays_stopped_until_a_sighup(
    start: Start, tmp_path: Path
) -> None:
    program = start("serve", "serve")
    program.wait_line("2 processes ready")
    end(pids_of(tmp_path, 2)[0], signal.SIGTERM)
    program.wait_line("process 2 has drained and stays stopped")
    program.signal(signal.SIGHUP)
    program.wait_line("all 2 processes have been restarted")
    assert (starts(tmp_path, 1), starts(tmp_path, 2)) == (2, 2)
    assert program.stop() == 0


def test_when_all_have_drained_the_supervisor_ends(start: Start) -> None:
    program = start("leave", "leave")
    assert program.wait_end() == 0
    assert program.said("all processes have drained")


# ---------------------------------------------------------------- processes that hang


def test_one_that_gives_no_sign_of_life_is_killed_and_replaced(start: Start, tmp_path: Path) -> None:
    program = start("serve", "mute,serve")
    program.wait_line("process 2 .* gives no sign of life")
    program.wait_line("process 2 ended: SIGKILL")
    program.wait_line(r"\[2\] start 2: serve")
    assert program.stop() == 0


def test_a_stopped_process_is_killed_and_replaced(start: Start, tmp_path: Path) -> None:
    program = start("serve", "serve")
    program.wait_line("2 processes ready")
    end(pids_of(tmp_path, 2)[0], signal.SIGSTOP)
    program.wait_line("process 2 .* gives no sign of life")
    program.wait_line(r"\[2\] start 2: serve")
    assert starts(tmp_path, 1) == 1
    assert program.stop() == 0


def test_one_that_lives_and_never_becomes_ready_is_killed(start: Start) -> None:
    program = start("never,serve", "serve")
    program.wait_line("process 1 was not ready within 5 s: it is killed")
    program.wait_line("2 processes ready")
    assert program.stop() == 0


def test_a_supervisor_that_stood_still_kills_nobody(start: Start, tmp_path: Path) -> None:
    program = start("serve", "serve")
    program.wait_line("2 processes ready")
    everybody = [program.process.pid, *pids(tmp_path)]
    for pid in everybody:
        end(pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    wait_until(lambda: time.monotonic() > stopped_at + 2.5)  # longer than a process may be silent
    for pid in everybody:
        end(pid, signal.SIGCONT)
    assert program.stop() == 0
    assert program.said("no sign of life") == []


def test_a_killed_supervisor_takes_its_processes_with_it(start: Start, tmp_path: Path) -> None:
    program = start("serve", "serve")
    program.wait_line("2 processes ready")
    program.process.kill()
    wait_until(lambda: all(map(has_ended, pids(tmp_path))))


# ---------------------------------------------------------------- a rolling restart


def test_sighup_restarts_one_after_another(start: Start, tmp_path: Path) -> None:
    program = start("serve", "serve", "serve")
    program.wait_line("3 processes ready")
    program.signal(signal.SIGHUP)
    program.wait_line("all 3 processes have been restarted")
    steps = [line for line in program.lines if re.search(r"drained|start 2", line)]
    assert steps == [
        line for number in (1, 2, 3) for line in (f"[{number}] drained", f"[{number}] start 2: serve")
    ]
    assert program.stop() == 0
    assert program.said("starts again") == [], "a wanted end is no failure"


def test_sighup_does_nothing_when_the_modules_cannot_be_loaded_any_more(start: Start, tmp_path: Path) -> None:
    program = start("serve", "serve")
    program.wait_line("2 processes ready")
    (tmp_path / "broken").touch()
    program.signal(signal.SIGHUP)
    program.wait_line("SIGHUP: nothing is restarted")
    assert (starts(tmp_path, 1), starts(tmp_path, 2)) == (1, 1)
    assert program.stop() == 0


def test_a_rolling_restart_ends_where_one_does_not_come_back(start: Start, tmp_path: Path) -> None:
    program = start("serve,exit1,serve", "serve")
    program.wait_line("2 processes ready")
    program.signal(signal.SIGHUP)
    program.wait_line("process 1 does not come back: the rolling restart ends here")
    program.wait_line(r"\[1\] start 3: serve")
    assert starts(tmp_path, 2) == 1, "who serves is left alone"
    assert program.stop() == 0


def test_one_that_does_not_drain_is_killed_and_replaced_all_the_same(start: Start) -> None:
    program = start("stubborn,serve", "serve")
    program.wait_line("2 processes ready")
    program.signal(signal.SIGHUP)
    program.wait_line("process 1 did not drain in order: SIGKILL")
    program.wait_line("all 2 processes have been restarted")
    assert program.stop() == 0


# ---------------------------------------------------------------- what they say


def test_lines_of_several_processes_are_never_torn(start: Start) -> None:
    program = start("chatter", "chatter", "chatter")
    program.wait_line("3 processes ready")
    assert program.stop() == 0
    said = [line for line in program.lines if re.match(r"\[\d\] said", line)]
    told = [line for line in program.lines if re.match(r"\[\d\] told", line)]
    for number in (1, 2, 3):
        mine = [line for line in said if line.startswith(f"[{number}]")]
        assert mine == [f"[{number}] said {line} {'x' * (line % 100)}" for line in range(supervised.LINES)]
        errors = [line for line in told if line.startswith(f"[{number}]")]
        assert errors == [f"[{number}] told {line}" for line in range(supervised.LINES)]
    assert all(line.startswith(("[", "farro silo: ", "reason: ")) for line in program.lines)


def test_a_reader_that_does_not_read_holds_no_signal_up(start: Start, tmp_path: Path) -> None:
    program = start("chatter", "chatter", "chatter")  # more than a pipe holds
    wait_until(lambda: len(pids(tmp_path)) == 3)
    program.signal(signal.SIGTERM)
    wait_until(lambda: all(map(has_ended, pids(tmp_path))))
    program.wait_end()
