"""Rung 1 and 4 (values, a loader's run): what is weighed, on the batches that training reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins
from recd_dedup.dedup import calibrate
from recd_dedup.dedup.advisor import Limits, advise_batches
from recd_dedup.dedup.calibrate import measured_prices, over_links, uses_of
from recd_dedup.dedup.sample import SampledBatches, rows_of_batches
from recd_dedup.dedup.worth import (
    FeatureUse,
    StepPrices,
    WorthInBytes,
    WorthInSeconds,
)
from recd_plugins.api.embedding import CALLS_OF_A_FEATURE, CALLS_OF_A_GROUP, PoolingSeconds
from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.errors import CapabilityError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.testing.batches import from_lists

CPU = torch.device("cpu")
S, SESSIONS, LENGTH = 4, 600, 1


def prices(**changed: Any) -> StepPrices:
    known: dict[str, Any] = {
        "conversion": {"seen": 1e-3, "bought": 1e-3},
        "lookup": {32: 1e-6},
        "copy": 0.0,
        "byte": 0.0,
        "call": 0.0,
        "pooling": {},
    }
    return StepPrices(**(known | changed))


LISTS = {
    "seen": [[1, 2], [1, 2], [1, 2], [1, 2]],
    "bought": [[3], [3], [4], [4]],
    "item": [[5], [6], [7], [8]],
}
ROWS = list(rows_of_batches([from_lists(LISTS)] * 2, list(LISTS)))
USES = {name: FeatureUse(rows=(32,)) for name in LISTS}


def worth(**changed: Any) -> WorthInSeconds:
    return WorthInSeconds(SampledBatches(LISTS, ROWS), 4, prices(**changed), USES)


def test_what_a_group_saves_and_costs_in_seconds() -> None:
    """Four samples with 2 ids each become one: 6 ids and their rows of 32 floats are spared."""
    assert worth().saved("seen", ["seen"]) == {"lookup": pytest.approx(6e-6), "exchange": 0}
    sent = worth(byte=1e-9).saved("seen", ["seen"])["exchange"]
    assert sent == pytest.approx(1e-9 * (6 * 8 + 2 * 4 * 32 * 6))
    pooled = worth(pooling={"seen": PoolingSeconds(all=3e-3, unique=1e-3)})
    assert pooled.saved("seen", ["seen"])["pooling"] == pytest.approx(2e-3)
    cost = worth(copy=1e-9, call=1e-6).cost(["seen", "bought"])
    assert cost["conversion"] == pytest.approx(2e-3)
    assert cost["expansion"] == pytest.approx(1e-9 * 32 * (8 + 4))  # no pooling is known
    assert cost["handling"] == pytest.approx(1e-6 * (CALLS_OF_A_GROUP + 2 * CALLS_OF_A_FEATURE))


def test_the_weights_of_ids_are_no_rows_that_are_looked_up() -> None:
    plain = from_lists(LISTS)
    weights = torch.ones(plain.values().numel())
    scored = KeyedJaggedTensor(
        plain.keys(), plain.values(), weights=weights, lengths=plain.lengths()
    )
    sample = SampledBatches(LISTS, rows_of_batches([scored] * 2, list(LISTS)))
    assert [sample.length(name) for name in LISTS] == [2, 1, 1]
    assert WorthInSeconds(sample, 4, prices(), USES).saved("seen", ["seen"]) == worth().saved(
        "seen", ["seen"]
    )


def test_rows_that_are_exchanged_are_copied_twice() -> None:
    assert worth(copy=1e-9).saved("seen", ["seen"])["exchange"] == pytest.approx(2e-9 * 32 * 6)


def test_what_a_group_saves_and_costs_in_bytes() -> None:
    """Of 8 bytes an id, 2 ids a sample; and an inverse lookup's entry, twice."""
    weighed = WorthInBytes(SampledBatches(LISTS, ROWS))
    assert weighed.saved("seen", ["seen"]) == {"ids": pytest.approx(8 * 2 * (1 - 1 / 4))}
    assert weighed.saved("bought", ["bought"]) == {"ids": pytest.approx(8 * 1 * (1 - 1 / 2))}
    assert weighed.cost(["seen"]) == {"lookup": 2 * 1}
    assert weighed.net(["seen"]) == pytest.approx(12 - 2)
    assert weighed.words({"ids": 12.0, "lookup": 2.0}) == "14.0 bytes a sample"


