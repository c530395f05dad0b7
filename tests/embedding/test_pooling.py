"""Value tests of poolings on unique samples; then two gloo ranks against one process."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torchrec.distributed.types import LazyAwaitable

from recd_dlrm.poolings import attention
from recd_dlrm.poolings.attention import Attention, AttentionConfig
from recd_dlrm.poolings.reduce import Reduce
from recd_dlrm.poolings.transformer import Transformer, TransformerConfig
from recd_plugins.embedding.pooling import DedupPooling, explain_pooling
from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.errors import CapabilityError
from recd_plugins.testing.gloo import GlooPool

D = 8
LENGTHS = torch.tensor([3, 0, 1, 7])
LOOKUP = torch.tensor([0, 0, 3, 1, 2, 3, 3])
POOLINGS = ["sum", "mean", "max", "attention", "attention, softmax", "transformer"]


class Silent(nn.Module):
    """Takes a query, or not, and does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(D))

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        sums = values.new_zeros(len(lengths), D).index_add(0, rows, values * self.scale)
        return sums if query is None else sums * query


def build(name: str) -> nn.Module:
    torch.manual_seed(1)
    made: dict[str, Any] = {
        "sum": lambda: Reduce("sum"),
        "mean": lambda: Reduce("mean"),
        "max": lambda: Reduce("max"),
        "attention": lambda: Attention(D, AttentionConfig()),
        "attention, softmax": lambda: Attention(D, AttentionConfig(weights="softmax")),
        "transformer": lambda: Transformer(D, TransformerConfig(positions=4)),
        "silent": Silent,
    }
    pooling: nn.Module = made[name]().double()
    return pooling


class Samples:
    """Leaves of the unique samples, and what a pooling is given of them."""

    def __init__(
        self,
        lengths: Tensor = LENGTHS,
        lookup: Tensor = LOOKUP,
        dtype: torch.dtype = torch.double,
    ) -> None:
        torch.manual_seed(2)
        self.lengths, self.lookup = lengths, lookup
        self.values = torch.randn(int(lengths.sum()), D, dtype=dtype, requires_grad=True)
        self.query = torch.randn(lookup.numel(), D, dtype=dtype, requires_grad=True)

    def deduplicated(self) -> tuple[Tensor, Tensor]:
        return (
            Unexpanded.values(self.values, self.lengths, self.lookup),
            Unexpanded.rows(self.lengths, self.lookup),
        )

    def expanded(self) -> tuple[Tensor, Tensor]:
        parts = self.values.split(self.lengths.tolist())
        values = torch.cat([self.values[:0], *(parts[unique] for unique in self.lookup)])
        return values, self.lengths[self.lookup]


def gradients(pooling: nn.Module, pooled: Tensor, samples: Samples) -> list[Tensor]:
    loss = (pooled * torch.arange(1.0, D + 1)).square().sum()
    leaves = [samples.values, samples.query, *pooling.parameters()]
    return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))


def same(name: str, samples: Samples, asked: bool = True) -> Tensor:
    """Values and gradients equal those of the expansion; 1e-9 is double's rounding, amplified."""
    pooling = build(name)
    query = (samples.query,) if asked else ()
    wanted = pooling(*samples.expanded(), *query)
    theirs = gradients(pooling, wanted, samples)
    pooled: Tensor = DedupPooling(pooling)(*samples.deduplicated(), *query)
    torch.testing.assert_close(pooled + 0, wanted, rtol=1e-9, atol=1e-9)
    for one, other in zip(gradients(pooling, pooled, samples), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    return pooled


CASES = pytest.mark.parametrize(
    ("lengths", "lookup"),
    [
        (LENGTHS, LOOKUP),
        (LENGTHS, torch.tensor([2, 0, 0, 3, 1, 0, 2, 3, 3, 1])),
        (torch.tensor([2]), torch.tensor([0, 0, 0])),
        (torch.tensor([0, 0]), torch.tensor([1, 0, 1])),  # a batch without ids
        (torch.tensor([2, 1]), torch.tensor([1, 1])),  # a unique sample that none has
        (torch.tensor([1, 2, 3]), torch.arange(3)),  # nothing to deduplicate
        (torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long)),  # B = 0
    ],
    ids=["mixed", "many a history", "one", "no ids", "unused", "all different", "no samples"],
)


