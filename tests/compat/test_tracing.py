"""Rung 1: transforms run in a thread while a pipeline of TorchRec's traces its model."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torchrec.distributed.train_pipeline import Tracer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.tracing import keep_traces_apart
from recd_plugins.data.batch import Batch
from recd_plugins.data.preprocess.batch_transform import BatchTransform


class PlusOne(nn.Module):
    """Each id and one, by a module within."""

    def __init__(self, inner: Any = None) -> None:
        super().__init__()
        self.inner = nn.Identity() if inner is None else inner
        self.register_buffer("one", torch.ones((), dtype=torch.int64))

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=features.keys(),
            values=self.inner(features.values() + self.one),
            lengths=features.lengths(),
        )


class Model(nn.Module):
    """Calls `meanwhile` halfway."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.meanwhile = meanwhile

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        self.meanwhile()
        return self.second(x)


class Keeps(nn.Module):
    """Keeps a count of what it was given, and the latest of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.sum()
        self.latest = x
        return x * 2


def test_what_a_model_keeps_of_its_batch_is_no_part_of_a_trace() -> None:
    keep_traces_apart()
    model = nn.Sequential(Keeps())
    Tracer().trace(model)
    assert "latest" not in vars(model[0])
    for batch in (torch.ones(2), torch.ones(3)):
        assert torch.equal(model(batch), batch * 2)
    Tracer().trace(model)  # as after an evaluation
    assert torch.equal(model.state_dict()["0.seen"], torch.tensor(5.0))
    assert torch.equal(model[0].latest, torch.ones(3))


ENDS_PROCESSES = (
    torch.__version__ < "2.12" and torch.version.cuda is not None and not torch.cuda.is_available()
)
"""Whether torch itself ends the process with a signal once a second thread has compiled a function:
its build for CUDA does, where there is no GPU."""


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize(
    "make",
    [
        PlusOne,
        lambda: PlusOne(symbolic_trace(nn.Identity())),
        lambda: PlusOne(compiled(nn.Identity())),
        lambda: PlusOne(torch.compile(lambda ids: ids * 1, backend="eager")),
        lambda: compiled(PlusOne()),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_a_thread_transforms_batches_while_another_one_traces(
    make: Callable[[], Any], warm: bool
) -> None:
    if warm and ENDS_PROCESSES:
        pytest.skip("this torch may not compile in a thread here")
    features = KeyedJaggedTensor(
        keys=["item"], values=torch.tensor([4, 7, 7]), lengths=torch.tensor([2, 1])
    )
    batch = Batch(torch.zeros(2, 0), features, torch.zeros(2), torch.ones(2))
    transform = BatchTransform([(["item"], make())])
    made: list[Batch] = []
    with ThreadPoolExecutor(1) as thread:
        if warm:
            thread.submit(transform, batch).result()
        model = Model(lambda: made.append(thread.submit(transform, batch).result()))
        nodes = [(node.op, node.target) for node in Tracer().trace(model).nodes]
    assert made[0].features["item"].values().tolist() == [5, 8, 8]
    assert nodes == [
        ("placeholder", "x"),
        ("call_module", "first"),
        ("call_module", "second"),
        ("output", "output"),
    ]


def test_a_module_that_the_tracing_thread_calls_is_still_held_to_be_of_the_model() -> None:
    BatchTransform([])
    stray = PlusOne()
    with pytest.raises(NameError, match="module is not installed as a submodule"):
        Tracer().trace(Model(lambda: stray(None)))


def test_a_compiled_function_refuses_to_be_traced_by_its_own_thread_as_ever() -> None:
    BatchTransform([])
    plus = torch.compile(lambda x: x + 1, backend="eager")
    option = torch._dynamo.config._config["error_on_nested_fx_trace"]  # type: ignore[attr-defined]
    if not isinstance(option.user_override, ContextVar):
        Tracer().trace(Model(lambda: plus(torch.ones(2))))
        assert torch._dynamo.config.error_on_nested_fx_trace
        pytest.skip("options of this torch are the same in all threads: none refuses")
    with ThreadPoolExecutor(1) as thread:
        model = Model(lambda: thread.submit(plus, torch.ones(2)).result() is plus(torch.ones(2)))
        with pytest.raises(RuntimeError, match="using FX to symbolically trace"):
            Tracer().trace(model)
        nested = Model(lambda: thread.submit(Tracer().trace, Model(lambda: plus(torch.ones(2)))))
        Tracer().trace(nested)
        with pytest.raises(RuntimeError, match="using FX to symbolically trace"):
            thread.submit(Tracer().trace, Model(lambda: plus(torch.ones(2)))).result()
    assert torch._dynamo.config.error_on_nested_fx_trace
