"""A cloud server that cannot compute any more, in this life of its process: it says so, and the process ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch
from bare_devices import device, news, rows
from clouds import cloud_here, until
from processes import free_port, with_paths

from cloud_server.config import CloudConfig
from cloud_server.stages import layer_step, runner, stage
from cloud_server.stages.stage import StageConfig
from split_model.device import DeviceLost
from wire.errors import Code
from wire.message import Failed
from wire.session_messages import Forward, Open

ENDS_WITHIN_S = 60.0

PROGRAM = """
import sys, time
from cloud_server.__main__ import run
from cloud_server.config import CloudConfig
from cloud_server.stages import layer_step, runner
from split_model.device import DeviceLost

def lost(device):
    raise DeviceLost("it is lost")

if sys.argv[3] == "lost":
    layer_step.wait_for = lost
else:
    runner.STEP_WITHIN_S = 0.5
    layer_step.LayerStep._run = lambda *_: time.sleep(600)
run(CloudConfig(model=sys.argv[1], split=1, port=int(sys.argv[2]), kv_mb=64))
"""


@pytest.mark.parametrize("how", ["lost", "hangs"])
def test_its_process_ends_as_failed(how: str, tiny: Path) -> None:
    """Whoever watches it, systemd, docker or Kubernetes, starts it again; also where a thread would never end."""
    words = [sys.executable, "-c", PROGRAM, str(tiny), str(free_port()), how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=ENDS_WITHIN_S, env=with_paths())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "this server cannot go on, and ends" in done.stderr and "DeviceLost" in done.stderr


LOSES_ITS_GPU = """
import torch
from split_model.device import DeviceLost, wait_for

there = torch.zeros(4, device="cuda")
wait_for(there.device)
there[torch.tensor([9], device="cuda")]
try:
    wait_for(there.device)
except DeviceLost as lost:
    print(lost)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_says_that_it_is_lost() -> None:
    """Behind a kernel that has failed nothing can be computed there any more in that process."""
    done = subprocess.run([sys.executable, "-c", LOSES_ITS_GPU], capture_output=True, text=True, env=with_paths())
    assert "cuda:0 is lost" in done.stdout, done.stderr


async def test_a_device_that_is_lost_fails_more_than_a_step(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions end so that they go on elsewhere, and nobody is told that all is well."""

    def lost(device: object) -> None:
        raise DeviceLost("it is lost")

    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream, httpx.AsyncClient() as client:
        http = cloud.url.replace("ws", "http")
        assert (await client.get(http + "/health")).json() == {"status": "ok"}
        monkeypatch.setattr(layer_step, "wait_for", lost)
        stream.post(Open(1, 16))
        stream.post(Forward(1, 0, 0, 1), [rows(4)])
        failed = await news(stream)
        assert isinstance(failed, Failed) and failed.code == Code.STAGE_LOST.value
        await until(lambda: not cloud.server.engine.alive)
        for path in ("/health", "/live"):
            answer = await client.get(http + path)
            assert (answer.status_code, answer.json()) == (503, {"status": "failed"})


async def test_a_server_that_loads_says_so(tiny: Path) -> None:
    """It is no failed one, and is to be left alone."""
    async with cloud_here(tiny, 1) as cloud, httpx.AsyncClient() as client:
        http = cloud.url.replace("ws", "http")
        cloud.server.engine.sessions.lost = True
        answer = await client.get(http + "/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "starting"})
        assert (await client.get(http + "/live")).status_code == 200
        cloud.server.engine.sessions.lost = False


async def test_a_step_that_never_ends_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the step is this process's own: nobody waits for its thread."""
    go_on = threading.Event()
    monkeypatch.setattr(runner, "STEP_WITHIN_S", 0.2)
    local = runner.LocalRunner(lambda *_: go_on.wait(60))  # type: ignore[arg-type]
    try:
        with pytest.raises(DeviceLost, match=r"within 0\.2 s"):
            await local.run([torch.zeros(1, 4)], [])
    finally:
        go_on.set()
        await local.stop()


@pytest.mark.parametrize("where", ["", "host", "0.0.0.0:8002", "[::]:8002", "host:99999"])
def test_an_address_where_no_stage_could_join_is_refused_at_the_door(where: str) -> None:
    """Not once the layers are loaded."""
    with pytest.raises(ValueError, match="--stage-address"):
        CloudConfig(model="m", stages=2, remote_stages=1, stage_address=where, stage_token="k" * 32)


@pytest.mark.parametrize("computing", [False, True])
async def test_a_stage_loads_to_its_end_whatever_becomes_of_its_pipeline(
    computing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading cannot be broken off and takes minutes; only who still computes for a pipeline that has ended hangs."""
    statuses = list[int]()
    monkeypatch.setattr(stage, "END_WITHIN_S", 0.1)
    monkeypatch.setattr(stage, "end_process", statuses.append)
    ended, go_on = asyncio.get_running_loop().create_future(), threading.Event()
    config, membership = StageConfig(join="127.0.0.1:1", model="m", stage_token="k" * 32), SimpleNamespace(ended=ended)
    life = stage.Life(config, membership)  # type: ignore[arg-type]
    monkeypatch.setattr(life, "run", lambda: go_on.wait(60))
    monkeypatch.setattr(life, "_link", SimpleNamespace(abort=lambda: None) if computing else None)
    with ThreadPoolExecutor(1) as compute:
        living = asyncio.create_task(stage._live(life, compute))
        await asyncio.sleep(0.05)
        ended.set_result("the portal is gone")
        await asyncio.sleep(0.3)
        assert statuses == ([1] if computing else [])
        go_on.set()
        with suppress(asyncio.InvalidStateError):
            await living