@pytest.mark.parametrize("name", [*POOLINGS, "silent"])
@CASES
def test_equals_the_pooling_of_the_expansion(name: str, lengths: Tensor, lookup: Tensor) -> None:
    pooled = same(name, Samples(lengths, lookup))
    assert pooled.shape == (lookup.numel(), D)
    assert isinstance(pooled, Unexpanded) == (name in ("sum", "mean", "max", "transformer"))


class Later(LazyAwaitable[Tensor]):
    """What a sharded module yields: made when it is first asked for."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        super().__init__()
        self._make = make

    def _wait_impl(self) -> Tensor:
        return self._make()


def test_a_query_that_is_still_on_its_way_gets_its_gradient() -> None:
    samples, others = Samples(), Samples()
    pooling, other = (DedupPooling(build("attention")) for _ in range(2))
    theirs = gradients(other, other(*others.deduplicated(), others.query * 2), others)
    pooled = pooling(*samples.deduplicated(), Later(lambda: samples.query * 2))
    for one, wanted in zip(gradients(pooling, pooled, samples), theirs, strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0)


def test_a_query_that_is_still_on_its_way_may_be_of_unique_samples() -> None:
    pooling, samples = DedupPooling(Counted().double()), Samples()
    items = torch.randn(4, D, dtype=torch.double)
    pooled = pooling(*samples.deduplicated(), Later(lambda: Unexpanded.rows(items, LOOKUP)))
    assert isinstance(pooled, Unexpanded)


WAYS = {
    "matrices of samples": {"OF_HISTORY": 0.0, "OF_SAMPLE": 0.0},
    "keys' part copied": {"OF_HISTORY": 1e9, "LEAST_PAIRS": 0, "LEAST_FACTOR": 0},
    "keys copied": {"OF_HISTORY": 1e9, "LEAST_PAIRS": 10**9},
}


@pytest.mark.parametrize("way", WAYS)
@CASES
def test_attention_is_the_same_whichever_way_is_cheaper(
    way: str, lengths: Tensor, lookup: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in WAYS[way].items():
        monkeypatch.setattr(attention, name, value)
    for name in ("attention", "attention, softmax"):
        same(name, Samples(lengths, lookup))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*POOLINGS, "silent"])
def test_autocast_rounds_no_more_than_on_the_expansion(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 keeps 8 bits of what enters a product; the poolings here make three, one of
    another. A gradient that cancels out, as that of softmax's last bias, is rounding alone."""
    for option, value in WAYS[way].items():
        monkeypatch.setattr(attention, option, value)
    samples, pooling = Samples(dtype=torch.float), build(name).float()
    unrounded = pooling(*samples.expanded(), samples.query)
    exact = [unrounded, *gradients(pooling, unrounded, samples)]
    with torch.autocast("cpu", torch.bfloat16):
        wanted = pooling(*samples.expanded(), samples.query)
    theirs = gradients(pooling, wanted, samples)
    with torch.autocast("cpu", torch.bfloat16):
        pooled: Tensor = DedupPooling(pooling)(*samples.deduplicated(), samples.query)
    assert pooled.dtype == wanted.dtype
    ours = gradients(pooling, pooled, samples)
    for one, other, true in zip([pooled + 0, *ours], [wanted, *theirs], exact, strict=True):
        rounded = (other - true).abs().max()
        assert (one - true).abs().max() <= 2 * rounded + 2**-4 * true.abs().max()


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("lengths", [[0, 0], []], ids=["no ids", "no samples"])
def test_every_parameter_has_a_gradient_without_a_value(name: str, lengths: list[int]) -> None:
    """DDP waits for all of them."""
    samples = Samples(torch.tensor(lengths).long(), torch.arange(len(lengths)))
    pooling = DedupPooling(build(name))
    pooling(*samples.deduplicated(), samples.query).sum().backward()
    assert all(parameter.grad is not None for parameter in pooling.parameters())


