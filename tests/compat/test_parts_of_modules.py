"""Value tests: a collection made of another's tables stands for it in all that sharding reads."""

from __future__ import annotations

from typing import Any

import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recd_plugins.compat.made_of_parts import bags_of, sequences_of

MARK = "_torchrec_data_parallel_skip_grad_sync"
"""What `mark_data_parallel_skip_grad_sync` of TorchRec past 1.8 sets on a module."""


def collection(device: Any = None) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(
            name=name, embedding_dim=4, num_embeddings=3, feature_names=[f"of_{name}"]
        )
        for name in "ab"
    ]
    return EmbeddingBagCollection(tables, device=device)


def test_parts_have_the_marks_that_callers_set_on_the_module() -> None:
    module = collection()
    parts = bags_of(module, ["a"]), sequences_of(module, ["b"])
    assert not any(hasattr(part, MARK) for part in parts)
    setattr(module, MARK, True)
    for part in bags_of(module, ["a"]), sequences_of(module, ["b"]):
        assert getattr(part, MARK) is True


def test_parts_have_the_modules_parameters_and_device() -> None:
    module = collection()
    bags, sequences = bags_of(module, ["a"]), sequences_of(module, ["b"])
    assert bags.embedding_bags["a"].weight is module.embedding_bags["a"].weight
    assert sequences.embeddings["b"].weight is module.embedding_bags["b"].weight
    assert bags.device == sequences.device == torch.device("cpu")


def test_a_device_that_a_trainer_named_is_that_device() -> None:
    """TorchRec itself takes `device="meta"` for bags, and would load sequences of it."""
    module = collection("meta")
    for part in bags_of(module, ["a"]), sequences_of(module, ["b"]):
        assert part.device == torch.device("meta")
