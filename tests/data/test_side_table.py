"""Value tests: features that are joined in from a side table, as if the dataset had them itself."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.config import parse
from recd_plugins.data.conform.rows import conform
from recd_plugins.data.dataset import Tables
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.parquet_tables import ParquetConfig, build_parquet
from recd_plugins.data.pins import check_pins, write_pins
from recd_plugins.data.reader.local_reader import (
    LocalReaderConfig,
    build_local_reader,
    table_digest,
)
from recd_plugins.data.side_table import SideTable, SideTableConfig
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.errors import DataError, RecdError
from recd_plugins.slots import Context

ROWS, USERS = 400, 120
SCHEMA = {
    "session_id": "user",
    "timestamp": None,
    "dense": ["d"],
    "sparse": [{"name": "ids", "num_ids": 1000}],
}
BETA = {"key": "user", "sparse": [{"name": "beta", "num_ids": 5000}]}


def beta_of(user: int | None) -> list[int]:
    """What the side table has for a user; none of every fifth."""
    return [] if user is None or user % 5 == 0 else [user, user + 1][: 1 + user % 2]


def dataset(order: np.ndarray[Any, Any], texts: bool = False) -> pa.Table:
    """Rows of users, of whom the first is null; `beta` is what the join is to find."""
    users = [None, *order.tolist()[1:]]
    return pa.table(
        {
            "user": pa.array(
                [None if n is None else f"u{n:03}" for n in users] if texts else users
            ),
            "label": np.arange(ROWS) % 2.0,
            "d": np.arange(float(ROWS)),
            "ids": pa.array([[n % 7] for n in range(ROWS)]),
            "expected": pa.array([beta_of(n) for n in users]),
        }
    )


def side(order: np.ndarray[Any, Any], texts: bool = False) -> pa.Table:
    users = [n for n in order.tolist() if n % 5]
    return pa.table(
        {
            "beta": pa.array([beta_of(n) for n in users]),
            "score": pa.array([n / 2 for n in users]),
            "user": pa.array([f"u{n:03}" for n in users] if texts else users),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tables sorted by user, and shuffled."""
    draw = np.random.default_rng(0)
    rows = np.sort(draw.integers(0, USERS, ROWS))
    users = np.arange(USERS)
    for name, of_rows, of_side in (
        ("sorted", rows, users),
        ("mixed", draw.permutation(rows), draw.permutation(users)),
    ):
        for kind in (False, True):
            end = "_texts" if kind else ""
            pq.write_table(
                dataset(of_rows, kind), tmp_path / f"{name}{end}.parquet", row_group_size=50
            )
            pq.write_table(
                side(of_side, kind), tmp_path / f"{name}{end}_beta.parquet", row_group_size=9
            )
    return tmp_path


def opened(
    folder: Path, name: str = "sorted", beta: dict[str, Any] | None = None, **more: Any
) -> Any:
    join = BETA | {"table": str(folder / f"{name}_beta.parquet")} | (beta or {})
    file = str(folder / f"{name}.parquet")
    schema = {**SCHEMA, "session_id": None}
    values = {"train": file, "test": file, "schema": schema, "join": [join]} | more
    config = parse(ParquetConfig, values, "dataset")
    return build_parquet(config, Context(folder=folder / "data")).prepare(folder / "data")


@pytest.mark.parametrize("name", ["sorted", "mixed", "sorted_texts", "mixed_texts"])
def test_each_row_has_the_features_of_its_key(folder: Path, name: str) -> None:
    table = opened(folder, name, absent=["ids"], where="d != 17").train
    rows = pa.concat_tables(table.read(stripe) for stripe in table.stripes)
    expected = pq.read_table(folder / f"{name}.parquet")
    expected = expected.filter(pa.compute.not_equal(expected["d"], 17))
    assert rows["beta"].to_pylist() == expected["expected"].to_pylist()
    assert rows["d"].to_pylist() == expected["d"].to_pylist()
    assert table.read(table.stripes[1], ["ids"]).column_names == ["ids"]


