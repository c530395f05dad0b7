"""Value tests by hand, then property tests: the parts of any step add up to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.trainer.measure.breakdown import (
    PARTS,
    STEP,
    Span,
    breakdown,
    device_breakdown,
    explain_breakdown,
)

NODE = "autograd::engine::evaluate_function: "


def span(name: str, start: float, end: float, **fields: Any) -> Span:
    return Span(name, start, end, **fields)


def parts(spans: list[Span]) -> dict[str, float]:
    """Those that took any time."""
    return {part: value for part, value in breakdown(spans).items() if value}


def test_a_moment_belongs_to_the_innermost_that_has_a_part() -> None:
    assert parts(
        [
            span(STEP, 0, 100),
            span("## zero_grad ##", 2, 3),
            span("## copy_batch_to_gpu 6 ##", 5, 15),
            span("## next_batch ##", 6, 14),
            span("## forward 4 ##", 20, 60),
            span("fbgemm::split_embedding_codegen_lookup_sgd_function_pt2", 22, 30),
            span("fbgemm::split_embedding_codegen_forward_cpu", 23, 29),
            span("## All2All_Seq_fwd ##", 30, 34),
            span("aten::index_select", 31, 33),  # in an exchange, so of it
            span("## pooling history ##", 40, 52),
            span("aten::mm", 41, 51),
            span("aten::mm", 52, 55),
            span("Optimizer.step#Adam.step", 70, 75),
        ]
    ) == {
        "data": 10,
        "exchange": 4,
        "lookup": 8,
        "pooling": 12,
        "dense": 40 - 8 - 4 - 12,
        "optimizer": 1 + 5,
        "other": 100 - 6 - 10 - 40,
    }


def test_a_backward_node_belongs_to_what_made_it() -> None:
    assert parts(
        [
            span(STEP, 0, 50),
            span("## forward ##", 0, 20),
            span("## pooling history ##", 2, 8),
            span("aten::view", 3, 4, sequence=7),
            span("aten::mm", 4, 8, sequence=7),
            span("aten::mm", 10, 20, sequence=8),
            span("## backward ##", 20, 50),
            span(NODE + "MmBackward0", 20, 28, sequence=8),
            span(NODE + "MmBackward0", 28, 40, sequence=7),
            span("aten::mm", 29, 40),
            span(NODE + "torch::autograd::CppNode<SplitLookupFunction_sgd_Op_pt2>", 40, 47),
            span("fbgemm::split_embedding_backward_codegen_sgd_cpu", 41, 46),
        ]
    ) == {"pooling": 6 + 12, "lookup": 7, "dense": 14 + 8 + 3}


def test_waiting_is_exposed_only_while_a_collective_is_in_flight() -> None:
    flight = span("gloo:all_to_all", 4, 9, thread=3, in_flight=True)
    waits = [
        span(STEP, 0, 20),
        span("## forward ##", 0, 10),
        span("## SequenceEmbeddingsAwaitable wait() ##", 3, 10),
        span("aten::index_select", 8, 10),
    ]
    assert parts(waits) == {"exchange": 7, "dense": 3, "other": 10}
    # From 4 to 8 nothing but waiting; from 8 on it works.
    assert parts([*waits, flight]) == {"exposed": 4, "exchange": 3, "dense": 3, "other": 10}
    # What it does beside a collective hides it: here from 0 to 3, and dense work always.
    hidden = [span(STEP, 0, 20), span("## forward ##", 0, 20), span("aten::mm", 0, 20), flight]
    assert parts(hidden) == {"dense": 20}
    # DDP's reducer waits at the end of backward, in no range of its own.
    backward = [span(STEP, 0, 20), span("## backward ##", 0, 20), span("aten::mm", 0, 7), flight]
    assert parts(backward) == {"dense": 18, "exposed": 2}


def test_two_flights_at_once_are_waited_for_once() -> None:
    flights = [
        span("gloo:all_to_all", 0, 6, in_flight=True),
        span("gloo:all_reduce", 4, 8, in_flight=True),
    ]
    waiting = [span(STEP, 0, 10), span("## Request wait() ##", 0, 10)]
    assert parts([*waiting, *flights]) == {"exposed": 8, "exchange": 2}


def test_other_threads_and_what_lies_between_steps_do_not_count() -> None:
    assert parts(
        [
            span(STEP, 0, 10),
            span("aten::mm", 0, 10, thread=2),
            span("## forward ##", 12, 18),  # an evaluation
            span(STEP, 20, 25),
        ]
    ) == {"other": 15}


def test_on_a_device_kernels_belong_to_the_operator_that_launched_them() -> None:
    spans = [
        span(STEP, 0, 100),
        span("## forward ##", 0, 10),
        span("aten::mm", 1, 2, kernels=30.0, sequence=1),
        span("fbgemm::split_embedding_codegen_forward_unweighted_cuda", 3, 4, kernels=20.0),
        span("## backward ##", 10, 20),
        span(NODE + "MmBackward0", 11, 13, thread=2, sequence=1),
        span("aten::mm", 12, 13, thread=2, kernels=10.0),
    ]
    device = [
        span("sm90_gemm", 0, 30),
        span("ncclDevKernel_SendRecv", 25, 50),  # hidden until 30
        span("embedding_forward", 55, 75),
        span("sm90_gemm", 80, 90),
    ]
    found = device_breakdown(spans, device)
    assert {part: value for part, value in found.items() if value} == {
        "dense": 40,
        "lookup": 20,
        "exposed": 20,
        "other": 5 + 5 + 10,  # idle
    }


NAMES = ["## forward 1 ##", "## Request wait() ##", "aten::mm", "## pooling p ##", "unknown"]


@st.composite
def nests(draw: st.DrawFn) -> list[Span]:
    """A step of 100, with spans properly nested, and flights anywhere."""
    spans = [span(STEP, 0, 100)]
    open_: list[tuple[int, int]] = [(0, 100)]
    while open_:
        start, end = open_.pop()
        if end - start < 2 or len(spans) > 20:
            continue
        cuts = sorted(draw(st.sets(st.integers(start, end), min_size=2, max_size=4)))
        for a, b in zip(cuts[::2], cuts[1::2], strict=False):
            if (a, b) != (start, end):
                spans.append(span(draw(st.sampled_from(NAMES)), a, b))
                open_.append((a, b))
    for _ in range(draw(st.integers(0, 3))):
        a, b = sorted((draw(st.integers(0, 100)), draw(st.integers(0, 100))))
        spans.append(span("gloo:all_to_all", a, b, in_flight=True))
    return spans


@given(nests())
def test_the_parts_add_up_to_the_step(spans: list[Span]) -> None:
    found = breakdown(spans)
    assert sum(found.values()) == pytest.approx(100)
    assert min(found.values()) >= 0
    flying = sum(one.end - one.start for one in spans if one.in_flight)
    assert found["exposed"] <= flying


def test_every_part_is_reported_the_most_first() -> None:
    head, first, *rest = explain_breakdown({**dict.fromkeys(PARTS, 1.0), "pooling": 13.0})
    assert head == "profile: a step of 20.0 ms"
    assert first.split() == ["pooling", "13.0", "ms", "65%", *PARTS["pooling"].split()]
    assert len(rest) == len(PARTS) - 1
