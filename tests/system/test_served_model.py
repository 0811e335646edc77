"""A model under the names and with the length that its users were told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from installation import Installation

pytestmark = pytest.mark.system

NAMES = ("--served-model-name", "small", "--served-model-name", "team/default")
LONGEST = 64


def test_aliases_and_a_length(tmp_path: Path) -> None:
    """Every name is listed and accepted, and the answer says the one that was asked for, the first where none was; a
    request beyond the length is refused as too long, wherever that is found."""
    with Installation(
        tmp_path, forked=True, device_settings=(*NAMES, "--max-model-len", str(LONGEST)), cloud_settings=NAMES
    ) as installation:

        def ask(**members: Any) -> Any:
            body = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, **members}
            return httpx.post(installation.base + "/completions", json=body, timeout=60, trust_env=False).json()

        listed = installation.get("/v1/models").json()["data"]
        assert [(model["id"], model["max_model_len"]) for model in listed] == [
            ("small", LONGEST), ("team/default", LONGEST),
        ]  # fmt: skip
        assert ask()["model"] == ask(model="small")["model"] == "small"
        assert ask(model="team/default")["model"] == "team/default"
        assert ask(model="team/default")["choices"][0]["text"] == ask()["choices"][0]["text"]
        assert ask(model="trilby-demo")["error"]["code"] == "model_not_found"
        for prompt in ("Once upon a time " * 100, [5] * LONGEST, "a b c " * 2000):
            assert ask(prompt=prompt)["error"]["code"] == "context_length_exceeded"