@pytest.mark.parametrize("name", ["sum", "transformer", "silent"])
def test_without_a_query(name: str) -> None:
    assert isinstance(same(name, Samples(), asked=False), Unexpanded)


class Counted(Silent):
    """Notes how many rows it was given."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        self.rows = len(lengths)
        return super().forward(values, lengths, query)


def test_it_runs_on_unique_samples_where_it_can(caplog: pytest.LogCaptureFixture) -> None:
    pooling, samples = DedupPooling(Counted().double()), Samples()
    values, lengths = samples.deduplicated()
    items = torch.randn(4, D, dtype=torch.double)
    theirs, others = Unexpanded.rows(items, LOOKUP), Unexpanded.rows(items, LOOKUP.clone())

    def rows(*given: Tensor) -> tuple[int, bool]:
        pooled = pooling(*given)
        return int(pooling.rows), isinstance(pooled, Unexpanded)

    with caplog.at_level(logging.WARNING):
        assert rows(values, lengths) == (4, True)
        assert rows(values, lengths, theirs) == (4, True)
        wanted = pooling(*samples.expanded(), items[LOOKUP])
        torch.testing.assert_close(pooling(values, lengths, theirs) + 0, wanted)
        assert rows(*samples.expanded()) == (7, False)
        assert not caplog.records
        assert rows(values, lengths, others) == (7, False)
        assert rows(values, lengths, samples.query) == (7, False)
        assert rows(values, lengths + 0) == (7, False)
        assert len(caplog.records) == 1
    assert "DedupCounted pools all samples" in caplog.text
    values.mul_(2)
    assert rows(values, lengths) == (7, False)


class Shared(Silent):
    """Notes whether it was asked for all samples, or for unique ones with a query each."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        self.given = values
        return super().forward(values, lengths, query)

    def pool_unique(self, values: Tensor, lengths: Tensor, query: Tensor, lookup: Tensor) -> Tensor:
        self.given = None
        return Silent.forward(self, values, lengths, query)


def test_where_no_sample_repeats_another_nothing_is_copied_or_shared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for kind in (Counted, Shared):
        pooling, samples = DedupPooling(kind().double()), Samples(lookup=torch.arange(4))
        pooling.forward(*samples.deduplicated(), samples.query)
        assert pooling.__dict__.get("given", samples.values) is samples.values
    assert not caplog.records
    for lookup in ([1, 0, 2, 3], [0, 1, 2, 2]):
        samples = Samples(lookup=torch.tensor(lookup))
        pooling(*samples.deduplicated(), samples.query)
        assert pooling.given is None


