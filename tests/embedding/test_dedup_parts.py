"""Rung 1 (values): which tables are looked up together, in which size classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from mixed import BAGS, GROUPS, SHARES
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from recd_plugins.embedding.dedup import bag_parts, in_one_part, size_classes


def configs(tables: Mapping[str, Sequence[str]], dim: int = 8) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(
            name=name, num_embeddings=4, embedding_dim=dim, feature_names=list(features)
        )
        for name, features in tables.items()
    ]


def test_tables_by_size_and_the_others_separately() -> None:
    parts = bag_parts(configs(BAGS), GROUPS, SHARES)
    assert [part.tables for part in parts] == [
        ("t_region",),
        ("t_profile", "t_again"),
        ("t_shop", "t_seller"),
    ]
    assert [part.keys for part in parts] == [
        ("region",),
        ("brands", "topics"),
        ("visited", "shop", "seller"),
    ]
    assert [part.why for part in parts] == [
        "unique samples, up to 90% of the batch",
        "unique samples, up to 20% of the batch",
        "all samples; visited share tables with features that are not deduplicated",
    ]


def test_embeddings_keep_the_collections_names() -> None:
    """A part with one of a feature's two tables would not name the table."""
    tables = configs({"one": ["a"], "two": ["a", "b"]})
    first, second = bag_parts(tables[:1] + configs({"two": ["a", "c"]}), (("a",),), (0.5,))
    assert (first.embeddings, second.embeddings) == (
        {"a": "a@one"},
        {"a": "a@two", "c": "c"},
    )
    (both,) = bag_parts(tables, (("a",), ("b",)), None)
    assert both.embeddings == {"a@one": "a@one", "a@two": "a@two", "b": "b"}


def test_without_shares_unique_samples_are_one_class() -> None:
    parts = bag_parts(configs(BAGS), GROUPS, None)
    assert [part.tables for part in parts] == [
        ("t_profile", "t_again", "t_region"),
        ("t_shop", "t_seller"),
    ]


def test_nothing_deduplicated_is_one_part() -> None:
    (part,) = bag_parts(configs(BAGS), (("elsewhere",),), (0.1,))
    assert part.tables == tuple(BAGS)
    assert part.why == "all samples"


def test_a_table_counts_its_largest_group() -> None:
    tables = configs({"both": ["a", "b"], "large": ["c"], "small": ["d"]})
    groups = (("a",), ("b",), ("c",), ("d",))
    parts = bag_parts(tables, groups, (0.1, 0.8, 0.8, 0.1))
    assert [part.tables for part in parts] == [("both", "large"), ("small",)]


@pytest.mark.parametrize(
    ("shares", "classes"),
    [
        ([0.5, 0.5, 0.5], [3]),
        ([0.10, 0.13, 0.12], [3]),  # a class more would spare 2%, and cost an exchange
        ([0.9, 0.1, 0.1, 0.1], [1, 3]),
        ([0.9, 0.5, 0.1, 0.1], [1, 1, 2]),
        ([1.0, 0.8, 0.6, 0.4, 0.2, 0.0], [2, 2, 2]),  # three at most
    ],
)
def test_size_classes(shares: list[float], classes: list[int]) -> None:
    tables = configs({f"t{index}": [f"f{index}"] for index in range(len(shares))})
    by_name = {table.name: share for table, share in zip(tables, shares, strict=True)}
    assert [len(part) for part in size_classes(tables, by_name)] == classes


def test_wide_tables_count_more() -> None:
    """A narrow table gains nothing by a class of its own."""
    tables = [*configs({"wide": ["a"]}, dim=256), *configs({"narrow": ["b"]}, dim=4)]
    assert len(size_classes(tables, {"wide": 0.9, "narrow": 0.1})) == 1
    assert len(size_classes(tables, {"wide": 0.1, "narrow": 0.9})) == 1 + (0.8 * 256 > 0.05 * 260)


def test_sequences_are_one_part() -> None:
    part = in_one_part(configs({"t_item": ["history", "item"], "t_page": ["clicks"]}), GROUPS)
    assert part.keys == ("history", "item", "clicks")
    assert part.why == "2 of 3 features on unique samples"
