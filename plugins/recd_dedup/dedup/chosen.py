"""The feature groups of a converter: as given, or as advised for what training will read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from recd_plugins.api import (
    Context,
    DataError,
    Missed,
    Notice,
    RegistryError,
    Unused,
    nearest,
)

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_dedup.dedup.advisor import Limits, WorthOf
    from recd_dedup.dedup.converters import GroupsConfig
    from recd_dedup.dedup.sample import SampledBatches
    from recd_dedup.dedup.worth import StepPrices, Worth
    from recd_plugins.api.batch import Groups

__all__ = ["ChosenGroups", "chosen_groups"]

ConvertGroups = Callable[["KeyedJaggedTensor", Sequence[Sequence[str]]], Any]
WHAT = "dedup: groups: auto"


class ChosenGroups(NamedTuple):
    """The groups, and what is known of them."""

    groups: Groups
    why: str = ""
    """The advisor's reasons, one line per feature; empty if the groups were given."""
    shares: Callable[[], tuple[float, ...] | None] | None = None
    """Measures each group's unique samples over the batch size; returns None if there is nothing to
    measure."""
    notices: tuple[Notice, ...] = ()


def chosen_groups(
    config: GroupsConfig, context: Context, deduplicated: ConvertGroups
) -> ChosenGroups:
    """The groups as given, or as advised for the batches of the trainer or of the reader.

    Given groups are checked against the schema. Without a schema, a trainer has its own reader, and
    its batches are checked against the groups later.
    """
    if config.groups == "auto":
        return _advised(config, context, deduplicated)
    from recd_plugins.api.batch import check_groups

    schema, named = context.schema, [name for group in config.groups for name in group]
    known = named if schema is None else (*schema.sparse_names, *context.left_out)
    try:
        groups = without(check_groups(config.groups, known, context.made), context.left_out)
    except DataError as error:
        raise RegistryError(str(error).removeprefix("groups: "), "dedup.groups") from None
    notices = () if groups else (NOTHING_READ,)
    return ChosenGroups(groups, shares=partial(_measured_shares, context, groups), notices=notices)


NOTHING_READ = Unused(
    what="dedup: groups",
    why="none of their features is read, because the model takes none of them",
    cure="Name features that the model takes, or take `dedup` out.",
)


NOTHING_SAVES = Unused(
    what=WHAT,
    why="no feature repeats so often that unique samples of it would save time",
    cure="stack.explain() has the figures. Take `dedup` out, or name the groups. Without `dedup`, "
    "also take out `cluster_by_session` of `etl`, which writes the table again, and "
    "`reader.sessions: whole`, if they are there: they make the samples of a batch alike for "
    "nothing.",
)


def without(groups: Groups, names: Sequence[str]) -> Groups:
    """The groups without some features; empty groups are dropped."""
    kept = (tuple(name for name in group if name not in names) for group in groups)
    return tuple(group for group in kept if group)


def _measured_shares(context: Context, groups: Groups) -> tuple[float, ...] | None:
    from recd_dedup.dedup.sample import measured_shares, shares_of_batches

    if context.looked_at:
        return shares_of_batches(context.looked_at, groups)
    if context.tables is None:
        return None
    names = [name for group in groups for name in group]
    if context.delivered is not None and set(names) <= set(context.tables.schema.sparse_names):
        from recd_dedup.dedup.reading import read_sample
        from recd_dedup.dedup.sample import SampledBatches, rows_of_batches

        read = read_sample(context, names)
        sample = SampledBatches(names, rows_of_batches(read.features, names, read.sessions))
        return tuple(sample.unique_share(group) for group in groups)
    return measured_shares(context.tables.train, groups, batch_size=context.batch_size)


