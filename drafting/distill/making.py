"""One drafter, from features to the files that go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from drafting.distill.beginning import begin_as_layer
from drafting.distill.card import Made, ServedRow, card, page
from drafting.distill.corpus import Source
from drafting.distill.features import FeatureFiles
from drafting.distill.loops import NO_LOOPS, Loops
from drafting.distill.measure import Acceptance, held_out, measured, total
from drafting.distill.network import Drafter, FrozenHead, new_network, parameters, rounded
from drafting.distill.served import ANSWER, RULES, TEMPERATURES, Question, Serving
from drafting.distill.text import Document
from drafting.distill.training import Progress, TrainingPlan, train, unit_of
from drafting.drafter_file import write_drafter
from service.bars import Bars
from service.line_plot import line_plot, smoothed

WRITTEN = torch.bfloat16
"""What a file keeps of the parameters; measurements are of these."""


SERVED = "served"
"""The folder, within a run's, of the drafter that is measured where it serves."""

PROMPTS = 48
"""Held-out prompts that are answered with a drafter at most, at each rule and temperature."""


@dataclass(frozen=True)
class Described:
    """What a card says of training text and held-out text: words, and what was cut of each as loops."""

    data: str
    heldout: str
    loops: Loops = NO_LOOPS
    heldout_loops: Loops = NO_LOOPS


def make_drafter(
    source: Source,
    kind: str,
    files: FeatureFiles,
    heldout: Sequence[Document],
    plan: TrainingPlan,
    run: Path,
    out: Path,
    described: Described,
    bars: Bars,
) -> Made:
    """Trains a drafter, measures it and writes `kind.safetensors`, `kind.md` and two plots to `out`.

    heldout: documents whose last answer is the model's own greedy one, without loops; some of their prompts are served,
    for so many tokens as these have.
    run: folder of the checkpoint.
    """
    head = FrozenHead.load(source.checkpoint)
    network, split = new_network(kind, source.spec, head, plan.seed), files.key.split
    begin_as_layer(network, source.checkpoint, split, unit_of(files))
    with bars.training(plan.tokens) as told:
        progress = train(network, head, files, plan, run, lambda now: told(now.tokens, _note(now)))
    with rounded(network, WRITTEN):
        found = acceptance(network, head, source, split, heldout, bars)
        tensors = {name: value.detach().to(WRITTEN) for name, value in network.named_parameters()}
    # A device loads its drafter from a file, so there is one before its card can be written.
    write_drafter(run / SERVED / f"{kind}.safetensors", kind, source.digest, split, {}, tensors, network.form)
    some = heldout[:: -(-len(heldout) // PROMPTS)]
    asked = [Question(each.ids[: each.prompt].tolist(), min(ANSWER, len(each.ids) - each.prompt)) for each in some]
    served = served_rows(kind, Serving(source.checkpoint, split, run / SERVED, _served_names(kind)), asked, bars)
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
        loops=described.loops,
        heldout=described.heldout,
        heldout_loops=described.heldout_loops,
        acceptance=found,
        served=served,
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


def served_rows(kind: str, serving: Serving, questions: Sequence[Question], bars: Bars) -> tuple[ServedRow, ...]:
    """A drafter as it serves, alone and beside lookup, by every rule and temperature."""
    wanted = [(name, rule, heat) for name in _served_names(kind) for rule in RULES for heat in TEMPERATURES]
    found = []
    with bars.bar("serving", len(wanted) * len(questions), "answers") as told:
        for name, rule, heat in wanted:
            found.append(ServedRow(name, rule.name, heat, serving.answers(name, rule, questions, heat, told)))
    return tuple(found)


def _served_names(kind: str) -> tuple[str, ...]:
    return (kind,) if kind == "medusa" else ("hybrid", kind)


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