class Normed(Silent):
    """Normalises over the samples of a batch, as models do that were not made for this."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        normed: Tensor = self.norm(super().forward(values, lengths, query))
        return normed


class Dropping(Silent):
    """Drops values at random, by a module or by a function."""

    draws_once = False

    def __init__(self, *, by_module: bool) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5) if by_module else self._drop

    def _drop(self, values: Tensor) -> Tensor:
        return nn.functional.dropout(values, 0.5, self.training)

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return super().forward(self.drop(values), lengths, query)


OF_ALL = {
    "norm": Normed,
    "dropout": partial(Dropping, by_module=True),
    "a function's dropout": partial(Dropping, by_module=False),
}


@pytest.mark.parametrize("make", OF_ALL.values(), ids=OF_ALL)
def test_what_would_be_otherwise_on_unique_samples_runs_on_all_while_it_trains(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    plain, pooling = make().double(), DedupPooling(make().double())
    nothing = Samples(LENGTHS * 0)
    assert isinstance(pooling(*nothing.deduplicated()), Unexpanded) != isinstance(plain, Normed)
    pooling.load_state_dict(plain.state_dict())
    for _ in range(2):
        samples = Samples()
        torch.manual_seed(3)
        wanted, drawn = plain(*samples.expanded()), torch.rand(3)
        torch.manual_seed(3)
        pooled = pooling(*samples.deduplicated())
        assert torch.equal(torch.rand(3), drawn)
        assert not isinstance(pooled, Unexpanded)
        torch.testing.assert_close(pooled, wanted, rtol=1e-9, atol=1e-9)
        for one, other in zip(
            gradients(pooling, pooled, samples), gradients(plain, wanted, samples), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert [*map(torch.equal, pooling.buffers(), plain.buffers())].count(False) == 0
    assert sum("pools all samples" in one.getMessage() for one in caplog.records) == 1
    plain.eval()
    pooled = pooling.eval()(*Samples().deduplicated())
    assert isinstance(pooled, Unexpanded)
    torch.testing.assert_close(pooled + 0, plain(*Samples().expanded()), rtol=1e-9, atol=1e-9)


class Counting(Silent):
    """Keeps the values that it was handed, in all or at most, beside a count of its calls."""

    def __init__(self, *, in_all: bool) -> None:
        super().__init__()
        self.in_all = in_all
        for name in ("calls", "seen"):
            self.register_buffer(name, torch.zeros(()))
        self.register_buffer("widths", torch.zeros(0))

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        if self.training:
            self.calls += 1
            self.seen += values.detach().sum() if self.in_all else values.detach().max()
            self.widths = torch.full((3,), float(values.shape[1]))
        return super().forward(values, lengths, query) + self.seen


@pytest.mark.parametrize("in_all", [False, True])
def test_buffers_are_those_of_all_samples(in_all: bool, caplog: pytest.LogCaptureFixture) -> None:
    plain = Counting(in_all=in_all).double()
    pooling = DedupPooling(Counting(in_all=in_all).double())
    different = Samples(lookup=torch.arange(4))
    for samples in (different, Samples(), Samples()):
        wanted, pooled = plain(*samples.expanded()), pooling(*samples.deduplicated())
        torch.testing.assert_close(pooled + 0, wanted, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(dict(pooling.named_buffers()), dict(plain.named_buffers()))
    assert isinstance(pooled, Unexpanded) != in_all
    assert caplog.messages == in_all * [
        "DedupCounting pools all samples, duplicates included: it keeps numbers of all that it is "
        "handed (buffers or attributes), and those of unique samples are others."
    ]


class Annealed(Silent):
    """Counts its calls and logs them in attributes."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.log: list[float] = []

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        self.calls += 1
        self.log.append(self.calls)
        return super().forward(values, lengths, query) / len(self.log)


class Hooking(Silent):
    """Has its values' gradient halved."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        values.register_hook(lambda gradient: gradient / 2)
        return super().forward(values, lengths, query)


class Writing(Silent):
    """Changes its values in place."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return super().forward(values.mul_(3), lengths, query)


