"""A tier plan: which rows of each table have replicas where, and which tables lie in mapped files.

It is plain data, kept beside TorchRec's plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recd_plugins.errors import CapabilityError, DataError, RecdError, nearest, so_many
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.distribution import RowDistribution, named_twice
from recd_plugins.planning.arrow_file import read_arrow, write_arrow

if TYPE_CHECKING:
    from recd_plugins.planning.cluster.cluster import Cluster

__all__ = [
    "CHUNK_ROWS",
    "Coalesce",
    "HottestRows",
    "Rows",
    "TablePlan",
    "TierPlan",
    "shares_of_replicated",
]

Coalesce = Literal["none", "rank", "node"]
"""How often an id crosses the network on its way to the table: once per access, once per rank
that touches it, or once per node (through a concentrator rank)."""

Rows = NDArray[np.int64]

HottestRows = Callable[[str, RowDistribution, int], Rows]
"""A function of a table, its distribution and a count, which returns that many row ids, the hottest
first."""

CHUNK_ROWS = 1 << 13
"""Rows of replicas under way at a time in an update, of all ranks of a node: a few MB, at no loss
of time."""

METADATA_KEY = b"recd.tier_plan"
SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("coalesce", pa.string(), nullable=False),
        pa.field("replicated", pa.large_list(pa.int64()), nullable=False),
        pa.field("per_node", pa.large_list(pa.int64()), nullable=False),
        pa.field("num_rows", pa.int64()),
    ]
)


def _no_rows() -> Rows:
    return np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class TablePlan:
    """The rows of one table that have replicas; all others are at home alone."""

    table: str
    """The name of the table in its collection's configs."""
    replicated: Rows = field(default_factory=_no_rows)
    """[n] int64: rows with a copy on every rank, hottest first."""
    per_node: Rows = field(default_factory=_no_rows)
    """[m] int64: rows with a copy in every node, spread over its ranks, hottest first."""
    coalesce: Coalesce = "none"
    num_rows: int | None = None
    """Rows of the table, where that is known: a saved plan is checked against it."""

    @classmethod
    def hottest(
        cls,
        table: str,
        rows: RowDistribution,
        *,
        replicated: int,
        per_node: int,
        coalesce: Coalesce = "none",
        hottest_rows: HottestRows | None = None,
    ) -> TablePlan:
        """A plan with so many of the hottest rows on every rank, and so many of the next in every
        node.

        `hottest_rows` says which rows those are; by default the distribution does.
        """
        count = replicated + per_node
        if count > rows.num_rows:
            raise DataError(
                f"tier plan: table {table!r} has {rows.num_rows:,} rows, fewer than the "
                f"{count:,} of its tiers."
            )
        if hottest_rows is None:
            ids = rows.hottest(count)
        else:
            ids = _named_by(hottest_rows, table, rows, count)
            _check_hottest(table, ids, count, rows.num_rows)
        return cls(
            table=table,
            replicated=ids[:replicated].copy(),
            per_node=ids[replicated:].copy(),
            coalesce=coalesce,
            num_rows=rows.num_rows,
        )

    def __post_init__(self) -> None:
        where = f"tier plan of table {self.table!r}"
        for tier in ("replicated", "per_node"):
            rows = getattr(self, tier)
            if rows.dtype != np.int64 or rows.ndim != 1:
                raise DataError(
                    f"{where}: {tier} must be [n] int64 row ids, "
                    f"but is {list(rows.shape)} {rows.dtype}."
                )
        if self.coalesce not in get_args(Coalesce):
            raise DataError(f"{where}: coalesce is {self.coalesce!r}, not one of none, rank, node.")
        rows = np.concatenate([self.replicated, self.per_node])
        if rows.size and rows.min() < 0:
            raise DataError(f"{where}: row {rows.min()} is negative.")
        if named_twice(rows):
            raise DataError(f"{where}: a row is named twice, but each row belongs to one tier.")

    def check_fits(self, num_rows: int, where: str) -> None:
        """`CapabilityError` where the model's table is not the one that this plan is for."""
        again = "Plan again: take `plan` out of registry.yaml."
        if self.num_rows is not None and self.num_rows != num_rows:
            raise CapabilityError(
                f"{where} was made of a table {self.table!r} of {so_many(self.num_rows, 'row')}, "
                f"but the model's has {num_rows:,}. {again}"
            )
        tiers = (self.replicated, self.per_node)
        highest = max((int(rows.max()) for rows in tiers if len(rows)), default=-1)
        if highest >= num_rows:
            raise CapabilityError(
                f"{where} names row {highest:,} of table {self.table!r}, but the model's has "
                f"{so_many(num_rows, 'row')}. {again}"
            )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TablePlan)
            and (self.table, self.coalesce) == (other.table, other.coalesce)
            and self.num_rows == other.num_rows
            and np.array_equal(self.replicated, other.replicated)
            and np.array_equal(self.per_node, other.per_node)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays are mutable


