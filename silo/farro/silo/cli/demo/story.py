"""The demo's story: start, schedule, watch, cancel, kill in the middle of ticks, start again, prove."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from farro.client.client import Client
from farro.client.clock import ScaledClock, from_us, to_us
from farro.client.errors import FarroError
from farro.silo.cli.demo import proof
from farro.silo.cli.demo.crontabs import CrontabLine, crontab_lines
from farro.silo.cli.demo.grains import JOURNAL_VARIABLE, CronJob, Subscription
from farro.silo.cli.demo.process import SiloProcess
from farro.silo.cli.demo.screen import Screen
from farro.silo.cli.failing import Failed

START = datetime(2026, 2, 27, 16, tzinfo=UTC)
CANCEL_AT = START + timedelta(hours=5)
KILL_AT = datetime(2026, 2, 28, tzinfo=UTC)  # midnight: many crontab lines are due at once
ABSENCE = timedelta(hours=1)
HORIZON = KILL_AT + timedelta(hours=4)
SPEED = 3600.0  # one hour a second
TRIAL = timedelta(hours=3)
RENEWAL = timedelta(hours=2)
IN_THE_MIDDLE = 3  # ticks that have begun at midnight before the silo is killed
ACCOUNTS = ("alice", "bob", "carol")
LOOK_EVERY_S = 0.1
LOOK_CLOSELY_S = 0.002
CATCH_UP_WITHIN_S = 10.0
MODULE = "farro.silo.cli.demo.grains"


class Story:
    """One run of the demo in ``folder``.  ``await tell()`` says whether the proof holds."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self._store = f"sqlite:///{folder / 'demo.db'}"
        self._journal = folder / "begun.txt"
        self._errors = folder / "silo.log"
        self._screen = screen
        self._lines = crontab_lines()
        self._installed: list[CrontabLine] = []
        self._clock = ScaledClock(START, SPEED)
        self._seen: dict[str, tuple[str, int]] = {}
        self._charged_before_cancel = 0
        self._cut: set[tuple[str, int]] = set()

    async def tell(self) -> bool:
        screen = self._screen
        screen.chapter("1. A silo, a file, real crontabs")
        async with self._silo(START) as silo, Client(silo.url) as client:
            screen.say(f"process {silo.pid} serves {self._store}")
            screen.say(f"its clock starts at {START:%a %d %b %Y %H:%M} UTC and runs one hour a second")
            await self._install(client)
            await self._subscribe(client)
            screen.chapter("2. Time passes; every tick changes its grain's state in one transaction")
            await self._watch(client, until=CANCEL_AT)
            await client.grain(Subscription, "carol").cancel()
            _, self._charged_before_cancel = await client.grain(Subscription, "carol").summary()
            screen.event(self._now(), "carol cancels by her stored handle; no renewal may follow", "yellow")
            await self._watch(client, until=KILL_AT)
            await self._many_begun()
            await silo.kill()
            killed_at = self._now()
        await self._look_at_the_ruins(silo.pid, killed_at)
        await self._go_on(killed_at)
        return await self._prove()

    # ---- chapters

    async def _install(self, client: Client) -> None:
        outcomes = await asyncio.gather(
            *(client.grain(CronJob, line.key).install(line.expression) for line in self._lines),
            return_exceptions=True,
        )
        refused = []
        for line, outcome in zip(self._lines, outcomes, strict=True):
            if outcome is None:
                self._installed.append(line)
            elif isinstance(outcome, FarroError):
                refused.append(outcome)
            else:
                raise outcome
        self._screen.say(
            f"{len(self._installed)} lines of real crontabs and workflow files are reminders now", "green"
        )
        for error in refused:
            self._screen.say(f"refused: {str(error).partition('InvalidSchedule: ')[2] or error}", "yellow")
        file = await self._read()
        soonest = sorted(
            ((file.reminders[line.key].start_at, line) for line in self._installed), key=lambda pair: pair[0]
        )
        shown = {line.expression: (at, line) for at, line in reversed(soonest)}
        self._screen.table(
            ("  next tick", "cron", "from"),
            [
                (f"  {from_us(at):%a %H:%M}", line.expression, line.source)
                for at, line in sorted(shown.values(), key=lambda pair: pair[0])[:6]
            ],
        )

    async def _subscribe(self, client: Client) -> None:
        await client.grain(Subscription, "alice").start_trial(TRIAL)
        for name in ("bob", "carol"):
            await client.grain(Subscription, name).convert_to_paid(RENEWAL)
        for name in ACCOUNTS:
            self._seen[name] = await client.grain(Subscription, name).summary()
        self._screen.say(
            f"subscriptions: alice tries for {_hours(TRIAL)}, bob and carol pay every {_hours(RENEWAL)}",
            "green",
        )

    async def _watch(self, client: Client, *, until: datetime) -> None:
        """Show state changes until that schedule time."""
        begin = self._now()
        with self._screen.bar(f"until {until:%a %H:%M}", (until - begin).total_seconds()) as bar:
            while (now := self._now()) < until:
                for name in ACCOUNTS:
                    await self._show_change(client, name)
                begun = proof.begun(self._journal).total()
                bar.show((now - begin).total_seconds(), f"{now:%a %H:%M}, {begun} ticks so far")
                await asyncio.sleep(min(LOOK_EVERY_S, self._clock.loop_seconds(to_us(until) - to_us(now))))
        begun = proof.begun(self._journal).total()
        self._screen.event(until, f"{begun} ticks of crontab lines have begun so far")

    async def _show_change(self, client: Client, name: str) -> None:
        status, charges = await client.grain(Subscription, name).summary()
        before, self._seen[name] = self._seen[name], (status, charges)
        if status != before[0]:
            self._screen.event(self._now(), f"{name}: {before[0]} -> {status}")
        if charges != before[1]:
            self._screen.event(self._now(), f"{name}: charged, {charges} so far")

    async def _many_begun(self) -> None:
        """Until several of midnight's ticks have begun; none of them can have ended yet."""
        midnight = to_us(KILL_AT)

        async def begun() -> bool:
            return sum(1 for _, due in proof.begun(self._journal) if due == midnight) >= IN_THE_MIDDLE

        await _until(begun, LOOK_CLOSELY_S)

    async def _look_at_the_ruins(self, pid: int, killed_at: datetime) -> None:
        screen = self._screen
        screen.chapter(f"3. kill -9 {pid}, in the middle of midnight's ticks")
        file = await self._read()
        self._cut = {
            (key, due) for key, due in proof.begun(self._journal) if due not in set(file.ran[key].due)
        }
        screen.event(
            killed_at,
            f"the file has {file.counted} ticks counted; {len(self._cut)} had begun and not committed",
            "red",
        )
        if not self._cut:
            screen.say(
                "the kill hit no tick in the middle this time; what follows holds all the same", "yellow"
            )

    async def _go_on(self, killed_at: datetime) -> None:
        screen = self._screen
        screen.chapter("4. A new silo on the same file")
        screen.say(f"for {_hours(ABSENCE)} nobody is there; what falls due meanwhile is owed, one by one")
        async with self._silo(killed_at + ABSENCE) as silo, Client(silo.url) as client:
            screen.say(f"process {silo.pid} takes over at {self._now():%a %H:%M}")
            await self._watch(client, until=HORIZON)
            await _until(self._nothing_owed, LOOK_EVERY_S)
            code = await silo.stop()
            if code != 0:
                raise Failed(f"the silo ended with exit code {code}: {self._errors.read_text()[-2000:]}")
        screen.say("SIGTERM: running turns finished, exit code 0")

    async def _nothing_owed(self) -> bool:
        return (await self._read()).owed(to_us(HORIZON)) == 0

    async def _prove(self) -> bool:
        screen = self._screen
        screen.chapter("5. The proof, by counts read from the file")
        file = await self._read()
        found = proof.verdict(self._installed, file, HORIZON)
        again = sum(1 for count in proof.begun(self._journal).values() if count > 1)
        bob, carol = file.accounts["bob"], file.accounts["carol"]
        billing = (
            proof.renewal_faults(bob, file.renewals.get("bob"))
            + (len(carol.charged) != self._charged_before_cancel)
            + ("carol" in file.renewals)
            + (file.accounts["alice"].status != "expired")
        )
        screen.table(
            ("  ", ""),
            (
                (f"  {found.due}", "ticks had to be, by arithmetic on the schedules"),
                (f"  {found.counted}", "ticks are counted in the grains' states"),
                (f"  {found.lost}", "lost"),
                (f"  {found.twice}", "counted twice"),
                (f"  {found.uncalled_for}", "uncalled for"),
                (f"  {found.passed_over}", "passed over and counted as such: the bound on catching up"),
                (f"  {found.stuck}", "reminders that do not go on"),
                (f"  {again}", f"ticks began twice: the kill had cut {len(self._cut)}; each is counted once"),
                (f"  {found.recorded - found.off_record} of {found.recorded}",
                 "instants that two other cron libraries had on record were counted"),
                (f"  {billing}", f"billing faults (bob charged {len(bob.charged)} times, carol never again)"),
            ),
        )  # fmt: skip
        for fault in found.faults:
            screen.say(fault, "red")
        holds = found.holds and not billing
        screen.say(
            "PROVEN: 0 lost, 0 twice" if holds else "THE PROOF FAILED", "bold green" if holds else "bold red"
        )
        return holds

    # ---- small things

    @asynccontextmanager
    async def _silo(self, at: datetime) -> AsyncIterator[SiloProcess]:
        silo = await SiloProcess.start(
            MODULE,
            self._store,
            f"{at.isoformat()}:{SPEED}",
            errors=self._errors,
            environment={JOURNAL_VARIABLE: str(self._journal)},
        )
        self._clock = ScaledClock(silo.clock_at, SPEED)
        try:
            yield silo
        finally:
            await silo.close()

    def _now(self) -> datetime:
        return from_us(self._clock.now())

    async def _read(self) -> proof.OnFile:
        keys = [line.key for line in self._lines]
        return await proof.read_file(self._store, self._clock.now(), keys, ACCOUNTS)


async def _until(fact: Callable[[], Awaitable[bool]], every_s: float) -> None:
    """Wait until a fact on the disk holds; ``TimeoutError`` when it takes too long."""
    async with asyncio.timeout(CATCH_UP_WITHIN_S):
        while not await fact():  # noqa: ASYNC110 - it is written by another process
            await asyncio.sleep(every_s)


def _hours(duration: timedelta) -> str:
    hours = duration.total_seconds() / 3600
    return "an hour" if hours == 1 else f"{hours:g} hours"
