"""The house rules as functions: source text in, findings out (``line: what is wrong``).  No file is imported.

``test_rules.py`` plants a violation of each rule; ``test_house.py`` runs them on the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

TIME_READERS = frozenset(
    f"time.{name}{suffix}"
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for suffix in ("", "_ns")
) | {"datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"}

TASK_STARTERS = frozenset({"create_task", "ensure_future", "TaskGroup", "run_coroutine_threadsafe"})

CHANCE_BY_THE_DOOR = frozenset({"random.Random", "random.SystemRandom"})
DICE = frozenset({"uuid.uuid1", "uuid.uuid4", "os.urandom"})

FRONT_DOORS = frozenset({"farro.client", "farro.providers", "farro.silo", "farro.silo.testing"})


def clock_readers(source: str) -> list[str]:
    """Uses of the process clock.  ``loop.time()`` is loop time and allowed."""
    return [f"{line}: reads the clock: {name}" for line, name in _uses(source) if name in TIME_READERS]


def task_starters(source: str) -> list[str]:
    """Calls that start a task: on asyncio, a loop, or anything else that has such a verb."""
    return [
        f"{node.lineno}: starts a task: {name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and (name := _last_name(node.func)) in TASK_STARTERS
    ]


def dice_throwers(source: str) -> list[str]:
    """Chance that did not come in by the door as a ``random.Random``."""
    return [
        f"{line}: throws its own dice: {name}"
        for line, name in _uses(source)
        if name in DICE or (name.startswith("random.") and name not in CHANCE_BY_THE_DOOR)
    ]


def printers(source: str) -> list[str]:
    """Calls of the built-in ``print``."""
    return [
        f"{node.lineno}: prints; log or return it"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def swallowers(source: str) -> list[str]:
    """Bare ``except:``, and broad handlers or ``suppress`` that drop whatever was raised."""
    found: list[str] = []
    aliases = _imported_names(ast.parse(source))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                found.append(f"{node.lineno}: bare except")
            elif _is_broad(node.type) and all(_does_nothing(step) for step in node.body):
                found.append(f"{node.lineno}: swallows every exception")
        elif (
            isinstance(node, ast.Call)
            and _dotted(node.func, aliases) == "contextlib.suppress"
            and any(_is_broad(argument) for argument in node.args)
        ):
            found.append(f"{node.lineno}: suppresses every exception")
    return found


def sign_faults(source: str) -> list[str]:
    """What an ``__init__.py`` that is no front door has besides a docstring, or the docstring it lacks."""
    tree = ast.parse(source)
    found = [] if ast.get_docstring(tree) else ["1: says nothing about the room: no docstring"]
    start = 1 if found == [] else 0
    return found + [f"{step.lineno}: is code; a sign has only a docstring" for step in tree.body[start:]]


def missing_docstring(source: str) -> list[str]:
    """A module without a docstring."""
    return [] if ast.get_docstring(ast.parse(source)) else ["1: the module has no docstring"]


def front_door_faults(source: str) -> list[str]:
    """A front door without a docstring, without ``__all__``, or whose ``__all__`` names what it lacks."""
    tree = ast.parse(source)
    found = missing_docstring(source)
    exported = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    ]
    if not exported:
        return [*found, "1: a front door has an __all__"]
    names: list[str] = ast.literal_eval(exported[-1])
    bound = set(_imported_names(tree)) | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    bound |= {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return found + [f"1: __all__ names {name!r}, which is not here" for name in names if name not in bound]


def front_door_users(source: str, rooms: frozenset[str]) -> list[str]:
    """Imports of a front door from inside the package.  ``rooms`` are all modules and packages there are."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [
                f"{node.lineno}: imports the front door {alias.name}; import the file"
                for alias in node.names
                if alias.name in FRONT_DOORS
            ]
        elif isinstance(node, ast.ImportFrom) and node.module in FRONT_DOORS:
            found += [
                f"{node.lineno}: imports {alias.name} by the front door {node.module}; import the file"
                for alias in node.names
                if f"{node.module}.{alias.name}" not in rooms
            ]
    return found


def relative_imports(source: str) -> list[str]:
    """Imports that begin with a dot."""
    return [
        f"{node.lineno}: relative import; write the whole name"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]


def query_faults(sql: str) -> list[str]:
    """Statements of a query file that have no ``-- name: …`` of their own or no comment that describes them.

    ``-- fragment: …`` opens a named piece of a statement in the same way.
    """
    found: list[str] = []
    names: set[str] = set()
    head, *blocks = re.split(r"^--[ \t]*(?:name|fragment):", sql, flags=re.MULTILINE)
    if _sql_code(head):
        found.append("1: a statement before the first '-- name:'")
    line = 1 + head.count("\n")
    for block in blocks:
        first, _, rest = block.partition("\n")
        name, _, words = first.strip().partition(" ")
        described = bool(words.strip()) or rest.lstrip().startswith("--")
        if not re.fullmatch(r"[a-z][a-z0-9_]*:?", name):
            found.append(f"{line}: {name!r} is no query name; use lower_case_words")
        if name in names:
            found.append(f"{line}: a second query named {name!r}")
        if not described:
            found.append(f"{line}: query {name!r} is not described; say in a comment what it answers")
        if not _sql_code(rest):
            found.append(f"{line}: query {name!r} has no statement")
        names.add(name)
        line += block.count("\n")
    return found


def machine_traces(text: str, forbidden: Sequence[str]) -> list[str]:
    """Places where a text names somebody's machine or package registry."""
    return [
        f"{number}: names {word!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for word in forbidden
        if re.search(rf"(?<![\w.-]){re.escape(word)}", line)
    ]


def unfinished(text: str) -> list[str]:
    """Marks of unfinished work."""
    marks = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
    return [f"{number}: unfinished" for number, line in enumerate(text.splitlines(), 1) if marks.search(line)]


def _sql_code(sql: str) -> str:
    return re.sub(r"--[^\n]*", "", sql).strip()


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_broad(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_is_broad(element) for element in node.elts)
    return _last_name(node) in ("Exception", "BaseException")


def _does_nothing(step: ast.stmt) -> bool:
    return isinstance(step, ast.Pass | ast.Continue) or (
        isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
    )


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name → full dotted name, of every import anywhere in the module."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """The full name that an expression means, or '' when it does not begin at an import."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return ""
    return ".".join([aliases[node.id], *reversed(parts)])


def _uses(source: str) -> Iterator[tuple[int, str]]:
    """``(line, full dotted name)`` of every use of an imported name, called or handed on."""
    tree = ast.parse(source)
    aliases = _imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := _dotted(node, aliases)):
            yield node.lineno, name