@dataclass(frozen=True, kw_only=True)
class TierPlan:
    """The replicas of every table that has any, on a cluster of `n_nodes` x `ranks_per_node`, and
    the tables that have left memory."""

    tables: Mapping[str, TablePlan]
    """The plan of each table; one that is not named has no replicas and is not coalesced."""
    n_nodes: int
    ranks_per_node: int
    mapped: tuple[str, ...] = ()
    """The tables that lie in mapped files, with replicas or without."""

    def __post_init__(self) -> None:
        for name, table in self.tables.items():
            if name != table.table:
                raise DataError(f"tier plan: table {table.table!r} is listed as {name!r}.")
        if self.n_nodes < 1 or self.ranks_per_node < 1:
            raise DataError(
                f"tier plan: {so_many(self.n_nodes, 'node')} of "
                f"{so_many(self.ranks_per_node, 'rank')} do not make a cluster."
            )

    @property
    def world_size(self) -> int:
        return self.n_nodes * self.ranks_per_node

    @cached_property
    def version(self) -> str:
        """A digest that is the same where the replicas are the same, on whatever rank."""
        digest = hashlib.sha256(f"{self.n_nodes} x {self.ranks_per_node}".encode())
        for name in sorted(self.tables):
            plan = self.tables[name]
            digest.update(f"{name} {len(plan.replicated)} {len(plan.per_node)}".encode())
            digest.update(plan.replicated.tobytes())
            digest.update(plan.per_node.tobytes())
        return digest.hexdigest()[:16]

    def with_hottest(self, profile: Profile, hottest_rows: HottestRows) -> TierPlan:
        """The plan with as many replicas of each table, for the rows that `hottest_rows` names by
        another profile."""
        tables = {
            name: TablePlan.hottest(
                name,
                profile[name],
                replicated=len(plan.replicated),
                per_node=len(plan.per_node),
                coalesce=plan.coalesce,
                hottest_rows=hottest_rows,
            )
            for name, plan in self.tables.items()
        }
        return dataclasses.replace(self, tables=tables)

    def differs_by_rows_alone(self, other: TierPlan) -> bool:
        """Whether both give as many replicas of the same tables, at the same places."""
        return self._without_rows() == other._without_rows()

    def _without_rows(self) -> tuple[object, ...]:
        tables = {
            name: (len(table.replicated), len(table.per_node), table.coalesce)
            for name, table in self.tables.items()
        }
        return self.n_nodes, self.ranks_per_node, self.mapped, tables

    def check_fits(self, num_rows: Mapping[str, int], cluster: Cluster, *, where: str) -> None:
        """`CapabilityError` where the plan is for another cluster, or for tables that are not among
        these of so many rows; `where` opens it."""
        made, here = (
            f"{so_many(one.n_nodes, 'node')} of {so_many(one.ranks_per_node, 'rank')}"
            for one in (self, cluster)
        )
        if made != here:
            raise CapabilityError(
                f"{where} is for {made}, but here are {here}. `recd plan --ranks "
                f"{cluster.world_size} --save FILE` makes one for these, without `plan`."
            )
        for name, table in self.tables.items():
            if name not in num_rows:
                raise CapabilityError(
                    f"{where} has replicas of a table {name!r}, but the model has none of that "
                    f"name that may have any; {nearest(name, num_rows)}"
                )
            table.check_fits(num_rows[name], where)
        for name in self.mapped:
            if name not in num_rows:
                raise CapabilityError(
                    f"{where} has a table {name!r} in mapped files, but the model has none of that "
                    f"name that may lie there; {nearest(name, num_rows)}"
                )

    def in_words(self) -> str:
        """The cluster, the rows of each table in each tier, and the tables in mapped files."""
        tables = (
            f"{name}: {so_many(len(table.replicated), 'row')} in replicated, "
            f"{len(table.per_node):,} in per_node, coalesced: {table.coalesce}"
            for name, table in self.tables.items()
        )
        cluster = f"{so_many(self.n_nodes, 'node')} of {so_many(self.ranks_per_node, 'rank')}"
        homes = [f"in mapped files: {', '.join(self.mapped)}"] if self.mapped else []
        return "\n".join([f"{cluster}, {so_many(len(self.tables), 'table')}", *tables, *homes])

    def save(self, path: str | Path) -> None:
        """One Arrow IPC file: a row per table with replicas, the rest in its metadata."""
        rest = {
            "n_nodes": self.n_nodes,
            "ranks_per_node": self.ranks_per_node,
            "mapped": self.mapped,
        }
        schema = SCHEMA.with_metadata({METADATA_KEY: json.dumps(rest).encode()})
        plans = list(self.tables.values())
        columns = [
            pa.array([plan.table for plan in plans], pa.string()),
            pa.array([plan.coalesce for plan in plans], pa.string()),
            pa.array([plan.replicated for plan in plans], pa.large_list(pa.int64())),
            pa.array([plan.per_node for plan in plans], pa.large_list(pa.int64())),
            pa.array([plan.num_rows for plan in plans], pa.int64()),
        ]
        write_arrow(path, pa.table(columns, schema=schema))

    @classmethod
    def load(cls, path: str | Path) -> TierPlan:
        """The plan that `save` wrote; anything else raises `DataError`."""
        rows = read_arrow(
            path, METADATA_KEY, SCHEMA, "A tier plan is meant: `recd plan --save` writes one."
        )
        try:
            rest = json.loads(rows.schema.metadata[METADATA_KEY])
            plans = [
                TablePlan(
                    table=row["table"].as_py(),
                    coalesce=row["coalesce"].as_py(),
                    replicated=_rows(row["replicated"]),
                    per_node=_rows(row["per_node"]),
                    num_rows=row["num_rows"].as_py(),
                )
                for row in (
                    {name: rows[name][i] for name in rows.column_names} for i in range(len(rows))
                )
            ]
            return cls(
                tables={plan.table: plan for plan in plans},
                n_nodes=int(rest["n_nodes"]),
                ranks_per_node=int(rest["ranks_per_node"]),
                mapped=tuple(rest.get("mapped", ())),  # plans of before have no homes
            )
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: is not a tier plan as this version writes it ({error}). `recd plan "
                "--save` writes one."
            ) from error


