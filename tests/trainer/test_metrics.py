"""Ladder: one gloo rank, then two with uneven batches, against the formulas written out."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from recd_plugins.data.schema import Label
from recd_plugins.testing.batches import random_batch
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA
from recd_plugins.trainer.measure import metrics as module
from recd_plugins.trainer.measure.finite import FiniteInputs, FiniteLosses
from recd_plugins.trainer.measure.metrics import ETA, LabelMetrics, Metrics, MetricsWindow

CPU = torch.device("cpu")

Step = tuple[float, Tensor, Tensor, Tensor]
"""Loss, and [B] each of logits, labels, weights."""


def step(loss: float, batch_size: int, seed: int, *, weighted: bool = True) -> Step:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch_size, generator=draw) * 2
    labels = (torch.rand(batch_size, generator=draw) < logits.sigmoid()).float()
    weights = torch.randint(0, 4, (batch_size,), generator=draw).float()
    return loss, logits, labels, weights if weighted else torch.ones(batch_size)


def measured(windows: list[list[list[Step]]], auc_samples: int | None = 1 << 20) -> list[Metrics]:
    """On a rank: the metrics of each of `windows[window][rank]`, through one `MetricsWindow`."""
    window = MetricsWindow(CPU, auc_samples=auc_samples)
    found = []
    for steps in windows:
        for loss, *outputs in steps[dist.get_rank()]:
            window.add(torch.tensor(loss), *outputs)
        found.append(window.metrics())
    return found


def cross_entropy(labels: Tensor, predictions: Tensor, weights: Tensor) -> float:
    """sum_i w_i (-y_i log2 p_i - (1 - y_i) log2(1 - p_i))"""
    each = -labels * predictions.log2() - (1 - labels) * (1 - predictions).log2()
    return float((weights * each).sum())


def auc(labels: Tensor, predictions: Tensor, weights: Tensor) -> float:
    """The weighted share of (positive, negative) pairs that are in order; a tie counts half."""
    positive, negative = labels == 1, labels == 0
    above = predictions[positive, None] > predictions[None, negative]
    tied = predictions[positive, None] == predictions[None, negative]
    pairs = weights[positive, None] * weights[None, negative]
    return float(((above + 0.5 * tied) * pairs).sum() / pairs.sum())


def expected(steps: list[Step]) -> Metrics:
    """Of all ranks' steps together: NE = CE / CE of the weighted mean label."""
    logits, labels, weights = (torch.cat([s[part].double() for s in steps]) for part in (1, 2, 3))
    predictions = logits.sigmoid().clamp(ETA, 1 - ETA)
    mean = (labels * weights).sum() / weights.sum()
    return Metrics(
        loss=sum(s[0] for s in steps) / len(steps),
        ne=cross_entropy(labels, predictions, weights)
        / cross_entropy(labels, mean.expand_as(labels), weights),
        auc=auc(labels, predictions, weights),
        samples=int((weights > 0).sum()),
    )


def assert_close(found: Metrics, right: Metrics) -> None:
    assert found.samples == right.samples
    for name in ("loss", "ne", "auc"):
        assert math.isclose(getattr(found, name), getattr(right, name), rel_tol=1e-9), name


@pytest.mark.parametrize("weighted", [True, False])
def test_the_formulas_are_torchrecs_to_the_bit(weighted: bool) -> None:
    from torchrec.metrics.auc import compute_auc
    from torchrec.metrics.ne import compute_ne, get_ne_states

    _, logits, labels, weights = (
        torch.as_tensor(part).double() for part in step(0.0, 999, 3, weighted=weighted)
    )
    predictions = logits.sigmoid()
    sums = list(module._sums(predictions, labels, weights))
    states = list(get_ne_states(labels, predictions, weights, ETA).values())
    assert sums == states
    assert module._normalised_entropy(*sums) == compute_ne(*states, ETA)
    parts = predictions, labels, weights
    # Its own sums lie otherwise in memory: they begin at 0.
    theirs = float(compute_auc(1, *([part[None]] for part in parts)))
    assert float(module._auc(*parts)) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
