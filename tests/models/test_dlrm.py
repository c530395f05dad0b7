"""Value tests of the click loss, DLRM and DLRM_DCN; then one and two gloo ranks against plain."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from clicks import Trained, build, clicks, on_cpu, part, train_plain, train_sharded
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recd_dlrm import recd_model
from recd_dlrm.models.click import ClickModel, weighted_loss
from recd_dlrm.models.dlrm import DlrmConfig
from recd_dlrm.models.dlrm_dcn import DlrmDcnConfig
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.testing.gloo import GlooPool

RECORDS = {record.name: record for record in recd_model()}
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
    logits, labels = logits_and_labels(1001)
    ours = weighted_loss(logits, labels, torch.ones(1001))
    plain = F.binary_cross_entropy_with_logits(logits, labels)
    assert torch.equal(ours, plain)
    assert torch.equal(*(torch.autograd.grad(loss, logits)[0] for loss in (ours, plain)))


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


def test_click_model_detaches_all_but_the_loss() -> None:
    model = on_cpu(build(RECORDS["dlrm"], SCHEMA, SMALL["dlrm"]))
    batch = clicks(SCHEMA, 6)
    loss, seen = model(batch)
    assert loss.requires_grad
    assert not any(tensor.requires_grad for tensor in seen)
    assert [tuple(tensor.shape) for tensor in seen] == [(), (6,), (6,), (6,)]
    assert torch.equal(seen[2], batch.labels)


def widths(module: nn.Module) -> list[int]:
    return [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)]


def test_defaults_are_the_kaggle_model() -> None:
    net = build(RECORDS["dlrm"], SCHEMA, DlrmConfig()).net
    assert widths(net.dense_arch) == [512, 256, 64, 16]
    assert widths(net.over_arch) == [512, 256, 1]


@pytest.mark.parametrize("bottom", [(32, 8), (32,)], ids=str)
@pytest.mark.parametrize("top", [(16, 1), (16,)], ids=str)
def test_last_layers_may_be_left_out(bottom: tuple[int, ...], top: tuple[int, ...]) -> None:
    config = DlrmConfig(embedding_dim=8, bottom=bottom, top=top)
    assert config.bottom_layers == [32, 8]
    assert config.top_layers == [16, 1]


@pytest.mark.parametrize("name", SMALL)
def test_tables_follow_the_schema(name: str) -> None:
    model = build(RECORDS[name], SCHEMA, SMALL[name])
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
    one, two = (build(RECORDS[name], SCHEMA, SMALL[name]) for _ in range(2))
    dense = {path: p for path, p in one.named_parameters() if not p.is_meta}
    assert dense
    assert all(torch.equal(p, two.get_parameter(path)) for path, p in dense.items())


@pytest.mark.parametrize("name", SMALL)
def test_without_dense_features_the_bottom_is_a_learned_vector(name: str) -> None:
    schema = Schema(sparse=SCHEMA.sparse)
    model = on_cpu(build(RECORDS[name], schema, SMALL[name]))
    loss, _ = model(clicks(schema, 6))
    loss.backward()
    bottom = model.net.dense_arch
    assert bottom(torch.ones(1, 1)).shape == (1, 8)
    assert any(p.grad.abs().sum() > 0 for p in bottom.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_without_sparse_features(name: str) -> None:
    with pytest.raises(DataError, match=f"model {name} embeds sparse features"):
        build(RECORDS[name], Schema(dense=("price",)), SMALL[name])


def test_options_that_cannot_be() -> None:
    with pytest.raises(RegistryError, match="embedding_dim: must be a multiple of 4"):
        DlrmConfig(embedding_dim=6)
    with pytest.raises(RegistryError, match="top: must have a layer before the last"):
        DlrmConfig(top=(1,))
    dotted = Schema(sparse=(SparseFeature(name="user.id", num_ids=4),))
    with pytest.raises(RegistryError, match=r"'user\.id' cannot have a dot"):
        build(RECORDS["dlrm"], dotted, SMALL["dlrm"])


def test_any_net_can_be_clicked() -> None:
    class Dense(nn.Module):
        def forward(self, dense: Tensor, features: object) -> Tensor:
            return dense.sum(1)

    batch = clicks(SCHEMA, 5)
    _, (_, logits, _, _) = ClickModel(Dense(), constant=True)(batch)
    torch.testing.assert_close(logits, batch.dense.sum(1) + 1)


def train(name: str, samples: int, steps: int, lr: float) -> Trained:
    """On a rank: steps over its share of one batch."""
    rows = torch.arange(dist.get_rank(), samples, dist.get_world_size())
    batch = part(clicks(SCHEMA, samples), rows)
    model = build(RECORDS[name], SCHEMA, SMALL[name])
    return train_sharded(model, [batch] * steps, lr)


@pytest.mark.parametrize("name", SMALL)
def test_one_rank_learns_a_fixed_batch(name: str, gloo_pool: GlooPool) -> None:
    (trained,) = gloo_pool.run(train, name, 64, 40, 0.5, world_size=1)
    assert trained.pipelined == ["net.sparse_arch.embedding_bag_collection"]
    assert trained.losses[-1] < 0.9 * trained.losses[0]
    assert trained.losses[0] == pytest.approx(math.log(2), abs=0.1)


@pytest.mark.parametrize("name", SMALL)
def test_two_ranks_train_as_plain_torch(name: str, gloo_pool: GlooPool) -> None:
    ranks = gloo_pool.run(train, name, 64, 20, 0.5)
    plain = train_plain(build(RECORDS[name], SCHEMA, SMALL[name]), [clicks(SCHEMA, 64)] * 20, 0.5)
    means = [sum(losses) / 2 for losses in zip(*(rank.losses for rank in ranks), strict=True)]
    assert means == pytest.approx(plain, abs=1e-6)  # float32, summed in another order
    assert plain[-1] < plain[0] - 0.01  # far more than the tolerance
    for rank in ranks:
        assert sorted(rank.keys) == sorted(SCHEMA.sparse_names)
        assert rank.keys != ["user", "item", "history", "tags"]  # not the unsharded order
