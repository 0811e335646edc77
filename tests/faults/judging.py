"""What clients saw of a fault, noted for the table and held against what must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from faults.notes import note
from faults.shapes import Asked, wrong_pieces
from faults.times import longest_pause
from streamed import Answer

GOES_ON: Final = "the answer went on, the same tokens"
ENDED: Final = "an error that says so, and no [DONE]"


def judge(
    asked: Asked,
    answers: Mapping[str, Answer],
    broken_s: float,
    injected: str,
    *,
    noticed_s: float | None = None,
    ends: bool = False,
    setting: str = "",
) -> None:
    """Every answer is transformers' and has text behind the fault, or, where it must end, a part of it with an error
    behind. Makes a note for each.

    Args:
        broken_s: when it was broken, by ``time.monotonic``; 0 where it never was, which fails.
        noticed_s: from then until it was noticed; None: nobody says.
        ends: whether answers cannot go on.
        setting: of the notes; "": the shapes' names.
    """
    assert broken_s, f"nothing was broken: {[(name, each.error, len(each.pieces)) for name, each in answers.items()]}"
    wrong, lost, ended = {}, {}, {}
    for name, answer in answers.items():
        wrong[name] = wrong_pieces(answer, asked.expected(name))
        lost[name] = int(not answer.done and not answer.error)
        ended[name] = not answer.done
        # Where no text came after that, nothing was measured.
        pause_s = longest_pause(broken_s + (noticed_s or 0.0), answer.times) or None
        note(
            setting or name,
            injected,
            f"{ENDED} ({answer.error.get('code') or answer.error['message']})" if answer.error else GOES_ON,
            compared=answer.tokens if answer.done else len(answer.pieces),
            wrong=wrong[name],
            lost=lost[name],
            detected_s=noticed_s,
            recovered_s=None if ends else pause_s,
        )
    assert not any(wrong.values()), {name: answers[name].text for name in wrong if wrong[name]}
    assert not any(lost.values()), lost
    assert all(each is ends for each in ended.values()), {name: each.error for name, each in answers.items()}
    if not ends:
        for name, answer in answers.items():
            assert answer.text == asked.expected(name) and not answer.error, (name, answer.error)
            assert answer.times[-1] > broken_s, f"{name}: it was over before anything was broken"
