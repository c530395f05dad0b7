"""Would the tests notice? Small changes are made to a file one by one, and its tests run on each.

`make mutants FILE=src/recd_plugins/planning/prices/cost.py` turns each operator, condition and
number of the file once (cosmic-ray makes the changes), runs the tests that import the file, and
lists the changes that none of them noticed. Each of those is a missing test, or changes nothing.

The tests are collected once, then a process is forked for each change: it puts the changed code
in the place of the functions' own, and runs the tests until one fails. To start torch for each
change would take a hundred times as long. What numba compiles is left as it is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import enum
import inspect
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ROOTS = ("src", "plugins", ".")

TURNED = {
    "ReplaceComparisonOperator": "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is",
    "ReplaceBinaryOperator": "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Mul Pow_Mul "
    "BitAnd_BitOr BitOr_BitAnd LShift_RShift RShift_LShift",
    "ReplaceUnaryOperator": "USub_UAdd Delete_Not Delete_Invert",
}
"""An operator becomes the one that is nearest to it."""
OPERATORS = (
    *(f"{kind}_{turn}" for kind, turns in TURNED.items() for turn in turns.split()),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
    *("NumberReplacer", "AddNot", "ExceptionReplacer"),
)
SIMPLE = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True)
class Mutant:
    """A source with one small change."""

    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.line}: {self.before}\n    {' ' * len(str(self.line))}{self.after}"


def mutants_of(source: str) -> list[Mutant]:
    """Each change of each place, in the order of lines."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    known, found = OperatorProvider(), {}
    nodes = list(ast_nodes(get_ast(source)))
    for name in OPERATORS:
        operator = _made(known, name)
        if operator is None:
            continue
        for place in range(sum(len(list(operator.mutation_positions(node))) for node in nodes)):
            changed = mutate_code(source, operator, place)
            if changed and changed not in found and _compiles(changed):
                mutant = _mutant(source, changed)
                # How a class is made is not what it does, and `strict` guards what cannot happen.
                guard = mutant.before.replace("strict=True", "strict=False") == mutant.after
                if not (guard or mutant.before.startswith("@")):
                    found[changed] = mutant
    return sorted(found.values(), key=lambda one: (one.line, one.after))


def _made(known: Any, name: str) -> Any:
    try:
        return known[name]()
    except KeyError:
        return None


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _mutant(source: str, changed: str) -> Mutant:
    before, after = source.splitlines(), changed.splitlines()
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    _, a, b, c, d = next(code for code in matcher.get_opcodes() if code[0] != "equal")
    join = lambda lines: " ".join(line.strip() for line in lines)  # noqa: E731
    return Mutant(a + 1, join(before[a:b]), join(after[c:d]), changed)


class Patch:
    """Puts the code of a changed source in the place of a module's own, in this process."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.changed = False

    def apply(self, source: str) -> bool:
        """Whether anything that runs is another; docstrings and hints of types do not run."""
        fresh = ModuleType(self._module.__name__)
        fresh.__file__ = self._module.__file__
        exec(compile(source, str(fresh.__file__), "exec"), vars(fresh))
        for name, new in list(vars(fresh).items()):
            if name in vars(self._module) and not name.startswith("__"):
                self._name(name, vars(self._module)[name], new)
        return self.changed

    def _name(self, name: str, old: Any, new: Any) -> None:
        if isinstance(new, type) and new.__module__ == self._module.__name__:
            if not isinstance(new, enum.EnumMeta):
                self._class(old, new)
        elif not self._function(old, new) and _plain(new) and _plain(old) and old != new:
            self.changed = True
            for module in list(sys.modules.values()):  # also where it was imported by name
                if getattr(module, "__dict__", {}).get(name) is old:
                    setattr(module, name, new)

    def _class(self, old: Any, new: Any) -> None:
        for name, value in list(vars(new).items()):
            own = vars(old).get(name)
            if isinstance(value, type) and value.__qualname__.startswith(f"{new.__qualname__}."):
                self._class(own, value)
            elif self._function(own, value) or name.startswith("__") or not _plain(value):
                continue
            elif _plain(own) and own != value:
                self.changed = True
                setattr(old, name, value)

    def _function(self, old: Any, new: Any) -> bool:
        """Whether it is a function; then old has new's code."""
        olds, news = list(_functions(old)), list(_functions(new))
        for before, after in zip(olds, news, strict=False):
            if after.__module__ != self._module.__name__:
                continue
            if not _same(before.__code__, after.__code__):
                before.__code__ = after.__code__
                self.changed = True
            for part in ("__defaults__", "__kwdefaults__"):
                own = getattr(before, part)
                defaults = _with_plain(own, getattr(after, part))
                if defaults != own:
                    setattr(before, part, defaults)
                    self.changed = True
        if self.changed and hasattr(old, "cache_clear"):
            old.cache_clear()
        return bool(news)


def _functions(value: Any) -> Iterator[FunctionType]:
    """The functions in a property, a class method, a cache, ..."""
    for one in (value, *(getattr(value, part, None) for part in ("fget", "__func__", "func"))):
        if inspect.isfunction(inspect.unwrap(one) if callable(one) else one):
            yield inspect.unwrap(one)
            return


def _with_plain(own: Any, new: Any) -> Any:
    """A function's defaults, with those of another that are plain; a dataclass's factories stay."""
    if isinstance(own, dict) and isinstance(new, dict):
        return {name: new[name] if _plain(new.get(name)) else one for name, one in own.items()}
    if isinstance(own, tuple) and isinstance(new, tuple):
        pairs = zip(own, new, strict=False)
        return tuple(after if _plain(after) else before for before, after in pairs)
    return own


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_plain(each) for item in value.items() for each in item)
    if isinstance(value, tuple | list | frozenset | set):
        return all(map(_plain, value))
    return isinstance(value, SIMPLE)


