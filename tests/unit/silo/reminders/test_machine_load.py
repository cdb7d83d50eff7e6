"""CPUs and memory as the container grants them; and the bucket that comes of it (REM-047 to 051, CLU-013)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farro.silo.options import ReminderOptions
from farro.silo.reminders import machine_load
from farro.silo.reminders.machine_load import MachineLoad, read_machine_load

HOST = MachineLoad(cpus=64.0, memory_load=0.25)
V2 = "sys/fs/cgroup"
V1_CPU, V1_MEMORY = "sys/fs/cgroup/cpu", "sys/fs/cgroup/memory"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def big_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "host_cpus", lambda: HOST.cpus)
    monkeypatch.setattr(machine_load, "host_memory_load", lambda: HOST.memory_load)


def files(root: Path, **contents: str | bytes) -> None:
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def put(root: Path, folder: str, **contents: str | bytes) -> None:
    files(root, **{f"{folder}/{name.replace('__', '.')}": content for name, content in contents.items()})


def bucket(load: MachineLoad, active_grains: int = 1) -> int:
    return ReminderOptions().bucket_size(
        cpus=load.cpus, memory_load=load.memory_load, active_grains=active_grains
    )


def test_CLU_013_a_container_of_one_and_a_half_cpus_at_half_of_its_memory(tmp_path: Path) -> None:
    put(tmp_path, V2, cpu__max="150000 100000\n", memory__max="536870912\n", memory__current="268435456\n")
    load = read_machine_load(tmp_path)
    assert load == MachineLoad(cpus=1.5, memory_load=0.5)
    assert bucket(load) == 512


def test_cgroup_v1_files_are_read_too(tmp_path: Path) -> None:
    put(tmp_path, V1_CPU, cpu__cfs_quota_us="250000\n", cpu__cfs_period_us="100000\n")
    put(
        tmp_path,
        V1_MEMORY,
        memory__limit_in_bytes=str(100 * MIB),
        memory__usage_in_bytes=str(75 * MIB),
    )
    assert read_machine_load(tmp_path) == MachineLoad(cpus=2.5, memory_load=0.75)


def test_cgroup_v1_with_cpu_and_cpuacct_mounted_together(tmp_path: Path) -> None:
    together = "sys/fs/cgroup/cpu,cpuacct"
    put(tmp_path, together, cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    put(tmp_path, "proc/self", cgroup="4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n")
    put(tmp_path, f"{together}/docker/abc", cpu__cfs_quota_us="30000", cpu__cfs_period_us="100000")
    assert read_machine_load(tmp_path).cpus == 0.3


def test_max_means_the_hosts_figures(tmp_path: Path) -> None:
    put(tmp_path, V2, cpu__max="max 100000", memory__max="max", memory__current=str(MIB))
    assert read_machine_load(tmp_path) == HOST


def test_the_v1_word_for_no_limit_means_the_hosts_figures(tmp_path: Path) -> None:
    put(tmp_path, V1_CPU, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    put(
        tmp_path,
        V1_MEMORY,
        memory__limit_in_bytes="9223372036854771712",
        memory__usage_in_bytes=str(MIB),
    )
    assert read_machine_load(tmp_path) == HOST


def test_one_limit_without_the_other(tmp_path: Path) -> None:
    put(tmp_path, V2, cpu__max="200000 100000", memory__max="max", memory__current="1")
    assert read_machine_load(tmp_path) == MachineLoad(cpus=2.0, memory_load=HOST.memory_load)


def test_the_tightest_limit_of_nested_groups_counts(tmp_path: Path) -> None:
    put(tmp_path, "proc/self", cgroup="0::/pod/silo\n")
    put(tmp_path, V2, cpu__max="800000 100000", memory__max=str(1000 * MIB), memory__current=str(100 * MIB))
    put(
        tmp_path,
        f"{V2}/pod",
        cpu__max="300000 100000",
        memory__max=str(200 * MIB),
        memory__current=str(180 * MIB),
    )
    put(tmp_path, f"{V2}/pod/silo", cpu__max="max 100000", memory__max="max", memory__current=str(50 * MIB))
    assert read_machine_load(tmp_path) == MachineLoad(cpus=3.0, memory_load=0.9)


def test_a_quota_above_the_host_counts_as_the_host(tmp_path: Path) -> None:
    put(tmp_path, V2, cpu__max="12800000 100000")
    assert read_machine_load(tmp_path).cpus == HOST.cpus


def test_use_beyond_the_limit_counts_as_all_of_it(tmp_path: Path) -> None:
    put(tmp_path, V2, memory__max=str(MIB), memory__current=str(2 * MIB))
    assert read_machine_load(tmp_path).memory_load == 1.0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"garbage",
        b"1.5",
        b"\xff\xfe\x00",
        b"0 0",
        b"-5 100000",
        b"100000 -1",
        b"1 2 3",
        b"9" * 5000 + b" 1",
        b"9" * 5000,
        "²".encode(),
        b"nan inf",
        b"MAX 100000",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_a_file_of_garbage_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, V2, cpu__max=content, memory__max=content, memory__current=content)
    put(tmp_path, V1_CPU, cpu__cfs_quota_us=content, cpu__cfs_period_us=content)
    put(tmp_path, V1_MEMORY, memory__limit_in_bytes=content, memory__usage_in_bytes=content)
    put(tmp_path, "proc/self", cgroup=content)
    assert read_machine_load(tmp_path) == HOST


def test_a_number_beyond_every_machine_counts_as_absent(tmp_path: Path) -> None:
    put(tmp_path, V2, cpu__max="9" * 400 + " 1")
    put(tmp_path, V1_MEMORY, memory__limit_in_bytes="9" * 400, memory__usage_in_bytes="1")
    assert read_machine_load(tmp_path) == HOST


def test_what_cannot_be_opened_counts_as_absent(tmp_path: Path) -> None:
    """A folder in the place of a file cannot be read by anybody, root included."""
    for name in ("cpu.max", "memory.max", "memory.current"):
        (tmp_path / V2 / name).mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").mkdir(parents=True)
    assert read_machine_load(tmp_path) == HOST
    assert read_machine_load(tmp_path / "not there") == HOST


@pytest.mark.parametrize("path", ["/../../etc", "/a/../../b", "/nul\0l", "/" + "x" * 5000])
def test_a_strange_group_path_leads_nowhere_else(tmp_path: Path, path: str) -> None:
    put(tmp_path, "proc/self", cgroup=f"0::{path}\n")
    put(tmp_path, V2, cpu__max="100000 100000")
    put(tmp_path, "etc", cpu__max="1 100000")
    assert read_machine_load(tmp_path).cpus == 1.0


@given(content=st.binary(max_size=40))
def test_no_content_whatsoever_stops_a_silo(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("cgroup")
    put(root, V2, cpu__max=content, memory__max=content, memory__current=content)
    load = read_machine_load(root)
    assert 0 < load.cpus <= HOST.cpus
    assert 0 <= load.memory_load <= 1
    assert bucket(load) >= 1


# ---- the formula

CPUS = st.floats(0.01, 4096)
LOADS = st.floats(-1, 3)
GRAINS = st.integers(0, 10**12)
BASES = st.integers(1, 10**6)


@given(CPUS, LOADS, GRAINS, BASES)
def test_a_bucket_holds_at_least_one_entry(cpus: float, load: float, grains: int, base: int) -> None:
    size = ReminderOptions(base_bucket_size=base).bucket_size(
        cpus=cpus, memory_load=load, active_grains=grains
    )
    assert size >= 1
    assert isinstance(size, int)


@given(CPUS, CPUS, LOADS, LOADS, GRAINS, GRAINS)
def test_more_cpus_never_shrink_the_bucket_more_load_or_grains_never_grow_it(
    cpus: float, more_cpus: float, load: float, more_load: float, grains: int, more_grains: int
) -> None:
    cpus, more_cpus = sorted((cpus, more_cpus))
    load, more_load = sorted((load, more_load))
    grains, more_grains = sorted((grains, more_grains))
    size = ReminderOptions().bucket_size
    here = size(cpus=cpus, memory_load=load, active_grains=grains)
    assert here <= size(cpus=more_cpus, memory_load=load, active_grains=grains)
    assert here >= size(cpus=cpus, memory_load=more_load, active_grains=grains)
    assert here >= size(cpus=cpus, memory_load=load, active_grains=more_grains)


@pytest.mark.parametrize(
    ("cpus", "load", "grains", "expected"),
    [
        (4, 0.0, 50_000, 1024),
        (4, 0.0, 50_001, 1023),
        (4, 0.75, 1, 256),
        (4, 0.76, 1, 256),
        (4, 0.55, 1, 460),
        (0.5, 0.0, 1, 1024),
        (4.5, 0.0, 1, 1152),
        (16, 0.60, 100_000, 819),
    ],
)
def test_the_edges_of_the_three_factors(cpus: float, load: float, grains: int, expected: int) -> None:
    assert ReminderOptions().bucket_size(cpus=cpus, memory_load=load, active_grains=grains) == expected
