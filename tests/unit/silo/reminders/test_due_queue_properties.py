"""The due queue against a naive model: order, capacity, eviction, ageing, bounded heaps; permits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from farro.client.clock import from_us, to_us
from farro.providers.rows import ReminderRow
from farro.silo.reminders.due_queue import AGED_ONE_IN, DueQueue, Entry, Key, Stage
from farro.silo.reminders.lazy_heap import LazyHeap
from farro.silo.reminders.permits import Permits
from tests.unit.silo.kit import bell_row

START = to_us(datetime(2030, 1, 1, tzinfo=UTC))
WAIT_MAX = 50

KEYS = st.integers(0, 11)
INSTANTS = st.integers(-60, 200)
STEPS = st.one_of(
    st.tuples(st.just("offer"), KEYS, INSTANTS, st.integers(0, 2), st.booleans()),
    st.tuples(st.just("offer again"), KEYS),
    st.tuples(st.just("advance"), st.integers(0, 60)),
    st.tuples(st.just("take"), st.booleans()),
    st.tuples(st.just("park"), KEYS),
    st.tuples(st.just("passes"), KEYS),
    st.tuples(st.just("put back"), KEYS, st.integers(0, 60)),
    st.tuples(st.just("remove"), KEYS),
    st.tuples(st.just("resize"), st.integers(1, 8)),
)


@dataclass
class Held:
    """What the model knows of one entry."""

    row: ReminderRow
    wake_at: int
    aged: bool
    stage: Stage

    def rank(self, by_priority: bool) -> tuple[int, int, int]:
        assert self.row.next_due_at is not None
        return (self.row.priority if by_priority else 0, self.row.next_due_at, self.row.registration)

    def badness(self, by_priority: bool) -> tuple[int, int, int]:
        place = 0 if self.aged or not by_priority else self.row.priority
        if self.stage is Stage.WAITING:
            return (1, place, self.wake_at)
        assert self.row.next_due_at is not None
        return (0, place, self.row.next_due_at)


class Model:
    """Lists and sorting where the queue has heaps and stamps."""

    def __init__(self, capacity: int, by_priority: bool) -> None:
        self.by_priority = by_priority
        self.capacity = capacity
        self.queue = DueQueue(capacity, by_priority=by_priority, background_wait_max_us=WAIT_MAX)
        self.queue.advance(START)
        self.now = START
        self.held: dict[Key, Held] = {}
        self.entries: dict[Key, Entry] = {}  # those that are out, as the queue handed them over
        self.registration = 0
        self.taken = 0
        self.starts = 0
        self.capacity_max = capacity

    def step(self, step: tuple[object, ...]) -> None:
        name, *arguments = step
        getattr(self, str(name).replace(" ", "_"))(*arguments)
        self.check()

    def key(self, number: int) -> Key:
        return ("bell", f"k{number}", "ring")

    def offer(self, number: int, instant: int, priority: int, aged: bool) -> None:
        self.registration += 1
        at = START + instant
        row = bell_row(f"k{number}", from_us(at), priority=priority, registration=self.registration)
        self.expect(row, at, aged, self.queue.offer(row, at, aged=aged))

    def offer_again(self, number: int) -> None:
        """The same row once more, as a later page has it: nothing may change."""
        held = self.held.get(self.key(number))
        if held is not None:
            assert self.queue.offer(held.row, held.wake_at) is None

    def expect(self, row: ReminderRow, at: int, aged: bool, evicted: ReminderRow | None) -> None:
        key = (row.grain_type, row.grain_key, row.name)
        self.held.pop(key, None)
        self.entries.pop(key, None)
        new = Held(row, at, aged, Stage.READY if at <= self.now else Stage.WAITING)
        self.held[key] = new
        if len(self.held) > self.capacity:
            candidates = [each for each in self.held.values() if each.stage is not Stage.OUT]
            worst = max(each.badness(self.by_priority) for each in candidates)
            assert evicted is not None, "there was no room and nothing had to go"
            gone = self.held.pop((evicted.grain_type, evicted.grain_key, evicted.name))
            assert gone.badness(self.by_priority) == worst
        else:
            assert evicted is None

    def advance(self, by: int) -> None:
        self.now += by
        self.queue.advance(self.now)
        for each in self.held.values():
            if each.stage is Stage.WAITING and each.wake_at <= self.now:
                each.stage = Stage.READY

    def lane(self, held: Held) -> int:
        return held.rank(self.by_priority)[0]

    def _goes_out(self, expected: Held | None, entry: Entry | None) -> None:
        if expected is None:
            assert entry is None
            return
        assert entry is not None
        assert entry.row is expected.row
        expected.stage = Stage.OUT
        self.entries[entry.key] = entry

    def take(self, may_start: bool) -> None:
        """By rank, but one in eight is the oldest of a lower lane that has waited beyond the bound."""
        parked = [each for each in self.held.values() if each.stage is Stage.PARKED]
        lanes = set(map(self.lane, parked))
        ready = [each for each in self.held.values() if each.stage is Stage.READY]
        ready = [each for each in ready if self.lane(each) not in lanes]
        candidates = [*ready, *parked] if may_start else ready
        expected = min(candidates, key=lambda each: each.rank(self.by_priority), default=None)
        entry = self.queue.take(may_start)
        if expected is not None:
            was_parked = expected.stage is Stage.PARKED
            self.starts += was_parked
            self.taken += not was_parked
            late = self.late(candidates, self.lane(expected))
            if late and (self.starts if was_parked else self.taken) % AGED_ONE_IN == 0:
                assert entry is not None
                # two lanes may hold entries of one instant: either is the oldest
                assert entry.due_at == min(each.row.next_due_at or 0 for each in late)
                expected = self.held[entry.key]
        self._goes_out(expected, entry)

    def late(self, candidates: list[Held], best_lane: int) -> list[Held]:
        lower = [each for each in candidates if self.lane(each) > best_lane]
        return [each for each in lower if (each.row.next_due_at or 0) < self.now - WAIT_MAX]

    def park(self, number: int) -> None:
        entry = self.entries.pop(self.key(number), None)
        if entry is not None:
            self.queue.park(entry, lambda: None)
            self.held[entry.key].stage = Stage.PARKED

    def passes(self, number: int) -> None:
        """May a tick that is out begin past those that are parked?"""
        entry = self.entries.get(self.key(number))
        if entry is None:
            return
        own = self.held[entry.key].rank(self.by_priority)
        parked = [each for each in self.held.values() if each.stage is Stage.PARKED]
        expected = all(own <= each.rank(self.by_priority) for each in parked)
        if expected and parked and (self.starts + 1) % AGED_ONE_IN == 0:
            expected = not self.late(parked, min(map(self.lane, parked)))
        self.starts += expected and bool(parked)
        assert self.queue.passes(entry) == expected

    def put_back(self, number: int, later: int) -> None:
        entry = self.entries.pop(self.key(number), None)
        if entry is not None:
            self.queue.put_back(entry, self.now + later)
            held = self.held[entry.key]
            held.wake_at, held.stage = self.now + later, Stage.WAITING

    def remove(self, number: int) -> None:
        self.queue.remove(self.key(number))
        self.held.pop(self.key(number), None)
        self.entries.pop(self.key(number), None)

    def resize(self, capacity: int) -> None:
        self.capacity = capacity
        self.capacity_max = max(capacity, self.capacity_max)
        for row in self.queue.resize(capacity):
            candidates = [each for each in self.held.values() if each.stage is not Stage.OUT]
            worst = max(each.badness(self.by_priority) for each in candidates)
            gone = self.held.pop((row.grain_type, row.grain_key, row.name))
            assert gone.badness(self.by_priority) == worst

    def check(self) -> None:
        queue = self.queue
        assert {entry.key: entry.stage for entry in queue} == {k: h.stage for k, h in self.held.items()}
        out = sum(each.stage is Stage.OUT for each in self.held.values())
        assert len(queue) == len(self.held) <= max(self.capacity, out)
        waiting = [each.wake_at for each in self.held.values() if each.stage is Stage.WAITING]
        assert queue.next_wake() == min(waiting, default=None)
        assert queue.waiting == len(waiting)
        assert queue.ready == sum(each.stage is Stage.READY for each in self.held.values())
        assert queue.parked == sum(each.stage is Stage.PARKED for each in self.held.values())
        for number in range(12):
            key = self.key(number)
            assert queue.names_of(key[:2]) == (["ring"] if key in self.held else [])


@given(st.lists(STEPS, max_size=60), st.integers(1, 8), st.booleans())
def test_the_queue_behaves_like_a_sorted_list_whatever_happens(
    steps: list[tuple[object, ...]], capacity: int, by_priority: bool
) -> None:
    model = Model(capacity, by_priority)
    for step in steps:
        model.step(step)


def test_an_entry_that_is_out_is_never_evicted() -> None:
    model = Model(2, by_priority=True)
    for number in range(2):
        model.offer(number, -10, 2, False)
        model.take(may_start=False)
    row = bell_row("k9", from_us(START - 50), priority=0, registration=99)
    assert model.queue.offer(row, START - 50) is row
    assert {entry.stage for entry in model.queue} == {Stage.OUT}


def test_a_dead_entry_does_not_come_back() -> None:
    model = Model(4, by_priority=True)
    model.offer(1, -10, 1, False)
    entry = model.queue.take(may_start=False)
    assert entry is not None
    model.queue.remove(entry.key)
    model.queue.put_back(entry, START + 5)
    assert (len(model.queue), model.queue.next_wake()) == (0, None)


class Item:
    def __init__(self) -> None:
        self.stamp = 0


@given(st.lists(st.integers(0, 99), max_size=600), st.integers(1, 10))
def test_a_lazy_heap_keeps_at_most_about_twice_its_live_items(keys: list[int], live_max: int) -> None:
    heap = LazyHeap[Item](live_max)
    live: list[tuple[int, Item]] = []
    for key in keys:
        if len(live) == live_max:
            _, gone = live.pop(key % live_max)
            gone.stamp += 1
        item = Item()
        live.append((key, item))
        heap.add((key,), item)
        assert len(heap) <= 2 * live_max + 65
        first = heap.first()
        assert first is not None
        assert [k for k, each in live if each is first] == [min(k for k, _ in live)]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), max_size=80), st.integers(1, 4)
)
def test_permits_are_never_more_than_their_total_and_expire(
    steps: list[tuple[bool, int, int]], total: int
) -> None:
    permits: Permits[int] = Permits(total, hold_max_s=5.0)
    taken: dict[int, float] = {}
    now = 0.0
    for take, who, wait in steps:
        now += wait
        expires = permits.expire(now)
        taken = {each: at for each, at in taken.items() if at + 5.0 > now}
        assert expires == min((at + 5.0 for at in taken.values()), default=None)
        if take and who not in taken:
            assert permits.take(who, now) == (len(taken) < total)
            if len(taken) < total:
                taken[who] = now
        elif not take:
            permits.give_back(who)
            taken.pop(who, None)
        assert permits.held == len(taken) <= total
        assert permits.free == (len(taken) < total)