def test_samples_of_one_prediction_count_half_in_whatever_order(weighted: bool) -> None:
    _, logits, labels, weights = (
        torch.as_tensor(part).double() for part in step(0.0, 99, 4, weighted=weighted)
    )
    for predictions in (logits.round(), torch.zeros(99).double()):
        right = auc(labels, predictions, weights)
        for order in (labels.argsort(), labels.argsort(descending=True)):
            parts = predictions[order], labels[order], weights[order]
            assert float(module._auc(*parts)) == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
def test_one_rank_measures_the_formulas(weighted: bool, gloo_pool: GlooPool) -> None:
    steps = [step(0.5 + n, 5 + 3 * n, seed=n, weighted=weighted) for n in range(4)]
    ((found,),) = gloo_pool.run(measured, [[steps]], world_size=1)
    assert_close(found, expected(steps))
    assert 0 < found.ne < 2
    assert 0.5 < found.auc < 1


def test_ranks_with_uneven_batches_measure_together(gloo_pool: GlooPool) -> None:
    """Sums are joined over ranks before they are divided: a mean of the ranks' would be another."""
    mine = [step(1.0, 4, seed=n) for n in range(3)]
    theirs = [step(5.0, 60, seed=10 + n) for n in range(3)]
    found = gloo_pool.run(measured, [[mine, theirs]])
    assert found[0] == found[1]
    assert_close(found[0][0], expected(mine + theirs))
    assert found[0][0].loss == 3.0
    assert abs((expected(mine).ne + expected(theirs).ne) / 2 - found[0][0].ne) > 1e-3


def test_a_tests_loss_is_over_its_samples_however_they_are_cut(gloo_pool: GlooPool) -> None:
    """A batch's loss is the mean over its samples of weight above 0; padding alone has any."""
    losses = [float(n) for n in range(12)]

    def cut(*ends: int) -> list[Step]:
        parts = [losses[begin:end] for begin, end in pairwise(ends)]
        return [step(statistics.mean(part), len(part), 0, weighted=False) for part in parts]

    logits, labels, weights = torch.zeros(3, 4)
    padding = (math.nan, logits, labels, weights)
    windows = [
        [cut(0, 12), [padding]],
        [cut(0, 5, 6), cut(6, 12)],
        [cut(0, 1), [*cut(1, 9, 12), padding]],
    ]
    for found in gloo_pool.run(measured, windows, None):
        assert [one.loss for one in found] == pytest.approx([statistics.mean(losses)] * 3)


def test_a_window_begins_anew_after_its_metrics(gloo_pool: GlooPool) -> None:
    windows = [[[step(float(n), 20, seed=n)]] for n in range(3)]
    (found,) = gloo_pool.run(measured, windows, world_size=1)
    for metrics, (steps,) in zip(found, windows, strict=True):
        assert_close(metrics, expected(steps))


def test_samples_of_weight_zero_count_in_nothing_but_the_loss(gloo_pool: GlooPool) -> None:
    loss, logits, labels, weights = step(0.5, 30, seed=0, weighted=False)
    padded = (
        loss,
        torch.cat([logits, torch.tensor([9.0, -9.0])]),
        torch.cat([labels, torch.tensor([0.0, 1.0])]),
        torch.cat([weights, torch.zeros(2)]),
    )
    whole, nothing = (loss, logits, labels, weights), step(2.5, 3, seed=1, weighted=False)
    nothing = (*nothing[:3], torch.zeros(3))
    found = gloo_pool.run(measured, [[[padded], [nothing]]])[0][0]
    right = expected([whole])
    assert (found.ne, found.auc, found.samples) == pytest.approx(
        (right.ne, right.auc, 30), rel=1e-9
    )
    assert found.loss == 1.5


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_window_of_one_class_has_a_loss_and_says_so(label: float, gloo_pool: GlooPool) -> None:
    loss, logits, labels, weights = step(0.25, 10, seed=0, weighted=False)
    one = (loss, logits, torch.full_like(labels, label), weights)
    ((found,),) = gloo_pool.run(measured, [[[one]]], world_size=1)
    assert found.loss == 0.25
    assert found.auc == 0.5
    assert found.samples == 10
    assert math.isnan(found.ne)  # nothing is left to know of a label that never changes


