"""What a second signal does to a silo process, by how soon it comes."""

from __future__ import annotations

import signal

import pytest

from farro.silo.cli import stopping
from farro.silo.cli.stopping import SAME_ACT_S, Stop


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
    now = 100.0
    stop = Stop(lambda _: None, 60.0, lambda: now)
    with stop.on_signals():
        signal.raise_signal(number)
        now += SAME_ACT_S * 0.9
        signal.raise_signal(number)
        await stop.wait()
        assert codes == []
        now += SAME_ACT_S * 0.2
        with pytest.raises(Ended):
            signal.raise_signal(number)
    assert codes == [128 + number]
