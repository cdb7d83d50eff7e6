"""What tests get: a loop (ordinary or virtual), servers, checks for leftovers, a hypothesis profile."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

import hypothesis
import pytest

# before any test borrows a row from the kit
pytest.register_assert_rewrite("farro.providers.conformance")

from tests.support import servers  # noqa: E402

if TYPE_CHECKING:
    from farro.silo.testing.virtual_time import VirtualClock

hypothesis.settings.register_profile("default", deadline=None)
# fixed examples: a red CI is a fact about the commit, not about the dice of the day
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

THREAD_END_MAX_S = 5.0
TASK_END_ROUNDS_MAX = 10


# ---------------------------------------------------------------- loops


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The marker or the fixture ``virtual`` puts a test and its async fixtures on virtual time."""
    if not item.get_closest_marker("virtual") and "virtual" not in getattr(item, "fixturenames", ()):
        return {"real": asyncio.new_event_loop}
    # imported here, so that tests of the lower rooms need no silo
    from farro.silo.testing.virtual_time import VirtualLoop

    return {"virtual": VirtualLoop}


@pytest.fixture
async def virtual() -> VirtualClock:
    """The clock of the virtual loop that this test runs on."""
    from farro.silo.testing.virtual_time import VirtualLoop

    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "the fixture 'virtual' needs the test's own, function-scoped loop"
    return loop.clock


# ---------------------------------------------------------------- leftovers


def pytest_itemcollected(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return
    if "no_task_left" not in item.fixturenames:  # the list is shared by the cases of a parametrized test
        item.fixturenames.insert(0, "no_task_left")  # set up first, so torn down after every other fixture


@pytest.fixture
async def no_task_left() -> AsyncGenerator[None]:
    """Every task of an async test has ended when its fixtures are gone; else the test fails, naming them."""
    yield
    for _ in range(TASK_END_ROUNDS_MAX):  # aiohttp ends a connection's task a round after its socket
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0)
    names = sorted(f"{task.get_name()}: {task.get_coro()}" for task in left)
    pytest.fail("tasks are left over: " + "; ".join(names), pytrace=False)


@pytest.fixture(autouse=True)
def no_thread_left() -> Generator[None]:
    """Every thread that a test starts ends with it."""
    before = set(threading.enumerate())
    yield
    started = [
        thread
        for thread in threading.enumerate()
        # a loop's own executor ("asyncio_0") is joined when the loop closes, after this
        if thread not in before and not thread.daemon and not thread.name.startswith("asyncio_")
    ]
    for thread in started:
        thread.join(THREAD_END_MAX_S)
    if alive := sorted(thread.name for thread in started if thread.is_alive()):
        pytest.fail(f"threads are left over: {', '.join(alive)}", pytrace=False)


@pytest.fixture(autouse=True)
def no_error_unseen() -> Generator[None]:
    """An exception that asyncio could only log (a task died and nobody looked) fails the test."""
    seen: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(self.format(record))

    listener = Listener(logging.ERROR)
    logger = logging.getLogger("asyncio")
    logger.addHandler(listener)
    yield
    logger.removeHandler(listener)
    if seen:
        pytest.fail("asyncio logged errors:\n" + "\n".join(seen), pytrace=False)


# ---------------------------------------------------------------- real servers


@contextmanager
def _required(server: AbstractContextManager[servers.Server]) -> Generator[servers.Server]:
    """A missing server skips the test and says why; with FARRO_REQUIRE_SERVICES it fails (CI)."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server)
        except servers.ServerMissing as missing:
            if os.environ.get("FARRO_REQUIRE_SERVICES"):
                pytest.fail(f"{missing} (FARRO_REQUIRE_SERVICES is set)", pytrace=False)
            pytest.skip(str(missing))
        yield running


@pytest.fixture(scope="session")
def postgres_server() -> Generator[servers.Server]:
    """A PostgreSQL of this test process on 127.0.0.1: user ``farro``, no password, database ``postgres``."""
    with _required(servers.postgres()) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Generator[servers.Server]:
    """A Valkey (speaks Redis) of this test process on 127.0.0.1."""
    with _required(servers.valkey()) as server:
        yield server
