"""Rungs 2 (properties) and 3 (workers): tables drawn from seeds, as strangers keep them, are read
as plain Python says, row by row: each once an epoch, over all ranks, and on from any state.

`DRAWN=1000:1400 pytest tests/data/test_drawn_tables.py` draws others.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from drawn_columns import schema_of
from drawn_faults import faulty
from drawn_lines import as_json_lines
from drawn_rows import in_share, stepped
from drawn_table import Drawn, drawn

from recd_plugins.config import parse
from recd_plugins.data.batch import Batch
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.surveying.asked_types import types_asked
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.table_import import TableImport
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError, RecdError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.stack import Stack, load

FIRST, LAST = map(int, os.environ.get("DRAWN", "0:20").split(":"))


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_drawn_table_is_read_as_plain_python_says(seed: int, tmp_path: Path) -> None:
    check(drawn(seed, tmp_path))


def check(one: Drawn) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)
        dataset = one.registry["dataset"]
        every = one.table.rows()
        stack = load(one.registry)
        if not every:
            return
        expected, share = every, dataset.get("sessions_share", 1.0)
        if share < 1:
            session = next((c.name for c in one.table.columns if c.role == "session"), "session_id")
            expected = [row for row in every if in_share(row[session], share)]
        if not expected:
            with pytest.raises(DataError, match=r"sessions_share|holds no rows"):
                stack.loader(0, one.world_size)
            return
        expected = check_table(one, stack, expected)
        if "etl" not in one.registry:
            check_test_split(one, stack, every)
        if not expected:
            return
        if len(expected) < one.world_size * one.batch_size and reader_of(one)["tail"] == "drop":
            with pytest.raises(DataError, match=r"fill no batch of .* set reader.tail to pad"):
                stack.loader(0, one.world_size)
            return
        check_batches(one, stack, expected)


def reader_of(one: Drawn) -> dict[str, Any]:
    found: dict[str, Any] = one.registry["reader"]
    return found


def check_test_split(one: Drawn, stack: Stack, every: list[dict[str, Any]]) -> None:
    """The test split has each row once, in order, whatever the order of the train split is."""
    found: list[dict[str, Any]] = []
    for rank in range(one.world_size):
        for batch in stack.loader(rank, one.world_size, "test"):
            samples = samples_of(batch, stack)
            found += [sample for sample in samples if sample.pop("_weight")]
    right = [through_steps(one, row) for row in every]
    right = [{key: row[key] for key in found[0]} for row in right]
    assert_alike(found, right)


def check_table(one: Drawn, stack: Stack, expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the prepared table are those; sessions lie together where a step clusters."""
    table = stack.prepare().train
    rows = rows_as_told(table)
    number = one.table.columns[0].name
    if "etl" not in one.registry:
        assert_alike(rows, expected)
        return expected
    session, time = table.schema.session_id, table.schema.timestamp
    steps = [step["use"] for step in one.registry["etl"]]
    if len(steps) > 1:
        kept = {row[number][0] for row in rows}
        left = {row[session] for row in rows} if steps[1] == "downsample_sessions" else None
        expected = [
            row
            for row in expected
            if (row[number][0] in kept if left is None else row[session] in left)
        ]
    ordered = sorted(rows, key=lambda row: row[number])
    assert_alike(ordered, sorted(expected, key=lambda row: row[number]))
    session, time = table.schema.session_id, table.schema.timestamp
    sessions = [row[session] for row in rows]
    heads = [x for x, before in zip(sessions, [None, *sessions], strict=False) if x != before]
    assert len(heads) == len(set(sessions)), "sessions are cut"
    if time is not None:
        keys = [(row[session], row[time]) for row in rows]
        for before, after in pairwise(keys):
            assert before[0] != after[0] or before[1] <= after[1], "not in the order of time"
    return expected


def rows_as_told(table: Table) -> list[dict[str, Any]]:
    """The rows of a table, ids and their weights as pairs."""
    rows = [row for stripe in table.stripes for row in table.read(stripe).to_pylist()]
    scored = [name for name in table.schema.sparse_names if table.schema.feature(name).scored]
    for row in rows:
        for name in scored:
            weights = row.pop(f"{name}_weights")
            row[name] = list(zip(row[name], weights, strict=True))
    return rows