def _same(one: CodeType, other: CodeType) -> bool:
    def parts(code: CodeType) -> tuple[Any, ...]:
        rest = [each for each in code.co_consts if not isinstance(each, CodeType)]
        return code.co_code, [(type(each), each) for each in rest], code.co_names, code.co_varnames

    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (one, other)]
    return (
        parts(one) == parts(other)
        and one.co_exceptiontable == other.co_exceptiontable
        and len(inner[0]) == len(inner[1])
        and all(map(_same, *inner))
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    line: int
    before: str
    after: str
    result: str
    """noticed, hung (which one notices), unnoticed, or same: nothing that runs is another."""


NOTHING_FAILED, FAILED, SAME = 0, 1, 3


class Mutation:
    """A pytest plugin: in the place of one run of the tests, one for each mutant."""

    def __init__(self, module: str, file: Path, *, jobs: int, most: int) -> None:
        self._module, self._file, self._jobs = module, file, jobs
        self._most = most
        self.outcomes: list[Outcome] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed or not session.items:
            raise SystemExit("the tests could not be collected")
        module = sys.modules[self._module]
        source = self._file.read_text()
        session.items.sort(key=lambda item: self._file.stem not in item.path.stem)
        started = time.monotonic()
        if self._wait(self._start(session, module, None), started + 600) != NOTHING_FAILED:
            raise SystemExit("the tests fail on the file as it is")
        deadline = 20 + 5 * (time.monotonic() - started)
        waiting = mutants_of(source)
        if self._most and len(waiting) > self._most:  # evenly over the file
            waiting = [waiting[i * len(waiting) // self._most] for i in range(self._most)]
        print(f"{len(waiting)} changes, {len(session.items)} tests", file=sys.stderr)
        running: dict[int, tuple[Mutant, Path, float]] = {}
        while waiting or running:
            while waiting and len(running) < self._jobs:
                mutant = waiting.pop(0)
                pid, folder = self._start(session, module, mutant)
                running[pid] = mutant, folder, time.monotonic() + deadline
            for pid, (mutant, folder, until) in list(running.items()):
                code = self._wait((pid, folder), until, block=False)
                if code is None:
                    continue
                del running[pid]
                name = {NOTHING_FAILED: "unnoticed", SAME: "same", -9: "hung"}.get(code, "noticed")
                self.outcomes.append(Outcome(mutant.line, mutant.before, mutant.after, name))
                if name == "unnoticed":
                    print(f"{self._file.name}:{mutant}", file=sys.stderr, flush=True)
            time.sleep(0.01)
        return True

    def _start(
        self, session: pytest.Session, module: ModuleType, mutant: Mutant | None
    ) -> tuple[int, Path]:
        """A process that runs the tests on a mutant; files of the tests lie in the folder."""
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        if pid := os.fork():
            return pid, folder
        code = FAILED
        try:
            os.setpgid(0, 0)
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            if mutant and not Patch(module).apply(mutant.source):
                code = SAME
            else:
                items = session.items
                for item, following in zip(items, [*items[1:], None], strict=True):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    if session.testsfailed:
                        break
                else:
                    code = NOTHING_FAILED
        finally:
            os._exit(code)

    def _wait(self, started: tuple[int, Path], until: float, *, block: bool = True) -> int | None:
        """The exit status of a process, -9 if it did not end in time; None while it runs."""
        pid, folder = started
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and time.monotonic() > until:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                ended = pid
            if ended:
                shutil.rmtree(folder, ignore_errors=True)
                return os.waitstatus_to_exitcode(status)
            if not block:
                return None
            time.sleep(0.01)


def module_of(file: Path) -> str:
    for root in ROOTS:
        with contextlib.suppress(ValueError):
            parts = file.resolve().relative_to(ROOT / root).with_suffix("").parts
            return ".".join(parts)
    raise SystemExit(f"{file} is no module of src/ or plugins/")


def tests_of(module: str) -> list[str]:
    """The test files that import a module by its name."""
    pattern = re.compile(rf"\b{re.escape(module)}\b")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if pattern.search(file.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description="Which small changes of a file do tests notice?")
    parser.add_argument("file", type=Path, help="a module of src/ or plugins/")
    parser.add_argument("--tests", nargs="*", help="test files; those that import the module")
    parser.add_argument("--most", type=int, default=0, help="of more changes, so many, evenly")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--json", action="store_true", help="print one object")
    asked = parser.parse_args()
    module = module_of(asked.file)
    tests = asked.tests or tests_of(module)
    if not tests:
        raise SystemExit(f"no test imports {module}; name some by --tests")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a pool of threads does not survive a fork
    plugin = Mutation(module, asked.file, jobs=asked.jobs, most=asked.most)
    quiet = [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:terminal",
        "-o",
        "addopts=",
        "--hypothesis-profile=mutants",
    ]
    pytest.main([*tests, *quiet, "-m", "not ranks and not slow"], plugins=[plugin])
    tried = [one for one in plugin.outcomes if one.result != "same"]
    if not tried:
        return 1
    noticed = sum(one.result != "unnoticed" for one in tried)
    if asked.json:
        print(json.dumps({"file": str(asked.file), "outcomes": [asdict(one) for one in tried]}))
    else:
        print(
            f"{asked.file}: {noticed} of {len(tried)} changes noticed, {noticed / len(tried):.0%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
