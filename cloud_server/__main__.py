"""``python -m cloud_server``: load the middle layers, then serve."""

from __future__ import annotations

import os

import structlog
import torch

from cloud_server.app import create_app
from cloud_server.build import build
from cloud_server.cache.pool_attention import BackendMissing
from cloud_server.config import CloudConfig
from service.addresses import host_port, is_loopback
from service.lifecycle import FAILED_STATUS, serve
from service.logs import configure_logs, end_process
from service.settings import settings_command
from service.stopping import end_at_once
from split_model.errors import ModelError
from wire.limits import MESSAGE_BYTES

EXAMPLES = """
trilby cloud --model models/demo --split 2
TRILBY_CLOUD_TOKEN=… trilby cloud --model Qwen/Qwen3-8B --split 2 --dtype bfloat16 --host 0.0.0.0
trilby cloud --model models/demo --split 2 --host 0.0.0.0 --cloud-token-file /run/secrets/cloud-token
trilby cloud --model models/demo --mode u-sarathi --step-rows 256
trilby cloud --model Qwen/Qwen3-32B --split 2 --dtype bfloat16 --device cuda --stages 4
TRILBY_STAGE_TOKEN=… trilby cloud --model Qwen/Qwen3-32B --stages 2 --remote-stages 1 --stage-address 10.0.0.1:8002
"""


def run(config: CloudConfig) -> None:
    """Load and serve until a signal."""
    end_at_once()
    configure_logs("cloud", config.log_level, config.log_form)
    if not is_loopback(config.host) and not config.is_guarded:
        raise SystemExit(
            "Beyond loopback anybody could use this server: set TRILBY_CLOUD_TOKEN or --cloud-token-file, "
            "and the same for the devices; or --tls-cert and --tls-ca, and give the devices certificates."
        )
    if config.threads or config.stages > 1:
        torch.set_num_threads(config.threads or max(1, (os.cpu_count() or 1) // (config.stages - config.remote_stages)))
    traces = config.traces("cloud")
    try:
        server = build(config, traces)
    except (ModelError, BackendMissing, ValueError) as error:
        raise SystemExit(f"Cannot load {config.model}: {error}") from error
    log = structlog.get_logger()
    tls = config.tls()
    served, limits = server.engine.identity, server.engine.ledger.limits
    log.info(
        "serving layers",
        model=served.model,
        layers=f"{served.first_layer}-{served.last_layer}",
        stages=server.engine.depth,
        kv_positions=limits.pages * limits.page_positions,
        url=f"{'wss' if config.tls_cert else 'ws'}://{host_port(config.host, config.port)}/device",
    )
    app = create_app(server)
    failure = app.state.failure
    serve(app, config.host, config.port, drain=server.drain, max_frame_bytes=MESSAGE_BYTES, tls=tls, failure=failure)
    traces.close()
    if (why := failure()) is not None:
        log.error("this server cannot go on, and ends", error=type(why).__name__, why=str(why))
        end_process(FAILED_STATUS)  # A thread that hangs would be waited for.


main = settings_command(CloudConfig, run, name="trilby cloud", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