@pytest.mark.parametrize("kind", [Annealed, Hooking, Writing])
def test_the_first_step_is_like_the_others(kind: type[Silent]) -> None:
    """A pooling is tried when it is first handed unique samples, and the try leaves nothing."""
    plain, pooling = kind().double(), DedupPooling(kind().double())
    for _ in range(2):
        samples, others = Samples(), Samples()
        unique = Unexpanded.values(samples.values * 2, samples.lengths, samples.lookup)
        pooled = pooling(unique, Unexpanded.rows(samples.lengths, samples.lookup))
        assert isinstance(pooled, Unexpanded)
        expanded, of_all = others.expanded()
        wanted = plain(expanded * 2, of_all)
        torch.testing.assert_close(pooled + 0, wanted, rtol=1e-9, atol=1e-9)
        for one, other in zip(
            gradients(pooling, pooled, samples), gradients(plain, wanted, others), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    logs = [vars(one).get("log") for one in (plain, pooling)]
    assert logs[0] == logs[1]


class Beside(Silent):
    """Reads by an attribute what a sharded module yields."""

    items: Any = None

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return super().forward(values, lengths, query) * torch.sum(self.items)


def test_what_a_pooling_is_first_to_wait_for_gets_its_gradient() -> None:
    pooling, samples = DedupPooling(Beside().double()), Samples()
    items = torch.ones(3, dtype=torch.double, requires_grad=True)
    pooling.items = Later(lambda: items * 2)
    pooling(*samples.deduplicated()).sum().backward()
    assert items.grad is not None


class Remembering(Silent):
    """Keeps the values that it was handed in an attribute."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        self.seen = values.detach()
        return super().forward(values, lengths, query)


class Centred(Silent):
    """A sum, less its mean over the batch."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        pooled = super().forward(values, lengths, query)
        return pooled - pooled.mean(0)


def test_a_pooling_whose_rows_depend_on_others_is_of_all_samples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain, pooling, samples = Centred().double(), DedupPooling(Centred().double()), Samples()
    for training in (True, False):
        wanted = plain(*samples.expanded())
        pooled = pooling.train(training)(*samples.deduplicated())
        torch.testing.assert_close(pooled + 0, wanted, rtol=1e-9, atol=1e-9)
    assert caplog.messages == [
        "DedupCentred pools all samples, duplicates included: what it makes of a row depends on "
        "how often others are in the batch, and unique samples are there once."
    ]


class Gated(Silent):
    """A sum, and its mean over the batch by a gate that begins closed, as in ReZero."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        pooled = super().forward(values, lengths, query)
        return pooled + self.gate * pooled.mean(0)


class Faint(Centred):
    """What depends on other rows is small beside other numbers for a bias that is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(D))

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return 1e-5 * super().forward(values, lengths, query) + self.bias


def test_a_bias_that_begins_at_zero_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    DedupPooling(Faint().double())(*Samples().deduplicated())
    assert sum("depends on how often others" in one for one in caplog.messages) == 1


