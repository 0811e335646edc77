"""Plots at the middle rate: steps of the cloud, requests within an SLA, and what each choice takes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.hat.breakdown import PARTS
from bench.hat.canvas import legend, panels, save
from bench.hat.gains import DEMO, REST, WIDE, gains
from bench.hat.looks import look, ordered, place_label
from bench.hat.shown import number
from bench.hat.spent import at_the_middle, name_of
from bench.hat.summary import MEANS, STEP, STEP_STD, TBT, TTFT, Measured, Spread

CHOICES = tuple(dict.fromkeys(choice for each in (DEMO, WIDE) for chain in each.values() for choice, _, _ in chain))
PART_COLOURS: Mapping[str, str] = dict(
    zip(
        CHOICES,
        ("#44AA99", "#332288", "#88CCEE", "#DDCC77", "#AA4499", "#CC6677", "#117733", "#999933"),
        strict=True,
    )
)
"""Tol's, which people who see few colours can tell apart too, so that no choice has a method's colour."""

SPENT_COLOURS: Mapping[str, str] = dict(
    zip((*PARTS, "rest"), ("#DDCC77", "#332288", "#CC6677", "#44AA99", "#BBBBBB"), strict=True)
)


def steps(measured: Measured, setting: str, dataset: str, file: Path) -> bool:
    """Figure 8: a bar for each method's step, its standard deviation as a line."""
    here = measured.middle(setting, dataset)
    figure, (panel,) = panels(1)
    found = [(each, measured.spread(here[each], STEP), measured.spread(here[each], STEP_STD)) for each in ordered(here)]
    known = [(method, mean, std) for method, mean, std in found if mean is not None and std is not None]
    for place, (method, mean, std) in enumerate(known):
        style = look(method)
        panel.barh(place, mean.median * 1e3, color=style.colour, height=0.7)
        panel.errorbar(
            mean.median * 1e3,
            place,
            xerr=[[min(mean.median, std.median) * 1e3], [std.median * 1e3]],
            ecolor="#555555",
            capsize=4,
        )
        panel.text(
            (mean.median + std.median) * 1e3,
            place,
            f"  {number(mean.median * 1e3)} ± {number(std.median * 1e3)}",
            va="center",
        )
    panel.set_yticks(range(len(known)), [look(method).label for method, _, _ in known])
    panel.invert_yaxis()
    panel.set_xlabel("one step of the cloud, ms: mean, and standard deviation as a line")
    panel.set_xlim(0, 1.3 * max(((mean.median + std.median) * 1e3 for _, mean, std in known), default=1.0))
    return save(figure, file, f"{place_label(setting, dataset)}: {_steadiest(known)}", None, known != [])


def _steadiest(known: Sequence[tuple[str, Spread, Spread]]) -> str:
    if not known:
        return "steps of the cloud"
    method, mean, std = min(known, key=lambda each: each[2].median)
    return (
        f"steps are most even with {look(method).label} ({number(mean.median * 1e3)} ± {number(std.median * 1e3)} ms)"
    )


def slas(measured: Measured, setting: str, dataset: str, file: Path) -> bool:
    """Figures 9 and 10: the share of requests within an SLA, the requests of all repeats together."""
    here = measured.middle(setting, dataset)
    figure, both = panels(2)
    drawn = False
    for panel, phase, label in ((both[0], "prefill", "128 prompt tokens"), (both[1], "decode", "10 tokens")):
        longest = []
        for method in ordered(here):
            records = measured.repeats(here[method]).values()
            times = sorted(t for r in records for t in (r.prefill_sla if phase == "prefill" else r.decode_sla))
            asked = len(times) + sum(record.numbers.get("latency.failed", 0) for record in records)
            if times:
                style = look(method)
                shares = [100 * (place + 1) / asked for place in range(len(times))]
                panel.step(
                    [1e3 * each for each in times],
                    shares,
                    where="post",
                    color=style.colour,
                    linestyle=style.dash,
                    label=style.label,
                )
                longest.append(1e3 * times[-1])
        drawn = drawn or bool(longest)
        panel.set_xlabel(f"{phase} SLA, ms for {label}")
        panel.set_ylabel("requests that meet it, %")
        panel.set_ylim(0, 102)
        if longest and max(longest) > 12 * min(longest):
            panel.set_xscale("log")
        panel.set_title(f"{phase}", loc="left")
    return save(figure, file, f"{place_label(setting, dataset)}: requests within an SLA, middle rate", both[0], drawn)


def parts(measured: Measured, setting: str, dataset: str, file: Path) -> bool:
    """What in the gain comes from which choice: what is left of U-shape's delay, and what each choice took away.

    Of means over repeats, since medians would not add up.
    """
    found = gains(measured, setting, dataset)
    figure, (panel,) = panels(1)
    labels = []
    for row, each in enumerate(found):
        labels.append(f"{each.delay}, {each.chain}")
        unit = 100 / each.before_s
        right = left = 0.0
        hat = each.after_s * unit
        panel.barh(row, hat, color="#333333", height=0.6, label="what HAT takes" if row == 0 else None)
        right = hat
        for term in each.terms:
            wide = term.mean_s * unit
            colour = PART_COLOURS.get(term.choice, "#BBBBBB")
            name = "left over" if term.choice == REST else term.choice
            if wide >= 0:
                panel.barh(row, wide, left=right, color=colour, height=0.6, label=name)
                right += wide
            else:
                panel.barh(row, wide, left=left, color=colour, height=0.6, label=name)
                left += wide
    panel.axvline(0, color="#333333", linewidth=0.8)
    panel.set_yticks(range(len(labels)), labels)
    panel.invert_yaxis()
    panel.set_xlabel("% of the delay of U-shape with all rows down, mean of repeats (left of 0: a choice that costs)")
    legend(figure, panel, columns=3)
    title = f"{place_label(setting, dataset)}: what each choice takes away from U-shape's delay"
    return save(figure, file, title, None, bool(found))


def spent_plot(measured: Measured, setting: str, dataset: str, file: Path) -> bool:
    """Where the time went until the first token and to each behind it: a bar for each method and strategy."""
    figure, both = panels(2)
    drawn = False
    for panel, delay, label in ((both[0], TTFT, "TTFT"), (both[1], TBT, "TBT")):
        found = at_the_middle(measured, setting, dataset, delay)
        for row, each in enumerate(found):
            left = 0.0
            for part, colour in SPENT_COLOURS.items():
                wide = max(0.0, 1e3 * each.parts[part])
                panel.barh(row, wide, left=left, color=colour, height=0.7, label=part)
                left += wide
        panel.set_yticks(range(len(found)), [name_of(each.place) for each in found], fontsize=7)
        panel.invert_yaxis()
        panel.set_xlabel(f"{MEANS[label]}, ms")
        drawn = drawn or bool(found)
    return save(figure, file, f"{place_label(setting, dataset)}: where the time goes, middle rate", both[0], drawn)
