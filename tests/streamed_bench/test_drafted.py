"""What the bench of drafts over streamed weights plans, and how it judges answers."""

from __future__ import annotations

from bench.draft_texts import Text
from bench.streamed.drafted import SESSIONS, planned, token_s, wrong
from bench.streamed.drafted_portal import Said


def test_cells() -> None:
    """Each is planned once, with and without drafts under the same conditions, as often as it is to be repeated."""
    cells = planned(["one", "other"], 3)
    assert len({cell.name for cell in cells}) == len(cells) == sum(map(len, SESSIONS.values())) * 2 * 2 * 3
    of = {
        draft: {cell.name.replace(draft, "") for cell in cells if (cell.draft or "default") == draft}
        for draft in ("none", "default")
    }
    assert of["none"] == of["default"]


def test_answers_are_judged() -> None:
    """A token counts behind the first; whatever is not transformers' is wrong, and so is what is missing."""
    answers = [Said([5, 6, 7], 1.0, 1, 2, 2), Said([5, 9], 4.0, 1, 2, 0), Said([5], 0.0, 1, 0, 0)]
    assert token_s(answers) == 2.25
    truths = [Text("any", (1,), (5, 6, 7)), Text("any", (1,), (5, 6, 7)), Text("any", (1,), (5,))]
    assert wrong(answers, truths) == 2