def test_a_gate_that_begins_closed_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its gradient is already another one on unique samples; a call before is not disturbed."""
    plain, pooling = Gated().double(), DedupPooling(Gated().double())
    first, second = Samples(LENGTHS.clamp(max=1)), Samples()
    wanted = plain(*first.expanded()).sum() + plain(*second.expanded()).square().sum()
    pooled = pooling(*first.deduplicated()).sum() + pooling(*second.deduplicated()).square().sum()
    for total in (wanted, pooled):
        total.backward()
    torch.testing.assert_close(pooling.gate.grad, plain.gate.grad, rtol=1e-9, atol=1e-9)
    assert torch.equal(pooling.gate, torch.zeros(()))
    assert sum("depends on how often others" in one for one in caplog.messages) == 1


def test_what_a_pooling_keeps_in_attributes_is_of_all_samples() -> None:
    pooling, samples = DedupPooling(Remembering().double()), Samples()
    for training in (True, False):
        pooling.train(training)(*samples.deduplicated())
        torch.testing.assert_close(pooling.seen, samples.expanded()[0])


def test_dropout_that_is_raised_as_training_goes_on_is_each_sample_s() -> None:
    plain, pooling = Dropping(by_module=True).double(), Dropping(by_module=True).double()
    DedupPooling(pooling)
    for p, training in ((0.0, True), (0.5, True), (0.5, False)):
        for one in (plain, pooling):
            one.drop.p = p
            one.train(training).drop.train()  # as Monte Carlo dropout, where the rest is not
        samples = Samples()
        torch.manual_seed(3)
        wanted = plain(*samples.expanded())
        torch.manual_seed(3)
        pooled = pooling(*samples.deduplicated())
        assert isinstance(pooled, Unexpanded) == (p == 0)
        torch.testing.assert_close(pooled + 0, wanted, rtol=1e-9, atol=1e-9)


def halved(gradient: Tensor) -> Tensor:
    return gradient.clamp(-1, 1) / 2


def checkpointed(pooling: nn.Module, values: Tensor, lengths: Tensor, query: Tensor) -> Tensor:
    asked = (query,) if getattr(pooling, "needs_query", True) else ()
    pooled: Tensor = checkpoint(pooling, values, lengths, *asked, use_reentrant=True)
    return pooled


def hooked(pooling: nn.Module, values: Tensor, lengths: Tensor, query: Tensor) -> Tensor:
    values.register_hook(halved)
    pooled: Tensor = pooling(values, lengths, query)
    return pooled + values.sum()


def kept(pooling: nn.Module, values: Tensor, lengths: Tensor, query: Tensor) -> Tensor:
    values.retain_grad()
    pooled: Tensor = pooling(values, lengths, query)
    pooled.square().sum().backward(retain_graph=True)
    assert values.grad is not None
    return pooled * values.grad.square().sum()


def adversarial(pooling: nn.Module, values: Tensor, lengths: Tensor, query: Tensor) -> Tensor:
    """Moves values by the gradient of a first loss, as adversarial training of embeddings does."""
    given = values.detach()
    given.requires_grad_()
    (gradient,) = torch.autograd.grad(pooling(given, lengths, query).square().sum(), given)
    pooled: Tensor = pooling(values + 0.1 * gradient, lengths, query)
    return pooled


def through_data(pooling: nn.Module, values: Tensor, lengths: Tensor, query: Tensor) -> Tensor:
    values = values if isinstance(values, Unexpanded) else values * 1
    values.data.mul_(2)
    pooled: Tensor = pooling(values, lengths, query)
    return pooled


def through_detached(pooling: nn.Module, values: Tensor, lengths: Tensor, query: Tensor) -> Tensor:
    values = values if isinstance(values, Unexpanded) else values * 1
    values.detach().clamp_(-0.5, 0.5)
    pooled: Tensor = pooling(values, lengths, query)
    return pooled


USES = [checkpointed, hooked, kept, adversarial, through_data, through_detached]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("name", ["sum", "attention", "transformer", "silent"])
def test_what_models_do_with_values_counts_for_the_pooling(
    name: str, use: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
) -> None:
    found = []
    for adapted in (False, True):
        pooling, samples = build(name), Samples()
        values, lengths = samples.deduplicated() if adapted else samples.expanded()
        pooled = use(DedupPooling(pooling) if adapted else pooling, values, lengths, samples.query)
        (pooled * torch.arange(1.0, D + 1)).square().sum().backward()
        leaves = [samples.values, samples.query, *pooling.parameters()]
        found.append([pooled.detach() + 0, *(leaf.grad for leaf in leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_gradient_that_does_not_come_to_all_samples_any_more_is_refused() -> None:
    samples = Samples()
    values, lengths = samples.deduplicated()
    pooled = DedupPooling(build("sum"))(values, lengths)
    asks: list[Callable[[], object]] = [
        values.retain_grad,
        lambda: values.register_hook(halved),
        lambda: torch.autograd.grad((pooled + 0).sum(), values),
    ]
    for ask in asks:
        with pytest.raises(CapabilityError, match=r"Call `\.retain_grad\(\)` or"):
            ask()


class Encoding(Silent):
    """Returns values, a vector for each row and a number, or these vectors and their sums."""

    def __init__(self, yields: str) -> None:
        super().__init__()
        self.yields = yields

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Any:
        if self.yields == "values":
            return values * self.scale
        pooled = super().forward(values, lengths, query)
        return pooled.sum() if self.yields == "a number" else (pooled, pooled.sum(1))


@pytest.mark.parametrize("yields", ["values", "a number", "two"])
def test_what_is_no_vector_for_each_row_is_made_of_all_samples(
    yields: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain, pooling = Encoding(yields).double(), DedupPooling(Encoding(yields).double())
    for _ in range(2):
        samples = Samples()
        wanted, made = plain(*samples.expanded()), pooling(*samples.deduplicated())
        torch.testing.assert_close(made, wanted, rtol=1e-9, atol=1e-9)
    assert len(caplog.messages) == 1
    assert "it returns something else than one vector for each row" in caplog.messages[0]


class Halved(Attention):
    """Has a `forward` of its own, and inherits the `pool_unique` of another."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return super().forward(values / 2, lengths, query)


