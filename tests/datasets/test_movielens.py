"""Value and property tests: ratings become sessions with frozen or growing histories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_dlrm.datasets import movielens
from recd_dlrm.datasets.flat_columns import History
from recd_dlrm.datasets.movielens import MovieLens, MovieLensConfig, build_movielens
from recd_plugins.config import parse
from recd_plugins.data.dataset import Split
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context

HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
HOUR = 3600

# Lines are out of order on purpose; users and items are named in the order of appearance.
RATINGS = [
    ("ann", "up", 5, 0),
    ("bob", "up", 2, 60),
    ("ann", "heat", 3, 2 * HOUR + 600),
    ("ann", "jaws", 4, 2 * HOUR),
    ("bob", "big", 4.5, 5 * HOUR),
    ("ann", "big", 1, 2 * HOUR + 1200),
]


def write(folder: Path, ratings: list[tuple[str, str, float, float]]) -> Path:
    path = folder / "some.inter"
    lines = ("\t".join(map(str, rating)) + "\n" for rating in ratings)
    path.write_text(HEADER + "".join(lines))
    return path


def rows(config: MovieLensConfig, split: Split) -> list[dict[str, object]]:
    return pa.concat_tables(build_movielens(config, Context()).chunks(split)).to_pylist()


def test_six_ratings_by_hand(tmp_path: Path) -> None:
    config = MovieLensConfig(path=write(tmp_path, RATINGS), test_fraction=0.2)
    train, test = rows(config, "train"), rows(config, "test")
    ann, bob = [0], [1]
    up, heat, jaws, big = [0], [1], [2], [3]
    seen = [(r["user"], r["item"], r["history"], r["label"], r["session_id"]) for r in train]
    assert seen == [
        (ann, up, [], 1.0, 0),
        (bob, up, [], 0.0, 2),
        (ann, jaws, up, 1.0, 1),
        (ann, heat, up, 0.0, 1),
        (ann, big, up, 0.0, 1),
    ]
    assert [r["timestamp"] for r in train] == [0, 60_000, 7_200_000, 7_800_000, 8_400_000]
    np.testing.assert_allclose(
        [r["log_position"] for r in train], np.log1p([0, 0, 1, 2, 3]), rtol=1e-6
    )
    assert [(r["user"], r["item"], r["history"], r["session_id"]) for r in test] == [
        (bob, big, up, 3)
    ]
    growing = MovieLensConfig(path=config.path, history="growing", history_length=2)
    histories = [r["history"] for r in rows(growing, "train") if r["user"] == ann]
    assert histories == [[], up, up + jaws, jaws + heat]


@settings(max_examples=at_most(40), deadline=None)
@given(
    ratings=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from("uvwxyz"),
            st.sampled_from([1.0, 3.5, 5.0]),
            st.integers(0, 40).map(lambda t: t * 600),
        ),
        min_size=3,
        max_size=40,
    ),
    most=st.integers(1, 5),
    gap=st.sampled_from([5.0, 10.0, 60.0]),
)
def test_histories_are_those_of_a_plain_loop(
    ratings: list[tuple[str, str, float, int]],
    most: int,
    gap: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = write(tmp_path_factory.mktemp("ratings"), ratings)
    items = list(dict.fromkeys(rating[1] for rating in ratings))
    by_user: dict[str, list[tuple[int, int]]] = {}
    for user, item, _, time in sorted(ratings, key=lambda r: (r[0], r[3])):
        by_user.setdefault(user, []).append((time, items.index(item)))
    expected: dict[str, list[tuple[int, int, list[int]]]] = {"frozen": [], "growing": []}
    for events in by_user.values():
        start = 0
        for i, (time, item) in enumerate(events):
            if i and time - events[i - 1][0] > gap * 60:
                start = i
            past = [item for _, item in events[:i]]
            expected["growing"].append((time * 1000, item, past[-most:]))
            expected["frozen"].append((time * 1000, item, past[:start][-most:]))
    for history in ("frozen", "growing"):
        config = MovieLensConfig(
            path=path,
            history=history,  # type: ignore[arg-type]
            history_length=most,
            session_gap_minutes=gap,
            test_fraction=0.3,
        )
        found = [*rows(config, "train"), *rows(config, "test")]
        assert [r["timestamp"] for r in found] == sorted(r["timestamp"] for r in found)
        got = sorted((r["timestamp"], r["item"][0], r["history"]) for r in found)
        assert got == sorted(expected[history])


@pytest.mark.parametrize("history", ["frozen", "growing"])
def test_the_real_ratings(
    real_data: Callable[[str], Path], history: History, tmp_path: Path
) -> None:
    path = real_data("ml100k/ml-100k.inter")
    dataset = MovieLens(MovieLensConfig(path=path, history=history))
    tables = dataset.prepare(tmp_path)
    assert (tables.train.num_rows, tables.test.num_rows) == (90_000, 10_000)
    assert dataset.num_rows("test") == 10_000
    assert tables.schema == dataset.schema
    assert tables.schema.table_sizes() == {"user": 943, "items": 1682}
    train = pa.concat_tables(dataset.chunks("train"))
    test = pa.concat_tables(dataset.chunks("test"))
    assert train.schema.equals(dataset.schema.arrow())
    times = np.concatenate([train["timestamp"].to_numpy(), test["timestamp"].to_numpy()])
    assert (np.diff(times) >= 0).all()
    labels = np.concatenate([train["label"].to_numpy(), test["label"].to_numpy()])
    assert labels.sum() == 55_375  # ratings of 4 and 5 in MovieLens 100k
    order = np.argsort(train["session_id"].to_numpy(), kind="stable")
    sessions = train["session_id"].to_numpy()[order]
    histories = train["history"].take(order).to_pylist()
    same = np.flatnonzero(sessions[1:] == sessions[:-1])
    if history == "frozen":  # exact duplicates
        assert all(histories[i] == histories[i + 1] for i in same)
    else:  # shifted by one
        assert all(histories[i][-19:] == histories[i + 1][:-1] for i in same)


def test_chunks_do_not_change_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MovieLensConfig(path=write(tmp_path, RATINGS), history="growing")
    whole = rows(config, "train")
    monkeypatch.setattr(movielens, "CHUNK_ROWS", 2)
    assert rows(config, "train") == whole


def test_a_broken_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.inter: cannot be read .*dataset\.path"):
        build_movielens(MovieLensConfig(path=tmp_path / "none.inter"), Context())
    config = MovieLensConfig(path=write(tmp_path, RATINGS[:2]))
    config.path.write_text(config.path.read_text().replace("rating:", "ratings:"))
    dataset = build_movielens(config, Context())
    with pytest.raises(DataError, match=r"some\.inter:1: lacks column 'rating:float' of a MovieL"):
        _ = dataset.schema


def test_the_fingerprint_follows_the_file(tmp_path: Path) -> None:
    config = MovieLensConfig(path=write(tmp_path, RATINGS))
    first = build_movielens(config, Context()).fingerprint()
    write(tmp_path, RATINGS[:-1])
    assert build_movielens(config, Context()).fingerprint() != first


def test_options_that_cannot_be() -> None:
    with pytest.raises(RegistryError, match="option 'path' is required"):
        parse(MovieLensConfig, {}, "dataset")
    with pytest.raises(RegistryError, match=r"dataset\.history: unknown value 'frosen'; did you"):
        parse(MovieLensConfig, {"path": "a", "history": "frosen"}, "dataset")
