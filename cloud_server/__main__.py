"""``python -m cloud_server``: load the middle layers, then serve."""

from __future__ import annotations

import structlog
import torch

from cloud_server.app import CloudServer, create_app
from cloud_server.config import CloudConfig
from service.lifecycle import is_loopback, serve
from service.logs import configure_logs
from service.settings import settings_command
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError
from split_model.hub import identity, resolve
from split_model.names import model_name
from split_model.slices import middle_slice
from split_model.stack import Stack
from wire.hello import CloudIdentity
from wire.limits import MAX_FRAME_BYTES

EXAMPLES = """
trilby cloud --model models/demo --split 2
trilby cloud --model Qwen/Qwen3-8B --split 2 --dtype bfloat16 --host 0.0.0.0 --cloud-token SECRET
"""


def load(config: CloudConfig) -> CloudServer:
    """The server of a configuration, its layers loaded.

    Raises:
        ModelError: the checkpoint is missing, broken or not supported; the message says what to do.
        ValueError: ``--split`` and ``--tail`` do not fit the model.
    """
    path = resolve(config.model, only=lambda spec: [middle_slice(spec, config.split, config.tail)])
    checkpoint = Checkpoint.open(path)
    part = middle_slice(checkpoint.spec, config.split, config.tail)
    dtype = getattr(torch, config.dtype)
    stack = Stack.load(checkpoint, part, dtype)
    served = CloudIdentity(
        model=config.model_name or model_name(config.model),
        digest=identity(checkpoint),
        first_layer=part.first_layer,
        last_layer=part.last_layer,
        hidden_size=checkpoint.spec.hidden_size,
        dtype=config.dtype,
        credential=config.cloud_token,
    )
    return CloudServer(config, served, stack)


def run(config: CloudConfig) -> None:
    """Load and serve until a signal."""
    configure_logs("cloud", config.log_level, config.log_form)
    if not is_loopback(config.host) and not config.cloud_token:
        raise SystemExit(
            "Beyond loopback anybody could use this server: give --cloud-token (and the same to the devices)."
        )
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        server = load(config)
    except (ModelError, ValueError) as error:
        raise SystemExit(f"Cannot load {config.model}: {error}") from error
    log = structlog.get_logger()
    served = server.identity
    log.info(
        "serving layers",
        model=served.model,
        layers=f"{served.first_layer}-{served.last_layer}",
        loaded_mb=round(server.state()["loaded_bytes"] / 1e6, 1),  # type: ignore[operator]
        url=f"ws://{config.host}:{config.port}/device",
    )

    async def drain() -> None:
        await server.drain()

    serve(create_app(server), config.host, config.port, drain=drain, max_frame_bytes=MAX_FRAME_BYTES)


main = settings_command(CloudConfig, run, name="trilby cloud", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