class DroppingUnique(Dropping):
    """Draws once for each unique sample, where it is asked for these."""

    def pool_unique(self, values: Tensor, lengths: Tensor, query: Tensor, lookup: Tensor) -> Tensor:
        return Silent.forward(self, self.drop(values), lengths)[lookup] * query


@pytest.mark.parametrize(
    ("make", "explained"),
    [
        (lambda: Halved(D, AttentionConfig()), "Halved runs on unique samples if it has no query;"),
        (lambda: DroppingUnique(by_module=True), "DroppingUnique runs on all samples where it tr"),
    ],
)
def test_what_pool_unique_would_make_otherwise_is_made_of_all(
    make: Callable[[], nn.Module], explained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, value in WAYS["matrices of samples"].items():
        monkeypatch.setattr(attention, option, value)
    plain, pooling = make().double(), DedupPooling(make().double())
    pooling.load_state_dict(plain.state_dict())
    assert explain_pooling(pooling).startswith(explained)
    samples = Samples()
    torch.manual_seed(3)
    wanted = plain(*samples.expanded(), samples.query)
    torch.manual_seed(3)
    pooled = pooling(*samples.deduplicated(), samples.query)
    torch.testing.assert_close(pooled, wanted, rtol=1e-9, atol=1e-9)
    for one, other in zip(
        gradients(pooling, pooled, samples), gradients(plain, wanted, samples), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def handing_on_four(pool: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A decorator that shows the arguments of what it wraps, and hands on fewer."""

    @wraps(pool)
    def call(self: nn.Module, *given: Tensor) -> Tensor:
        return pool(self, *given)

    return call


def handing_on_all(pool: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(pool)
    def call(*given: Any, **named: Any) -> Tensor:
        assert named["num_values"] == LENGTHS[LOOKUP].sum()
        return pool(*given, **named)

    return call


@pytest.mark.parametrize("decorator", [handing_on_four, handing_on_all])
def test_a_decorated_pool_unique_is_given_what_it_takes(decorator: Callable[..., Any]) -> None:
    class Decorated(Attention):
        pool_unique = decorator(Attention.pool_unique)

    samples, pooling = Samples(), DedupPooling(Decorated(D, AttentionConfig()).double())
    pooled = pooling(*samples.deduplicated(), samples.query)
    wanted = pooling(*samples.expanded(), samples.query)
    torch.testing.assert_close(pooled, wanted, rtol=1e-9, atol=1e-9)


def test_samples_share_what_is_drawn_where_a_pooling_says_so() -> None:
    pooling = DedupPooling(Dropping(by_module=True).double())
    pooling.draws_once = True
    pooled = pooling(*Samples().deduplicated())
    assert isinstance(pooled, Unexpanded)
    assert torch.equal((pooled + 0)[2], (pooled + 0)[6])  # of one unique sample
    assert explain_pooling(pooling).startswith("Dropping runs on unique samples if it has no query")


def test_it_stays_the_module_that_it_was() -> None:
    plain, pooling = build("transformer"), build("transformer")
    held, names = nn.ModuleList([pooling]), [name for name, _ in plain.named_parameters()]
    called: list[str] = []
    pooling.register_forward_hook(lambda *_: called.append("hook"))
    adapted = DedupPooling(pooling)
    assert adapted is pooling is DedupPooling(adapted)
    assert isinstance(adapted, Transformer)
    assert isinstance(adapted, DedupPooling)
    assert "DedupTransformer(" in repr(held)
    assert [name for name, _ in adapted.named_parameters()] == names
    assert list(held.state_dict()) == [f"0.{name}" for name in plain.state_dict()]
    plain.load_state_dict(adapted.state_dict())
    adapted.load_state_dict(plain.state_dict())
    held.eval().float()
    assert not adapted.training
    assert not adapted.encoder.training
    assert {parameter.dtype for parameter in adapted.parameters()} == {torch.float32}
    values, lengths = Samples().deduplicated()
    adapted(values.float(), lengths)
    assert called == ["hook"]


def test_copies_are_of_their_own() -> None:
    pooling = DedupPooling(build("transformer"))
    other = copy.deepcopy(pooling)
    assert type(other) is type(pooling)
    samples = Samples()
    assert torch.equal(other(*samples.deduplicated()), pooling(*samples.deduplicated()))
    other.encoder.norm.weight.data.zero_()
    assert pooling.encoder.norm.weight.data.all()


@pytest.mark.parametrize("adapted_first", [False, True])
def test_copies_of_a_parametrized_one_are_of_their_own(adapted_first: bool) -> None:
    pooling = build("silent")
    if adapted_first:
        DedupPooling(pooling)
    parametrizations.weight_norm(pooling, "scale")
    other = copy.deepcopy(DedupPooling(pooling))
    samples = Samples()
    wanted = pooling(*samples.expanded())
    for parameter in pooling.parameters():
        parameter.data.zero_()
    pooled = other(*samples.deduplicated())
    assert isinstance(pooled, Unexpanded)
    torch.testing.assert_close(pooled + 0, wanted)


def test_explained_beforehand() -> None:
    wanted = {
        "sum": "Reduce runs on unique samples",
        "transformer": "Transformer runs on unique samples",
        "attention": "Attention reads unique samples, and weighs them for each sample's query",
        "silent": "Silent runs on unique samples if it has no query; else on all: each sample",
        "norm": "Normed runs on all samples where it trains: it normalises over the samples",
        "dropout": "Dropping runs on all samples where it trains: it draws at random",
    }
    for name, reason in wanted.items():
        pooling = OF_ALL[name]() if name in OF_ALL else build(name)
        assert explain_pooling(pooling).startswith(reason)
        assert explain_pooling(DedupPooling(pooling)).startswith(reason)


def under_ddp(names: list[str]) -> dict[str, Tensor]:
    """The gradients after three steps of a static graph; rank 1 has no ids in the second."""
    rank = torch.distributed.get_rank()
    poolings = nn.ModuleDict({name: DedupPooling(build(name)) for name in names})

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.poolings = poolings

        def forward(self, samples: Samples) -> Tensor:
            pooled = [pool(*samples.deduplicated(), samples.query) for pool in poolings.values()]
            return torch.stack(pooled).square().sum()

    model = DistributedDataParallel(Model(), static_graph=True)
    for step in range(3):
        model.zero_grad()
        empty = rank == 1 and step == 1
        model(Samples(LENGTHS * 0 if empty else LENGTHS * (1 + rank))).backward()
    return {
        name: parameter.grad
        for name, parameter in poolings.named_parameters()
        if parameter.grad is not None
    }


def test_ddp_with_a_static_graph_and_a_rank_without_ids(gloo_pool: GlooPool) -> None:
    names = ["sum", "attention", "transformer"]
    poolings = nn.ModuleDict({name: build(name) for name in names})
    for scale in (1, 2):
        samples = Samples(LENGTHS * scale)
        for pool in poolings.values():
            (pool(*samples.expanded(), samples.query).square().sum() / 2).backward()
    for found in gloo_pool.run(under_ddp, names):
        assert found.keys() == dict(poolings.named_parameters()).keys()
        for name, parameter in poolings.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-9)
