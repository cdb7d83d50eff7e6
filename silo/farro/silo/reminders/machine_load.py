"""How many CPUs and how much of its memory this process may use: the container's limits before the host's.

Reads cgroup v2 and v1 files; whatever cannot be read counts as absent, and the host's figures are used.
Nothing here ever raises: a silo is not stopped by a file in ``/sys``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

UNLIMITED_V1 = 1 << 60  # cgroup v1 writes "no limit" as a number near 2^63


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """``cpus`` may be a fraction; ``memory_load`` is the used fraction, 0–1."""

    cpus: float
    memory_load: float


def read_machine_load(root: Path = Path("/")) -> MachineLoad:
    """The load as of now.  ``root`` is where ``sys`` and ``proc`` are looked for."""
    quotas = [quota for folder in _v2_folders(root) if (quota := _v2_cpus(folder)) is not None]
    quotas += [quota for folder in _v1_folders(root, "cpu") if (quota := _v1_cpus(folder)) is not None]
    loads = [load for folder in _v2_folders(root) if (load := _v2_memory(folder)) is not None]
    loads += [load for folder in _v1_folders(root, "memory") if (load := _v1_memory(folder)) is not None]
    return MachineLoad(
        cpus=min([*quotas, host_cpus()]),
        memory_load=min(1.0, max(loads) if loads else host_memory_load()),
    )


def host_cpus() -> float:
    """The CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return float(len(os.sched_getaffinity(0)) or 1)
    return float(psutil.cpu_count() or 1)


def host_memory_load() -> float:
    try:
        return float(psutil.virtual_memory().percent) / 100
    except (OSError, RuntimeError, ValueError):
        return 0.0


# ---- cgroup v2: one tree; a limit may be set on any folder from ours up to the root


def _v2_folders(root: Path) -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    own = _own_path(root, "0::")
    yield from _upwards(mount, own)


def _v2_cpus(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return _ratio(words[0], words[1])


def _v2_memory(folder: Path) -> float | None:
    limit = _text(folder / "memory.max")
    if limit == "max":
        return None
    return _ratio(_text(folder / "memory.current"), limit)


# ---- cgroup v1: a tree per controller


def _v1_folders(root: Path, controller: str) -> Iterator[Path]:
    for name in (controller, "cpu,cpuacct") if controller == "cpu" else (controller,):
        mount = root / "sys/fs/cgroup" / name
        if mount.is_dir():
            yield from _upwards(mount, _own_path(root, f":{name}:"))
            return


def _v1_cpus(folder: Path) -> float | None:
    quota = _text(folder / "cpu.cfs_quota_us")
    if quota.startswith("-"):
        return None
    return _ratio(quota, _text(folder / "cpu.cfs_period_us"))


def _v1_memory(folder: Path) -> float | None:
    limit = _text(folder / "memory.limit_in_bytes")
    bytes_max = _ratio(limit, "1")
    if bytes_max is None or bytes_max >= UNLIMITED_V1:
        return None
    return _ratio(_text(folder / "memory.usage_in_bytes"), limit)


# ---- files


def _own_path(root: Path, marker: str) -> str:
    """This process's folder in a tree, from ``/proc/self/cgroup``; the root folder when unknown."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        before, found, path = line.partition(marker)
        if found and (before.isdigit() or not before) and ".." not in path:
            return path.strip("/")
    return ""


def _upwards(mount: Path, own: str) -> Iterator[Path]:
    folder = mount / own
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):  # ValueError: a path with a NUL in it
        return ""


def _ratio(part: str, whole: str) -> float | None:
    try:
        ratio = int(part) / int(whole)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return ratio if ratio > 0 else None