def _advised(config: GroupsConfig, context: Context, deduplicated: ConvertGroups) -> ChosenGroups:
    """The advised groups; all ranks take those of rank 0, since times differ between ranks."""
    from recd_plugins.api.planning import agreed, remembered

    if context.looked_at:
        # `recd advise` asks again for registries that differ in other respects.
        batches, by = _places(context.looked_at), _weighed_by(context)
        asked = ("groups", deduplicated, *batches, config, *by)
        found = remembered(
            asked,
            lambda: agreed(lambda: _by_own_batches(config, context, deduplicated), context.group),
        )
    elif context.delivered is not None and context.tables is not None:
        found = _kept(config, context, lambda: _by_reader(config, context, deduplicated))
    elif context.tables is not None:  # without a reader: in the table's stored order
        found = _by_table(config, context)
    else:
        raise RegistryError(
            "auto: there is nothing to measure, neither a dataset in registry.yaml nor batches. "
            "Pass your own: `stack.adapt(model, batches=loader, features=lambda batch: "
            "batch.sparse_features)`, before any batch is converted. Or name the groups.",
            "dedup.groups",
        )
    notices = found.notices or (() if found.groups else (NOTHING_SAVES,))
    return ChosenGroups(found.groups, found.why, partial(tuple, found.shares), notices)


def _weighed_by(context: Context) -> tuple[Any, ...]:
    """What groups are weighed by: ranks and links, the model, and the share of bytes in which its
    floats are sent. If any of these changes, groups are weighed anew."""
    model = None if context.model is None else context.model()
    return context.cluster, repr(model), 1.0 if model is None else context.carried(model)


class Advised(NamedTuple):
    """The groups that were advised."""

    groups: Groups
    why: str
    shares: tuple[float, ...]
    notices: tuple[Missed | Unused, ...] = ()


def _by_own_batches(config: GroupsConfig, context: Context, deduplicated: ConvertGroups) -> Advised:
    from recd_dedup.dedup.advisor import advise_batches

    kjts = context.looked_at
    weigh, notices = _weighing(config, context, kjts[:2], deduplicated)
    _check_features(config, kjts[0].keys())
    limits = _limits(config, context, kjts[0].keys())
    advice = advise_batches(kjts, limits=limits, worth_of=weigh)
    return Advised(advice.groups, _reasons(advice.lines()), advice.unique_shares, notices)


def _by_table(config: GroupsConfig, context: Context) -> Advised:
    from recd_dedup.dedup.advisor import advise

    table = context.require_tables().train
    _check_features(config, table.schema.sparse_names)
    advice = advise(
        table,
        batch_size=context.batch_size,
        features=config.features,
        min_factor=config.min_factor,
        joined=context.joined,
    )
    return Advised(advice.groups, _reasons(advice.lines()), advice.unique_shares)


def _by_reader(config: GroupsConfig, context: Context, deduplicated: ConvertGroups) -> Advised:
    from recd_dedup.dedup.advisor import advise_sampled, halves
    from recd_dedup.dedup.reading import read_sample
    from recd_plugins.api.planning import remembered

    table = context.require_tables().train
    assert context.delivered is not None
    # If only links differ, the batches are read once, and this device is timed once.
    digest, names = context.delivered.digest, table.schema.sparse_names
    sample = remembered(("read", digest), lambda: read_sample(context))
    sampled = remembered(
        ("sampled", digest), lambda: halves(sample.features, names, sample.sessions)
    )
    weigh, notices = _weighing(config, context, sample.features[:2], deduplicated)
    _check_features(config, names)
    limits = _limits(config, context, names)
    advice = advise_sampled(sampled, sample.batch_size, limits, weigh)
    if table.schema.session_id is None:
        advice = dataclasses.replace(advice, samples_per_session=None)
    every: tuple[Missed | Unused, ...] = (*notices, *sample.notices(table, WHAT))
    return Advised(advice.groups, _reasons(advice.lines()), advice.unique_shares, every)


def _limits(config: GroupsConfig, context: Context, names: Sequence[str]) -> Limits:
    from recd_dedup.dedup.advisor import Limits
    from recd_plugins.api.embedding import looked_up_otherwise

    model = None if context.model is None else context.model()
    return Limits(
        min_factor=config.min_factor,
        features=config.features,
        joined=context.joined,
        without=frozenset() if model is None else looked_up_otherwise(model, names),
    )


def _check_features(config: GroupsConfig, known: Sequence[str]) -> None:
    """Raise `RegistryError` if a name or glob matches no feature."""
    from recd_dedup.dedup.advisor import Limits

    for one in config.features:
        limits = Limits(min_factor=config.min_factor, features=(one,))
        if not any(map(limits.named, known)):
            raise RegistryError(
                f"no feature is called {one!r}; {nearest(one, known)}", "dedup.features"
            )


