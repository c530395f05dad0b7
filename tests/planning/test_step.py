"""Ladder: a whole step as values, worked by hand; then a model timed on this device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_dlrm.poolings.attention import Attention, AttentionConfig
from recd_dlrm.poolings.transformer import Transformer, TransformerConfig
from recd_plugins.advise.computed import fitted_line, measured_compute, on_held_embeddings
from recd_plugins.advise.torchrec_step import seconds_of_torchrec
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.timing import seconds_of
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.planning.access.parametric import uniform, zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB, Link, Topology
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.step.compute import Compute, FeatureCompute
from recd_plugins.planning.step.step_forecast import BUCKET, StepForecast
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes

HISTORY = FeatureCompute(
    pooled=8e-6, queried=2e-6, expanded=1e-6, converted=0.5e-6, activations=1000
)
COMPUTE = Compute(
    fixed=2e-3,
    dense=20e-6,
    features={"history": HISTORY},
    reading=3e-6,
    dense_bytes=GB / 1024,
    activations=100,
)
TOPOLOGY = Topology(
    ranks_per_node=2,
    a2a_global=Link(gbps=1, latency_ms=0.5),
    a2a_intra=Link(gbps=10, latency_ms=0.1),
    ar_global=Link(gbps=0.5, latency_ms=1),
    ar_cross=Link(gbps=1, latency_ms=0.5),
    gather_gbps=4,
    beside=0.5,
)


ON_CPU = replace(TOPOLOGY, device="cpu")
"""Whose ring takes longer than two exchanges in the node and an all-reduce of halves across."""


def forecast(
    topology: Topology = TOPOLOGY,
    *,
    compute: Compute = COMPUTE,
    sizes: TableSizes | None = None,
    world_size: int = 4,
    batch_size: int = 100,
    exponent: float = 0.0,
    **settings: object,
) -> StepForecast:
    rows = zipf(1000, 8, exponent) if exponent else uniform(1000, 8)
    table = ProfiledTable(name="rows", rows=rows, dim=16)
    cluster = Cluster.of(topology, world_size)
    prices = Prices(cluster=cluster, batch_size=batch_size, k=1.64)
    ledger = Ledger.of({"rows": table}, {"rows": sizes or TableSizes()}, prices)
    return StepForecast(ledger=ledger, compute=compute, **settings)  # type: ignore[arg-type]


def test_parts_are_those_of_compute_and_of_the_ledger() -> None:
    parts = forecast(unique={"history": 0.25}).parts
    assert parts["fixed"] == pytest.approx(2)
    assert parts["dense"] == pytest.approx(100 * 20e-3)
    assert parts["pooling"] == pytest.approx(0.25 * 100 * 8e-3 + 100 * 2e-3)
    assert parts["expansion"] == pytest.approx(100 * 1e-3)
    assert (parts["conversion"], parts["reading"]) == pytest.approx((0.05, 0.3))
    assert parts["lookups"] == pytest.approx(8 * 800 * 64 / (4 * GB) * 1000)
    payload = 800 * (2 * 64 + 8)
    assert parts["a2a_global"] == pytest.approx(4 * 0.5 + payload / GB * 1000)
    assert parts["dense_reduce"] == pytest.approx(1 + 1000 / 1024 / 0.5)
    assert "ar_cross" not in parts


def test_what_is_not_deduplicated_is_pooled_whole_and_expanded_never() -> None:
    parts = forecast().parts
    assert parts["pooling"] == pytest.approx(100 * 10e-3)
    assert parts["expansion"] == parts["conversion"] == 0


def test_a_step_is_its_parts_less_what_hides() -> None:
    step = forecast()
    computed = 2 / 3 * (2.0 + 1.0) + 2.0 / 2
    ids = 2 * 0.5 + 800 * 8 / GB * 1000
    assert step.hidden["exchange"] == pytest.approx(
        0.5 * min(computed, ids + step.parts["dense_reduce"])
    )
    assert step.hidden["replicas"] == step.hidden["loader"] == 0
    assert step.ms == pytest.approx(sum(step.parts.values()) - step.hidden["exchange"])
    assert step.samples_per_second == pytest.approx(4 * 100 / step.ms * 1000)


@pytest.mark.parametrize(
    ("ranks_per_node", "crowded", "shared"),
    [
        (2, 1.0, 0.0),  # each has a processor of its own
        (2, 4.0, 0.75),
        (4, 4.0, 0.0),  # processors carry what stays in a node
    ],
)
def test_calls_of_unique_samples_are_made_while_other_ranks_send(
    ranks_per_node: int, crowded: float, shared: float
) -> None:
    topology = replace(TOPOLOGY, ranks_per_node=ranks_per_node, crowded=crowded)
    compute = replace(COMPUTE, call=2e-7)
    sent = 800 * (2 * 64 + 8) / GB * 1000
    few, many = (forecast(topology, compute=compute, handled=n) for n in (100, 10_000))
    assert few.parts["handling"] == pytest.approx(0.02)
    assert few.hidden["handling"] == pytest.approx(shared * 0.02)
    assert many.hidden["handling"] == pytest.approx(shared * sent)  # and no longer than they do
    assert many.ms - few.ms == pytest.approx(2 - 0.02 - shared * (sent - 0.02))


def test_gloo_sends_dense_gradients_in_the_pauses_of_those_of_rows() -> None:
    """Nodes send 1 GB a second by all-to-alls, and 0.5 * 3 / 2 by rings."""
    cpu = replace(ON_CPU, a2a_intra=Link(gbps=0.1))  # so that dense gradients go by the ring
    compute = replace(COMPUTE, dense_bytes=GB / 4096, dense=0.0, fixed=0.0, features={})
    rows, dense = 800 * 2 * 64 / 2 / GB * 1000, 1000 / 4096 / 0.5
    for gbps in (1.0, 0.1, 0.02):  # all-to-alls are over before rings are, or the other way round
        slow = replace(cpu, a2a_global=Link(gbps=gbps, latency_ms=0.5))
        step, g = forecast(slow, compute=compute), rows / gbps
        both = max(g, dense, (gbps * g + 0.75 * dense) / max(gbps, 0.75))
        assert step.hidden["pauses"] == pytest.approx(g + dense - both)
        assert step.ms == pytest.approx(sum(step.parts.values()) - step.hidden["pauses"])
    once = replace(slow, a2a_intra=TOPOLOGY.a2a_intra)  # of a node's two ranks each sends a half
    step, dense = forecast(once, compute=compute), 1000 / 4096 * (2 / 10 + 1 / 2)
    both = max(g, dense, (gbps * g + dense / (2 / 10 + 1 / 2)) / max(gbps, 2))
    assert step.hidden["pauses"] == pytest.approx(g + dense - both)
    computed = forecast(slow, compute=replace(compute, fixed=1.0))  # which hides them
    assert computed.hidden["pauses"] == 0
    two = replace(slow, ranks_per_node=1)
    for other, ranks in ((two, 2), (replace(slow, ranks_per_node=4), 4), (TOPOLOGY, 4)):
        assert forecast(other, compute=compute, world_size=ranks).hidden["pauses"] == 0
    untimed = Topology(device="cpu", ranks_per_node=2)  # rates of formulas have no pauses
    assert forecast(untimed, compute=compute).hidden["pauses"] == 0


def test_dense_gradients_cross_nodes_once_where_gloos_ring_takes_longer() -> None:
    step, dense = forecast(ON_CPU), COMPUTE.dense_bytes
    assert step.parts["dense_reduce"] == pytest.approx(
        2 * (0.1 + 1000 / 1024 / 10) + 0.5 + 1000 / 1024 / 2 / 1
    )
    payload = 800 * (2 * 64 + 8)
    assert step.bytes_by_link["between_nodes"] == pytest.approx(4 * payload / 2 + 2 * dense)
    assert step.bytes_by_link["within_nodes"] == pytest.approx(
        4 * (payload / 4 + 2 * dense * 1 / 2)
    )
    many = forecast(ON_CPU, compute=replace(COMPUTE, dense_bytes=2 * BUCKET))
    assert many.parts["dense_reduce"] == pytest.approx(
        0.5 + 2 * (0.1 + 2000 * BUCKET / GB / 10) + 0.5 + 1000 * BUCKET / GB
    )
    quick = replace(ON_CPU, ar_global=Link(gbps=5, latency_ms=0.1))
    assert forecast(quick).parts["dense_reduce"] == pytest.approx(0.1 + 1000 / 1024 / 5)
    assert forecast(quick).bytes_by_link["between_nodes"] == pytest.approx(
        4 * payload / 2 + 3 * dense
    )


def test_loaders_ahead_hide_all_their_reading_unless_they_are_slower_than_the_step() -> None:
    within, ahead = forecast(), forecast(workers=2)
    assert ahead.ms == pytest.approx(within.ms - within.parts["reading"])
    slow = forecast(compute=replace(COMPUTE, reading=1e-3), workers=2)
    assert slow.ms == pytest.approx(100 / 2)


def test_one_rank_exchanges_nothing() -> None:
    step = forecast(Topology(gather_gbps=4), world_size=1)
    assert step.parts["dense_reduce"] == 0
    assert step.hidden["exchange"] == 0
    assert step.bytes_by_link == {"between_nodes": 0, "within_nodes": 0}


def test_bytes_go_over_the_links_of_the_ledger_and_of_the_dense_gradients() -> None:
    step = forecast()
    payload, dense = 800 * (2 * 64 + 8), COMPUTE.dense_bytes
    assert step.bytes_by_link["between_nodes"] == pytest.approx(4 * payload / 2 + 3 * dense)
    assert step.bytes_by_link["within_nodes"] == pytest.approx(4 * payload / 4 + 3 * dense)


def test_memory_is_of_tables_dense_parameters_and_activations_of_unique_samples() -> None:
    step = forecast(unique={"history": 0.25})
    own = 4 * COMPUTE.dense_bytes + 100 * (100 + 0.25 * 1000)
    assert step.memory == pytest.approx(step.ledger.memory + own)


@settings(max_examples=at_most(25), deadline=None)
@given(
    times=st.floats(1, 100),
    replicated=st.integers(0, 1000),
    coalesce=st.sampled_from(["none", "rank", "node"]),
    collective=st.sampled_from(["a2a_global", "a2a_intra", "ar_global", "ar_cross"]),
    share=st.floats(0, 1),
    device=st.sampled_from(["cpu", "cuda"]),
)
def test_what_is_faster_never_slows_a_step(
    times: float, replicated: int, coalesce: str, collective: str, share: float, device: str
) -> None:
    sizes = TableSizes(replicated=replicated, coalesce=coalesce)  # type: ignore[arg-type]
    made: Any = {"sizes": sizes, "exponent": 1.1, "unique": {"history": share}}
    topology = replace(TOPOLOGY, device=device)
    step = forecast(topology, **made)
    link = getattr(topology, collective)
    faster = replace(link, gbps=times * link.gbps)
    quick = forecast(replace(topology, **{collective: faster}), **made)
    assert quick.ms <= step.ms * (1 + 1e-9)
    slower = forecast(topology, compute=COMPUTE.slower(times), **made)
    assert slower.ms >= step.ms * (1 - 1e-9)
    more = forecast(topology, **{**made, "unique": {"history": min(1.0, 2 * share)}})
    assert more.ms >= step.ms * (1 - 1e-9)


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="history: pooled must be finite, and 0 or more"):
        Compute(features={"history": FeatureCompute(pooled=-1.0)})
    with pytest.raises(DataError, match="'history' are a share of 0 to 1, not 2"):
        forecast(unique={"history": 2.0})


@dataclass
class Sample:
    features: KeyedJaggedTensor

    def to(self, device: torch.device) -> Sample:
        return Sample(self.features.to(device))


class Summed(nn.Module):
    """Embeddings of a history and of an item, each summed, and one layer."""

    def __init__(self, pooling: nn.Module | None = None) -> None:
        super().__init__()
        meta = torch.device("meta")
        history = EmbeddingConfig(
            name="h", embedding_dim=8, num_embeddings=10**9, feature_names=["history"]
        )
        item = EmbeddingBagConfig(
            name="i", embedding_dim=8, num_embeddings=10**9, feature_names=["item"]
        )
        self.sequences = EmbeddingCollection(tables=[history], device=meta)
        self.bags = EmbeddingBagCollection(tables=[item], device=meta)
        self.pooling = pooling or _Sum()
        self.top = nn.Linear(16, 1)

    def forward(self, batch: Sample) -> tuple[Tensor, Tensor]:
        embedded = self.sequences(batch.features)["history"]
        items = self.bags(batch.features).values()
        pooled = self.pooling(embedded.values(), embedded.lengths(), items)
        loss = self.top(torch.cat([pooled, items], dim=1)).mean()
        return loss, loss.detach()


class _Sum(nn.Module):
    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None) -> Tensor:
        return torch.segment_reduce(values, "sum", lengths=lengths, initial=0.0)


def sample(size: int) -> Sample:
    return Sample(
        KeyedJaggedTensor(
            keys=["history", "item"],
            values=torch.arange(4 * size) + 10**8,
            lengths=torch.cat([torch.full((size,), 3), torch.ones(size, dtype=torch.long)]),
        )
    )


def test_a_model_is_timed_without_tables_that_no_machine_could_hold() -> None:
    model = Summed()
    found = measured_compute(
        model,
        [sample(256)],
        lambda batch: batch.features,
        device=torch.device("cpu"),
        optimizer=torch.optim.Adam,
    )
    assert found.measured
    assert found.fixed > 0
    assert found.dense_bytes == 4 * (16 + 1)
    assert found.features["history"].pooled + found.features["history"].queried > 0
    assert found.activations >= 4 * 16  # the input of the layer
    assert model.sequences.embeddings["h"].weight.is_meta


def test_what_a_query_weighs_is_pooled_for_each_sample_and_not_for_each_sequence() -> None:
    def pooling(of: nn.Module) -> FeatureCompute:
        batches = [sample(1024)]
        cpu = torch.device("cpu")
        found = measured_compute(Summed(of), batches, lambda batch: batch.features, device=cpu)
        return found.features["history"]

    attention = pooling(Attention(8, AttentionConfig()))
    assert attention.queried > attention.pooled
    transformer = pooling(Transformer(8, TransformerConfig(heads=2)))
    assert transformer.pooled > transformer.queried


def test_torchrecs_own_part_of_a_step_is_timed_on_tables_of_one_row() -> None:
    model, cpu = Summed(), torch.device("cpu")
    seconds = seconds_of_torchrec(model, default_sharders(), cpu)
    assert seconds > 1e-4  # the Python of many calls
    assert not dist.is_initialized()
    assert model.sequences.embeddings["h"].weight.is_meta
    assert seconds_of_torchrec(nn.Linear(1, 1), default_sharders(), cpu) == 0


def test_a_call_is_timed_with_one_thread_for_others_would_count_as_they_wait() -> None:
    threads, seen = torch.get_num_threads(), []
    torch.set_num_threads(3)
    try:
        seconds_of(lambda: seen.append(torch.get_num_threads()), torch.device("cpu"))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_what_does_not_grow_with_a_batch_is_fixed_and_nothing_is_less_than_none() -> None:
    assert fitted_line([(1, 1.0), (3, 2.0)]) == pytest.approx((0.5, 0.5))
    assert fitted_line([(4, 2.0)]) == (0, 0.5)
    assert fitted_line([(1, 2.0), (3, 1.0)]) == (1.5, 0)
    assert fitted_line([(1, 0.0), (3, 4.0)]) == pytest.approx((0, 1))


def test_held_embeddings_have_the_shapes_of_the_batch_and_get_gradients() -> None:
    held, batch = on_held_embeddings(Summed(), torch.device("cpu")), sample(4)
    rows = held.sequences(batch.features)["history"].values()
    sums = held.bags(batch.features).values()
    assert rows.shape == (12, 8)
    assert sums.shape == (4, 8)
    (rows.sum() + sums.sum()).backward()
    assert rows.grad is not None
    assert sums.grad is not None
    assert sum(one.numel() for one in held.parameters()) == 17


def test_held_embeddings_have_the_ids_of_the_batch_where_a_model_asks_for_them() -> None:
    tables = [
        EmbeddingConfig(name=name, embedding_dim=8, num_embeddings=10**9, feature_names=features)
        for name, features in {"h": ["history", "item"], "i": ["item"]}.items()
    ]
    held = on_held_embeddings(
        EmbeddingCollection(tables=tables, device=torch.device("meta"), need_indices=True),
        torch.device("cpu"),
    )
    batch = sample(4)
    found = held(batch.features)
    assert found["history"].weights().equal(batch.features["history"].values())
    assert set(found) == {"history", "item@h", "item@i"}
    assert found["item@i"].weights().equal(batch.features["item"].values())


def test_an_adapted_model_and_an_output_without_a_loss_are_refused() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(CapabilityError, match="sequences looks up unique samples already"):
        on_held_embeddings(adapt(Summed(), [("history",)]), cpu)
    with pytest.raises(DataError, match="return the loss, or"):
        measured_compute(
            nn.Sequential(_Nothing()), [sample(2)], lambda batch: batch.features, device=cpu
        )
    with pytest.raises(DataError, match="no batch"):
        measured_compute(Summed(), [], lambda batch: batch.features, device=cpu)


class _Nothing(nn.Module):
    def forward(self, batch: Sample) -> dict[str, Tensor]:
        return {}


def test_times_of_another_device_scale_all_seconds_and_no_bytes() -> None:
    slower = COMPUTE.slower(3)
    assert slower.ms(1, {"history": 1.0}) == pytest.approx(
        {part: 3 * ms for part, ms in COMPUTE.ms(1, {"history": 1.0}).items()}
    )
    assert slower.memory(7, {}) == COMPUTE.memory(7, {})
    assert dataclasses.replace(slower, ranks=2).ranks == 2