def test_a_window_of_padding_alone(gloo_pool: GlooPool) -> None:
    nothing = (0.0, torch.zeros(3), torch.zeros(3), torch.zeros(3))
    found = gloo_pool.run(measured, [[[nothing], [nothing]]])[0][0]
    assert (found.loss, found.auc, found.samples) == (0.0, 0.5, 0)
    assert math.isnan(found.ne)


def test_confident_mistakes_cost_what_they_should(gloo_pool: GlooPool) -> None:
    logits, labels = torch.tensor([20.0, 21.0, -3.0]), torch.tensor([0.0, 1.0, 0.0])
    steps = [(1.0, logits, labels, torch.ones(3))]
    ((found,),) = gloo_pool.run(measured, [[steps]], world_size=1)
    # -log2(1 - sigmoid(20)) is 20 / ln 2; of three labels one is positive.
    entropy = -(math.log2(1 / 3) + 2 * math.log2(2 / 3))
    assert found.ne == pytest.approx(20 / math.log(2) / entropy, rel=0.01)
    assert found.auc == 1.0


def test_extreme_logits_stay_finite(gloo_pool: GlooPool) -> None:
    logits, labels = torch.tensor([1e4, -1e4, 1e4, -1e4]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    steps = [(1.0, logits, labels, torch.ones(4))]
    ((found,),) = gloo_pool.run(measured, [[steps]], world_size=1)
    assert_close(found, expected(steps))
    assert found.ne == pytest.approx(-math.log2(ETA) / 2, rel=1e-3)


def test_the_latest_samples_make_the_auc_and_all_make_the_rest(gloo_pool: GlooPool) -> None:
    steps = [step(1.0, 10, seed=n, weighted=False) for n in range(8)]
    # 25 samples are wanted of batches of 10: the last three batches are kept, not two.
    ((found,),) = gloo_pool.run(measured, [[steps]], 25, world_size=1)
    whole, latest = expected(steps), expected(steps[-3:])
    assert found.auc == pytest.approx(latest.auc, rel=1e-9)
    assert abs(whole.auc - latest.auc) > 1e-3
    assert found.ne == pytest.approx(whole.ne, rel=1e-9)
    assert found.samples == 80
    ((all_,),) = gloo_pool.run(measured, [[steps]], None, world_size=1)
    assert_close(all_, whole)


def test_one_batch_larger_than_the_limit_is_kept_whole(gloo_pool: GlooPool) -> None:
    steps = [step(1.0, 10, seed=0, weighted=False), step(1.0, 40, seed=1, weighted=False)]
    ((found,),) = gloo_pool.run(measured, [[steps]], 5, world_size=1)
    assert found.auc == pytest.approx(expected(steps[1:]).auc, rel=1e-9)


def culprits(batches: list[tuple[int, str]]) -> str:
    """On a rank: what is said of three steps' batches, some of which are spoilt on a rank."""
    check = FiniteInputs(torch.device("cpu"))
    for number in (1, 2, 3):
        batch = random_batch(SCHEMA, 8, seed=number)
        for spoilt, part in batches:
            if spoilt == number and dist.get_rank() == 1:
                getattr(batch, part)[..., -1] = math.nan
        check.add(number, batch)
    return check.culprit(SCHEMA.dense)


def test_data_that_is_not_finite_is_told_apart_from_a_rate_too_high(gloo_pool: GlooPool) -> None:
    """On all ranks alike, whichever read it."""
    last = repr(SCHEMA.dense[-1])
    for spoilt, says in (
        ([], ""),
        ([(2, "labels")], "the batch of step 2 holds NaN or infinity in the label"),
        (
            [(3, "dense"), (2, "dense"), (3, "labels")],
            f"the batch of step 2 holds NaN or infinity in {last}, the label",
        ),
    ):
        assert gloo_pool.run(culprits, spoilt) == [says, says]


def too_large(spoilt: list[tuple[int, str, float]]) -> str:
    """On a rank: what is said of the batches that led to step 3, some of which are large on a
    rank."""
    losses = FiniteLosses(torch.device("cpu"))
    for number in (1, 2, 3):
        batch = random_batch(SCHEMA, 8, seed=number)
        for step, part, value in spoilt:
            if step == number and dist.get_rank() == 1:
                getattr(batch, part)[..., -1] = value
        losses.add(number, batch, torch.tensor(1.0))
    return losses.too_large(3, SCHEMA.dense)


def test_data_that_no_rate_is_low_enough_for_are_told_apart_too(gloo_pool: GlooPool) -> None:
    """On all ranks alike, by the largest number of the last two batches."""
    last = repr(SCHEMA.dense[-1])
    for spoilt, says in (
        ([], ""),
        ([(1, "dense", 1e30), (3, "dense", 1e14)], ""),
        ([(2, "dense", -2.5e30), (3, "labels", 1e20)], f"{last} holds up to 2.5e+30"),
        ([(3, "dense", 2e15), (3, "labels", 1e20)], "the label holds up to 1e+20"),
    ):
        assert gloo_pool.run(too_large, spoilt) == [says, says]


LABELS = (
    Label(name="dwell", kind="regression", nulls="empty"),
    Label(name="click"),
    Label(name="stars", kind="graded", grades=5),
)


def several(seed: int) -> Step:
    """Outputs and labels [B, 3]; every third sample has no dwell."""
    loss, logits, clicks, weights = step(0.5, 20, seed)
    dwell = torch.arange(20.0) / 7
    dwell[::3] = math.nan
    stars = (torch.arange(20) % 5).float()
    outputs = torch.stack([logits, logits, logits.flip(0)], dim=1)
    return loss, outputs, torch.stack([dwell, clicks, stars], dim=1), weights


def measured_labels(steps: list[Step], auc_samples: int | None = 1 << 20) -> dict[str, float]:
    metrics = LabelMetrics(CPU, LABELS, auc_samples=auc_samples)
    for loss, *outputs in steps:
        metrics.add(torch.tensor(loss), *outputs)
    return metrics.metrics()


def test_the_loss_of_several_labels_counts_samples_that_lack_the_first(
    gloo_pool: GlooPool,
) -> None:
    """A batch in which no sample has the first label has a loss, by the others."""
    _, outputs, labels, weights = several(0)
    lacking = labels.index_fill(1, torch.tensor([0]), math.nan)
    ones = torch.ones_like(weights)
    steps = [(1.0, outputs, labels, ones), (4.0, outputs[:5], lacking[:5], ones[:5])]
    (found,) = gloo_pool.run(measured_labels, steps, None, world_size=1)
    assert found["loss"] == pytest.approx((20 * 1.0 + 5 * 4.0) / 25)


def test_each_label_is_measured_by_its_kind(gloo_pool: GlooPool) -> None:
    steps = [several(seed) for seed in range(3)]
    (found,) = gloo_pool.run(measured_labels, steps, world_size=1)
    outputs, labels, weights = (torch.cat([s[part] for s in steps]) for part in (1, 2, 3))
    clicks = expected([(s[0], s[1][:, 1], s[2][:, 1], s[3]) for s in steps])
    assert found["ne"] == found["ne/click"] == pytest.approx(clicks.ne)
    assert found["auc"] == found["auc/click"] == pytest.approx(clicks.auc)
    assert found["samples"] == clicks.samples
    there = ~labels[:, 0].isnan()
    errors = (outputs[there, 0] - labels[there, 0]).double().square() * weights[there]
    assert found["mse/dwell"] == pytest.approx(float(errors.sum() / weights[there].sum()))
    # A grade is a click in so many parts: each sample once as a click and once as none.
    share = labels[:, 2].double() / 4
    parts = [outputs[:, 2], outputs[:, 2]], [share * 0 + 1, share * 0], [share, 1 - share]
    logits, both, parted = (torch.cat(part) for part in parts)
    graded = expected([(0.0, logits, both, parted * torch.cat([weights, weights]))])
    assert found["auc/stars"] == pytest.approx(graded.auc)
    assert found["ne/stars"] == pytest.approx(graded.ne)
