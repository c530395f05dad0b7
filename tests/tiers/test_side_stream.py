"""Unit: what runs on the replicas' stream sees what was made before, and is seen after."""

from __future__ import annotations

import pytest
import torch

from recd_plugins.tiers.updates.side_stream import side_stream


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_streams_wait_for_each_other() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    stream = side_stream(device)
    main = torch.cuda.current_stream()
    torch.cuda._sleep(10**8)  # what is made comes late
    made = torch.ones(1 << 20, device=device)
    with stream.after(made):
        assert torch.cuda.current_stream() != main
        torch.cuda._sleep(10**8)
        twice = made * 2
    del made
    other = torch.zeros(1 << 20, device=device)  # must not get the memory that is still read
    stream.join()
    assert torch.equal(twice, torch.full_like(other, 2.0))


def test_a_processor_has_no_streams() -> None:
    stream = side_stream(torch.device("cpu"))
    made = torch.ones(2)
    with stream.after(made):
        made += 1
    stream.join()
    assert made.tolist() == [2, 2]
    assert stream is side_stream(torch.device("cpu"))
