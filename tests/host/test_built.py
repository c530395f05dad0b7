"""Value tests: what records build that no slot can take is told with the record's name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

import recd_plugins as rp
from recd_plugins.embedding.pooling import DedupPooling
from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.errors import DataError, PluginError, RecdError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import SLOTS
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.outputs_check import watch_outputs
from recd_plugins.trainer.retiering import Retiering

PLUGIN = str(Path(__file__).with_name("wrong_plugin.py"))


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A registry in which nothing is wrong."""
    return {
        "plugins": ["recd_dlrm", PLUGIN],
        "folder": str(tmp_path_factory.mktemp("tables")),
        "dataset": {"use": "random", "samples": 64, "dense": 1, "num_ids": [9, 9]},
        "model": {"use": "sequence_dlrm", "embedding_dim": 4, "sequences": ["cat_0"]},
        "train": {"batch_size": 8, "ranks": 1},
    }


def measured(stack: rp.Stack) -> Any:
    return list(stack.stats(stack.prepare()["train"]))


def read(stack: rp.Stack) -> Any:
    return next(iter(stack.loader(0, 1)))


def stepped(stack: rp.Stack) -> Any:
    factory = stack.optimizer()
    assert factory is not None
    return factory([nn.Parameter(torch.ones(1))])


def grouped(stack: rp.Stack) -> Any:
    return stack.groups


def shared(stack: rp.Stack) -> None:
    _ = stack.unique_shares


Asked = Callable[[rp.Stack], Any]

