"""What a second signal does to a silo process, by how soon it comes."""

from __future__ import annotations

import signal
from unittest.mock import Mock

import pytest

from farro.client.clock import SystemClock
from farro.silo.cli import stopping
from farro.silo.cli.stopping import SAME_ACT_S, Stop


class OwnClock(SystemClock):
    us = 100_000_000

    def steady(self) -> int:
        return self.us


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_within_a_second_are_one_act_and_a_later_one_ends_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(stopping, "_end_now", end)
    # its watchdog would end the process of the tests a minute later
    monkeypatch.setattr(stopping, "threading", Mock())
    clock = OwnClock()
    stop = Stop(lambda _: None, 60.0, clock)
    with stop.on_signals():
        signal.raise_signal(number)
        clock.us += int(SAME_ACT_S * 900_000)
        signal.raise_signal(number)
        await stop.wait()
        assert codes == []
        clock.us += int(SAME_ACT_S * 200_000)
        with pytest.raises(Ended):
            signal.raise_signal(number)
    assert codes == [128 + number]