def check_batches(one: Drawn, stack: Stack, expected: list[dict[str, Any]]) -> None:
    """Two epochs of all ranks have each row once, and a loader goes on from any state."""
    number = one.table.columns[0].name
    by_number = {row[number][0]: through_steps(one, row) for row in expected}
    assert len(by_number) == len(expected)
    loaders = [stack.loader(rank, one.world_size) for rank in range(one.world_size)]
    reader = one.registry["reader"]
    in_order = [row[number][0] for row in table_rows(stack, number)]
    for _ in range(2):
        seen: list[tuple[int, float]] = []
        for loader in loaders:
            rank_rows = []
            lengths = []
            for batch in loader:
                samples = samples_of(batch, stack)
                lengths.append(len(samples))
                for sample in samples:
                    row = by_number[sample[number][0]]
                    rank_rows.append((sample[number][0], sample.pop("_weight")))
                    assert_alike(
                        sample, {key: row[key] for key in sample}, f"row {rank_rows[-1][0]}"
                    )
            assert len(lengths) == len(loader)
            if not reader["shuffle"] and reader.get("sessions", "split") == "split":
                places = [in_order.index(row) for row, weight in rank_rows if weight]
                assert places == sorted(places), "not in order"
            seen += rank_rows
        weights = {row[number][0]: weight_of(one, row) for row in expected}
        counts = Counter(row for row, weight in seen if weight or not weights[row])
        assert all(weight in (0, weights[row]) for row, weight in seen)
        if reader["tail"] == "pad":
            assert counts.keys() == by_number.keys()
            assert {*counts.values()} == {1}
        else:
            assert not counts or {*counts.values()} == {1}
            streams = one.world_size
            assert len(counts) == len(expected) // streams // one.batch_size * (
                streams * one.batch_size
            )
    check_state(one, stack)


def through_steps(one: Drawn, row: dict[str, Any]) -> dict[str, Any]:
    made = dict(row)
    for step in one.registry.get("preprocess", ()):
        (name,) = step["features"]
        made[name] = stepped(step, made[name])
    return made


def check_state(one: Drawn, stack: Stack) -> None:
    """A new loader goes on from a state as the first one does."""
    from random import Random

    random = Random(one.seed)
    rank = random.randrange(one.world_size)
    loader = stack.loader(rank, one.world_size)
    if not len(loader):
        return
    at, states, whole = random.randrange(len(loader) + 1), {}, []
    for _ in range(2):
        for batch in loader:
            whole.append(samples_of(batch, stack))
            states[len(whole)] = json.dumps(loader.state_dict())
    other = stack.loader(rank, one.world_size)
    rest = whole
    if at:
        other.load_state_dict(json.loads(states[at]))
        rest = whole[at:]
    found = []
    while len(found) < len(rest):
        found += [samples_of(batch, stack) for batch in other]
    assert_alike(found[: len(rest)], rest)


def table_rows(stack: Stack, name: str) -> list[dict[str, Any]]:
    table = stack.prepare().train
    return [row for stripe in table.stripes for row in table.read(stripe, [name]).to_pylist()]


def weight_of(one: Drawn, row: Mapping[str, Any]) -> float:
    names = [column.name for column in one.table.columns if column.role == "weight"]
    return row[names[0]] if names else 1.0


def samples_of(batch: Batch, stack: Stack) -> list[dict[str, Any]]:
    """The samples of a batch, by column."""
    schema = stack.schema
    sparse = batch.sparse
    kjt = sparse.to_kjt() if isinstance(sparse, SparseFeatures) else sparse
    size = len(batch)
    found: list[dict[str, Any]] = [{} for _ in range(size)]
    for key, part in kjt.to_dict().items():
        lengths = part.lengths().tolist()
        assert len(lengths) == size
        ids = [one.tolist() for one in part.values().split(lengths)]
        if schema.feature(key).scored:
            weights = [one.tolist() for one in part.weights().split(lengths)]
            ids = [list(zip(*pair, strict=True)) for pair in zip(ids, weights, strict=True)]
        for sample, row in zip(found, ids, strict=True):
            sample[key] = row
    at = 0
    for name in schema.dense:
        width = schema.width(name)
        for sample, row in zip(found, batch.dense[:, at : at + (width or 1)].tolist(), strict=True):
            sample[name] = row if width else row[0]
        at += width or 1
    labels = batch.labels.reshape(size, -1)
    for index, name in enumerate(schema.label_names):
        for sample, value in zip(found, labels[:, index].tolist(), strict=True):
            sample[name] = value
    for sample, value in zip(found, batch.weights.tolist(), strict=True):
        sample["_weight"] = value
    return found