WRONG: dict[str, tuple[str, str, Asked, str]] = {
    "dataset: a text": ("dataset", "a_text", rp.Stack.prepare, "built the str 'abc', which is no"),
    "dataset: a class": (
        "dataset",
        "a_class",
        rp.Stack.prepare,
        "built the class Part itself, and not a Dataset: let its `build` return `Part(...)`.",
    ),
    "dataset: known by nothing": (
        "dataset",
        "of_nothing",
        rp.Stack.prepare,
        "its `fingerprint` returned None, whose type must be str.",
    ),
    "dataset: no tables": (
        "dataset",
        "prepares_nothing",
        rp.Stack.prepare,
        "its `prepare` returned None, whose type must be Tables. Return Tables(train=..., test",
    ),
    "etl: no run": ("etl", "no_run", rp.Stack.prepare, "a Part, which is no Etl: it lacks run."),
    "etl: elsewhere": (
        "etl",
        "runs_elsewhere",
        rp.Stack.prepare,
        "where it must write one into the folder that it is given, ",
    ),
    "etl: splits": (
        "etl",
        "parts_splits",
        rp.Stack.prepare,
        "the train split has cat_1 after its `run`, which the test split has not, and lacks none.",
    ),
    "etl: no table": (
        "etl",
        "runs_nothing",
        rp.Stack.prepare,
        "its `run` returned None, whose type must be Table. Return the table",
    ),
    "etl: another's table": (
        "etl",
        "given_back",
        rp.Stack.prepare,
        "/train, where it must write one into the folder that it is given, ",
    ),
    "stats": (
        "stats",
        "finds_a_dict",
        measured,
        "its `measure` returned a dict, whose type must be StatsReport.",
    ),
    "reader": (
        "reader",
        "loads_nothing",
        read,
        "its `loader` returned a NoLength, which is no Loader: it lacks __len__, state_dict.",
    ),
    "reader: no iterator": (
        "reader",
        "iterates_nothing",
        read,
        "raised TypeError when its loader was iterated: iter() returned non-iterator of type",
    ),
    "reader: state": (
        "reader",
        "iterates_nothing",
        lambda stack: stack.loader(0, 1).state_dict(),
        "raised TypeError when its loader was asked for its state: NoIterator.state_dict() missing",
    ),
    "dedup: a text": ("dedup", "one_text", grouped, "its `groups` are 'cat_0', where they must"),
    "dedup: unknown": (
        "dedup",
        "unknown",
        grouped,
        "its `groups` name 'cat0', which does not exist; did you mean 'cat_0'?",
    ),
    "dedup: a text, read": ("dedup", "one_text", read, "its `groups` are 'cat_0', where they must"),
    "dedup: unknown, read": (
        "dedup",
        "unknown",
        read,
        "its `groups` name 'cat0', which does not exist; did you mean 'cat_0'?",
    ),
    "dedup: shares": (
        "dedup",
        "three",
        shared,
        "its `unique_shares` are 3, where they must be one for each group, of which it has 1.",
    ),
    "dedup: share": (
        "dedup",
        "shares_texts",
        shared,
        "its `unique_shares` are ('all',), where each must be a share > 0 and <= 1 of a batch's",
    ),
    "dedup: notices": (
        "dedup",
        "notes_nothing",
        grouped,
        "its `notices` returned None, whose type must be Iterable. Return a list of Unused",
    ),
    "dedup: a notice": (
        "dedup",
        "notes_a_text",
        grouped,
        "its `notices` returned among others the str 'It is slow.', whose type must be Notice.",
    ),
    "dedup: of no kind": (
        "dedup",
        "notes_of_no_kind",
        grouped,
        "its `notices` returned a Notice of no kind. Return a list of Unused(...), say.",
    ),
    "preprocess": (
        "preprocess",
        "a_function",
        read,
        "built a function, which is no Preprocess: it lacks schema.",
    ),
    "sharding": (
        "sharding",
        "no_plan",
        rp.Stack.sharders,
        "built a Part, which is no Planner: it lacks sharders.",
    ),
    "sharding: order": (
        "sharding",
        "moves_nothing",
        lambda stack: stack.loader(0, 1),
        "its `order` returned None, which is no Loader: it lacks __iter__, __len__, state_dict.",
    ),
    "sharding: own order": (
        "sharding",
        "moves_nothing",
        lambda stack: stack.order([]),
        "its `order` returned None, whose type must be Iterable. Return a loader, or the one that",
    ),
    "sharding: sharders": (
        "sharding",
        "no_sharders",
        rp.Stack.sharders,
        "its `sharders` returned among others None, which is no ModuleSharder: it lacks "
        "module_type, shard.",
    ),
    "sharding: explain": (
        "sharding",
        "no_sharders",
        rp.Stack.explain,
        "its `explain` returned None, whose type must be str.",
    ),
    "cache: forgets": (
        "cache",
        "forgetful",
        lambda stack: stack.planned_for(stack.model(), 2),
        "raised AttributeError when told what it plans for: 'Forgetful' object has no attribute",
    ),
    "cache: a generator": (
        "cache",
        "a_generator",
        rp.Stack.explain,
        "built a generator, whose code is never run. Let its `build` return what the slot takes,",
    ),
    "cache": ("cache", "no_planner", rp.Stack.explain, "built the int 3, which is no Planner"),
    "model: a text": ("model", "no_module", rp.Stack.model, "'abc', whose type must be Module."),
    "model: takes": (
        "model",
        "takes_unknown",
        read,
        "its `takes` names 'cat0', which does not exist; did you mean 'cat_0'?",
    ),
    "optimizer: one": (
        "optimizer",
        "no_factory",
        stepped,
        "built a SGD, where it must build a function that makes one. Return `lambda params:",
    ),
    "optimizer: none": (
        "optimizer",
        "makes_none",
        stepped,
        "its factory made None, whose type must be Optimizer.",
    ),
    "optimizer: raises": (
        "optimizer",
        "raises",
        stepped,
        ") when asked for an optimizer: Invalid learning rate: -1.0. Run recd",
    ),
    "optimizer: of others": (
        "optimizer",
        "steps_others",
        stepped,
        "its factory made an optimizer that steps 1 parameters that it was not given",
    ),
    "optimizer: sparse": (
        "optimizer",
        "takes_sparse",
        stepped,
        "made an optimizer that takes only sparse gradients, but those of dense parameters are",
    ),
    "optimizer: asks again": (
        "optimizer",
        "asks_again",
        stepped,
        "that evaluates the loss several times a step: LBFGS.step needs a closure.",
    ),
    "pooling: a module": (
        "pooling",
        "no_factory",
        rp.Stack.model,
        "built a Last, where it must build a function that makes one. Return `lambda dim:",
    ),
    "pooling: forward": (
        "pooling",
        "one_argument",
        rp.Stack.model,
        "its factory made a Flatten whose forward cannot be called with values, lengths and a",
    ),
    "pooling: no module": (
        "pooling",
        "no_module",
        rp.Stack.model,
        "its factory made the int 3, whose type must be Module. Return `lambda dim:",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_builds_something_else_is_named(name: str, right: dict[str, Any]) -> None:
    slot, record, asked, says = WRONG[name]
    filled = {"one": record, "many": [record], "by feature": {"*": record}}
    with pytest.raises(PluginError) as caught:
        asked(rp.load({**right, slot: filled[SLOTS[slot].fills]}))
    assert f": {slot} '{record}' of {PLUGIN}" in str(caught.value)
    assert says in str(caught.value)


def test_rows_that_do_not_fit_are_said_whose_they_are(right: dict[str, Any]) -> None:
    who = re.escape(f"dataset: dataset 'of_texts' of {PLUGIN}: a chunk for ")
    with pytest.raises(DataError, match=f"{who}.*: column 'label' is string, but must be a number"):
        rp.load({**right, "dataset": "of_texts"}).prepare()


def test_an_optimizer_of_some_parameters_is_told(right: dict[str, Any]) -> None:
    factory = rp.load({**right, "optimizer": {"use": "steps_some"}}).optimizer()
    assert factory is not None
    with pytest.warns(NoticeWarning, match="steps_some may train otherwise: it leaves out 1 of"):
        factory([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))])


