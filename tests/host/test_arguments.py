"""Value tests: what a trainer hands over that cannot be is told by the argument's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import Topology as TorchRecs
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.stack.arguments import check_plan_arguments, check_sharders, check_share

DATA: dict[str, Any] = {
    "plugins": ["recd_dlrm"],
    "dataset": {"use": "random", "samples": 64},
    "model": {"use": "dlrm"},
}
DEDUP: dict[str, Any] = {"plugins": ["recd_dedup"], "dedup": {"use": "exact", "groups": [["a"]]}}
GIVEN = ("topology", "process_group", "batches", "features", "profile", "constraints")


def planned(**given: Any) -> None:
    check_plan_arguments(**{**dict.fromkeys(GIVEN), **given})


def bags() -> nn.Module:
    size: dict[str, Any] = {"embedding_dim": 4, "num_embeddings": 9}
    table = EmbeddingBagConfig(name="a", feature_names=["a"], **size)
    return EmbeddingBagCollection(tables=[table])


def of(call: Any, *args: Any, **options: Any) -> Callable[[], object]:
    return lambda: call(*args, **options)


LOADED: Any = rp.load
KJT = KeyedJaggedTensor(["a"], torch.arange(2), lengths=torch.ones(2, dtype=torch.long))
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no registry": (of(LOADED, None), "a registry is a path or a mapping, but this is None."),
    "a list": (of(LOADED, [1]), "but this is [1] (list)."),
    "one override": (of(LOADED, DATA, "train.steps=3"), "overrides are a list of texts"),
    "a text": (of(LOADED, "plugins: [a]\nstrict: true"), "but this is a text, 'plugins: [a]"),
    "a mapping": (of(LOADED, DATA, {"a": 1}), "but these are {'a': 1} (dict)."),
    "no text": (of(LOADED, DATA, [None]), "an override is a text, as 'train.batch_size=512', but"),
    "rank": (lambda: rp.load(DATA).loader(2, 2), "rank 2 is not among 2 ranks, which are counted"),
    "below 0": (lambda: rp.load(DATA).loader(-1, 2), "rank must be an integer >= 0, but is -1"),
    "no rank": (of(LOADED(DATA).loader, None, 1), "rank must be an integer >= 0, but is None."),
    "no ranks": (lambda: rp.load(DATA).loader(0, 0), "world_size must be an integer >= 1, but"),
    "split": (of(LOADED(DATA).loader, 0, 1, "tset"), "no split 'tset'; did you mean 'test'?"),
    "no model": (of(LOADED(DEDUP).adapt, None), "stack.adapt: the model is None, where it must"),
    "poolings": (of(LOADED(DEDUP).adapt, bags(), "net"), "`poolings` are a list: write ['net']."),
    "route": (of(LOADED(DEDUP).adapt, bags(), route="vb"), "no route 'vb'; did you mean 'vbe'?"),
    "topology": (of(planned, topology="local"), "`topology` is 'local' (str), where it must be a"),
    "torchrec's": (
        of(planned, topology=TorchRecs(world_size=2, compute_device="cpu")),
        "This is TorchRec's: leave it out, and write its nodes and links into registry.yaml",
    ),
    "by place": (of(planned, topology=[KJT]), "name them: `stack.plan(model, batches=loader)`."),
    "group": (of(planned, process_group=3), "`process_group` is 3 (int), where it must be a"),
    "ranks": (of(LOADED(DEDUP).adapt, bags(), process_group=3), "`process_group` is 3 (int), "),
    "batches": (of(planned, batches=3), "`batches` is 3 (int), where it must be an iterable"),
    "a batch": (
        of(planned, batches={"k": 1}),
        "`batches` is one batch (dict), where it must be an",
    ),
    "a KJT": (of(planned, batches=KJT), "`batches` is one batch (KeyedJaggedTensor), where it"),
    "a path": (of(planned, batches="train"), "`batches` is 'train' (str), where it must be an"),
    "peeked": (of(LOADED(DEDUP).peek, {}), "stack.peek: `batches` is one batch (dict), where it"),
    "ordered": (of(LOADED(DATA).order, None), "stack.order: `loader` is None, where it must be an"),
    "converted": (of(LOADED(DEDUP).converted, KJT), "stack.converted: `loader` is one batch"),
    "converting": (of(LOADED(DEDUP).converting, {}), "stack.converting: `make_batch` is {}, where"),
    "of a batch": (
        of(LOADED(DEDUP).converting, features="kjt"),
        "stack.converting: `features` is 'kjt' (str), where it must be a function",
    ),
    "features": (of(planned, features="kjt"), "`features` is 'kjt' (str), where it must be a"),
    "profile": (of(planned, profile=3), "`profile` is 3 (int), where it must be a Profile, or"),
    "constraints": (of(planned, constraints=[1]), "`constraints` is [1] (list), where it must be"),
    "one of them": (of(planned, constraints={"a": 3}), "constraints of table 'a' are 3 (int)"),
    "sharder": (
        of(check_sharders, EmbeddingBagCollectionSharder(), "stack.plan"),
        "stack.plan: `sharders` are <torchrec",
    ),
    "a class": (
        of(check_sharders, [EmbeddingBagCollectionSharder], "stack.plan"),
        "is no ModuleSharder. Make one of it: `EmbeddingBagCollectionSharder()`.",
    ),
    "by modules": (
        of(check_sharders, {EmbeddingBagCollection: EmbeddingBagCollectionSharder()}, "stack.plan"),
        "stack.plan: `sharders` are {<class",
    ),
    "no sharder": (of(check_sharders, [None], "stack.plan"), "None among `sharders` is no"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_argument_is_named(name: str) -> None:
    call, says = WRONG[name]
    with pytest.raises(RegistryError) as caught:
        call()
    assert says in str(caught.value)


def test_only_a_sharders_class_is_called_for_a_sharder() -> None:
    with pytest.raises(RegistryError, match=r"Collection among `sharders` is no ModuleSharder\.$"):
        check_sharders([EmbeddingBagCollection], "stack.plan")


def test_what_may_be_passes() -> None:
    class Old:
        """A sequence by the protocol of before iterators."""

        def __getitem__(self, index: int) -> int:
            return [1, 2][index]

    class Sharder:
        """By its parts alone, as DistributedModelParallel takes one."""

        module_type, shard = EmbeddingBagCollection, None

    planned()
    assert check_sharders([Sharder()], "stack.plan")
    check_share(np.int64(1), 2, "test")
    planned(batches=[], features=len, profile="profile.arrow", constraints={})
    planned(batches=Old())
    assert check_sharders((one for one in [EmbeddingBagCollectionSharder()]), "stack.plan")
    with pytest.raises((RegistryError, CapabilityError), match="process group"):
        rp.load(DEDUP).plan(bags())
