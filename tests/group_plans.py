"""Groups of devices for planners: profiles as measured on machines that keep to a formula, and the papers' models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import msgspec
from hypothesis import strategies as st

from device_agent.planning.profile import AXES, VERSION, Collective, DeviceProfile, LinkProfile, Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.table import Table
from device_agent.planning.task import Task, Work

ROWS = (1, 8, 64, 256, 1024)


def shape(
    layers: int,
    hidden: int,
    heads: int,
    intermediate: int,
    vocab: int,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = False,
    causal: bool = False,
    norm_first: bool = False,
    rotary: bool = False,
    positions: int = 512,
    head_rows: int | None = None,
    tied: bool = True,
    dtype_bytes: int = 4,
    biases: bool = True,
    cross_layers: int = 0,
) -> ModelShape:
    """head_rows: outputs of the head, which has a matrix of its own unless tied; None: as many as the vocabulary."""
    outputs = vocab if head_rows is None else head_rows
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=head_dim or hidden // heads,
        intermediate=intermediate,
        gated=gated,
        causal=causal,
        norm_first=norm_first,
        rotary=rotary,
        key_norm=False,
        dtype_bytes=dtype_bytes,
        embedding_elements=vocab * hidden,
        entry_elements=positions * hidden,
        end_elements=hidden * (2 if biases else 1) + (0 if tied else outputs * hidden),
        outputs=outputs,
        cross_layers=cross_layers,
        qkv_bias=biases,
        output_bias=biases,
        mlp_bias=biases,
        norm_bias=biases,
    )


DISTILBERT = shape(6, 768, 12, 3072, 30522)
BERT_LARGE = shape(24, 1024, 16, 4096, 30522)
VIT_BASE = shape(12, 768, 12, 3072, 768, positions=197, head_rows=1000, tied=False, norm_first=True)
VIT_HUGE = shape(32, 1280, 16, 5120, 588, positions=257, head_rows=0, tied=False, norm_first=True)
T5_LARGE = shape(48, 1024, 16, 4096, 32128, positions=0, norm_first=True, biases=False, cross_layers=24)
GPT2 = shape(12, 768, 12, 3072, 50257, causal=True, norm_first=True, positions=1024)
GPT2_LARGE = shape(36, 1280, 20, 5120, 50257, causal=True, norm_first=True, positions=1024)
OPT_1_3B = shape(24, 2048, 32, 8192, 50272, causal=True, norm_first=True, positions=2050)
LLAMA_8B = shape(
    32, 4096, 32, 14336, 128256, kv_heads=8, gated=True, causal=True, norm_first=True, rotary=True, positions=0,
    tied=False, dtype_bytes=2, biases=False,
)  # fmt: skip
PAPERS = {
    "DistilBERT": DISTILBERT,
    "BERT-large": BERT_LARGE,
    "ViT-base": VIT_BASE,
    "ViT-huge": VIT_HUGE,
    "T5-L": T5_LARGE,
    "GPT-2": GPT2,
    "GPT2-L": GPT2_LARGE,
    "OPT-L": OPT_1_3B,
}
TINY = shape(3, 32, 4, 48, 50, positions=64)
TINY_CAUSAL = shape(3, 32, 4, 48, 50, positions=64, kv_heads=2, causal=True, norm_first=True, gated=True)


def formula(of: ModelShape, flops_s: float, overhead_s: float = 0.0) -> dict[str, Callable[..., float]]:
    """Seconds of each part on a device of so many multiplications a second, and a little for each call."""
    hidden, head, group = of.hidden, of.head_dim, of.heads_per_group

    def timed(count: Callable[..., float]) -> Callable[..., float]:
        return lambda *sizes: overhead_s + count(*sizes) / flops_s

    return {
        "query": timed(lambda rows, groups: rows * groups * group * head * hidden),
        "key_value": timed(lambda rows, groups: 2 * rows * groups * head * hidden),
        "attend": timed(lambda rows, seen, groups: 2 * rows * seen * groups * group * head),
        "reordered": timed(lambda rows, seen: of.heads * (3 * rows * hidden * head + 2 * rows * seen * hidden)),
        "output": timed(lambda rows, groups: rows * groups * group * head * hidden),
        "up": timed(lambda rows, columns: (2 if of.gated else 1) * rows * columns * hidden),
        "down": timed(lambda rows, columns: rows * columns * hidden),
        "norm": timed(lambda rows: 8 * rows * hidden),
        "embedding": timed(lambda rows: rows * hidden),
        "head": timed(lambda rows: rows * of.outputs * hidden),
    }


def device(name: str, of: ModelShape, flops_s: float, memory: float = 1e12, overhead_s: float = 0.0) -> DeviceProfile:
    """As measured on a grid of sizes."""
    axes: dict[str, tuple[int, ...]] = {
        "rows": ROWS,
        "positions": (1, 64, 1024),
        "groups": (1, max(of.kv_heads, 2)),
        "columns": (1, max(of.intermediate, 2)),
    }
    tables = {}
    for part, seconds in formula(of, flops_s, overhead_s).items():
        grid = tuple(axes[axis] for axis in AXES[part])
        tables[part] = Table(grid, tuple(seconds(*point) for point in product(*grid)))
    return DeviceProfile(name, int(memory), int(1e12), tables)


def profile(
    of: ModelShape,
    flops_s: Sequence[float],
    bytes_s: float,
    *,
    memory: Sequence[float] | float = 1e12,
    rtt_s: float = 2e-4,
    overhead_s: float = 0.0,
    one_shot_bytes: int = 32768,
    collectives: tuple[Collective, ...] = (),
    disks: Sequence[float] | float = 0.0,
) -> Profile:
    """Devices a, b, c … on one LAN. disks: bytes a second that each reads; 0: not measured."""
    names = [chr(ord("a") + at) for at in range(len(flops_s))]
    budgets = [memory] * len(names) if isinstance(memory, (int, float)) else list(memory)
    reads = [disks] * len(names) if isinstance(disks, (int, float)) else list(disks)
    return Profile(
        version=VERSION,
        digest="f" * 64,
        dtype="float32",
        devices=tuple(
            msgspec.structs.replace(device(name, of, speed, budget, overhead_s), read_bytes_s=float(disk))
            for name, speed, budget, disk in zip(names, flops_s, budgets, reads, strict=True)
        ),
        links=tuple(LinkProfile(one, two, bytes_s, rtt_s) for one in names for two in names if one != two),
        collectives=collectives,
        one_shot_bytes=one_shot_bytes,
    )


def task(
    of: ModelShape, measured: Profile, work: Work, members: Sequence[str] | None = None, portal: str | None = None
) -> Task:
    """All devices compute and the first is the portal, unless said otherwise."""
    names = tuple(members or [one.name for one in measured.devices])
    return Task(of, measured, names, portal or names[0], work)


@st.composite
def tasks(draw: st.DrawFn, layers: int, members: int, rows: tuple[int, int], new: int, least_memory: int) -> Task:
    """Of tiny models, one of which has so many layers, half of them with an encoder's to attend to; for up to so many
    members, of any speed, whose memory is about what the models weigh: 100 to 300 kB."""
    of = draw(st.sampled_from([TINY, TINY_CAUSAL, replace(TINY, layers=layers, cross_layers=layers // 2)]))
    count = draw(st.integers(1, members))
    speeds = draw(st.lists(st.floats(1e5, 1e7), min_size=count, max_size=count))
    memory = draw(st.lists(st.integers(least_memory, 400_000), min_size=count, max_size=count))
    work = Work(draw(st.integers(*rows)), draw(st.integers(0, new)) if of.keeping_layers else 0)
    return task(of, profile(of, speeds, draw(st.floats(1e4, 1e7)), memory=memory), work)


def env_a(of: ModelShape, mbit_s: float = 500) -> Profile:
    """Galaxy+'s environment A: four equal devices of 1.5 GB."""
    return profile(of, [3e9] * 4, mbit_s * 1e6 / 8, memory=1.5e9)


def env_b(of: ModelShape, mbit_s: float = 500) -> Profile:
    """Galaxy+'s environment B: four devices of 2, 2, 1.5 and 1 GB."""
    return profile(of, [5.4e9, 5.4e9, 3e9, 1.46e9], mbit_s * 1e6 / 8, memory=[2e9, 2e9, 1.5e9, 1e9])


def classifier(of: ModelShape) -> ModelShape:
    """The same model with two outputs instead of one for each of its vocabulary."""
    return replace(of, outputs=2, end_elements=2 * of.hidden)


def layer_of(of: ModelShape, layers: int) -> ModelShape:
    """The same model with so many layers."""
    return replace(of, layers=layers, cross_layers=min(of.cross_layers, layers))
