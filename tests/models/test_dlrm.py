"""Value tests of the click loss, DLRM and DLRM_DCN; then one and two gloo ranks against plain."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch
import torch.nn.functional as F
from clicks import Build, Mixed, clicks, train
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recd_dlrm import recd_model
from recd_dlrm.models.click_model import ClickModel, weighted_loss
from recd_dlrm.models.dlrm import DlrmConfig, DlrmDcnConfig
from recd_plugins.data.schema import Label, Schema, SparseFeature, Vector
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context
from recd_plugins.testing.conformance import check_record
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity

SMALL = {
    "dlrm": DlrmConfig(embedding_dim=8, bottom=(16,), top=(16,)),
    "dlrm_dcn": DlrmDcnConfig(embedding_dim=8, bottom=(16,), top=(16,), low_rank=4),
}
SCHEMA = Schema(
    dense=("price", "age"),
    sparse=(
        SparseFeature(name="user", num_ids=40),
        SparseFeature(name="item", num_ids=60, table="items"),
        SparseFeature(name="tags", num_ids=20),
        SparseFeature(name="history", num_ids=80, table="items"),
    ),
)


def logits_and_labels(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    logits = torch.randn(count, generator=generator, requires_grad=True)
    return logits, torch.randint(0, 2, (count,), generator=generator).float()


def test_loss_with_weights_of_one_is_plain_to_the_bit() -> None:
    for count in range(1, 200):  # n * (1 / n) is not 1 for some
        logits, labels = logits_and_labels(count)
        ours = weighted_loss(logits, labels, torch.ones(count))
        plain = F.binary_cross_entropy_with_logits(logits, labels)
        gradients = [torch.autograd.grad(loss, logits)[0] for loss in (ours, plain)]
        assert torch.equal(ours, plain)
        assert torch.equal(*gradients)


def test_padding_rows_do_not_count() -> None:
    logits, labels = logits_and_labels(9)
    weights = torch.tensor([1.0] * 7 + [0.0] * 2)
    ours = weighted_loss(logits, labels, weights)
    torch.testing.assert_close(ours, F.binary_cross_entropy_with_logits(logits[:7], labels[:7]))
    (gradient,) = torch.autograd.grad(ours, logits)
    assert gradient[7:].tolist() == [0.0, 0.0]


def test_loss_of_nothing_is_zero() -> None:
    logits, labels = logits_and_labels(5)
    loss = weighted_loss(logits, labels, torch.zeros(5))
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, logits)[0].tolist() == [0.0] * 5


def test_ranks_of_equal_weight_average_to_the_global_loss() -> None:
    logits, labels = logits_and_labels(8)
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0, 0.5, 0.5, 3.0, 0.0])
    ranks = [weighted_loss(logits[r], labels[r], weights[r]) for r in (slice(4), slice(4, None))]
    torch.testing.assert_close(sum(ranks) / 2, weighted_loss(logits, labels, weights))


LABELS = (
    Label(name="click"),
    Label(name="dwell", kind="regression", weight=0.25, nulls="empty"),
    Label(name="stars", kind="graded", grades=5, weight=2.0),
)


@pytest.mark.parametrize("name", SMALL)
def test_each_label_has_a_head_and_a_loss_of_its_kind(name: str) -> None:
    """Sum of weight * mean over the samples that count; a sample that lacks a label has no part."""
    schema = dataclasses.replace(SCHEMA, label="click", labels=LABELS)
    model = Build(name, schema, SMALL[name]).on_cpu()
    batch = clicks(schema, 6)
    stars, nan = torch.tensor([0.0, 1, 2, 3, 4, 4]), math.nan
    dwell = torch.tensor([3.0, nan, -1.0, 0.5, nan, 9.0])
    labels = torch.stack([batch.labels, dwell, stars], dim=1)
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0, 3.0, 0.5])
    loss, (_, outputs, seen, _) = model(dataclasses.replace(batch, labels=labels, weights=weights))
    assert outputs.shape == seen.shape == (6, 3)
    click, value, grade = outputs.unbind(1)
    entropy = F.binary_cross_entropy_with_logits
    first = entropy(click, batch.labels, weights, reduction="sum") / 5
    there = ~dwell.isnan()
    errors = weights[there] * (value[there] - dwell[there]).square()
    third = entropy(grade, stars / 4, weights, reduction="sum") / 5
    torch.testing.assert_close(loss.detach(), first + 0.25 * errors.sum() / 3 + 2 * third)
    loss.backward()
    assert all(
        bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None
    )


@pytest.mark.parametrize("name", SMALL)
def test_models_keep_the_contract_on_any_kind_of_column(name: str) -> None:
    schema = Schema(
        labels=(Label(name="click"), Label(name="dwell", kind="regression")),
        dense=("price", "vector"),
        vectors=(Vector(name="vector", width=3),),
        sparse=(SparseFeature(name="cart", num_ids=9, scored=True), *SCHEMA.sparse),
    )
    (record,) = (record for record in recd_model() if record.name == name)
    check_record(record, context=Context(schema=schema))


def test_click_model_detaches_all_but_the_loss() -> None:
    model = Build("dlrm", SCHEMA, SMALL["dlrm"]).on_cpu()
    batch = clicks(SCHEMA, 6)
    loss, seen = model(batch)
    assert loss.requires_grad
    assert not any(tensor.requires_grad for tensor in seen)
    assert [tuple(tensor.shape) for tensor in seen] == [(), (6,), (6,), (6,)]
    assert torch.equal(seen[2], batch.labels)


def widths(module: nn.Module) -> list[int]:
    return [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)]


def test_defaults_are_the_kaggle_model() -> None:
    net = Build("dlrm", SCHEMA, DlrmConfig())().net
    assert widths(net.dense_arch) == [512, 256, 64, 16]
    assert widths(net.over_arch) == [512, 256, 1]


@pytest.mark.parametrize("bottom", [(32, 8), (32,)], ids=str)
@pytest.mark.parametrize("top", [(16, 1), (16,)], ids=str)
def test_last_layers_may_be_left_out(bottom: tuple[int, ...], top: tuple[int, ...]) -> None:
    config = DlrmConfig(embedding_dim=8, bottom=bottom, top=top)
    assert config.bottom_layers == [32, 8]
    assert config.top_layers == [16, 1]
    assert config.top_layers_of(3) == [16, 3]


@pytest.mark.parametrize(
    ("top", "labels", "layers"),
    [
        ((8, 1, 1), 1, [8, 1, 1]),
        ((8, 3, 1), 3, [8, 3, 3]),
        ((3, 1), 3, [3, 3]),
        ((8, 3), 3, [8, 3]),
    ],
)
def test_no_layer_before_the_last_is_left_out(
    top: tuple[int, ...], labels: int, layers: list[int]
) -> None:
    assert DlrmConfig(top=top).top_layers_of(labels) == layers


@pytest.mark.parametrize("name", [record.name for record in recd_model()])
def test_outputs_alone_are_no_top(name: str) -> None:
    (record,) = (record for record in recd_model() if record.name == name)
    history = SparseFeature(name="clicks", num_ids=9, sequence=True)
    schema = Schema(labels=LABELS, dense=("price",), sparse=(*SCHEMA.sparse, history))
    with pytest.raises(RegistryError, match=r"model\.top: has the outputs of 3 labels alone"):
        Build(name, schema, record.config(top=(3,)))()


@pytest.mark.parametrize("name", SMALL)
def test_tables_follow_the_schema(name: str) -> None:
    model = Build(name, SCHEMA, SMALL[name])()
    (bags,) = (m for m in model.modules() if isinstance(m, EmbeddingBagCollection))
    assert {
        config.name: (config.num_embeddings, config.feature_names)
        for config in bags.embedding_bag_configs()
    } == {
        "t_user": (40, ["user"]),
        "t_items": (80, ["item", "history"]),
        "t_tags": (20, ["tags"]),
    }
    devices = {
        path.endswith("weight") and "t_" in path: p.device.type
        for path, p in model.named_parameters()
    }
    assert devices == {True: "meta", False: "cpu"}


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_gives_the_same_model(name: str) -> None:
    one, two = (Build(name, SCHEMA, SMALL[name])() for _ in range(2))
    dense = {path: p for path, p in one.named_parameters() if not p.is_meta}
    assert dense
    assert all(torch.equal(p, two.get_parameter(path)) for path, p in dense.items())


@pytest.mark.parametrize("name", SMALL)
def test_without_dense_features_the_bottom_is_a_learned_vector(name: str) -> None:
    schema = Schema(sparse=SCHEMA.sparse)
    model = Build(name, schema, SMALL[name]).on_cpu()
    loss, _ = model(clicks(schema, 6))
    loss.backward()
    bottom = model.net.dense_arch
    assert bottom(torch.ones(1, 1)).shape == (1, 8)
    assert any(p.grad.abs().sum() > 0 for p in bottom.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_without_sparse_features(name: str) -> None:
    """What the model does not take, batches do not have: their schema may lack it, too."""
    schema = Schema(dense=("price",))
    with pytest.raises(DataError, match=f"model {name} embeds sparse features, but the schema"):
        Build(name, schema, SMALL[name])()
    for features in ((), ("price",)):
        given = re.escape(f"[{', '.join(features)}]")
        says = rf"model {name} embeds sparse features, but model\.features, which is {given}, names"
        with pytest.raises(DataError, match=says):
            Build(name, schema, dataclasses.replace(SMALL[name], features=features))()


def test_options_that_cannot_be() -> None:
    with pytest.raises(RegistryError, match="embedding_dim: must be a multiple of 4"):
        DlrmConfig(embedding_dim=6)
    with pytest.raises(RegistryError, match="top: must have a layer before the last"):
        DlrmConfig(top=(1,))
    dotted = Schema(sparse=(SparseFeature(name="user.id", num_ids=4),))
    with pytest.raises(RegistryError, match=r"'user\.id' cannot have a dot"):
        Build("dlrm", dotted, SMALL["dlrm"])()


def test_any_net_can_be_clicked() -> None:
    class Dense(nn.Module):
        def forward(self, dense: Tensor, features: object) -> Tensor:
            return dense.sum(1)

    batch = clicks(SCHEMA, 5)
    _, (_, logits, _, _) = ClickModel(Dense(), constant=True)(batch)
    torch.testing.assert_close(logits, batch.dense.sum(1) + 1)


@pytest.mark.parametrize(("name", "ranks"), [("dlrm", 1), *((name, 2) for name in SMALL)])
def test_learns_a_fixed_batch(name: str, ranks: int, gloo_pool: GlooPool) -> None:
    batches = [clicks(SCHEMA, 32, seed=rank) for rank in range(ranks)]
    build = Build(name, SCHEMA, SMALL[name])
    for run in gloo_pool.run(train, build, batches, steps=80, lr=0.5, world_size=ranks):
        assert run.pipelined == ["net.sparse_arch.embedding_bag_collection"]
        assert run.losses[0] == pytest.approx(math.log(2), abs=0.1)
        assert run.losses[-1] < 0.9 * run.losses[0]
        if ranks == 2:  # SparseArch must select by key: this is not the unsharded order
            assert run.keys == ["item", "history", "user", "tags"]


def test_without_dense_features_the_pipeline_still_finds_the_tables(gloo_pool: GlooPool) -> None:
    schema = Schema(sparse=SCHEMA.sparse)
    build = Build("dlrm", schema, SMALL["dlrm"])
    (run,) = gloo_pool.run(train, build, [clicks(schema, 32)], steps=2, lr=0.5, world_size=1)
    assert run.pipelined == ["net.sparse_arch.embedding_bag_collection"]


@pytest.mark.parametrize("name", SMALL)
def test_two_ranks_train_as_plain_torch(name: str, gloo_pool: GlooPool) -> None:
    steps = [[clicks(SCHEMA, 16, seed=2 * step + rank) for rank in range(2)] for step in range(3)]
    check_parity(gloo_pool, Build(name, SCHEMA, SMALL[name]), steps, arrange=Mixed())
