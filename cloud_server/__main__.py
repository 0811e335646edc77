"""``python -m cloud_server``: load the middle layers, then serve."""

from __future__ import annotations

import os

import structlog
import torch

from cloud_server.app import create_app
from cloud_server.attention import BackendMissing
from cloud_server.build import build
from cloud_server.config import CloudConfig
from service.lifecycle import is_loopback, serve
from service.logs import configure_logs
from service.settings import settings_command
from split_model.errors import ModelError
from wire.limits import MAX_FRAME_BYTES

EXAMPLES = """
trilby cloud --model models/demo --split 2
trilby cloud --model Qwen/Qwen3-8B --split 2 --dtype bfloat16 --host 0.0.0.0 --cloud-token SECRET
trilby cloud --model Qwen/Qwen3-32B --split 2 --dtype bfloat16 --device cuda --stages 4
"""


def run(config: CloudConfig) -> None:
    """Load and serve until a signal."""
    configure_logs("cloud", config.log_level, config.log_form)
    if not is_loopback(config.host) and not config.cloud_token:
        raise SystemExit(
            "Beyond loopback anybody could use this server: give --cloud-token (and the same to the devices)."
        )
    if config.threads or config.stages > 1:
        torch.set_num_threads(config.threads or max(1, (os.cpu_count() or 1) // config.stages))
    try:
        server = build(config)
    except (ModelError, BackendMissing, ValueError) as error:
        raise SystemExit(f"Cannot load {config.model}: {error}") from error
    log = structlog.get_logger()
    served, limits = server.identity, server.engine.ledger.limits
    log.info(
        "serving layers",
        model=served.model,
        layers=f"{served.first_layer}-{served.last_layer}",
        stages=server.engine.depth,
        kv_positions=limits.pages * limits.page_positions,
        url=f"ws://{config.host}:{config.port}/device",
    )

    async def drain() -> None:
        await server.drain()

    serve(create_app(server), config.host, config.port, drain=drain, max_frame_bytes=MAX_FRAME_BYTES)


main = settings_command(CloudConfig, run, name="trilby cloud", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
