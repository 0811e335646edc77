"""What the tokenizer is asked alone is what a request would have: transformers' ids, and the same refusals."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoints import DEMO
from served_chains import served
from transformers import AutoTokenizer

from device_agent.answering import tokenizing
from device_agent.answering.tokenizing import tokenize
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Accepted, Done
from wire.text_messages import ChatTurn, Rendering, Tokenize, Tokens

TEXT = "The quick fox – 狐 – lost 12 keys.</s>"
TURNS = [ChatTurn("user", "Hi"), ChatTurn("assistant", "Well,")]


async def told_of(model: Any, **asked: Any) -> Tokens:
    """What an agent tells between Accepted and Done."""
    said: list[AnyMessage] = []
    await tokenize(model, Tokenize(1, "id", "demo", **asked), said.append)
    accepted, tokens, done = said
    assert isinstance(accepted, Accepted) and isinstance(tokens, Tokens) and isinstance(done, Done)
    return tokens


async def test_tokens_are_those_of_transformers() -> None:
    """With and without special tokens, of texts and conversations, with their names; and back, special tokens too. All
    without a permit."""
    oracle: Any = AutoTokenizer.from_pretrained(DEMO)
    async with served(None, permits=1) as model, model.permits.one(""):
        for special in (True, False):
            told = await told_of(model, prompt=TEXT, special=special, names=True)
            assert told.ids == oracle.encode(TEXT, add_special_tokens=special)
            assert told.names == oracle.convert_ids_to_tokens(told.ids) and told.max_positions == 1024
        assert (await told_of(model, prompt="", special=False)).ids == []
        turns = [{"role": each.role, "content": each.content} for each in TURNS]
        for begins, goes_on in ((True, False), (False, True), (False, False)):
            told = await told_of(model, prompt=TURNS, special=False, rendering=Rendering(begins, goes_on))
            assert told.names is None and told.ids == oracle.apply_chat_template(
                turns, add_generation_prompt=begins, continue_final_message=goes_on, return_dict=False
            )
        ids = oracle.encode(TEXT)
        assert (await told_of(model, ids=ids)).text == oracle.decode(ids)
        assert (await told_of(model, ids=[])).text == ""


@pytest.mark.parametrize(
    ("asked", "code", "param"),
    [
        ({"prompt": "x " * 5000}, Code.CONTEXT_LENGTH_EXCEEDED, "prompt"),
        ({"prompt": "x" * 500_000}, Code.CONTEXT_LENGTH_EXCEEDED, "prompt"),
        ({"prompt": [ChatTurn("user", "x")] * 2000}, Code.CONTEXT_LENGTH_EXCEEDED, "messages"),
        ({"prompt": [ChatTurn("user", "x " * 5000)]}, Code.CONTEXT_LENGTH_EXCEEDED, "messages"),
        ({"prompt": TEXT, "names": True}, Code.INVALID_REQUEST, "return_token_strs"),
        ({"ids": [1, 10**6]}, Code.INVALID_REQUEST, "tokens"),
        ({"ids": [1] * 2000}, Code.CONTEXT_LENGTH_EXCEEDED, "tokens"),
    ],
    ids=range(7),
)
async def test_what_is_too_much_is_refused(
    asked: dict[str, Any], code: Code, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a request with it would be, by the member's name, and nothing is told before."""
    monkeypatch.setattr(tokenizing, "MAX_NAMES", 5)
    async with served(None) as model:
        with pytest.raises(SessionFailed) as caught:
            await told_of(model, **asked)
        assert (caught.value.code, caught.value.param) == (code, param)
