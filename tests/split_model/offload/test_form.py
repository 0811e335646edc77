"""When coded units are read sooner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_model.offload.form import Decoding, coded_pays, lost_to_decoding

RATES = st.floats(1e6, 1e11)


@pytest.mark.parametrize(
    ("disk", "decode", "lost", "pays"),
    [
        (200e6, 3e9, 0, True),
        (2.5e9, 3e9, 0, True),
        (3.5e9, 3e9, 0, False),
        (200e6, 3e9, 1, True),
        (1e9, 3e9, 1, False),
        (0, 3e9, 0, False),
        (200e6, 0, 0, False),
    ],
)
def test_known_disks(disk: float, decode: float, lost: float, pays: bool) -> None:
    """With a spare core decoding must be faster than the disk; without one, 1 / 0.3 times as fast."""
    assert coded_pays(disk, Decoding(0.7, decode, lost)) is pays


@given(RATES, RATES, st.floats(0.5, 1), st.floats(0, 1), st.floats(1, 10))
def test_a_slower_disk_is_never_a_reason_against_it(
    disk: float, decode: float, share: float, lost: float, times: float
) -> None:
    """Nor a faster core, shorter files, or more spare time."""
    if coded_pays(disk, Decoding(share, decode, lost)):
        assert coded_pays(disk / times, Decoding(share, decode, lost))
        assert coded_pays(disk, Decoding(share / times, decode * times, lost / times))


@pytest.mark.parametrize(
    ("threads", "cores", "lost"), [(1, 2, 0), (2, 2, 1), (1, 1, 1), (1, 1.5, 0.5), (1, 0.3, 1), (4, 16, 0)]
)
def test_what_computing_loses(threads: int, cores: float, lost: float) -> None:
    """Nothing where a core is spare, all where none is, and never more."""
    assert lost_to_decoding(threads, cores) == lost
