"""Value tests: the label of the generated sessions can be learnt, and takes histories to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recd_dlrm.datasets.sessions.dataset import RowsAndTerms, Sessions, SessionsConfig
from recd_dlrm.datasets.sessions.label import sigmoid


@pytest.fixture(scope="module")
def default() -> Sessions:
    return Sessions(SessionsConfig())


@pytest.fixture(scope="module")
def parts(default: Sessions) -> list[RowsAndTerms]:
    return list(default.rows_and_terms("train"))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a positive scores above a negative (Mann and Whitney)."""
    ranks = np.empty(scores.size)
    ranks[np.argsort(scores)] = np.arange(1, scores.size + 1)
    positives = labels.sum()
    wins = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * (labels.size - positives)))


def test_the_label_is_learnable_and_needs_the_histories(
    default: Sessions, parts: list[RowsAndTerms]
) -> None:
    labels = np.concatenate([part.rows["label"].to_numpy() for part in parts])
    logits = np.concatenate([sum(part.terms.values()) for part in parts])
    terms = {name: np.concatenate([p.terms[name] for p in parts]) for name in parts[0].terms}
    # Samples of a session are not independent, so these tolerances are plain.
    assert abs(labels.mean() - 0.25) < 0.02
    assert 0.80 < auc(labels, logits) < 0.87
    for name in ("dense", "ids", "affinity", "history"):
        assert auc(labels, logits - terms[name]) < auc(labels, logits) - 0.02, name
        assert terms[name].std() == pytest.approx(getattr(default.config.label, name), rel=0.05)
    assert np.abs(np.corrcoef([terms[n] for n in ("dense", "ids", "history")])[0, 1:]).max() < 0.05
    chances = sigmoid(logits)
    for tenth in np.array_split(np.argsort(logits), 10):  # labels are coins of these chances
        gap = abs(labels[tenth].mean() - chances[tenth].mean())
        p = chances[tenth].mean()
        assert gap < 5 * math.sqrt(p * (1 - p) / tenth.size)  # five standard errors


def test_the_history_term_is_in_no_feature_alone(default: Sessions) -> None:
    """Sorted by either factor, the term's mean stays near 0; by both, it follows their signs."""
    term, history, item = [], [], []
    for part in default.rows_and_terms("test"):
        model = default._label
        w = {}
        for name in ("history", "item"):
            lists = part.rows[name].combine_chunks()
            ids, offsets = lists.flatten().to_numpy(), lists.offsets.to_numpy()
            w[name] = model.weights(name, ids, offsets) - model._means[name]
        term.append(part.terms["history"])
        history.append(w["history"])
        item.append(w["item"])
        ids = np.arange(1_000)  # one table, one hidden weight per id
        in_item, in_history = (
            model.weights(name, ids, np.arange(1_001)) for name in ("item", "history")
        )
        assert (in_item == in_history).all()
    t, h, i = map(np.concatenate, (term, history, item))
    for alone in (h, i):
        assert abs(np.corrcoef(t, alone)[0, 1]) < 0.15
    assert np.corrcoef(t, h * i)[0, 1] > 0.5