@pytest.mark.parametrize(("unique", "width"), [(256, 1), (257, 2)])
def test_an_inverse_lookup_is_as_wide_as_its_largest_number(unique: int, width: int) -> None:
    lists = {"item": [[number] for number in range(unique)]}
    rows = rows_of_batches([from_lists(lists)], list(lists))
    assert WorthInBytes(SampledBatches(lists, rows)).cost(["item"]) == {"lookup": 2 * width}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({}, "0 ms"),
        ({"": 1.5e-3}, "1.5 ms"),
        ({"lookup": 1e-3, "exchange": 4e-6}, "1 ms of lookup"),
        ({"lookup": 5e-6}, "0.005 ms of lookup"),
        ({"lookup": 1e-3, "pooling": 2e-3}, "1 ms of lookup and 2 ms of pooling"),
        (
            {"lookup": 1e-3, "exchange": 2e-3, "pooling": 3e-3},
            "1 ms of lookup, 2 ms of exchange and 3 ms of pooling",
        ),
    ],
)
def test_seconds_are_put_in_words(parts: dict[str, float], says: str) -> None:
    assert worth().words(parts) == says


@pytest.mark.parametrize(
    ("byte", "call", "groups"),
    [(0.0, 0.0, ()), (2e-6, 0.0, (("seen",),)), (2e-6, 1e-6, ())],
    ids=["nothing pays", "one pays", "a step's own calls cost more"],
)
def test_what_does_not_pay_stays_as_it_is(byte: float, call: float, groups: Any) -> None:
    limits = Limits(min_factor=1.5, together=0.9, tolerance=0.05)
    advice = advise_batches(
        [from_lists(LISTS)] * 2,
        limits=limits,
        worth_of=lambda sample, *_: worth(byte=byte, call=call),
    )
    assert advice.groups == groups
    reasons = dict(line.split(": ", 1) for line in [*advice.lines()][1:])
    assert reasons["item"].startswith("left as it is, factor 1.00 < 1.5")
    if not byte:
        assert reasons["seen"].startswith(
            "left as it is, factor 4.00 saves 0.006 ms of lookup, costs 1 ms of conversion"
        )
    paid = [
        line for line in advice.after_all if line.startswith("left as they are after all, seen")
    ]
    assert len(paid) == bool(call)


def test_sums_are_looked_up_in_parts_and_must_pay_for_them() -> None:
    uses = USES | {"bought": FeatureUse(sums=(32,))}
    for call, kept in ((1e-9, (("seen",), ("bought",))), (2e-7, (("seen",),)), (3e-6, ())):
        weighed = WorthInSeconds(SampledBatches(LISTS, ROWS), 4, prices(call=call, byte=3e-6), uses)
        settled = weighed.settled([("seen",), ("bought",)])
        assert settled.groups == kept
        assert len(settled.why) == 2 - len(kept)


