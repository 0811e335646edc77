"""What is measured of decoding."""

from __future__ import annotations

from pathlib import Path

from device_agent.profiling.decoding import measured_decoding
from split_model.checkpoint import Checkpoint


def test_decoding_is_measured_on_the_models_own_weights(tiny: Path) -> None:
    """Their share is what normal weights have, for a few more bytes where there are few."""
    found = measured_decoding(Checkpoint.open(tiny))
    assert 0.68 < found.share < 0.75 and found.bytes_s > 0 and 0 <= found.lost <= 1
    widened = measured_decoding(Checkpoint.open(tiny), "float32")
    assert widened.share == found.share / 2 and widened.bytes_s > 0
