"""Sharders whose modules look up the rows of sequences as bags of one, on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection

from recd_plugins.compat.bags_of_one import FEWEST_IDS, look_up_as_bags
from recd_plugins.embedding.wrapped_sharder import AdjustingSharder, WrappedSharder
from recd_plugins.errors import listed

__all__ = ["explain_rows", "with_bags_of_one"]

MOST = 20
"""Tables that are named for one reason."""


def with_bags_of_one(
    sharders: Iterable[ModuleSharder[nn.Module]], found: dict[str, str] | None = None
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, wrapped so that their kernels for the CPU look rows up as bags of one where the
    weights come out the same; sharders of bags alone stay as they are. `found` is filled in as
    tables are sharded: see `look_up_as_bags`."""
    found = {} if found is None else found

    def look_up(module: nn.Module) -> None:
        found.update(look_up_as_bags(module))

    return [AdjustingSharder(one, look_up) if _yields_rows(one) else one for one in sharders]


def explain_rows(found: Mapping[str, str]) -> str:
    """What `look_up_as_bags` found of tables, in words."""
    by_why: dict[str, list[str]] = {}
    for table, why in found.items():
        by_why.setdefault(why, []).append(table)
    as_bags = f"as bags of one, from {FEWEST_IDS} ids of a lookup on"
    parts = (
        f"{listed(tables, MOST)} {f'one by one, for {why}' if why else as_bags}"
        for why, tables in sorted(by_why.items())
    )
    return f"on this rank, {'; '.join(parts)}"


def _yields_rows(sharder: ModuleSharder[nn.Module]) -> bool:
    """Whether it shards sequences, or bags whose rows may travel, as behind tiers."""
    sequences = (EmbeddingCollection, ManagedCollisionEmbeddingCollection)
    return issubclass(sharder.module_type, sequences) or isinstance(sharder, WrappedSharder)
