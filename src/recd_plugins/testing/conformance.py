"""Does a plugin's record keep its slot's contract?

    def test_decay_keeps_the_contract():
        check_record(record)

This checks what `contracts/` requires of the slot, on small random data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from recd_plugins.config import Config, parse
from recd_plugins.data.batch import Batch
from recd_plugins.describe import field_docs
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.torchrec_plan.torchrec_planner import TorchRecPlannerConfig
from recd_plugins.registry.capability import check_needs
from recd_plugins.slots import SLOTS, Context, Record, stands_in_front
from recd_plugins.storage.temporary_folder import temporary_folder
from recd_plugins.testing.contracts.callbacks import check_callbacks
from recd_plugins.testing.contracts.dataset import check_dataset
from recd_plugins.testing.contracts.dedup import check_dedup
from recd_plugins.testing.contracts.etl import check_etl
from recd_plugins.testing.contracts.log import check_log
from recd_plugins.testing.contracts.model import check_model
from recd_plugins.testing.contracts.optimizer import check_optimizer
from recd_plugins.testing.contracts.pooling import check_pooling
from recd_plugins.testing.contracts.preprocess import check_preprocess
from recd_plugins.testing.contracts.reader import check_reader
from recd_plugins.testing.contracts.sharding import check_sharding
from recd_plugins.testing.contracts.stats import check_stats
from recd_plugins.testing.contracts.subject import ContractBroken, Subject
from recd_plugins.testing.neighbours import OTHERS, probe_batches, supplied
from recd_plugins.testing.probe import SCHEMA

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.testing.gloo import GlooPool

__all__ = ["ContractBroken", "check_record"]

CONTRACTS: Mapping[str, Callable[[Subject], None]] = {
    "log": check_log,
    "dataset": check_dataset,
    "etl": check_etl,
    "stats": check_stats,
    "reader": check_reader,
    "dedup": check_dedup,
    "preprocess": check_preprocess,
    "sharding": check_sharding,
    "cache": check_sharding,
    "pooling": check_pooling,
    "model": check_model,
    "optimizer": check_optimizer,
    "callbacks": check_callbacks,
}
"""The check of each slot's records. A `cache` is checked like a `sharding`, since it plans in that
slot's place."""


def check_record(
    record: Record[Any, Any],
    *,
    options: Mapping[str, Any] | None = None,
    context: Context | None = None,
    pool: GlooPool | None = None,
    expand: Callable[[Batch], KeyedJaggedTensor] | None = None,
) -> None:
    """Raise `ContractBroken`, with the rule and how to fix it, if the record breaks one.

    `options`: the options as in registry.yaml; by default the defaults.
    `context`: what `build` gets. By default it is a CPU, seed 0, an empty folder, the schema and
    some batches of `testing.probe`. If `context.neighbours` lacks a slot that the record `uses`,
    the kit supplies it: TorchRec's planner for `sharding` and `cache`, a sum for `pooling`, the
    local reader, each feature in a group of its own for `dedup`, `Probe` for `model`, and an empty
    list for a slot that takes a list. You must give a `log` or a `dataset` yourself. A record that
    stands in front of a planner has TorchRec's behind it, with the options under `others`.
    `pool`: the fixture gloo_pool, on whose ranks a `sharding` or a `cache` is trained.
    `expand`: gives the features that a `dedup` took, from a converted batch. It is needed if what
    the `dedup` makes has no `to_kjt()`.

    Raises `CapabilityError` if the machine lacks something that the record needs.
    """
    __tracebackhide__ = True
    given, others = dict(options or {}), OTHERS
    if stands_in_front(record) and "others" in given:
        others = parse(TorchRecPlannerConfig, given.pop("others"), f"{record.slot}.others")
    config = _check_form(record, given)
    with temporary_folder("recd-check-") as folder:
        context = context or Context(schema=SCHEMA, folder=folder / "data", batches=probe_batches)
        filled = context.neighbours.keys() | supplied()
        check_needs(record, context.device, filled, "check_record", "this plugin")
        for slot in record.uses:
            if slot not in filled:
                raise CapabilityError(
                    f"{record.slot} {record.name!r} uses the slot {slot!r}, for which the kit has "
                    f"nothing. Give it: context=Context(neighbours={{{slot!r}: ...}}, ...)."
                )
        subject = Subject(
            record=record,
            config=config,
            context=context,
            folder=folder,
            pool=pool,
            expand=expand,
            others=others,
        )
        CONTRACTS[record.slot](subject)


def _check_form(record: Record[Any, Any], options: Mapping[str, Any]) -> Config:
    """Check everything about a record that can be checked before it is built, and return its config
    with these options."""

    def hold(kept: bool, rule: str, fix: str) -> None:
        if not kept:
            raise ContractBroken(f"{who}: {rule}. {fix}")

    who = repr(record)
    kinds = ", ".join(kind.__name__ for kind in SLOTS.values())
    hold(type(record) in SLOTS.values(), "it is no record of a slot", f"Make one of: {kinds}.")
    who = f"{record.slot} {record.name!r}"
    hold(
        bool(re.fullmatch(r"[a-z][a-z0-9_]*", record.name)),
        "its name must be a word of lower-case letters, digits and underscores",
        "registry.yaml says `use: name`.",
    )
    hold(
        record.summary.endswith(".") and "\n" not in record.summary,
        f"its summary must be a sentence on one line, but is {record.summary!r}",
        "`recd plugins` shows it.",
    )
    hold(
        isinstance(record.config, type)
        and issubclass(record.config, Config)
        and dataclasses.is_dataclass(record.config),
        f"its config must be a dataclass that inherits from Config, but is {record.config!r}",
        "@dataclass(frozen=True, kw_only=True) class MyConfig(Config): ...",
    )
    docs = field_docs(record.config)
    for field in dataclasses.fields(record.config):
        hold(
            bool(docs.get(field.name, "").strip()),
            f"option {field.name!r} of {record.config.__name__} has no line of text under it",
            "Write a string literal under the field: it is the option's documentation.",
        )
        hold(
            field.kw_only is True,
            f"option {field.name!r} of {record.config.__name__} must be keyword-only",
            "Use @dataclass(frozen=True, kw_only=True).",
        )
    for slot in record.uses:
        hold(slot in SLOTS, f"it uses {slot!r}, which is no slot", f"Slots: {', '.join(SLOTS)}.")
    config: Config = parse(record.config, options, who)
    return config
