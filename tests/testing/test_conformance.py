"""Ladder: pure values, a sharding on two gloo ranks. Any record's form, and all that we provide."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from contract_records import Rate, broken, record

from recd_plugins.config import Config
from recd_plugins.data.progress import Progress
from recd_plugins.data.stats_report import StatsReport
from recd_plugins.data.table import Table
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.hooks.catalog import Catalog
from recd_plugins.slots import SLOTS, Context, Record, StatsRecord
from recd_plugins.testing import contracts
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.conformance import check_record
from recd_plugins.testing.contracts.subject import ContractBroken, Subject
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA


@dataclass(frozen=True, kw_only=True)
class Undocumented(Config):
    rate: float = 0.5


@dataclass(frozen=True)
class Positional(Config):
    rate: float = 0.5
    """Documented, but not keyword-only."""


class Silent:
    """Measures nothing."""

    def measure(self, table: Table, progress: Progress) -> StatsReport:
        return StatsReport(values={})


# What messages name.


def test_the_kit_names_the_public_face_alone() -> None:
    """An author who follows a message imports nothing private."""
    folder = Path(contracts.__file__).parent
    texts = [
        node.value
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    named = {name for text in texts for name in re.findall(r"recd_plugins(?:\.\w+)+", text)}
    assert named
    for name in named:
        module, _, thing = name.rpartition(".")
        assert module.startswith("recd_plugins.api"), name
        public = import_module(module)
        assert thing in public.__all__ or find_spec(name), name


# What any record must have.


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"name": "My Stats"}, "stats 'My Stats': its name must be a word"),
        ({"summary": "No sentence"}, "summary must be a sentence on one line"),
        ({"config": dict}, "config must be a dataclass that inherits from Config"),
        ({"config": Undocumented}, "option 'rate' of Undocumented has no line of text"),
        ({"config": Positional}, "option 'rate' of Positional must be keyword-only"),
        ({"uses": ("poolings",)}, "it uses 'poolings', which is no slot"),
    ],
)
def test_a_record_in_bad_form_is_named_with_its_rule(more: dict[str, Any], rule: str) -> None:
    assert rule in broken(record(StatsRecord, Silent, **more))


@pytest.mark.parametrize("slot", sorted(SLOTS.keys() - {"sharding", "cache"}))
def test_a_record_that_builds_nothing_is_named(slot: str) -> None:
    assert f"{slot} 'mine' built nothing: its" in broken(record(SLOTS[slot], lambda: None))


def test_what_is_no_record_is_refused() -> None:
    assert "no record of a slot" in broken(Rate())  # type: ignore[arg-type]  # on purpose


def test_options_and_needs_are_checked_as_a_registry_checks_them() -> None:
    check_record(record(StatsRecord, Silent), options={"rate": 1})
    with pytest.raises(RegistryError, match="must be >= 0 and <= 1"):
        check_record(record(StatsRecord, Silent), options={"rate": 2})
    with pytest.raises(CapabilityError, match="needs the package 'no_such_package'"):
        check_record(record(StatsRecord, Silent, needs=("import:no_such_package",)))


# What the host and its plugins provide.


CLAIMS = Catalog(["recd_dlrm"], Path()).claims


@pytest.mark.parametrize(
    "provided",
    [claim.record for claim in CLAIMS],
    ids=[f"{claim.record.slot}-{claim.record.name}" for claim in CLAIMS],
)
def test_every_record_of_the_host_and_its_plugins_keeps_its_contract(
    provided: Record[Any, Any], gloo_pool: GlooPool, tmp_path: Path
) -> None:
    needed = NEEDED.get(provided.name)
    check_record(provided, options=needed(tmp_path) if needed else {}, pool=gloo_pool)


def parquet(folder: Path) -> dict[str, Any]:
    for split, seed in (("train", 0), ("test", 1)):
        random_table(folder / split, SCHEMA, 100, seed=seed)
    return {"train": str(folder / "train"), "test": str(folder / "test")}


def criteo(folder: Path) -> dict[str, Any]:
    rows = [[n % 2, *range(n, n + 13), *(f"{n * k % 7:08x}" for k in range(26))] for n in range(70)]
    return {"train": [write(folder / "train.tsv", rows)]}


def movielens(folder: Path) -> dict[str, Any]:
    head = ["user_id:token", "item_id:token", "rating:float", "timestamp:float"]
    rows = [[n % 5, n % 11, n % 5 + 1, 100 * n] for n in range(60)]
    return {"path": write(folder / "ratings.inter", [head, *rows])}


def yoochoose(folder: Path) -> dict[str, Any]:
    rows = [[n // 6, n % 11, 100.0 * n] for n in range(60)]
    return {"path": write(folder / "clicks.tsv", [["SessionId", "ItemId", "Time"], *rows])}


def write(file: Path, rows: list[list[Any]]) -> str:
    file.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return str(file)


NEEDED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "parquet": parquet,
    "criteo": criteo,
    "movielens": movielens,
    "yoochoose": yoochoose,
    "sessions": lambda folder: {"samples": 500},
    "schedule": lambda folder: {"warmup": 5},
    "clipping": lambda folder: {"norm": 1.0},
    "extra_metrics": lambda folder: {"names": ["mse"]},
    "synthetic_trace": lambda folder: {
        "samples": 500,
        "test_samples": 100,
        "profiled_accesses": 2_000,
    },
}
"""By record: the options that it cannot do without, or that make it small."""


def test_a_rule_that_ends_in_the_message_of_another_error_has_one_full_stop() -> None:
    subject = Subject(
        record=record(StatsRecord, Silent), config=Config(), context=Context(), folder=Path()
    )
    with pytest.raises(ContractBroken, match=r"failed: no room\. Correct it\.$"):
        subject.hold(False, "its plan failed: no room.\n", "Correct it.")
