"""Value and property tests: clicks become next-item samples beside seeded negatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_dlrm.datasets import yoochoose
from recd_dlrm.datasets.flat_columns import History
from recd_dlrm.datasets.yoochoose import Yoochoose, YoochooseConfig, build_yoochoose
from recd_plugins.data.dataset import Split
from recd_plugins.errors import DataError
from recd_plugins.slots import Context

HEADER = "SessionId\tItemId\tTime\n"

# Items become 0, 1, ... in the order of their appearance: 900 is 0, 500 is 1, 700 is 2.
CLICKS = [
    (7, 900, 10.0),
    (7, 500, 20.25),
    (3, 700, 15.0),
    (7, 700, 30.0),
    (7, 900, 40.0),
    (3, 900, 35.0),
    (9, 500, 90.0),
    (9, 900, 91.0),
]


def write(folder: Path, clicks: list[tuple[int, int, float]]) -> Path:
    path = folder / "clicks.tsv"
    path.write_text(HEADER + "".join("\t".join(map(str, click)) + "\n" for click in clicks))
    return path


def rows(config: YoochooseConfig, split: Split) -> list[dict[str, object]]:
    return [row for c in build_yoochoose(config, Context()).chunks(split) for row in c.to_pylist()]


def rows_if_any(config: YoochooseConfig, split: Split) -> list[dict[str, object]]:
    try:
        return rows(config, split)
    except DataError as error:
        if f"no row is left for the {split} split" not in str(error):
            raise
        return []


def test_eight_clicks_by_hand(tmp_path: Path) -> None:
    config = YoochooseConfig(path=write(tmp_path, CLICKS), context=1, negatives=2)
    train, test = rows(config, "train"), rows(config, "test")
    clicked = [
        (r["session_id"], r["timestamp"], r["item"], r["history"]) for r in train if r["label"]
    ]
    assert clicked == [
        (7, 20_250, [1], [0]),
        (7, 30_000, [2], [0]),
        (3, 35_000, [0], [2]),
        (7, 40_000, [0], [0]),
    ]
    assert [(r["session_id"], r["label"]) for r in test] == [(9, 1.0), (9, 0.0), (9, 0.0)]
    for positive, *negatives in zip(*(train[i::3] for i in range(3)), strict=True):
        for negative in negatives:
            assert negative["label"] == 0.0
            assert negative["item"] != positive["item"]
            assert 0 <= negative["item"][0] < 3
            same = ("session_id", "timestamp", "history", "log_position")
            assert all(negative[name] == positive[name] for name in same)
    growing = dataclasses.replace(config, history="growing", history_length=2)
    histories = [r["history"] for r in rows(growing, "train") if r["label"]]
    assert histories == [[0], [0, 1], [2], [1, 2]]


@settings(max_examples=at_most(40), deadline=None)
@given(
    clicks=st.lists(
        st.tuples(st.integers(1, 5), st.integers(10, 16), st.integers(0, 50)),
        min_size=4,
        max_size=50,
    ),
    context=st.integers(1, 3),
    most=st.integers(1, 4),
)
def test_histories_are_those_of_a_plain_loop(
    clicks: list[tuple[int, int, int]],
    context: int,
    most: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    items = list(dict.fromkeys(click[1] for click in clicks))
    expected: dict[str, list[tuple[int, int, int, list[int]]]] = {"frozen": [], "growing": []}
    for session in {click[0] for click in clicks}:
        events = sorted((c for c in clicks if c[0] == session), key=lambda c: c[2])
        path = [items.index(item) for _, item, _ in events]
        for i in range(context, len(path)):
            key = (session, events[i][2] * 1000, path[i])
            expected["growing"].append((*key, path[:i][-most:]))
            expected["frozen"].append((*key, path[:context][-most:]))
    file = write(tmp_path_factory.mktemp("clicks"), clicks)
    for history in ("frozen", "growing"):
        config = YoochooseConfig(
            path=file,
            history=history,  # type: ignore[arg-type]
            context=context,
            history_length=most,
            test_fraction=0.4,
        )
        if len(items) == 1 or not expected[history]:
            with pytest.raises(DataError, match=r"one item only|Lower `context`"):
                rows(config, "train")
            continue
        parts = {"train": rows(config, "train"), "test": rows_if_any(config, "test")}
        for part in parts.values():
            assert [r["timestamp"] for r in part] == sorted(r["timestamp"] for r in part)
        sessions = [{r["session_id"] for r in part} for part in parts.values()]
        assert not sessions[0] & sessions[1]
        got = [
            (r["session_id"], r["timestamp"], r["item"][0], r["history"])
            for part in parts.values()
            for r in part
            if r["label"]
        ]
        assert sorted(got) == sorted(expected[history])


@pytest.mark.parametrize("history", ["frozen", "growing"])
def test_the_real_clicks(
    real_data: Callable[[str], Path], history: History, tmp_path: Path
) -> None:
    real = real_data("yoochoose/clicks.tsv")
    dataset = Yoochoose(YoochooseConfig(path=real, history=history))
    tables = dataset.prepare(tmp_path)
    for split in ("train", "test"):
        assert tables[split].num_rows == dataset.num_rows(split)
    assert tables.schema == dataset.schema
    raw = np.loadtxt(real, skiprows=1)
    assert tables.schema.table_sizes() == {"items": np.unique(raw[:, 1]).size}
    _, sizes = np.unique(raw[:, 0], return_counts=True)
    total = tables.train.num_rows + tables.test.num_rows
    assert total == 4 * np.maximum(sizes - 2, 0).sum()
    assert 0.05 < tables.test.num_rows / total < 0.15
    train = pa.concat_tables(dataset.chunks("train"))
    assert train.schema.equals(dataset.schema.arrow())
    assert train["label"].to_numpy().mean() == 0.25
    times = train["timestamp"].to_numpy()
    assert (np.diff(times) >= 0).all()
    assert set(times) <= set(np.rint(raw[:, 2] * 1000).astype(int))
    # Clustered by session, click by click: exact duplicates or lists shifted by one.
    clicked = train.filter(train["label"].to_numpy() == 1)
    order = np.argsort(clicked["session_id"].to_numpy(), kind="stable")
    sessions = clicked["session_id"].to_numpy()[order]
    histories = clicked["history"].take(order).to_pylist()
    for i in np.flatnonzero(sessions[1:] == sessions[:-1]):
        if history == "frozen":
            assert histories[i] == histories[i + 1]
        else:
            assert histories[i][-19:] == histories[i + 1][:-1]


def test_negatives_are_even_over_the_other_items(tmp_path: Path) -> None:
    clicks = [(i, 5 if i % 2 else i // 2 % 10, float(i)) for i in range(2000)]
    clicks = [(i, item, time + 0.1 * k) for i, item, time in clicks for k in range(3)]
    config = YoochooseConfig(path=write(tmp_path, clicks), negatives=9, test_fraction=0.01)
    found = rows(config, "train")
    positives = np.array([r["item"][0] for r in found if r["label"]]).repeat(9)
    negatives = np.array([r["item"][0] for r in found if not r["label"]])
    assert (positives != negatives).all()
    expected = sum((positives != i) / 9 for i in range(10))
    for item in range(10):
        p = (positives != item).mean() / 9
        error = 5 * np.sqrt(p / negatives.size)  # five standard errors
        assert abs((negatives == item).mean() - p) < error
    assert np.allclose(expected, 1)


def test_seeds_and_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clicks = [(i % 40, i * 7 % 31, float(i)) for i in range(400)]
    config = YoochooseConfig(path=write(tmp_path, clicks))
    whole = rows(config, "train")
    assert rows(config, "train") == whole
    other = rows(dataclasses.replace(config, seed=1), "train")
    assert [r["item"] for r in other[::4]] == [r["item"] for r in whole[::4]]
    assert [r["item"] for r in other] != [r["item"] for r in whole]
    monkeypatch.setattr(yoochoose, "CHUNK_ROWS", 9)
    assert rows(config, "train") == whole


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SessionId\tItem\tTime\n",
            ":1: lacks column 'ItemId' of a Yoochoose.*mean 'Item'",
        ),
        (HEADER + "1\t2\t3\n1.5\t2\t3\n", ":3: column 'SessionId': .*'1.5'"),
        (HEADER + "1\t2\t3\n1\t2\t4\n1\t2\t5\n", "one item only"),
        (HEADER + "1\t2\t3\n1\t3\t4\n", "no session has more than 2 clicks"),
    ],
)
def test_a_broken_source_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    with pytest.raises(DataError, match=r"bad\.tsv: cannot be read .*dataset\.path"):
        build_yoochoose(YoochooseConfig(path=path), Context())
    path.write_text(text)
    dataset = build_yoochoose(YoochooseConfig(path=path), Context())
    with pytest.raises(DataError, match=rf"bad\.tsv.*{message}"):
        list(dataset.chunks("train"))


def test_the_fingerprint_follows_the_file(tmp_path: Path) -> None:
    config = YoochooseConfig(path=write(tmp_path, CLICKS))
    first = build_yoochoose(config, Context()).fingerprint()
    write(tmp_path, CLICKS[:-1])
    assert build_yoochoose(config, Context()).fingerprint() != first
