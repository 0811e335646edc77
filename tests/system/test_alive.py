"""Who listens nowhere touches a file, whatever it waits for: real processes, beside nobody whom they could reach."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from checkpoints import DEMO
from forked import ForkedProcess
from installation import wait_until
from processes import free_port

from service.alive import FILE_VARIABLE, why_not

pytestmark = pytest.mark.system

MODEL: Final = ("--model", str(DEMO), "--threads", "1")
SECRETS: Final = {"TRILBY_STAGE_TOKEN": "what-stages-share", "TRILBY_GROUP_KEY": "what-members-share"}


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("device_agent", ("--mode", "local", "--gateway", "ws://127.0.0.1:{port}")),
        ("device_agent", ("--join", "127.0.0.1:{port}")),
        ("cloud_server.stages.stage", ("--join", "127.0.0.1:{port}")),
    ],
    ids=["device", "member", "stage"],
)
def test_it_says_that_it_is_alive(module: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """While it dials in vain; and it is not alive before."""
    variables = {**SECRETS, FILE_VARIABLE: str(tmp_path / "alive")}
    assert why_not("device", variables)
    dialled = [word.format(port=free_port()) for word in words]
    with ForkedProcess(module, *MODEL, *dialled, log=tmp_path / "log", environment=variables):
        wait_until(lambda: not why_not("device", variables))