def test_a_converter_that_returns_nothing_is_named(right: dict[str, Any]) -> None:
    who = re.escape(f"dedup: dedup 'converts_to_none' of {PLUGIN}: ")
    with pytest.raises(PluginError, match=f"{who}`convert` of Part returned None, though it takes"):
        read(rp.load({**right, "dedup": {"use": "converts_to_none"}}))


@pytest.mark.parametrize(
    ("use", "asked", "says"),
    [
        ("converts_one", read, "`convert` of Part returned feature cat_0, where its `groups` name"),
        ("twice", grouped, "its `groups` name 'cat_0' twice."),
        ("explains_42", rp.Stack.explain_groups, "its `explain` returned the int 42, whose type"),
    ],
)
def test_what_a_converter_says_is_held_to_what_it_does(
    right: dict[str, Any], use: str, asked: Asked, says: str
) -> None:
    with pytest.raises(PluginError, match=f"dedup '{use}' of {re.escape(PLUGIN)}: {says}"):
        asked(rp.load({**right, "dedup": {"use": use}}))


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("as_the_first", r"changes samples: 'cat_0' of sample 1 of a batch was \[.*\], and is \["),
        ("other_ids", r"changes samples: 'cat_0' of sample 0 of a batch was \[.*\], and is \["),
        ("in_place", r"changes samples: 'cat_0' of sample \d of a batch was \[.*\], and is \[0"),
        ("one_less", r"returned 7 samples of 'cat_0' for 8\."),
    ],
)
def test_a_converter_that_changes_samples_is_named(
    right: dict[str, Any], use: str, says: str
) -> None:
    with pytest.raises(PluginError, match=f"`convert` of Part {says}"):
        read(rp.load({**right, "dedup": {"use": use}}))


def test_a_converter_that_takes_nothing_says_why_or_is_told(right: dict[str, Any]) -> None:
    with pytest.warns(NoticeWarning, match="dedup: takes_none is not used: its converter has no"):
        assert rp.load({**right, "dedup": "takes_none"}).groups == ()
    assert rp.load({**right, "dedup": "says_why"}).explain_groups() == "none repeat"


def test_a_pooling_is_handed_a_query_only_if_it_takes_one(right: dict[str, Any]) -> None:
    pooling = pooling_of(right, "of_rows_alone")
    assert pooling(VALUES, LENGTHS).shape == (3, 4)  # as a model of one's own may call it
    with pytest.raises(PluginError, match=f"of {re.escape(PLUGIN)}: the model passes a query to "):
        pooling(VALUES, LENGTHS, None)


def test_options_that_a_build_changes_are_whole_for_the_next(right: dict[str, Any]) -> None:
    options = {"use": "pops", "extra": {"by": {"scale": 3}}, "inner": [{"scale": 2}]}
    stack = rp.load(right | {"pooling": {"cat_0": options}})
    expected = pooling_of(right, "right")(VALUES, LENGTHS)
    for _ in range(2):  # a converter that looks at the model has it built before it is trained
        (pooling,) = [one for one in stack.model().modules() if type(one).__name__ == "Last"]
        assert torch.equal(pooling(VALUES, LENGTHS), 6 * expected)


def plans(registry: dict[str, Any]) -> str:
    """On a rank: the error of a planner that returns no plan."""
    stack = rp.load(registry)
    with pytest.raises(PluginError) as caught:
        stack.plan(stack.model())
    return str(caught.value)


