"""Rung 1 and 2 (values, properties): what the advisor finds in tables whose laws are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec import KeyedJaggedTensor

from recd_dedup.dedup.advisor import (
    Advice,
    FeatureAdvice,
    Limits,
    _measures,
    advise,
    advise_batches,
    decide,
)
from recd_dedup.dedup.converters import Exact, GroupsConfig, build_exact
from recd_dedup.dedup.sample import SampledBatches, choose_bands, rows_of_batches
from recd_dedup.dedup.worth import NoWorth, Worth, WorthInBytes
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_dlrm.datasets.sessions.feature_draws import FeatureConfig
from recd_plugins.data.dataset import Tables
from recd_plugins.data.schema import IDS, Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.errors import DataError
from recd_plugins.slots import Context
from recd_plugins.testing.batches import from_lists

BY_SESSION = [("session_id", "ascending"), ("timestamp", "ascending")]


def feature(name: str, stay: float, group: str | None = None, **options) -> FeatureConfig:
    """Ids so many that lists of different sessions differ."""
    law = {"num_ids": 10**9, "distribution": "uniform", "length": 6, "min_length": 3}
    return FeatureConfig(name=name, stay=stay, group=group, **(law | options))


# Two groups, of which one shifts; lone features; and one too restless, though in a group.
FEATURES = (
    feature("topics", 0.95, "profile"),
    feature("fresh", 0.1),
    feature("history", 0.9, "history", shift=True, sequence=True),
    feature("brands", 0.95, "profile"),
    feature("user", 1.0, length=1, min_length=1),
    feature("history_seller", 0.9, "history", shift=True, sequence=True),
    feature("region", 0.9),
    feature("item", 0.0, "item"),
    feature("item_seller", 0.0, "item"),
)
GROUPS = (("topics", "brands"), ("history", "history_seller"), ("user",), ("region",))


@pytest.mark.parametrize(
    ("factor", "more"), [(2.0, ""), (2.5, ""), (2.6, ": its lists also repeat across sessions")]
)
def test_what_was_measured_in_words(factor: float, more: str) -> None:
    found = FeatureAdvice(name="a", length=3, stay=0.5, formula_factor=2.0, factor=factor)
    assert _measures(found) == f"(l 3.0, d 0.50, by the formula 2.00{more})"
    assert (found.saved, found.cost) == (0, 0)


LIMITS = Limits(min_factor=2.0, together=0.9, tolerance=0.05)
PAIRS = from_lists({"a": [[1], [1], [2], [2]], "b": [[3], [3], [4], [4]]})
"""Each list twice, and both features change at once."""
APART = from_lists({"a": [[1], [2], [3], [4]], "b": [[1], [2], [3], [4]]})


def test_what_chooses_and_what_judges_are_other_batches() -> None:
    asked: list[tuple[float, list[str]]] = []

    def worth_of(sample: SampledBatches, size: int, names: Sequence[str]) -> Worth:
        asked.append((sample.alone["a"], list(names)))
        return WorthInBytes(sample)

    advice = advise_batches([PAIRS, APART, PAIRS, APART], limits=LIMITS, worth_of=worth_of)
    assert asked == [(2, ["a", "b"]), (1, ["a", "b"])]  # as often as is asked for is enough
    assert advice.groups == ()
    assert advice.batches == 4
    two = from_lists({"a": [[1], [1]]})
    assert advise_batches([two], limits=LIMITS).features[0].stay == 1


class Given(NoWorth):
    """What pays is given."""

    def __init__(self, sample: SampledBatches, net: Mapping[tuple[str, ...], float]) -> None:
        super().__init__(sample)
        self._net = net

    def net(self, group: Sequence[str]) -> float:
        return self._net[tuple(group)]


@pytest.mark.parametrize(
    ("a", "b", "both", "groups"),
    [
        (2.0, 1.0, 3.0, (("a", "b"),)),
        (2.0, 1.0, 2.9, (("a",), ("b",))),
        (2.0, -5.0, 2.5, (("a", "b"),)),  # alone, `b` would be left as it is, for nothing
        (-5.0, 2.0, 2.5, (("a", "b"),)),
        (-5.0, 2.0, 1.5, (("b",),)),
    ],
)
def test_features_are_taken_together_where_that_is_worth_more(
    a: float, b: float, both: float, groups: object
) -> None:
    sample = SampledBatches(["a", "b"], rows_of_batches([PAIRS], ["a", "b"]))
    worth = Given(sample, {("a",): a, ("b",): b, ("a", "b"): both})
    assert decide(sample, 4, LIMITS, worth).groups == groups


def test_many_small_batches_show_what_each_shows() -> None:
    """Batches are looked at many at a time; lists of different batches are never the same."""
    shifted = from_lists({"a": [[3], [1], [1], [2]], "b": [[3], [4], [4], [3]]})
    sessions = [torch.tensor([1, 1, 2, 2]), torch.tensor([2, 2, 2, 3])]
    both = SampledBatches(["a", "b"], rows_of_batches([PAIRS, shifted], ["a", "b"], sessions))
    assert both.alone == {"a": 8 / 5, "b": 8 / 4}
    assert both.unique_share(["a", "b"]) == 5 / 8
    assert both.most_unique(["a", "b"]) == 3
    assert both.factors(["b", "a"]) == {"a": 8 / 5, "b": 8 / 5}
    assert both.repeats.batches == 2
    assert both.repeats.sizes.values()["histogram"] == [[1, 1], [2, 2], [3, 1]]
    assert both.repeats.features["a"].unchanged == 3


def test_features_are_not_compared_where_no_group_of_them_can_pay() -> None:
    """Else each of many features that do not pay would be compared with each of them."""

    class Poor(Given):
        spared = 1.0

    sample = SampledBatches(["a", "b"], rows_of_batches([PAIRS], ["a", "b"]))
    worth = Poor(sample, {("a",): -2.0, ("b",): 0.5})
    assert decide(sample, 4, LIMITS, worth).groups == (("b",),)


def write(folder: Path, schema: Schema, rows: pa.Table, rows_per_stripe: int = 2_048) -> Table:
    with TableWriter(folder, schema, rows_per_stripe=rows_per_stripe) as writer:
        writer.write(rows)
    return Table.open(folder)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> dict[str, Table]:
    """The same samples in the order of time, and clustered by session."""
    config = SessionsConfig(
        samples=24_000, samples_per_session=8, session_sigma=0.5, features=FEATURES, dense=0
    )
    dataset = Sessions(dataclasses.replace(config, concurrent_sessions=2_000))
    rows = pa.concat_tables(list(dataset.chunks("train")))
    folder = tmp_path_factory.mktemp("tables")
    return {
        "in_time": write(folder / "in_time", dataset.schema, rows),
        "clustered": write(folder / "clustered", dataset.schema, rows.sort_by(BY_SESSION)),
    }


@pytest.fixture(scope="module")
def advice(tables) -> Advice:
    return advise(tables["clustered"], batch_size=512)


def by_name(advice: Advice) -> dict:
    return {feature.name: feature for feature in advice.features}


def test_it_finds_the_groups_that_the_data_was_made_with(advice: Advice) -> None:
    assert advice.groups == GROUPS


def test_it_measures_what_the_data_was_made_with(advice: Advice) -> None:
    assert advice.samples_per_session == pytest.approx(8, rel=0.1)  # sessions are cut by batches
    size = advice.samples_per_session
    for config, found in zip(FEATURES, advice.features, strict=True):
        assert found.name == config.name
        assert found.stay == pytest.approx(config.stay, abs=0.02)
        assert found.length == pytest.approx(config.length, rel=0.05)
        # Lists of different sessions differ, so formula and measure agree.
        formula = 1 / (1 - (size - 1) / size * found.stay)
        assert found.formula_factor == pytest.approx(formula)
        assert found.factor == pytest.approx(formula, rel=0.07)


def test_no_feature_loses_by_its_group(advice: Advice) -> None:
    for found in advice.features:
        if found.group:
            assert found.name in found.group
            assert found.group_factor is not None
            assert (1 - 0.05) * found.factor <= found.group_factor <= found.factor
        else:
            assert found.factor < 1.5
            assert found.group_factor is None


def built(table: Table, groups="auto", batch_size: int = 512) -> Exact:
    tables = Tables(train=table, test=table)
    context = Context(tables=tables, schema=table.schema, batch_size=batch_size)
    return build_exact(GroupsConfig(groups=groups), context)


def test_a_converter_tells_the_unique_samples_to_expect(tables, advice: Advice) -> None:
    """Lists of different sessions differ and lengths are alike: 1 / DedupeFactor, or near it."""
    found = built(tables["clustered"]).unique_shares
    assert found == advice.unique_shares
    factors = [by_name(advice)[group[0]].group_factor for group in GROUPS]
    assert found == pytest.approx([1 / factor for factor in factors], rel=0.03)
    given = built(tables["clustered"], GROUPS)
    assert given.unique_shares == pytest.approx(found, rel=0.05)  # of a quarter of the rows
    (one,) = built(tables["clustered"], (("topics", "item"),)).unique_shares
    assert one == pytest.approx(1, abs=0.01)  # `item` differs in every sample


def test_unique_shares_of_two_batches_by_hand(tmp_path) -> None:
    lists = {"a": [[1], [1], [2], [2]] * 2, "b": [[1], [1], [1], [1], [1], [2], [3], [4]]}
    table = table_of_lists(tmp_path / "t", [1, 1, 2, 2, 3, 3, 4, 4], **lists)
    assert built(table, (("a",), ("b",)), batch_size=4).unique_shares == (2 / 4, (1 + 4) / 8)
    assert built(table, (("b", "a"),), batch_size=4).unique_shares == ((2 + 4) / 8,)


def test_unique_shares_that_cannot_be_measured(tmp_path, tables) -> None:
    assert Exact((("a",),)).unique_shares is None
    schema = tables["in_time"].schema
    assert build_exact(GroupsConfig(groups=GROUPS), Context(schema=schema)).unique_shares is None
    sessionless = dataclasses.replace(schema, session_id=None)
    assert (
        built(dataclasses.replace(tables["in_time"], schema=sessionless), GROUPS).unique_shares
        is None
    )
    assert built(table_of_lists(tmp_path / "t", [], a=[]), (("a",),)).unique_shares is None


def test_it_says_why_for_each_feature(advice: Advice) -> None:
    first, *lines = advice.lines()
    assert first == "46 batches of 512 samples, 7.88 samples of a session in each: 4 groups"
    reasons = dict(line.split(": ", 1) for line in lines)
    assert list(reasons) == [config.name for config in FEATURES]
    measured = by_name(advice)
    for name, start in {
        "fresh": "left as it is, factor {:.2f} < 1.5 (l ",
        "topics": "deduplicated with brands, factor {:.2f}, alone ",
        "user": "deduplicated alone, factor {:.2f}; saves {:.1f} bytes a sample, costs 2.0 bytes",
    }.items():
        assert reasons[name].startswith(start.format(measured[name].factor, measured[name].saved))
    assert "; changes most like " in reasons["user"]
    assert ", in 0% of cases where 90% are asked for (l 1.0, d 1.00, by the " in reasons["user"]
    assert "bytes a sample, and all of them cost 2.0 bytes a sample (l 6.0" in reasons["topics"]


@pytest.mark.slow
def test_few_samples_of_a_session_in_a_batch_are_not_worth_it(tables) -> None:
    found = advise(tables["in_time"], batch_size=64)
    assert found.samples_per_session < 1.3
    assert found.groups == ()
    assert by_name(found)["topics"].stay > 0.8  # though it repeats, as few pairs tell


@pytest.mark.slow
def test_a_larger_batch_brings_sessions_together(tables) -> None:
    factors = [
        by_name(advise(tables["in_time"], batch_size=size, sample_rows=24_000))["topics"].factor
        for size in (64, 1_024, 16_384)
    ]
    assert factors == sorted(factors)
    assert factors[-1] > 2


def test_the_least_factor_decides(tables) -> None:
    assert advise(tables["clustered"], batch_size=512, min_factor=9).groups == ()
    some = advise(tables["clustered"], batch_size=512, min_factor=1).groups
    assert {name for group in some for name in group} > {name for group in GROUPS for name in group}


def test_bytes_of_ids_are_weighed_against_those_of_the_lookup(tables) -> None:
    """`fresh` saves 8 * 6 * (1 - 1 / 1.1) bytes, `item` none; 512 samples make lookups of 2."""
    found = advise(tables["clustered"], batch_size=512, min_factor=1)
    reasons = dict(line.split(": ", 1) for line in found.lines())
    for feature in found.features:
        factor = feature.group_factor or feature.factor
        assert feature.saved == pytest.approx(8 * feature.length * (1 - 1 / factor))
        unique = 512 if feature.factor < 2 else 512 / feature.factor
        assert feature.cost == (4 if unique > 256 else 2)
    assert by_name(found)["fresh"].group == ("fresh",)
    item = by_name(found)["item"]
    assert item.group == ()
    assert item.saved < item.cost
    assert reasons["item"].startswith(
        f"left as it is, factor {item.factor:.2f} saves {item.saved:.1f} bytes a sample, costs 4.0"
    )


@pytest.mark.parametrize(
    ("repeats", "ids", "group"), [(2, 1, ()), (2, 2, ("a",)), (3, 1, ("a",))], ids=str
)
def test_single_ids_that_repeat_less_than_their_lookup_costs(tmp_path, repeats, ids, group) -> None:
    """600 rows, each `repeats` times: 8 * ids * (1 - 1 / repeats) bytes against 2 * 2."""
    lists = [[row // repeats] * ids for row in range(600)]
    table = table_of_lists(tmp_path / "t", [row // repeats for row in range(600)], a=lists)
    (found,) = advise(table, batch_size=600).features
    assert found.factor == repeats
    assert found.group == group


def test_a_group_shares_one_lookup(tmp_path) -> None:
    """Neither would be worth a lookup of its own, with 4 bytes saved; both are worth one."""
    lists = [[row // 2] for row in range(600)]
    table = table_of_lists(tmp_path / "t", [row // 2 for row in range(600)], a=lists, b=lists)
    found = advise(table, batch_size=600)
    assert found.groups == (("a", "b"),)
    assert [feature.saved for feature in found.features] == [4, 4]
    assert found.features[0].cost == 4


def test_what_is_just_enough_is_enough(tmp_path) -> None:
    """600 rows of one session: `a` changes at every second, `b` at every fourth. Alone they save
    8 / 2 bytes for 4 and 8 * 3 / 4 for 2, so 4; together 2 * 8 / 2 for 4, which is 4 too."""
    lists = {name: [[row // each] for row in range(600)] for name, each in (("a", 2), ("b", 4))}
    table = table_of_lists(tmp_path / "t", [1] * 600, **lists)

    def groups(**limits: float) -> tuple[tuple[str, ...], ...]:
        return advise(table, batch_size=600, **limits).groups  # type: ignore[arg-type]

    agreement = 149 / 299  # of 299 changes of `a`
    enough = {"min_factor": 2.0, "together": agreement, "tolerance": 0.5}
    assert groups(**enough) == (("a", "b"),)
    for name, limit in (
        ("min_factor", 2.001),  # the factor of `a`
        ("together", agreement + 1e-9),
        ("tolerance", 0.5 - 1e-9),  # `b` would have a factor of 2 where it has 4
    ):
        assert groups(**enough | {name: limit}) == (("b",),), name


def test_same_table_and_seed_same_advice(tables) -> None:
    def sampled(seed: int) -> Advice:
        return advise(tables["clustered"], batch_size=256, sample_rows=2_048, seed=seed)

    assert sampled(0) == sampled(0)
    assert sampled(0).groups == sampled(1).groups == GROUPS
    assert sampled(0) != sampled(1)  # other places of the table


def table_of_lists(folder: Path, sessions: list[int], **columns: list[list[int]]) -> Table:
    schema = Schema(
        timestamp=None,
        sparse=tuple(SparseFeature(name=name, num_ids=1_000) for name in columns),
    )
    lists = {name: pa.array(rows, IDS) for name, rows in columns.items()}
    label = pa.array([0.0] * len(sessions), pa.float32())
    rows = pa.table({"session_id": sessions, "label": label, **lists}, schema=schema.arrow())
    return write(folder, schema, rows)


def test_features_that_agree_but_lose_stay_in_groups_of_their_own(tmp_path) -> None:
    """Sessions share one category, so it repeats across them, where their items differ."""
    sessions = [row // 2 for row in range(64)]
    table = table_of_lists(
        tmp_path / "t", sessions, item=[[s] for s in sessions], category=[[7]] * 64
    )
    found = advise(table, batch_size=64)
    assert found.groups == (("item",), ("category",))
    neighbour = by_name(found)["category"].neighbour
    assert (neighbour.group, neighbour.agreement) == (("item",), 1.0)  # neither ever changes
    assert neighbour.loss == pytest.approx(1 - 2 / 64)
    *_, last = found.lines()
    assert "together with item one would lose 97% of its factor" in last
    assert "also repeat across sessions" in last


def test_a_table_smaller_than_a_batch_is_one(tmp_path) -> None:
    table = table_of_lists(tmp_path / "t", [1, 1, 2], a=[[1, 2], [1, 2], []], empty=[[], [], []])
    found = advise(table, batch_size=512)
    assert (found.batch_size, found.batches) == (3, 1)
    assert found.groups == (("a",),)
    assert by_name(found)["a"].factor == 2
    assert by_name(found)["empty"].factor == 1


def test_what_it_cannot_advise_on(tmp_path, tables) -> None:
    nameless = dataclasses.replace(tables["in_time"].schema, session_id=None)
    with pytest.raises(DataError, match="groups: auto"):
        advise(dataclasses.replace(tables["in_time"], schema=nameless), batch_size=8)
    with pytest.raises(DataError, match="0 sparse features"):
        advise(table_of_lists(tmp_path / "t", [1, 1]), batch_size=8)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 80), st.integers(1, 5))
def test_bands_are_consecutive_and_long_enough(sizes: list[int], rows: int, count: int) -> None:
    bands = choose_bands(sizes, rows=rows, count=count, seed=0)
    assert 1 <= len(bands) <= count
    taken = [index for band in bands for index in band]
    assert taken == sorted(set(taken))
    for band in bands:
        assert sum(sizes[band.start : band.stop]) >= min(rows, sum(sizes))


def batch_of_lists(*lists: list[int]) -> KeyedJaggedTensor:
    """A batch of one feature, a list a sample."""
    return KeyedJaggedTensor.from_lengths_sync(
        keys=["f"],
        values=torch.tensor([one for each in lists for one in each]),
        lengths=torch.tensor([len(each) for each in lists], dtype=torch.int32),
    )


def test_every_second_batch_chooses_and_the_others_judge() -> None:
    """Batches of four lists of six ids: of one list, of two, and of four different ones."""
    ids = [list(range(6 * n, 6 * n + 6)) for n in range(4)]
    same, pairs, apart = (
        batch_of_lists(*(ids[n] for n in which))
        for which in ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 3))
    )
    # 0 and 2 choose: 48 ids of which 12 are kept; 1 and 3 judge: 48 of which 36.
    advice = advise_batches([same, pairs, same, apart])
    (feature,) = advice.features
    assert advice.batches == 4
    assert advice.samples_per_session is None
    assert feature.factor == pytest.approx(48 / 36)
    assert advice.groups == (("f",),)  # it repeats where it is chosen
    (feature,) = advise_batches([same, same, same, apart, same, same]).features
    assert feature.factor == pytest.approx(72 / 36)  # 24 ids each: of one, of four, of one list
    (feature,) = advise_batches([pairs]).features  # one batch chooses, and judges
    assert feature.factor == 2
    assert advise_batches([pairs], limits=Limits(min_factor=2.0)).groups == (("f",),)
    assert advise_batches([pairs], limits=Limits(min_factor=2.1)).groups == ()
    assert advise_batches([pairs]).limits == Limits(min_factor=1.5, together=0.9, tolerance=0.05)