def assert_alike(found: Any, right: Any, where: str = "") -> None:
    """Equal, NaN to NaN; logarithms to the last bits of a float32."""
    if isinstance(right, dict):
        assert found.keys() == right.keys(), f"{where}: {found.keys()} but {right.keys()}"
        for key in right:
            assert_alike(found[key], right[key], f"{where} {key!r}")
    elif isinstance(right, list | tuple):
        assert len(found) == len(right), f"{where}: {found} but {right}"
        for at, (one, other) in enumerate(zip(found, right, strict=True)):
            assert_alike(one, other, f"{where}[{at}]")
    elif isinstance(right, float):
        same = found == right or (math.isnan(found) and math.isnan(right))
        assert same or math.isclose(found, right, rel_tol=3e-7), f"{where}: {found} but {right}"
    else:
        assert found == right, f"{where}: {found} but {right}"


@pytest.mark.ranks
@pytest.mark.parametrize("seed", range(FIRST, LAST, 20))
def test_the_reader_service_reads_a_drawn_table_alike(seed: int, tmp_path: Path) -> None:
    from recd_dsi.service.process_fleets import end_workers

    try:
        check_service(drawn(seed, tmp_path))
    finally:
        end_workers()


def check_service(one: Drawn) -> None:
    """The reader service's batches are the local reader's, bit for bit."""
    if not one.table.rows():
        return
    options = dict(one.registry["reader"], use="service", workers=2)
    del options["prefetch"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)
        local, service = load(one.registry), load({**one.registry, "reader": options})
        rows = local.prepare().train.num_rows
        if not rows or (options["tail"] == "drop" and rows < one.world_size * one.batch_size):
            return
        rank = one.seed % one.world_size
        loaders = [stack.loader(rank, one.world_size) for stack in (local, service)]
        for _ in range(2):
            both = [[samples_of(batch, local) for batch in loader] for loader in loaders]
            assert repr(both[0]) == repr(both[1])


TOLD: dict[int, str] = {}
"""The faults that were told, by seed; some tables have no place for one."""


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_fault_is_told_with_its_file_and_its_column(seed: int, tmp_path: Path) -> None:
    TOLD[seed] = check_fault(drawn(seed, tmp_path))


def test_faults_were_drawn() -> None:
    if len(TOLD) < LAST - FIRST:
        pytest.skip("not all of them ran here")
    assert len([one for one in TOLD.values() if one]) >= (LAST - FIRST) // 4


def check_fault(one: Drawn) -> str:
    """The fault that was told; none where there was none."""
    fault = faulty(one)
    if fault is None:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)
        with pytest.raises(RecdError) as error:
            rows_as_told(load(one.registry).prepare().train)
    message = str(error.value)
    assert isinstance(error.value, DataError | RegistryError), (fault.what, message)
    assert str(fault.file.path) in message, (fault.what, message)
    assert fault.column.name in message or repr(fault.column.name) in message, (fault.what, message)
    assert message.count(". ") >= 1, (fault.what, message)
    return f"{fault.what}: {message}"


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_drawn_table_is_imported_as_plain_python_says(seed: int, tmp_path: Path) -> None:
    check_import(drawn(seed, tmp_path), tmp_path)


def check_import(one: Drawn, folder: Path) -> None:
    """An import takes files that are alike: the largest is imported, and as lines of JSON."""
    table = one.table
    table.where = table.side = table.without = None
    table.files = [max(table.files, key=lambda file: file.rows)]
    if table.partitions or not table.rows():
        return
    (file,) = table.files
    lacked = [c for c in table.columns if c.name not in file.columns]
    table.columns = [c for c in table.columns if c not in lacked]
    assert_alike(imported(one, file.path, folder / "imported"), table.rows())
    expected = as_json_lines(table, folder / "lines.jsonl")
    if not expected:
        return
    with suppress(NoTypeHasBoth):
        assert_alike(of_lines(one, folder), expected)


class NoTypeHasBoth(Exception):
    """Lines of JSON have -1 and 2^63 in one column, which is refused."""


def of_lines(one: Drawn, folder: Path) -> list[dict[str, Any]]:
    try:
        return imported(one, folder / "lines.jsonl", folder / "of lines")
    except DataError as error:
        if "beyond 2^53, where floats skip integers" in str(error):
            raise NoTypeHasBoth from error
        raise


def imported(one: Drawn, path: Path, to: Path) -> list[dict[str, Any]]:
    """The rows of the table that `recd data import` makes."""
    schema = parse(ForeignSchema, schema_of(one.table.columns), "schema")
    names = [feature.name for feature in schema.sparse]
    found = survey(foreign_files([path]), {*schema.columns}, alone=True, ids=names)
    made = TableImport(found.files, to, schema, types_asked(found, schema), workers=2).run()
    (table,) = made.tables.values()
    return rows_as_told(Table.open(table))
