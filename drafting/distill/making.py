"""One drafter, from features to the files that go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from drafting.distill.bars import Bars
from drafting.distill.card import Made, card, page
from drafting.distill.features import FeatureFiles
from drafting.distill.measure import Acceptance, held_out, measured, total
from drafting.distill.network import Drafter, FrozenHead, new_network, parameters, rounded
from drafting.distill.plots import line_plot, smoothed
from drafting.distill.preparation import Source
from drafting.distill.text import Document
from drafting.distill.training import Plan, Progress, train
from drafting.drafter_file import write_drafter

WRITTEN = torch.bfloat16
"""What a file keeps of the parameters; measurements are of these."""


@dataclass(frozen=True)
class Described:
    """The words that a card has for training text and held-out text."""

    data: str
    heldout: str


def make_drafter(
    source: Source,
    kind: str,
    files: FeatureFiles,
    heldout: Sequence[Document],
    plan: Plan,
    run: Path,
    out: Path,
    described: Described,
    bars: Bars,
) -> Made:
    """Trains a drafter, measures it and writes `kind.safetensors`, `kind.md` and two plots to `out`.

    heldout: documents whose last answer is the model's own greedy one. run: folder of the checkpoint.
    """
    head = FrozenHead.load(source.checkpoint)
    network = new_network(kind, source.spec, head, plan.seed)
    with bars.training(plan.tokens) as told:
        progress = train(network, head, files, plan, run, lambda now: told(now.tokens, _note(now)))
    split = files.key.split
    with rounded(network, WRITTEN):
        found = acceptance(network, head, source, split, heldout, bars)
        tensors = {name: value.detach().to(WRITTEN) for name, value in network.named_parameters()}
    made = Made(
        model=source.checkpoint.path.resolve().name,
        kind=kind,
        form=network.form,
        split=split,
        parameters=parameters(network),
        plan=plan,
        progress=progress,
        data=described.data,
        documents=len(files),
        data_tokens=files.tokens,
        heldout=described.heldout,
        acceptance=found,
    )
    write_drafter(out / f"{kind}.safetensors", kind, source.digest, split, card(made), tensors, network.form)
    curve, depths = f"{kind}-training.svg", f"{kind}-acceptance.svg"
    (out / f"{kind}.md").write_text(page(made, curve, depths), encoding="utf-8")
    (out / curve).write_text(training_plot(kind, progress), encoding="utf-8")
    (out / depths).write_text(acceptance_plot({kind: found}), encoding="utf-8")
    return made


def acceptance(
    network: Drafter, head: FrozenHead, source: Source, split: int, heldout: Sequence[Document], bars: Bars
) -> Acceptance:
    """Over all held-out documents, by the model in float32."""
    found: list[Acceptance] = []
    with bars.bar("measuring", len(heldout), "documents") as told:
        for group, batch in held_out(source.exact_model(), split, heldout):
            found += measured(network, head, batch)
            told(len(group))
    return total(found)


def training_plot(name: str, progress: Progress) -> str:
    """Loss and overlap over the tokens read, as SVG."""
    lines = {
        "loss": smoothed([(tokens, loss) for tokens, loss, _ in progress.curve]),
        "overlap, depth 1": smoothed([(tokens, shared) for tokens, _, shared in progress.curve]),
    }
    return line_plot(f"{name}: training", "tokens read", "loss, overlap", lines)


def acceptance_plot(found: dict[str, Acceptance]) -> str:
    """Acceptance by depth, as SVG."""
    lines = {name: [(depth + 1.0, share) for depth, share in enumerate(each.by_depth)] for name, each in found.items()}
    return line_plot("Drafted tokens accepted, greedy", "depth", "share", lines, up_to=1.0)


def _note(now: Progress) -> str:
    return f"loss {now.curve[-1][1]:.3f} overlap {now.curve[-1][2]:.3f}" if now.curve else ""
