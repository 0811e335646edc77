"""A group on two hosts of a network: its portal and gateway on one, a member on the other, which dies or is cut off."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from checkpoints import DEMO
from house import API, a_house
from installation import wait_until
from oracle import oracle_answer
from streamed import stream_answer

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.usefixtures("possible")]

QUESTION = "Tell me a story about a fox."
TOKENS = 60
AT = 10
"""After so many pieces of text it happens."""
GOES_ON_WITHIN_S = 15.0


@pytest.mark.parametrize("what", ["killed", "cut off"])
def test_a_member_on_another_host_is_lost(what: str, tmp_path: Path) -> None:
    """In the middle of a stream: the text is transformers', and goes on soon. Once the member is back both compute
    again, and the next answer is right too."""
    text, _ = oracle_answer(DEMO, QUESTION, TOKENS, whole=True)
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "draft": "none"}
    with a_house(tmp_path, "galaxy", ["study", "kitchen"]) as house:
        wait_until(lambda: house.working() == 2)

        def seen(count: int) -> None:
            if count == AT:
                house.members["kitchen"].kill() if what == "killed" else house.bed.port("kitchen").plug(False)

        answer = house.at_home(lambda: stream_answer(f"{API}/v1", body, seen))
        assert (answer.text, answer.done, answer.error) == (text, True, {})
        assert max(later - before for before, later in pairwise(answer.times)) < GOES_ON_WITHIN_S
        assert house.working() == 1
        if what == "killed":
            house.join("kitchen")
        else:
            house.bed.port("kitchen").plug(True)
        wait_until(lambda: house.working() == 2)
        again = house.at_home(lambda: stream_answer(f"{API}/v1", body))
        assert (again.text, again.done) == (text, True)