def test_a_planner_that_returns_no_plan_is_named(
    right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    for says in gloo_pool.run(plans, {**right, "sharding": {"use": "plans_nothing"}}):
        assert f"sharding 'plans_nothing' of {PLUGIN}: its `plan` returned None" in says


def plans_or_not(registry: dict[str, Any]) -> str:
    """On a rank: why there is no plan."""
    stack = rp.load(registry)
    with pytest.raises(RecdError) as caught:
        stack.plan(stack.model())
    return str(caught.value)


def test_a_planner_that_returns_a_plan_on_one_rank_keeps_none_waiting(
    right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    first, second = gloo_pool.run(plans_or_not, {**right, "sharding": "plans_on_rank_0"})
    assert first.startswith("rank 1 could not plan by `sharding: plans_on_rank_0`, and prints why;")
    assert f"sharding 'plans_on_rank_0' of {PLUGIN}: its `plan` returned None" in second


def moves(registry: dict[str, Any]) -> str:
    """On a rank: the error of a planner whose replicas are to move."""
    stack = rp.load(registry)
    planner, named = stack.retiering_planner(), stack.planning.named
    moving = Retiering(planner, start=0, every=1, keep=1, named=named, fill=lambda: None)
    with pytest.raises(PluginError) as caught:
        moving.before_step(cast("Any", SimpleNamespace(step=1)))
    return str(caught.value)


def test_a_planner_that_cannot_be_asked_to_move_replicas_is_named(
    gloo_pool: GlooPool, right: dict[str, Any]
) -> None:
    for message in gloo_pool.run(moves, {**right, "sharding": "moves_nothing"}):
        assert "sharding 'moves_nothing' of" in message
        assert "raised TypeError when it moved replicas: Moving.retier() takes 2" in message


def test_a_planner_whose_plans_differ_is_named_on_every_rank(
    right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    first, second = gloo_pool.run(plans, {**right, "sharding": {"use": "plans_by_rank"}})
    assert first == second
    assert f"'plans_by_rank' of {PLUGIN}: its `plan` returned different plans on the ranks" in first
    assert "rank 0 has table_wise with the fused kernel on rank 0 in" in first
    assert "and rank 1 has table_wise with the fused kernel on rank 1 in" in first


def plans_what_it_read(registry: dict[str, Any]) -> str:
    """On a rank: the error of a plan for what only this rank makes of a registry."""
    stack = rp.load(registry)
    next(iter(stack.loader(dist.get_rank(), dist.get_world_size())))
    with pytest.raises(PluginError) as caught:
        stack.plan(stack.adapt(stack.model()))
    return str(caught.value)


def test_a_converter_of_other_groups_on_each_rank_is_named(
    right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    first, second = gloo_pool.run(plans_what_it_read, {**right, "dedup": {"use": "by_rank"}})
    assert first == second
    assert first == (
        f"dedup: dedup 'by_rank' of {PLUGIN}: its `groups` differ on the ranks: rank 0 has "
        "[['cat_0']], and rank 1 has [['cat_1']]. Make the same on every rank: let no rank, no "
        "time and no random number decide."
    )


def test_a_transform_of_other_ids_on_each_rank_is_told(
    right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    registry = {**right, "preprocess": [{"use": "of_more_ids"}]}
    for says in gloo_pool.run(plans_what_it_read, registry):
        assert says.startswith(
            "the num_ids of feature 'cat_0' behind `preprocess` differ on the ranks: rank 0 has 9, "
            "and rank 1 has 10. Make the same on every rank: "
        )


def test_a_dataset_that_is_another_on_each_rank_is_named(
    right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    registry = {**right, "dataset": {"use": "of_each_rank"}, "model": {"use": "dlrm"}}
    for says in gloo_pool.run(plans_what_it_read, registry):
        assert f"dataset 'of_each_rank' of {PLUGIN}: its tables differ on the ranks: " in says
        assert "Let its `fingerprint` change with its source alone, " in says


@pytest.mark.parametrize(
    ("use", "what", "first", "second"),
    [
        ("wider_by_rank", "shapes of its parameter 'net.vectors.poolings.0.scale'", "[1]", "[2]"),
        ("more_by_rank", "numbers of its parameters", "1", "2"),
    ],
)
def test_a_pooling_of_other_parameters_on_each_rank_is_named(
    use: str, what: str, first: str, second: str, right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    for says in gloo_pool.run(plans_what_it_read, {**right, "pooling": {"*": use}}):
        assert says.startswith(
            f"pooling.*: pooling '{use}' of {PLUGIN}: the {what} differ on the ranks: rank 0 has "
            f"{first}, and rank 1 has {second}. Make the same "
        )


def test_a_planner_that_has_the_dense_optimizer_step_tables_is_named(
    right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    named = {**right, "train": {**right["train"], "optimizer": {"tables": "sgd"}}}
    ((_, says),) = gloo_pool.run(
        leaves_out, {**named, "sharding": {"use": "dense_bags"}}, world_size=1
    )
    ((_, nobody),) = gloo_pool.run(
        leaves_out, {**right, "sharding": {"use": "dense_bags"}}, world_size=1
    )
    (said,) = (one for one in says if "dense_bags may train otherwise" in one)
    assert "it has table t_cat_1 data-parallel, or with the dense kernel: the dense opt" in said
    assert not any("may train otherwise" in one for one in nobody)  # no optimizer is named


def leaves_out(registry: dict[str, Any]) -> tuple[list[str], list[str]]:
    """On a rank: the modules of a plan, and the warnings of a planner that leaves one out."""
    stack = rp.load(registry)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", NoticeWarning)
        plan = stack.plan(stack.model())
    return list(plan.plan), [str(one.message) for one in found]


@pytest.mark.parametrize("planner", ["plans_in_part", "plans_no_table"])
def test_a_planner_that_leaves_modules_out_is_named(
    planner: str, right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    in_part = {**right, "sharding": {"use": planner}}
    ((kept, says),) = gloo_pool.run(leaves_out, in_part, world_size=1)
    ((every, nothing),) = gloo_pool.run(leaves_out, right, world_size=1)
    lacking = {*every} - {*kept}
    assert lacking
    assert not any("leaves out" in one for one in nothing)
    (said,) = (one for one in says if "leaves out" in one)
    _, _, named = said.partition(f"sharding: {planner} may train otherwise: its plan leaves out ")
    assert {*named.partition(", which every rank")[0].split(", ")} == lacking


def plans_own(registry: dict[str, Any], rows: int) -> list[str]:
    """On a rank: the warnings of a plan of a model whose table has so many rows."""
    table = EmbeddingBagConfig(
        name="t", embedding_dim=4, num_embeddings=rows, feature_names=["cat_0", "cat_1"]
    )
    model = EmbeddingBagCollection(tables=[table], device=torch.device("meta"))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", NoticeWarning)
        rp.load({**registry, "model": None}).plan(model)
    return [str(one.message) for one in found]


def test_a_table_without_a_row_for_each_id_is_told(
    right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    ((said,),) = gloo_pool.run(plans_own, right, 8, world_size=1)
    assert "model is not checked: table t has 8 rows, and cat_0 9 ids, table t has 8" in said
    assert gloo_pool.run(plans_own, right, 9, world_size=1) == [[]]


def plans_in_an_order(registry: dict[str, Any], tables_too: bool) -> str:
    """On a rank: the error of a plan of a model whose tables, or whose table's features, come in
    another order on each rank, as out of a set."""
    order = ["cat_0", "cat_1"][:: 1 - 2 * dist.get_rank()]
    names = {one: [one] for one in order} if tables_too else {"t": order}
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=9, feature_names=features)
        for name, features in names.items()
    ]
    model = nn.Sequential(EmbeddingBagCollection(tables=tables, device=torch.device("meta")))
    with pytest.raises(PluginError) as caught:
        rp.load({**registry, "model": None}).plan(model)
    return str(caught.value)


@pytest.mark.parametrize(
    ("tables_too", "says"),
    [
        (True, "the tables of '0' at place 1 differ on the ranks: rank 0 has cat_0, and rank 1 ha"),
        (
            False,
            "the features of table 't' in '0' differ on the ranks: rank 0 has cat_0, cat_1, an",
        ),
    ],
)
def test_tables_in_another_order_on_each_rank_are_told(
    tables_too: bool, says: str, right: dict[str, Any], gloo_pool: GlooPool
) -> None:
    """Each rank would look up its features in other tables, and train to the end."""
    for message in gloo_pool.run(plans_in_an_order, right, tables_too):
        assert message.startswith(f"model: {says}")
        assert message.endswith("a set has another in each process; sort it.")


def pooling_of(right: dict[str, Any], use: str) -> Any:
    model: Any = rp.load({**right, "pooling": {"*": use}}).model()
    return model.net.vectors.poolings[-1]


VALUES, LENGTHS = torch.arange(20.0).reshape(5, 4), torch.tensor([2, 0, 3])


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("fewer_rows", "[2, 4] of torch.float32"),
        ("wider", "[3, 8] of torch.float32"),
        ("flat", "[3] of torch.float32"),
        ("doubles", "[3, 4] of torch.float64"),
        ("whole_numbers", "[3, 4] of torch.int64"),
        ("a_pair", "a tuple"),
    ],
)
@pytest.mark.parametrize("shared", [False, True], ids=["plain", "on unique samples"])
def test_a_pooling_that_makes_something_else_is_named(
    use: str, found: str, shared: bool, right: dict[str, Any]
) -> None:
    pooling = pooling_of(right, use)
    values, lengths = VALUES, LENGTHS
    if shared:
        DedupPooling(pooling)
        lookup = torch.tensor([0, 2, 2, 1])
        values = Unexpanded.values(VALUES, LENGTHS, lookup)
        lengths = Unexpanded.rows(LENGTHS, lookup)
    with pytest.raises(PluginError) as caught:
        pooling(values, lengths=lengths)
    assert str(caught.value) == (
        f"pooling.*: pooling '{use}' of {PLUGIN}: Last made {found} of cat_0, whose values [5, 4] "
        "of torch.float32 in 3 rows must become [3, 4] of torch.float32. Return one vector for "
        "each row of `lengths`, of zeros where that is 0."
    )


def test_a_pooling_that_lets_no_gradient_through_is_named(right: dict[str, Any]) -> None:
    pooling = pooling_of(right, "detaches")
    pooling(VALUES, LENGTHS)  # as in an evaluation
    with pytest.raises(PluginError, match="Last lets no gradient through to cat_0, whose table"):
        pooling(VALUES.clone().requires_grad_(), LENGTHS)


class Within(nn.Module):
    """A model that pools."""

    def __init__(self, pooling: nn.Module) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, values: Tensor, lengths: Tensor) -> Any:
        return self.pooling(values, lengths)


class ThroughAll(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


def test_a_pooling_that_makes_nothing_is_named_while_torchrec_traces(right: dict[str, Any]) -> None:
    model = Within(pooling_of(right, "nothing"))
    with pytest.raises(PluginError, match=r"Nothing made a NoneType of cat_0\. Ret"):
        ThroughAll().trace(model)


@pytest.mark.parametrize("shared", [False, True], ids=["plain", "on unique samples"])
def test_a_pooling_that_changes_lengths_is_named(shared: bool, right: dict[str, Any]) -> None:
    pooling = pooling_of(right, "changes_lengths")
    values, lengths = VALUES, LENGTHS.clone()
    if shared:
        DedupPooling(pooling)
        lookup = torch.tensor([0, 2, 2, 1])
        values = Unexpanded.values(VALUES, lengths, lookup)
        lengths = Unexpanded.rows(lengths, lookup)
    with pytest.raises(PluginError, match="Mean changes the `lengths` of cat_0 in place"):
        pooling(values, lengths)


@pytest.mark.parametrize("use", ["right", "halves"])
def test_vectors_of_a_smaller_type_are_left_to_the_model(use: str, right: dict[str, Any]) -> None:
    """Torch makes them float32 beside others, as after autocast."""
    assert pooling_of(right, use)(VALUES, LENGTHS).shape == (3, 4)


class Returns(nn.Module):
    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self) -> Any:
        return self.outputs


LOSS, ROWS = torch.tensor(1.0, requires_grad=True), torch.ones(3)


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (LOSS, "forward returned a tensor []. Return loss, (loss.detach(), "),
        (None, "forward returned None."),
        ((LOSS, ROWS), "forward returned (a tensor [], a tensor [3])."),
        ((ROWS, (LOSS, ROWS, ROWS, ROWS)), "a loss of shape [3], where it must be one number."),
        ((LOSS.detach(), (LOSS, ROWS, ROWS, ROWS)), "a loss without a gradient, so that nothing"),
        ((LOSS, (LOSS, torch.ones(3, 2), ROWS, ROWS)), "logits [3, 2] for labels [3] and"),
        ((LOSS, (LOSS, ROWS, ROWS, torch.ones(3, 1))), "weights [3, 1]. Return one for each label"),
    ],
)
def test_a_model_that_returns_something_else_is_named(outputs: Any, says: str) -> None:
    model = Returns(outputs)
    watch_outputs(model, "model: model 'mine' of ./mine")
    with pytest.raises(PluginError) as caught:
        model()
    assert str(caught.value).startswith("model: model 'mine' of ./mine: forward returned ")
    assert says in str(caught.value)


@pytest.mark.parametrize("logits", [ROWS, torch.ones(3, 1)])
def test_outputs_of_a_model_pass(logits: Tensor) -> None:
    model = Returns((LOSS, (LOSS, logits, ROWS, ROWS)))
    watch_outputs(model, "model")
    model()
