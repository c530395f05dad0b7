"""The `optimizer` slot: the optimizer that steps the dense parameters."""

from __future__ import annotations

import torch

from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_optimizer"]


def check_optimizer(subject: Subject) -> None:
    torch.manual_seed(subject.context.seed)
    parameters = [
        torch.nn.Parameter(torch.randn(4, 3, device="cpu")),
        torch.nn.Parameter(torch.randn(3, device="cpu")),
    ]
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = subject.build()(parameters)
    subject.hold(
        isinstance(optimizer, torch.optim.Optimizer),
        f"what it builds must make a torch.optim.Optimizer, not {optimizer!r}",
        "Return lambda params: MyOptimizer(params, lr=config.lr).",
    )
    held = [id(one) for group in optimizer.param_groups for one in group["params"]]
    subject.hold(
        sorted(held) == sorted(map(id, parameters)),
        "its groups must hold each parameter once",
        "Give all of them to the optimizer.",
    )
    torch.stack([parameter.square().sum() for parameter in parameters]).sum().backward()
    optimizer.step()
    subject.hold(
        all(not torch.equal(old, new) for old, new in zip(before, parameters, strict=True)),
        "a step without a closure must move each parameter",
        "An optimizer that evaluates the loss again cannot run in the pipeline.",
    )