def test_lists_of_a_side_table_may_be_large(folder: Path) -> None:
    """As Polars writes them, beside those of rows without a key."""
    beta = pq.read_table(folder / "mixed_beta.parquet")
    large = beta["beta"].cast(pa.large_list(pa.int64()))
    beta = beta.set_column(0, "beta", large)
    pq.write_table(beta, folder / "mixed_beta.parquet", row_group_size=9)
    table = opened(folder, "mixed").train
    rows = pa.concat_tables(table.read(stripe) for stripe in table.stripes)
    expected = pq.read_table(folder / "mixed.parquet")["expected"]
    assert rows["beta"].to_pylist() == expected.to_pylist()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for some stripes of a side table, and not for all."""
    monkeypatch.setattr("recd_plugins.data.side_table.MIB", 4)


@pytest.mark.usefixtures("small")
def test_a_side_table_that_has_no_room_is_read_along(folder: Path) -> None:
    table = opened(folder).train
    (joined,) = table.joins
    assert len(joined._parts) == 11
    held = []
    for stripe in table.stripes:
        rows = table.read(stripe, ["beta"])
        users = pq.ParquetFile(stripe.file).read_row_group(stripe.group, columns=["expected"])
        assert rows["beta"].to_pylist() == users["expected"].to_pylist()
        held.append(sum(joined._parts[at].num_bytes for at in joined._held))
    assert max(held) <= 512 * 4 < sum(part.num_bytes for part in joined._parts)
    with pytest.raises(
        DataError,
        match=r"(?s)row group 0: the rows of its keys 'user' are spread all over .*ORDER BY",
    ):
        opened(folder, "mixed")
    assert opened(folder, "mixed", {"memory_mib": 9000}).train.num_rows == ROWS


def batches(tables: Tables, state: Any = None, rank: int = 0, world_size: int = 1) -> list[Any]:
    loader = build_local_reader(LocalReaderConfig(streams=2), Context(seed=3)).loader(
        tables.train, rank=rank, world_size=world_size, batch_size=32 // world_size, split="train"
    )
    if state is not None:
        loader.load_state_dict(state)
    return [(batch, loader.state_dict()) for batch in loader]


def rows_of(batch: Any) -> list[tuple[float, list[int]]]:
    beta = [row.tolist() for row in batch.features["beta"].to_dense()]
    return sorted(zip(batch.dense[:, 0].tolist(), beta, strict=True))


def test_batches_positions_and_pins_are_those_of_a_dataset_that_has_them(folder: Path) -> None:
    tables = opened(folder)
    whole = pq.read_table(folder / "sorted.parquet")
    expected = dict(zip(whole["d"].to_pylist(), whole["expected"].to_pylist(), strict=True))
    found = batches(tables)
    assert all(beta == expected[d] for batch, _ in found for d, beta in rows_of(batch))
    halves = [batches(tables, rank=rank, world_size=2) for rank in (0, 1)]
    for (batch, _), *parts in zip(found, *halves, strict=True):
        assert rows_of(batch) == sorted(row for part, _ in parts for row in rows_of(part))
    later = batches(opened(folder), found[3][1])
    assert all(
        torch.equal(one.features.values(), other.features.values())
        for (one, _), (other, _) in zip(found[4:], later, strict=True)
    )
    write_pins(folder, tables)
    check_pins(folder, opened(folder))
    users = np.arange(USERS)
    pq.write_table(side(users[1:]), folder / "sorted_beta.parquet", row_group_size=8)
    with pytest.raises(DataError, match=r"sorted_beta\.parquet: is not what it was when the run"):
        check_pins(folder, opened(folder))
    with pytest.raises(DataError, match="table"):
        batches(opened(folder), found[3][1])
    tables.train.joins[0]._held.clear()
    with pytest.raises(DataError, match=r"sorted_beta\.parquet: has changed since the table"):
        tables.train.read(tables.train.stripes[0])


def test_with_another_vocabulary_a_side_table_is_another(folder: Path) -> None:
    known, found = folder / "known.parquet", []
    beta = {"name": "beta", "num_ids": 5000, "ids": "vocabulary", "vocabulary": str(known)}
    for values in (["1", "2"], ["2", "1", "3"], ["1", "2"]):
        pq.write_table(pa.table({"value": values}), known)
        (joined,) = opened(folder, beta={"sparse": [beta]}).train.joins
        found.append(joined.identity)
    assert found[0] == found[2] != found[1]


def test_dense_columns_and_nulls_are_what_the_schema_says(folder: Path) -> None:
    beta = {
        "sparse": [{"name": "beta", "num_ids": 5000, "nulls": {"value": 4999}}],
        "dense": [{"name": "score", "nulls": {"value": -1}}],
    }
    table = opened(folder, "mixed", beta, where="user == 40 or user == 41").train
    assert table.schema.dense == ("d", "score")
    rows = pa.concat_tables(table.read(stripe) for stripe in table.stripes).to_pylist()
    assert {(row["score"], *row["beta"]) for row in rows} == {(-1, 4999), (20.5, 41, 42)}
    left = opened(folder, "mixed", beta, without="beta").train
    assert left.joins[0].features == ("score",)
    assert not opened(folder, "mixed", beta, features=["d", "ids"]).train.joins


@pytest.mark.parametrize(
    ("beta", "message"),
    [
        ({"key": "usr"}, r"column 'usr', the key of dataset\.join; did you mean 'user'"),
        ({"key": "score"}, r"'score', the key of dataset\.join, is double, but keys are"),
        ({"sparse": [{"name": "bta", "num_ids": 9}]}, "'bta' is not there.*'beta'"),
        ({"sparse": [{"name": "ids", "num_ids": 9}]}, "column 'ids' is named twice"),
        ({"sparse": []}, "names no feature"),
        ({"dense": [{"name": "score"}]}, r"rows whose key is not in the side table get nulls"),
        ({"table": "sorted_texts_beta.parquet"}, r"is int64, but in .* it is large_string"),
    ],
)
def test_what_cannot_be_joined_is_told(folder: Path, beta: Any, message: str) -> None:
    if "table" in beta:
        beta = {"table": str(folder / beta["table"])}
    with pytest.raises(RecdError, match=message):
        opened(folder, beta=beta)


def test_a_check_reads_side_tables_and_a_key_is_there_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    registry = {
        "plugins": ["recd_dlrm"],
        "dataset": {
            "use": "parquet",
            "train": "sorted.parquet",
            "test": "sorted.parquet",
            "schema": {**SCHEMA, "session_id": None},
            "join": [BETA | {"table": "sorted_beta.parquet"}],
        },
    }
    path = folder / "registry.yaml"
    path.write_text(json.dumps(registry))
    run = CliRunner().invoke(app, ["data", "check", str(path), "--json"])
    assert json.loads(run.stdout)["join[0]"] == {"rows": 96, "repeated": 0, "problems": []}
    twice = pa.concat_tables([side(np.arange(USERS)), side(np.array([77]))])
    pq.write_table(twice, folder / "sorted_beta.parquet")
    run = CliRunner().invoke(app, ["data", "check", str(path), "--json"])
    (problem,) = json.loads(run.stdout)["join[0]"]["problems"]
    assert re.match("has key user 77, and another row", problem["what"])
    tables = opened(folder)
    with pytest.raises(DataError, match="has key user 77"):
        tables.train.read(tables.train.stripes[-1])


def test_a_schema_that_drops_rows_drops_them_with_what_is_joined(folder: Path) -> None:
    schema = {**SCHEMA, "nulls": {"user": "drop"}}
    with pytest.warns(UserWarning, match="1 of 400 rows are left out"):
        tables = opened(folder, "mixed", schema=schema)
    assert not tables.train.joins
    rows = pa.concat_tables(tables.train.read(stripe) for stripe in tables.train.stripes)
    expected = pq.read_table(folder / "mixed.parquet")["expected"].to_pylist()
    assert rows["beta"].to_pylist() == expected[1:]


def scores_of(user: int | None) -> list[float]:
    return [one / 4 for one in beta_of(user)]


@pytest.mark.parametrize("own", [False, True], ids=["foreign", "ours"])
def test_ids_with_weights_are_joined_with_them(folder: Path, own: bool) -> None:
    """To somebody else's files, and to a table of ours, whose weights lie beside the ids."""
    users = np.random.default_rng(1).permutation(USERS)
    pairs = [
        [
            {"id": one, "weight": weight}
            for one, weight in zip(beta_of(n), scores_of(n), strict=True)
        ]
        for n in users.tolist()
    ]
    kind = pa.list_(pa.struct([("id", pa.int32()), ("weight", pa.float64())]))
    side = pa.table({"user": users, "beta": pa.array(pairs, kind)})
    pq.write_table(side, folder / "mixed_beta.parquet", row_group_size=9)
    beta = {"sparse": [{"name": "beta", "num_ids": 5000, "scored": True}]}
    users_of_rows = pq.read_table(folder / "mixed.parquet")["user"].to_pylist()
    tables = opened(folder, "mixed", beta)
    if own:
        schema = parse(ForeignSchema, {**SCHEMA, "nulls": {"user": {"value": 0}}}, "schema")
        rows = conform(pq.read_table(folder / "mixed.parquet"), schema, "here")
        with TableWriter(folder / "ours", schema.conformed) as writer:
            writer.write(rows)
        ours = str(folder / "ours")
        tables = opened(folder, "mixed", beta, train=ours, test=ours, schema=None)
        users_of_rows[0] = 0
    rows = pa.concat_tables(tables.train.read(stripe) for stripe in tables.train.stripes)
    assert rows["beta"].to_pylist() == [beta_of(n) for n in users_of_rows]
    assert rows["beta_weights"].to_pylist() == [scores_of(n) for n in users_of_rows]
    (batch, _), *_ = batches(tables)
    features = batch.features
    assert features["beta"].weights().tolist() == (features["beta"].values() / 4).tolist()


