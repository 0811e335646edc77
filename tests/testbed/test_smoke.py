"""The smoke scenario: gateway, cloud and two devices on their hosts answer as the model does on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bench.testbed import scenario as scenarios
from bench.testbed.bed import Testbed
from bench.testbed.inside import inside
from bench.testbed.scenario import load
from checkpoints import DEMO
from oracle import oracle_model
from streamed import stream_answer
from transformers import AutoTokenizer

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.usefixtures("possible")]

SMOKE = Path(str(scenarios.__file__)).parent / "scenarios" / "smoke.toml"
MESSAGES = [{"role": "user", "content": "Tell me a story about a river."}]
TOKENS = 24
LEAST_BYTES = 3 * 256
"""Of the hidden state of one position of the demo model, in float32: one byte of each number's four may be packed."""


def expected_text() -> str:
    """What transformers says, greedily."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        output = oracle_model(DEMO).generate(**prompt, max_new_tokens=TOKENS, do_sample=False)
    return str(tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def test_smoke(tmp_path: Path) -> None:
    """The answer is that of transformers, and the hidden states it took went up a device's link, and came down."""
    body = {"messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0}
    with Testbed(load(SMOKE), tmp_path) as bed:
        bed.start()
        devices = ("device-1", "device-2")
        before = [bed.bytes(device, "cloud") for device in devices]
        answer = inside(bed.namespace("gateway"), lambda: stream_answer("http://127.0.0.1:8000/v1", body))
        after = [bed.bytes(device, "cloud") for device in devices]
    assert (answer.done, answer.tokens) == (True, TOKENS)
    assert answer.text == expected_text()
    for way in (0, 1):
        assert max(now[way] - then[way] for now, then in zip(after, before, strict=True)) > TOKENS * LEAST_BYTES
