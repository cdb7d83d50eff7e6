"""What goes wrong and when: a plan drawn from a seed, before anything runs, so that it can be drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

LEASE_S = 4.0  # of the product: what lasts longer costs a silo its partitions
GAP_S = (0.5, 3.0)  # between the beginnings of two faults
AT_ONCE_MAX = 2  # silos that are in trouble at a time, so that progress stays possible


class Kind(Enum):
    """One kind of fault.  The comment says to what it happens."""

    KILL = "kill"  # a silo: SIGKILL, started again after a while
    RESTART = "restart"  # a silo: SIGTERM, then started again
    BLINK = "blink"  # a silo: SIGSTOP for less than its lease
    FREEZE = "freeze"  # a silo: SIGSTOP beyond its lease
    CUT_STORE = "cut store"  # silo and database: silence both ways
    DEAF_STORE = "deaf store"  # the silo's words arrive, the answers do not
    MUTE_STORE = "mute store"  # the silo's words do not arrive
    SLOW_STORE = "slow store"
    RESET_STORE = "reset store"
    CUT_FRONT = "cut front"  # a silo and whoever calls it, clients and other silos
    DEAF_FRONT = "deaf front"
    SLOW_FRONT = "slow front"
    RESET_FRONT = "reset front"
    RESTART_DATABASE = "restart database"  # at once, as pg_ctl restart -m immediate
    FILL_DISK = "fill disk"
    KILL_ALL = "kill all"


OF_ALL = frozenset({Kind.RESTART_DATABASE, Kind.FILL_DISK, Kind.KILL_ALL})
AT_ONCE = frozenset({Kind.RESET_STORE, Kind.RESET_FRONT})  # done in no time
NEEDS_SERVER = frozenset(
    {
        Kind.CUT_STORE,
        Kind.DEAF_STORE,
        Kind.MUTE_STORE,
        Kind.SLOW_STORE,
        Kind.RESET_STORE,
        Kind.RESTART_DATABASE,
    }
)

# How often, and how long in seconds.
_WEIGHTS: dict[Kind, tuple[int, float, float]] = {
    Kind.KILL: (6, 0.1, 5.0),
    Kind.RESTART: (4, 0.1, 1.0),
    Kind.BLINK: (3, 0.3, 0.8 * LEASE_S),
    Kind.FREEZE: (4, 1.2 * LEASE_S, 2 * LEASE_S),
    Kind.CUT_STORE: (4, 0.3, 2 * LEASE_S),
    Kind.DEAF_STORE: (3, 0.3, 2 * LEASE_S),
    Kind.MUTE_STORE: (3, 0.3, 2 * LEASE_S),
    Kind.SLOW_STORE: (3, 1.0, 5.0),
    Kind.RESET_STORE: (3, 0, 0),
    Kind.CUT_FRONT: (3, 0.3, 2 * LEASE_S),
    Kind.DEAF_FRONT: (2, 0.3, 2 * LEASE_S),
    Kind.SLOW_FRONT: (3, 1.0, 5.0),
    Kind.RESET_FRONT: (3, 0, 0),
    Kind.RESTART_DATABASE: (2, 0.1, 5.0),
    Kind.FILL_DISK: (2, 1.0, 3.0),
    Kind.KILL_ALL: (1, 0.5, 3.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """``at_s`` after the beginning, for ``lasts_s``, to the silo at ``place``; None: all, or the database."""

    at_s: float
    kind: Kind
    place: int | None
    lasts_s: float

    def __str__(self) -> str:
        where = "" if self.place is None else f" of {self.place}"
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:6.1f} s: {self.kind.value}{where}{lasts}"


def draw(chance: Random, seconds: float, places: int, kinds: frozenset[Kind]) -> tuple[Fault, ...]:
    """Faults that end within ``seconds``, by beginning.

    Each kind comes before any comes again, in an order of chance and then by weight, as far as there is time.
    At most ``AT_ONCE_MAX`` silos are in trouble at a time, and one is not, unless it is the only one.
    """
    if not kinds:
        raise ValueError("a plan needs at least one kind of fault")
    first = sorted(kinds, key=lambda kind: kind.value)
    chance.shuffle(first)
    weights = sorted((kind.value, _WEIGHTS[kind][0]) for kind in kinds)
    busy = [0.0] * places  # until when each place is in trouble
    found: list[Fault] = []
    at = 0.0
    while True:
        at += chance.uniform(*GAP_S)
        if at >= seconds:
            return tuple(found)
        kind = first.pop() if first else Kind(_chosen(chance, weights))
        lasts = chance.uniform(*_WEIGHTS[kind][1:])
        free = [place for place, until in enumerate(busy) if until <= at]
        if kind in OF_ALL:
            place = None
            at = max(at, *busy)  # after what the silos are in already: it is enough by itself
            busy = [at + lasts] * places
        elif places - len(free) < min(AT_ONCE_MAX, max(1, places - 1)):
            place = chance.choice(free)
            busy[place] = at + lasts
        else:
            at = min(until for until in busy if until > at)
            first.append(kind)
            continue
        if at + lasts > seconds:
            return tuple(found)
        found.append(Fault(at, kind, place, lasts))


def _chosen(chance: Random, weights: list[tuple[str, int]]) -> str:
    values, counts = zip(*weights, strict=True)
    return str(chance.choices(values, counts)[0])
