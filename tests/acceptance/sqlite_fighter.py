"""A process that fights over partitions of an SQLite file: takes them, commits under its epochs, and tells.

    python -m tests.acceptance.sqlite_fighter FILE SECONDS

It prints ``ready`` once the file is open, begins when a line arrives on its input, and ends with one line of
JSON: what it has been told of its commits, in the order of the answers.
"""

import asyncio
import json
import random
import sys
import time

from farro.providers.conformance.made import NOW, writing
from farro.providers.rows import Commit, EventRow, Outcome
from farro.providers.sqlite.store import SqliteProvider

PARTITIONS = (1, 2, 3)
BATCH = 4


def member(partition: int, epoch: int, version: int, number: int) -> Commit:
    """One counter grain for each partition: its state and an event name the silo and the epoch."""
    note = f"{number}:{epoch}".encode()
    return Commit(
        partition,
        epoch,
        "counter",
        str(partition),
        grain=writing(version, note),
        events=(EventRow("log", note, NOW),),
    )


async def fight(path: str, seconds: float) -> dict[str, object]:
    store = SqliteProvider(path, busy_timeout_s=30)
    await store.open(NOW)
    heart = store.members()
    number = (await heart.join("fighter", NOW)).number
    print("ready", flush=True)
    sys.stdin.readline()
    chance = random.Random(number)
    epochs: dict[int, int] = {}
    committed: list[tuple[int, int, int]] = []  # partition, epoch, version
    fenced, conflicts, waits = 0, 0, [0.0]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        partition = chance.choice(PARTITIONS)
        if partition not in epochs:
            (taken,) = await heart.take(number, [partition], NOW)
            epochs[partition] = taken.epoch
        (row,) = await store.load([("counter", str(partition))])
        version = row.version if row else 0
        batch = [member(partition, epochs[partition], version + step, number) for step in range(BATCH)]
        begun = time.monotonic()
        verdicts = await store.commit(batch, number, NOW)
        waits.append(time.monotonic() - begun)
        for verdict in verdicts:
            if verdict.outcome is Outcome.COMMITTED:
                committed.append((partition, epochs[partition], verdict.version))
            elif verdict.outcome is Outcome.FENCED:
                fenced += 1
            else:
                conflicts += 1
        if verdicts[0].outcome is Outcome.FENCED:
            del epochs[partition]
        await heart.renew(number, NOW)
    await heart.close()
    await store.close()
    return {
        "number": number,
        "committed": committed,
        "fenced": fenced,
        "conflicts": conflicts,
        "longest_s": max(waits),
        "batches": len(waits) - 1,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(fight(sys.argv[1], float(sys.argv[2])))), flush=True)
