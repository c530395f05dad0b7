"""Two commits' figures, side by side: what got slower beyond noise.

    python -m benchmarks.compare COMMIT COMMIT [--quick]

Of runs that `python -m benchmarks` kept on the same kind of machine. Ends with code 1 if anything
got worse by more than its noise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.kept import KeptFigure, KeptResult, kept_results, noise

__all__ = ["Change", "changes"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A figure of two commits."""

    suite: str
    before: KeptFigure
    after: KeptFigure

    @property
    def ratio(self) -> float:
        return self.after.value / self.before.value if self.before.value else 1.0

    @property
    def worse(self) -> bool:
        """Whether it got worse by more than its noise."""
        allowed = 1 + noise(self.before, self.after)
        worse = self.ratio if self.before.less_is_better else 1 / max(self.ratio, 1e-9)
        return worse > allowed


def changes(
    results: Sequence[KeptResult], before: str, after: str, quick: bool
) -> Iterator[Change]:
    """The figures that both commits have, of machines with the same processor and cores."""
    found: dict[tuple[str, str, str], KeptFigure] = {}
    for result in results:
        if result.quick != quick:
            continue
        for values in result.figures:
            key = (result.suite, values["name"], result.processor)
            one = KeptFigure(values=values, of=result)
            if result.commit == after and key in found:
                yield Change(suite=result.suite, before=found[key], after=one)
            elif result.commit == before:
                found[key] = one


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--quick", action="store_true", help="of quick runs")
    options = parser.parse_args()
    results = kept_results()
    found = list(changes(results, options.before, options.after, options.quick))
    if not found:
        have = ", ".join(dict.fromkeys(one.commit for one in results)) or "none"
        raise SystemExit(
            f"error: {options.before} and {options.after} have no figure of one kind of machine "
            f"in common. Results are kept of {have}; `python -m benchmarks` adds this commit's."
        )
    table = Table("suite", "figure", options.before, options.after, "ratio", "noise", "")
    for one in found:
        table.add_row(
            one.suite,
            one.before.name,
            one.before.shown,
            one.after.shown,
            f"{one.ratio:.2f}",
            f"{noise(one.before, one.after):.0%}",
            "worse" if one.worse else "",
        )
    Console().print(table)
    sys.exit(any(one.worse for one in found))


if __name__ == "__main__":
    main()
