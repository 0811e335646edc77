"""Several sessions in one step of a group, and a prompt in several: each is answered as if it were alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from groups import PORTAL, group_here, plan_of
from submodel_conformance import rows
from tiny_models import built

from device_agent.group.asking import life
from device_agent.group.asking.asks import GroupAsk, GroupAsks
from device_agent.group.asking.turns import PORTION_ROWS, GroupTurns
from device_agent.group.messages.heads import BatchHead, GroupHead, OpenHead, RowsHead, written
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Span, Stack

SESSIONS, PROMPT, STEPS, LONG = 5, 20, 8, PORTION_ROWS + 30


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("tensor", ("one", "two")),
        ("mixed", ("one", PORTAL)),
        ("voltage-one-steps", ("one", "two")),
        ("voltage-prefix", ("one", "two")),
        ("galaxy-2", ("one", "two", "three")),
        ("edgeformer", ("one", PORTAL)),
        pytest.param("pipeline", ("one", "two"), marks=pytest.mark.slow),
        pytest.param("voltage", ("one", "two"), marks=pytest.mark.slow),
    ],
)
async def test_sessions_share_steps(
    form: str, names: tuple[str, ...], tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of different lengths, decode rows and drafts at once, and then a long prompt in portions beside them."""
    heads: list[GroupHead] = []

    def noted(head: GroupHead) -> torch.Tensor:
        heads.append(head)
        return written(head)

    monkeypatch.setattr(life, "written", noted)
    path = built("mistral-window", tiny_folder)
    checkpoint = Checkpoint.open(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    size = checkpoint.spec.hidden_size

    async def check(number: int, prompt: int, steps: int) -> None:
        cache, session = stack.new_cache(prompt + 9 * steps), group.open(prompt + 9 * steps)
        hidden, at = rows(prompt + 9 * steps, size, number), 0
        for new in [prompt, *(1 + number * (step % 3) for step in range(steps))]:
            part = hidden[at : at + new]
            got = await asyncio.wait_for(session.forward(part, min(new, 5)), 60)
            expected = stack.forward(part, [Span(cache, new)])
            torch.testing.assert_close(got, expected[-min(new, 5) :], atol=1e-4, rtol=0)
            at += new
        session.close()

    with group_here(path, plan_of(checkpoint.spec, form, names)) as group:
        await asyncio.gather(*(check(number, PROMPT + 3 * number, STEPS) for number in range(4)), check(4, LONG, 2))
    assert any(isinstance(head, BatchHead) for head in heads)


def asks_of(*, decoding: bool) -> GroupAsks:
    """A queue where somebody decodes, or nobody does."""
    asks = GroupAsks(GroupTurns())
    if decoding:
        asks.put(GroupAsk(RowsHead(9, 0, 1, 1), torch.zeros(1, 4), lambda _: None))
        taken = asks.get(1.0)
        assert taken is not None and taken.deliver is not None
        taken.deliver(torch.zeros(1, 4))
    return asks


@pytest.mark.parametrize("want", [0, 1, 40, PORTION_ROWS + 30])
def test_a_prompt_in_portions_is_answered_once(want: int) -> None:
    """With what is wanted of all portions; each has one output at least, so that it is known when it is done."""
    asks, answers = asks_of(decoding=True), list[torch.Tensor]()
    hidden = torch.arange(LONG * 4.0).view(LONG, 4)
    asks.put(GroupAsk(RowsHead(1, 7, LONG, want), hidden, answers.append))
    begun = 0
    while begun < LONG:
        taken = asks.get(1.0)
        assert taken is not None and taken.hidden is not None and isinstance(taken.head, RowsHead) and taken.deliver
        assert not answers and taken.head.position == 7 + begun and 1 <= taken.head.want <= taken.head.rows
        assert torch.equal(taken.hidden, hidden[begun : begun + taken.head.rows])
        begun += taken.head.rows
        taken.deliver(taken.hidden[len(taken.hidden) - taken.head.want :])
    [answer] = answers
    assert torch.equal(answer, hidden[LONG - want :])


def test_sessions_of_one_step_get_their_own() -> None:
    """Each what it wants, though all rows of the step come back."""
    asks, answers = asks_of(decoding=False), dict[int, torch.Tensor]()
    asks.put(GroupAsk(OpenHead(1, 5)))
    for session, new, want in ((1, 1, 1), (2, 4, 2), (3, 3, 0)):
        hidden = torch.full((new, 4), float(session)) + torch.arange(new)[:, None] / 10
        deliver = lambda outputs, session=session: answers.update({session: outputs})  # noqa: E731
        asks.put(GroupAsk(RowsHead(session, 0, new, want), hidden, deliver))
    opened, taken = asks.get(1.0), asks.get(1.0)
    assert opened is not None and opened.head == OpenHead(1, 5) and taken is not None
    assert isinstance(taken.head, BatchHead) and taken.head.want == 8 and taken.hidden is not None and taken.deliver
    taken.deliver(taken.hidden)
    assert {session: each[:, 0].tolist() for session, each in answers.items()} == {
        1: [1.0],
        2: pytest.approx([2.2, 2.3]),
        3: [],
    }
    asks.put(None)
    assert asks.get(1.0) is None
