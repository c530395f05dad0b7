"""What is wrong with a table or with foreign files, and how to cure it."""

from __future__ import annotations

from dataclasses import dataclass, field

from recd_plugins.errors import DataError

__all__ = ["CheckResult", "TableProblem"]


@dataclass(frozen=True, kw_only=True)
class TableProblem:
    """What is wrong, where, and what to do."""

    where: str
    column: str | None
    what: str
    cure: str

    def __str__(self) -> str:
        column = "" if self.column is None else f"column {self.column!r} "
        return f"{self.where}: {column}{self.what}. {self.cure}".strip()


@dataclass(kw_only=True)
class CheckResult:
    """How many rows were looked at, and what was found."""

    rows: int = 0
    problems: list[TableProblem] = field(default_factory=list)
    repeated: float = 0.0
    """The share of rows, by a sample, that are there before in all that was looked at."""

    def add(self, where: object, column: str | None, what: str, cure: str) -> None:
        self.problems.append(TableProblem(where=str(where), column=column, what=what, cure=cure))

    def add_error(self, error: DataError) -> None:
        """Add an error that a reader would have raised, unless it did so before: a line is read for
        a survey of the columns, and again among all rows."""
        where, _, what = str(error).partition(": ")
        problem = TableProblem(where=where, column=None, what=what.removesuffix("."), cure="")
        if problem not in self.problems:
            self.problems.append(problem)