def _weighing(
    config: GroupsConfig,
    context: Context,
    batches: Sequence[KeyedJaggedTensor],
    deduplicated: ConvertGroups,
) -> tuple[WorthOf | None, tuple[Unused, ...]]:
    """The function that weighs groups, or None for bytes; and a notice if time cannot be measured,
    in which case no group is taken."""
    import torch

    from recd_dedup.dedup.calibrate import measured_prices, over_links, uses_of
    from recd_dedup.dedup.worth import WorthInSeconds
    from recd_plugins.api.planning import remembered

    if config.weigh == "bytes" or context.cluster is None:
        return None, ()
    model = None if context.model is None else context.model()
    if model is None:
        return _nothing, (
            Unused(
                what=WHAT,
                why="what it saves of a step depends on the model, which is not known yet",
                cure="Call `stack.adapt(model)` before `stack.loader`, or name the groups, or "
                "weigh them by bytes alone (`weigh: bytes`).",
            ),
        )
    cluster, device, known = context.cluster, torch.device(context.device), {}
    uses = uses_of(model, batches[0], context.preprocessed or (lambda features: features))

    def weigh(sample: SampledBatches, batch_size: int, repeating: Sequence[str]) -> Worth:
        names = tuple(name for name in repeating if name in uses)
        if not names:
            return _nothing(sample, batch_size, repeating)
        if names not in known:

            def measured() -> StepPrices:
                return measured_prices(
                    batches[-1],
                    names,
                    model=model,
                    uses=uses,
                    convert=deduplicated,
                    device=device,
                )

            delivered = context.delivered
            batch = _places(batches[-1:]) if delivered is None else (delivered.digest,)
            found = remembered(("prices", deduplicated, *batch, names), measured)
            known[names] = over_links(found, cluster, device, context.carried(model))
        return WorthInSeconds(sample, batch_size, known[names], uses)

    return weigh, ()


def _places(batches: Sequence[KeyedJaggedTensor]) -> tuple[int, ...]:
    """Where the ids of batches lie in memory, which identifies batches that are kept."""
    return tuple(int(batch.values().data_ptr()) for batch in batches)


def _nothing(sample: SampledBatches, batch_size: int, repeating: Sequence[str]) -> Worth:
    from recd_dedup.dedup.worth import NoWorth

    return NoWorth(sample)


def _reasons(lines: Any) -> str:
    head, *reasons = lines
    return "\n".join([f"dedup: {head}", *(f"  {line}" for line in reasons)])


def _kept(config: GroupsConfig, context: Context, find: Callable[[], Advised]) -> Advised:
    """The groups for this registry and table on this machine: found once, then read from a file.

    So a resumed run keeps its groups, and processes agree even before they have a process group.
    """
    from filelock import FileLock

    from recd_plugins.api.data import write_whole
    from recd_plugins.api.planning import agreed

    assert context.delivered is not None
    decides = [
        dataclasses.asdict(config),
        context.delivered.digest,
        *map(repr, _weighed_by(context)),
        version("recd-plugins"),
    ]
    digest = hashlib.sha256(json.dumps(decides, default=str).encode()).hexdigest()[:12]
    path = context.folder / f"dedup-{digest}.json"

    def read_or_find() -> Advised:
        if not path.exists():
            context.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(context.folder / ".dedup.lock"):
                if not path.exists():
                    write_whole(path, json.dumps(_as_json(find()), indent=1))
        return _from_json(json.loads(path.read_text()))

    import torch.distributed as dist

    joined = dist.is_available() and dist.is_initialized()
    return agreed(read_or_find, context.group) if joined else read_or_find()


KINDS = {kind.__name__: kind for kind in (Missed, Unused)}


def _as_json(found: Advised) -> dict[str, Any]:
    notices = [{"kind": type(one).__name__, **dataclasses.asdict(one)} for one in found.notices]
    return {**found._asdict(), "notices": notices}


def _from_json(values: dict[str, Any]) -> Advised:
    return Advised(
        groups=tuple(map(tuple, values["groups"])),
        why=values["why"],
        shares=tuple(values["shares"]),
        notices=tuple(KINDS[one.pop("kind")](**one) for one in values["notices"]),
    )