def test_files_of_one_name_in_two_partitions_are_pinned_apart(folder: Path) -> None:
    """Those of the dataset as those of its side table."""
    rows, users = pq.read_table(folder / "sorted.parquet"), np.arange(USERS)
    files = str(folder / "rows" / "*" / "part.parquet")
    beta = {"table": str(folder / "beta")}

    def tables() -> Any:
        return opened(folder, beta=beta, train=files, test=files)

    for name, half in (("beta", 0), ("rows", 0), ("beta", 1), ("rows", 1)):
        part = rows[half::2] if name == "rows" else side(users[half::2])
        (folder / name / f"half={half}").mkdir(parents=True)
        pq.write_table(part, folder / name / f"half={half}" / "part.parquet")
        if half:  # one folder alone has the names that it keeps later
            with pytest.raises(DataError, match=rf"{name}/half=1/part\.parquet: was not there"):
                check_pins(folder, tables())
        if name == "rows" or half:
            write_pins(folder, tables())
    check_pins(folder, tables())
    pinned = json.loads((folder / "pins.json").read_text())["train"]["files"]
    names = [f"half={half}/part.parquet" for half in (0, 1)]
    assert sorted(pinned) == [*names, *(f"join[0]/{name}" for name in names)]
    pq.write_table(side(users[4::2]), folder / "beta" / names[0])
    with pytest.raises(DataError, match=r"beta/half=0/part\.parquet: is not what it was"):
        check_pins(folder, tables())


