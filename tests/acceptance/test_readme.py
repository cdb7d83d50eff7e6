"""The code in README and quickstart runs, and prints what stands there."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from farro.silo.cli.demo.command import NEXT
from tests.acceptance.processes import HOME, SiloProcess, farro_here, silos

STATED = "http://127.0.0.1:11111"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")


@dataclass
class Step:
    """A command and the lines that it is said to print; ``…`` stands for anything."""

    command: str
    output: list[str] = field(default_factory=list)


def blocks(document: str) -> list[tuple[str, str]]:
    """``(language, text)`` of every fenced block, in order."""
    return FENCE.findall((HOME / document).read_text(encoding="utf-8"))


def steps(text: str) -> Iterator[Step]:
    step: Step | None = None
    for line in text.splitlines():
        if line.startswith("$ "):
            if step is not None:
                yield step
            step = Step(line[2:])
        else:
            assert step is not None, f"a console block begins with a command, not with {line!r}"
            step.output.append(line)
    assert step is not None
    yield step


class Reader:
    """Somebody who types a document's commands into a shell, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._url = STATED
        self._silo: SiloProcess | None = None
        self._silos = silos(folder)
        self._serve = self._silos.__enter__()

    def close(self) -> None:
        self._silos.__exit__(None, None, None)

    def write(self, text: str) -> None:
        name = FILE.match(text)
        assert name is not None, f"a Python block begins with its file's name: {text[:60]!r}"
        (self._folder / name[1]).write_text(text, encoding="utf-8")

    def do(self, step: Step) -> None:
        if step.command.startswith("farro silo "):
            self._silo = self._serve(*step.command.split()[2:])
            said, self._url = self._silo.lines, self._silo.url
        else:
            said = self._run(step.command)
        self._compare(step, [line.replace(self._url, STATED) for line in said])

    def _run(self, command: str) -> list[str]:
        if command.startswith("farro "):
            with contextlib.chdir(self._folder):
                here = farro_here(*shlex.split(command)[1:], environment={"FARRO_SILO": self._url})
            return (here.stdout + here.stderr).splitlines()
        for path in self._folder.glob("*.py"):
            path.write_text(path.read_text(encoding="utf-8").replace(STATED, self._url), encoding="utf-8")
        done = subprocess.run(
            ["bash", "-c", re.sub(r"^python ", lambda _: f"'{sys.executable}' ", command)],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        if command.startswith("kill "):
            assert self._silo is not None
            self._silo.wait_end()
        return done.stdout.splitlines()

    def _compare(self, step: Step, said: list[str]) -> None:
        assert len(said) == len(step.output), f"$ {step.command}\n" + "\n".join(said)
        for stated, line in zip(step.output, said, strict=True):
            pattern = ".+".join(re.escape(part) for part in " ".join(stated.split()).split("…"))
            exact = re.fullmatch(pattern, " ".join(line.split()))
            assert exact or " ".join(stated.split()) == " ".join(line.split()), (
                f"$ {step.command}\nprinted {line!r}\nnot     {stated!r}"
            )


@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md"])
def test_every_code_block_runs_and_prints_what_it_says(document: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    ran = 0
    try:
        for language, text in blocks(document):
            if language == "python":
                reader.write(text)
            elif language == "console":
                for step in steps(text):
                    reader.do(step)
                    ran += 1
            else:
                assert language == "sh", f"a block of {document} says {language!r}; use python, console or sh"
    finally:
        reader.close()
    assert ran >= 8


@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md", "examples/README.md"])
def test_every_link_to_a_file_leads_somewhere(document: str) -> None:
    path = HOME / document
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_what_the_demo_says_to_write_next_is_what_the_quickstart_writes() -> None:
    code, _, commands = NEXT.partition("\n\n$ ")
    quickstart = (HOME / "docs/quickstart.md").read_text(encoding="utf-8")
    assert code.replace("\n\n", "\n") in re.sub(r"\n+", "\n", quickstart)
    assert all(command.partition(" --")[0] in quickstart for command in commands.split("\n$ "))
