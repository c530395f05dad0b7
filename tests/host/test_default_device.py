"""Rung 1: what makes a tensor says where, so that a trainer's `torch.set_default_device` changes
nothing of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKERS = {
    "arange",
    "as_tensor",
    "asarray",
    "empty",
    "empty_strided",
    "eye",
    "full",
    "linspace",
    "logspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "range",
    "scalar_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
}
THE_CALLERS = {
    # A layer's own tensors are made where its other parameters are.
    "plugins/recd_dlrm/models/click_model.py",
}


def made_anywhere(code: str) -> Iterator[int]:
    """The lines that call a maker of torch without a device."""
    for node in ast.walk(ast.parse(code)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "torch"
            and node.func.attr in MAKERS
            and not any(keyword.arg in ("device", None) for keyword in node.keywords)
        ):
            yield node.lineno


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("torch.zeros(3)\ntorch.zeros(3, device='cpu')", [1]),
        ("x = 1\ntorch.tensor([x])", [2]),
        ("torch.from_numpy(x)\nx.new_zeros(3)\ntorch.empty(3, **options)", []),
    ],
)
def test_a_call_without_a_device_is_seen(code: str, lines: list[int]) -> None:
    assert list(made_anywhere(code)) == lines


def test_each_tensor_is_made_on_a_device_that_is_named() -> None:
    files = [*ROOT.glob("src/recd_plugins/**/*.py"), *ROOT.glob("plugins/**/*.py")]
    found = [
        f"{name}:{line}"
        for name, path in ((path.relative_to(ROOT).as_posix(), path) for path in files)
        if name not in THE_CALLERS and "/templates/" not in name
        for line in made_anywhere(path.read_text())
    ]
    assert len(files) > 500
    assert found == []