def test_a_partition_that_has_another_value_is_another_table(folder: Path) -> None:
    rows = pq.read_table(folder / "sorted.parquet")
    digests = []
    for day in (1, 2, 1):
        shutil.rmtree(folder / "rows", ignore_errors=True)
        (folder / "rows" / f"day={day}").mkdir(parents=True)
        pq.write_table(rows, folder / "rows" / f"day={day}" / "part.parquet")
        path = str(folder / "rows")
        digests.append(table_digest(opened(folder, train=path, test=path).train))
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize("kind", [pa.int32(), pa.string_view()])
def test_a_file_may_have_no_key_at_all_and_keys_may_be_views(
    tmp_path: Path, kind: pa.DataType
) -> None:
    keys = pa.array(["1", "2", None]).cast(kind)
    for name, column in (("0", pa.nulls(3)), ("1", keys)):
        (tmp_path / "rows").mkdir(exist_ok=True)
        rows = pa.table({"label": [0.0] * 3, "ids": [[1], [2], [3]], "user": column})
        pq.write_table(rows, tmp_path / "rows" / f"{name}.parquet")
    (tmp_path / "side").mkdir()
    for name, column in (("0", pa.nulls(2)), ("1", keys.slice(1, 2))):
        rows = pa.table({"beta": [[7], [8]], "user": column})
        pq.write_table(rows, tmp_path / "side" / f"{name}.parquet")
    config = {
        "train": str(tmp_path / "rows"),
        "test": str(tmp_path / "rows"),
        "schema": {**SCHEMA, "session_id": None, "dense": []},
        "join": [{"table": str(tmp_path / "side"), **BETA}],
    }
    built = build_parquet(parse(ParquetConfig, config, "dataset"), Context(folder=tmp_path))
    rows = pa.concat_tables(built.chunks("train")).to_pylist()
    assert [row["beta"] for row in rows] == [[], [], [], [], [7], []]