class Histories(nn.Module):
    """Two histories, of which a pooling takes a while; tables on the meta device."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(
                name=f"t_{key}", num_embeddings=10_000, embedding_dim=32, feature_names=[key]
            )
            for key in ("seen", "item")
        ]
        self.tables = EmbeddingCollection(tables=tables, device=torch.device("meta"))
        self.features, self.poolings = ("seen",), nn.ModuleList([Long(rounds)])

    def forward(self, batch: Batch) -> None:
        raise AssertionError("nobody runs it")


class Long(nn.Module):
    """A sum that takes as many multiplications as it is told."""

    needs_query = False

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.matrix = nn.Sequential(nn.Linear(32, 1024), nn.Linear(1024, 32))

    def extra_repr(self) -> str:
        return f"{self.rounds} rounds"

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        for _ in range(self.rounds):
            values = self.matrix(values)
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths.long())
        return values.new_zeros(len(lengths), 32).index_add(0, rows, values)


@pytest.mark.slow
def test_prices_are_measured_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    lists = torch.randint(0, 10_000, (64, 8), generator=draw).repeat_interleave(8, 0)
    kjt = from_lists({"seen": lists.tolist(), "item": [[row] for row in range(512)]})
    model = Histories(rounds=3)
    uses = uses_of(model, kjt, lambda features: features)
    assert uses == dict.fromkeys(("seen", "item"), FeatureUse(rows=(32,)))
    found = measured_prices(
        kjt,
        ["seen"],
        model=model,
        uses=uses,
        convert=lambda features, groups: None,
        device=CPU,
    )
    assert over_links(found, Cluster(n_nodes=1, ranks_per_node=1), CPU) == found
    found = over_links(found, Cluster(n_nodes=1, ranks_per_node=2), CPU)
    pooling = found.pooling["seen"]
    assert pooling.all > 2 * pooling.unique > 0  # an eighth of the values
    assert found.byte == pytest.approx(1 / (calibrate.LOOPBACK_GBPS * 2**30))
    assert found.copy > 0
    assert found.call > 0


SCHEMA = Schema(
    sparse=(
        SparseFeature(name="seen", num_ids=10_000, sequence=True),
        SparseFeature(name="item", num_ids=10_000),
    )
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    """Sessions of `S` samples with one history, side by side and scattered."""
    draw = np.random.default_rng(0)
    rows = np.arange(S * SESSIONS)
    seen = draw.integers(0, 10_000, (SESSIONS, LENGTH)).repeat(S, 0)
    columns = {
        "session_id": rows // S,
        "timestamp": rows,
        "label": rows % 2.0,
        "seen": seen,
        "item": draw.integers(0, 10_000, (len(rows), 1)),
    }
    made = {}
    for name, order in (("clustered", rows), ("scattered", draw.permutation(rows))):
        chunk = pa.table(
            {key: column[order].tolist() for key, column in columns.items()}, SCHEMA.arrow()
        )
        made[name] = write_table(tmp_path_factory.mktemp("t") / name, SCHEMA, [chunk])
    return made


def stack_of(
    table: Table,
    folder: Path,
    sessions: str,
    *,
    ranks: int = 2,
    codecs: Mapping[str, Any] | None = None,
    **dedup: Any,
) -> recd_plugins.Stack:
    return recd_plugins.load(
        {
            "plugins": ["recd_dedup"],
            "dataset": {"use": "parquet", "train": str(table.path), "test": str(table.path)},
            "reader": {"use": "local", "sessions": sessions},
            "dedup": {"use": "exact", "groups": "auto", **dedup},
            "folder": str(folder),
            "train": {"batch_size": 128, "device": "cpu", "ranks": ranks, "codecs": codecs or {}},
        }
    )


def trained_factor(stack: recd_plugins.Stack) -> float:
    """Of the batches of both ranks."""
    ids = kept = 0
    for rank in range(2):
        for batch in stack.loader(rank, 2):
            ids += batch.dedup.to_kjt()["seen"].values().numel()
            kept += batch.dedup.kjt["seen"].values().numel()
    return ids / kept


def test_the_factor_is_that_of_the_batches_that_are_read(tables, tmp_path: Path) -> None:
    whole = stack_of(tables["clustered"], tmp_path, "whole", weigh="bytes")
    why = whole._features.explain()
    said = float(why.split("seen: deduplicated alone, factor ")[1].split(";")[0])
    assert said == pytest.approx(trained_factor(whole), rel=0.05)
    assert said > 0.9 * S
    (kept,) = tmp_path.glob("dedup-*.json")
    assert json.loads(kept.read_text())["groups"] == [["seen"]]
    again = stack_of(tables["clustered"], tmp_path, "whole", weigh="bytes")
    assert again._features.explain() == why


def test_groups_are_weighed_anew_where_rows_travel_in_other_bits(tables, tmp_path: Path) -> None:
    halves = {"forward": "fp16", "backward": "bf16"}
    for codecs, kept in ((None, 1), (halves, 2), ({"dense": "bf16"}, 2), (halves, 2)):
        stack = stack_of(tables["clustered"], tmp_path, "whole", weigh="bytes", codecs=codecs)
        stack.adapt(Histories(0))
        assert stack._features.groups == (("seen",),)
        assert len([*tmp_path.glob("dedup-*.json")]) == kept


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("clustered", r"is clustered, but its rows are shuffled one by one.*sessions: whole"),
        ("scattered", r"is not clustered by session.*cluster_by_session"),
    ],
)
def test_apart_sessions_are_warned_of(tables, tmp_path: Path, table: str, why: str) -> None:
    """A batch has a tenth of a rank's rows, so that few samples meet another of their session."""
    stack = stack_of(tables[table], tmp_path, "split", weigh="bytes")
    with pytest.warns(NoticeWarning, match=why):
        assert stack.loader(0, 2) is not None
    assert "seen: left as it is, factor 1." in stack._features.explain()


def test_a_pooling_pays_where_its_time_does(tables, tmp_path: Path) -> None:
    """The trainer's own model is asked, and stays as it is where nothing pays: that is a notice."""
    for rounds, groups in ((0, ()), (40, (("seen",),))):
        stack = stack_of(tables["clustered"], tmp_path, "whole", ranks=1)
        model = Histories(rounds)
        unused = pytest.warns(NoticeWarning, match="no feature repeats so often")
        with nullcontext() if groups else unused:
            assert stack.adapt(model) is model
        assert stack._features.groups == groups
        assert (stack._features.transform is None) == (not groups)
        assert ("of pooling, costs" in stack._features.explain()) == bool(rounds)


def test_time_cannot_be_weighed_without_a_model(tables, tmp_path: Path) -> None:
    stack = stack_of(tables["clustered"], tmp_path, "whole")
    with pytest.warns(NoticeWarning, match=r"is not used: .*adapt\(model\)` before"):
        stack.loader(0, 2)
    assert stack._features.groups == ()
    assert "no model is known to look it up" in stack._features.explain()
    strict = recd_plugins.load({**stack.registry.source.values, "strict": True})
    with pytest.raises(CapabilityError, match="strict: true"):
        strict.loader(0, 2)
