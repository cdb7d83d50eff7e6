"""Who has been silent for too long."""

from __future__ import annotations

from farro.silo.cli.supervising.silence import Silence, SilenceLimits

LIMITS = SilenceLimits(look_s=0.5, silent_s=6, first_sign_s=60)


def looks(silence: Silence[str], start: float, end: float) -> list[tuple[float, str]]:
    """Who is found, looking in order; with the time."""
    found: list[tuple[float, str]] = []
    now = start
    while now <= end:
        found += [(now, each) for each in silence.look(now)]
        now += LIMITS.look_s
    return found


def test_one_that_gives_signs_is_never_found() -> None:
    silence = Silence[str](LIMITS)
    silence.begin("a", 0)
    for second in range(100):
        silence.heard("a", second)
        assert looks(silence, second, second + 0.5) == []


def test_one_that_falls_silent_is_found_once_after_the_limit() -> None:
    silence = Silence[str](LIMITS)
    for each in ("a", "b"):
        silence.begin(each, 0)
        silence.heard(each, 1)
    assert looks(silence, 1, 5) == []
    silence.heard("b", 5)
    assert looks(silence, 5.5, 10.5) == [(7.0, "a")]


def test_the_first_sign_may_take_longer() -> None:
    silence = Silence[str](LIMITS)
    silence.begin("a", 0)
    assert looks(silence, 0, 59.5) == []
    assert looks(silence, 60, 60) == [(60, "a")]


def test_time_in_which_the_supervisor_stood_still_is_nobodys_silence() -> None:
    silence = Silence[str](LIMITS)
    silence.begin("a", 0)
    silence.heard("a", 0)
    assert looks(silence, 0, 2) == []
    assert silence.look(3_600) == [], "a machine that was paused for an hour"
    found = looks(silence, 3_600.5, 3_620)
    assert [each for _, each in found] == ["a"], "one that does not wake with it is found"
    assert 3_602 < found[0][0] < 3_606


def test_an_ended_one_and_a_strangers_sign_mean_nothing() -> None:
    silence = Silence[str](LIMITS)
    silence.begin("a", 0)
    silence.forget("a")
    silence.heard("a", 1)
    silence.forget("a")
    assert looks(silence, 0, 200) == []