def shares_of_replicated(n_nodes: int, ranks_per_node: int) -> int:
    """The number of shares of the tier `replicated` in a node: each rank updates one of its own,
    but two ranks that are the whole world have one in common, which both update."""
    return 1 if (n_nodes, ranks_per_node) == (1, 2) else ranks_per_node


def _named_by(hottest_rows: HottestRows, table: str, rows: RowDistribution, count: int) -> Rows:
    """The rows that a policy names, by a distribution to which it cannot write: prices, reports and
    other policies go by the same counts."""
    try:
        return hottest_rows(table, rows.read_only(), count)
    except ValueError as error:
        if isinstance(error, RecdError) or "read-only" not in str(error):
            raise
        raise DataError(
            f"tier plan: of table {table!r} the {count:,} hottest rows were asked for, but "
            f"`hottest_rows` writes to an array that is read-only ({error}), as those of the "
            "distribution are that it is handed. Have it change a copy: `rows.p.copy()`."
        ) from error


def _check_hottest(table: str, ids: Rows, count: int, num_rows: int) -> None:
    """Refuse a ranking that is no array of row ids, or has too few, too many, or ids of no row of
    the table."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
        found = f"a {type(ids).__name__}"
        if isinstance(ids, np.ndarray):
            found = f"an array {list(ids.shape)} of {ids.dtype}"
        raise DataError(
            f"tier plan: of table {table!r} the {count:,} hottest rows were asked for, but {found} "
            f"came. Let `hottest_rows` return [{count}] row ids: `np.asarray(rows, np.int64)`."
        )
    if len(ids) != count:
        raise DataError(
            f"tier plan: of table {table!r} the {count:,} hottest rows were asked for, but "
            f"{len(ids):,} came. Let `hottest_rows` return as many rows as it is asked for."
        )
    beyond = ids[(ids < 0) | (ids >= num_rows)]
    if len(beyond):
        raise DataError(
            f"tier plan: table {table!r} has {num_rows:,} rows, and {int(beyond[0]):,} is none of "
            f"them. Let `hottest_rows` return ids from 0 to {num_rows - 1:,}."
        )


def _rows(ids: pa.LargeListScalar) -> Rows:
    found: Rows = ids.values.to_numpy(zero_copy_only=False)
    return found
