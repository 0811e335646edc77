"""What the members of a measured group are told, and what each says when it is done: typed, as JSON."""

from __future__ import annotations

import msgspec

from device_agent.planning.trials import Trial

SECRET = "a secret of sixteen characters or more"
PORT = 8002
WITHIN_S = 300.0
"""Nothing that a member waits for takes so long."""

LOADED, REPORT = "loaded/", "report/"
"""What members post, each with its rank."""

BEGIN = "begin"
"""What the portal posts where links are measured."""


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="plan"):
    """One plan, run some times.

    Attributes:
        shape: which of ``shapes.SHAPES``.
        layers: how many it has here.
        rows: of the prompt.
        plan: a ``JoinedPlan``, written; its rank 0, the portal, computes nothing.
        runs: measured ones; one more comes before them.
        new: tokens generated behind each prompt, one row each.
        out: see ``Cell``; which heads they are does not matter to time, so they are taken evenly.
        trial: what is tried before, as when a group forms; the fastest manner is measured.
    """

    shape: str
    layers: int
    rows: int
    plan: bytes
    runs: int = 1
    new: int = 0
    out: float = 0.0
    dtype: str = "float32"
    trial: Trial | None = None


class LinksJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="links"):
    """Measure the links between all members, as the product does.

    Attributes:
        names: of all by rank, the portal's first.
    """

    names: tuple[str, ...]


class ProductsJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="products"):
    """Measure the parts of a layer, as the product does, in all members at once: each pays for the others' use of
    caches and memory as in a plan.

    Attributes:
        shape: which of ``shapes.SHAPES``.
        rows: no more are measured.
    """

    shape: str
    rows: int
    dtype: str


class TrialJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="trial"):
    """So many products that are always the same, in all members at once: how fast these devices are now."""

    products: int


class Moment(msgspec.Struct, frozen=True):
    """What one member did for one head, on the one clock of all processes of this machine.

    Attributes:
        entered, left: when its rows had come, and when its part of the last layer was done.
        waits: seconds in which it waited for others or read what they sent, by the kind of exchange.
        exchanges: places at which it waited for them.
        cpu_s: CPU seconds of all threads.
    """

    entered: float
    left: float
    waits: dict[str, float]
    exchanges: int
    cpu_s: float


class Report(msgspec.Struct, frozen=True):
    """What one member did for all heads that had rows.

    Attributes:
        sent, received: bytes of tensors by label, of all runs together.
        held: bytes of weights in memory.
        base_kb, peak_kb: this process's memory before it loaded, and the most it had since.
    """

    name: str
    moments: list[Moment]
    sent: dict[str, int]
    received: dict[str, int]
    held: int
    base_kb: int
    peak_kb: int


class Result(msgspec.Struct, frozen=True):
    """What the portal saw.

    Attributes:
        began, ended: of each forward, the warm-up's first: asked, and all its rows there.
        check: the sum of the outputs' absolute values, of the last prompt.
        tried: the manner that a trial has found to be the fastest; "": nothing was tried.
        trials: forwards of that.
    """

    began: list[float]
    ended: list[float]
    check: float
    reports: list[Report]
    failure: str = ""
    tried: str = ""
    trials: int = 0