def side_table(path: Path) -> SideTable:
    values = {"table": str(path), "key": "user", "sparse": BETA["sparse"]}
    return SideTable(parse(SideTableConfig, values, "join"), ["beta"])


@pytest.mark.parametrize("row_group_size", [1, 9])
@pytest.mark.parametrize("of_side", [pa.int64(), pa.uint64()])
@pytest.mark.parametrize("of_rows", [pa.int64(), pa.uint64(), pa.int32(), pa.null()])
def test_whole_numbers_of_any_type_are_joined_by_what_they_are(
    tmp_path: Path, row_group_size: int, of_side: pa.DataType, of_rows: pa.DataType
) -> None:
    """2^64 - 1 has the bits of -1."""

    def of(keys: list[int], kind: pa.DataType) -> list[int]:
        if pa.types.is_null(kind):
            return []
        low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return [key for key in keys if low <= key < low + 2**kind.bit_width]

    keys = of([-(2**63), -1, 0, 5, 2**63 - 1, 2**63, 2**64 - 1], of_side)
    beta = pa.table({"user": pa.array(keys, of_side), "beta": [[n] for n in range(len(keys))]})
    pq.write_table(beta, tmp_path / "beta.parquet", row_group_size=row_group_size)
    users = [2**64 - 1, -1, None, 5, 2**63, -(2**63), 2**63 - 1, 4]
    users = [n if n in of([n or 0], of_rows) else None for n in users]
    side = side_table(tmp_path / "beta.parquet")
    found = side.joined(pa.table({"user": pa.array(users, of_rows)}), paired=False)["beta"]
    assert found.to_pylist() == [[keys.index(n)] if n in keys else [] for n in users]


def test_a_sorted_side_table_of_large_keys_is_read_along(tmp_path: Path) -> None:
    keys = pa.array([2**63 + n for n in range(0, 300_000, 10)], pa.uint64())
    beta = pa.table({"user": keys, "beta": [[7] * 20] * len(keys)})
    pq.write_table(beta, tmp_path / "beta.parquet", row_group_size=1000, use_dictionary=False)
    pq.write_table(beta.select(["user"]), tmp_path / "rows.parquet", row_group_size=1000)
    values = {"table": str(tmp_path / "beta.parquet"), "key": "user", "sparse": BETA["sparse"]}
    side = SideTable(parse(SideTableConfig, values | {"memory_mib": 1}, "join"), ["beta"])
    footer = pq.read_metadata(tmp_path / "rows.parquet")
    side.check(footer.schema.to_arrow_schema(), footer, tmp_path / "rows.parquet")
    assert (
        side.joined(beta.select(["user"])[4000:5000], paired=False)["beta"][0].as_py() == [7] * 20
    )


def test_files_of_a_side_table_whose_keys_do_not_fit_each_other_are_named(tmp_path: Path) -> None:
    for name, keys in ("0", pa.array([-1])), ("1", pa.array([5, 2**64 - 1], pa.uint64())):
        beta = pa.table({"user": keys, "beta": [[1]] * len(keys)})
        pq.write_table(beta, tmp_path / f"{name}.parquet")
    message = r"1\.parquet.*has key user 18446744073709551615, but in .*0\.parquet keys are int64"
    with pytest.raises(DataError, match=message):
        side_table(tmp_path).joined(pa.table({"user": [5]}), paired=False)
