"""Value tests: what is measured after the answer, or tells it, is proposed as no feature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from strangers_files import write

from recd_plugins.data.importing.proposing.proposal import Proposal, propose
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files

ROWS = 400
DRAW = np.random.default_rng(0)
CLICK = DRAW.integers(0, 2, ROWS)
FLAG = DRAW.integers(0, 2, ROWS)
COUNT = DRAW.integers(0, 900, ROWS)


def proposed(folder: Path, columns: dict[str, Any]) -> Proposal:
    return propose(survey(foreign_files([write(folder / "t.parquet", pa.table(columns))])))


def features(found: Proposal) -> set[str]:
    entries = [*found.schema.get("dense", ()), *found.schema.get("sparse", ())]
    return {one if isinstance(one, str) else one["name"] for one in entries}


def beside_click(folder: Path, name: str, values: Any) -> tuple[set[str], str]:
    found = proposed(folder, {"is_click": CLICK, "price": COUNT / 7, name: values})
    assert found.schema["label"] == "is_click"
    return features(found), found.text


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((one, FLAG) for one in ("is_follow", "is_hate", "long_view", "isProfileEnter", "share")),
        *((one, COUNT) for one in ("play_time_ms", "profile_stay_time", "watching_times")),
    ],
)
def test_what_is_measured_after_the_answer_is_left_out(
    tmp_path: Path, name: str, values: Any
) -> None:
    found, shown = beside_click(tmp_path, name, values)
    assert found == {"price"}
    assert f"# - {name}: is measured after the answer" in shown


@pytest.mark.parametrize("name", ["comment_cnt", "avg_play_time", "share", "follow_user_num"])
def test_counts_of_earlier_rows_stay(tmp_path: Path, name: str) -> None:
    assert beside_click(tmp_path, name, COUNT)[0] == {"price", name}


def test_what_alone_tells_the_label_is_left_out(tmp_path: Path) -> None:
    found, shown = beside_click(tmp_path, "nonclk", 1 - CLICK)
    assert found == {"price"}
    assert "# - nonclk: alone tells 'is_click' in the sample" in shown
    strong = CLICK * 1.5 + DRAW.normal(size=ROWS)  # an AUC of 0.86
    assert beside_click(tmp_path, "score", strong)[0] == {"price", "score"}


def test_texts_that_tell_the_label_are_left_out(tmp_path: Path) -> None:
    words = np.array(["done", "sent", "new", "lost"])
    told = words[np.where(CLICK == 1, 2 * FLAG, 1 + 2 * FLAG)]
    found, shown = beside_click(tmp_path, "state", told)
    assert found == {"price"}
    assert "# - state: alone tells 'is_click' in the sample: name it under `sparse` if" in shown
    mostly = np.where(DRAW.random(ROWS) < 0.1, "new", told)
    assert beside_click(tmp_path, "state", mostly)[0] == {"price", "state"}
    shops = [f"shop {2 * (one % 40) + label}" for one, label in zip(COUNT, CLICK, strict=True)]
    assert beside_click(tmp_path, "shop", shops)[0] == {"price", "shop"}  # five rows of each


def test_what_is_filled_beside_one_answer_is_left_out(tmp_path: Path) -> None:
    paid = [int(count) if click else None for click, count in zip(CLICK, COUNT, strict=True)]
    found, shown = beside_click(tmp_path, "order_id", paid)
    assert found == {"price"}
    assert "# - order_id: has values only where 'is_click' is 1" in shown
    some = [int(count) if flag else None for flag, count in zip(FLAG, COUNT, strict=True)]
    assert beside_click(tmp_path, "coupon_id", some)[0] == {"price", "coupon_id"}
    event = ["transaction" if one else "view" for one in CLICK]
    logged = proposed(tmp_path, {"event": event, "itemid": COUNT, "transactionid": paid})
    assert features(logged) == {"itemid"}


def test_events_are_known_by_their_values(tmp_path: Path) -> None:
    done = [("pv", "buy", "cart", "fav")[one % 4] for one in range(ROWS)]
    found = proposed(tmp_path, {"column_1": COUNT / 7, "column_4": done})
    assert features(found) == {"column_1"}
    assert "# - column_4: is what users did" in found.text


@pytest.mark.parametrize("name", ["is.test", "split"])
def test_a_split_is_no_label(tmp_path: Path, name: str) -> None:
    found = proposed(tmp_path, {name: FLAG, "price": COUNT / 7})
    assert found.schema["label"] == "label"
    assert f"# - {name}: says which rows are for a test" in found.text


def test_times_and_histories_are_what_they_are(tmp_path: Path) -> None:
    at = 1_659_304_800_000 + 1_000 * np.arange(ROWS)
    found = proposed(
        tmp_path,
        {
            "click": CLICK,
            "time_ms": at,
            "events.ts": [[int(one), int(one) + 5] for one in at],
            "date": 20220408 + np.arange(ROWS) % 20,
            "hist_1": COUNT * 37,
            "gift": [7 if one % 3 else None for one in range(ROWS)],
        },
    )
    assert found.schema["timestamp"] == "time_ms"
    assert [one["name"] for one in found.schema["sparse"]] == ["hist_1"]
    assert "dense" not in found.schema
    assert "# - gift: the same value in every row of the sample that has one (7; 33" in found.text
