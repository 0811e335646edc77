"""``python -m gateway``: listen for clients and device agents."""

from __future__ import annotations

import structlog

from gateway.app import create_app
from gateway.config import GatewayConfig
from service.lifecycle import serve
from service.logs import configure_logs
from service.settings import settings_command
from wire.limits import MAX_FRAME_BYTES

EXAMPLES = """
trilby gateway
trilby gateway --host 0.0.0.0 --port 8000 --device-token SECRET --api-keys KEY1,KEY2
"""


def run(config: GatewayConfig) -> None:
    """Serve until a signal; SIGTERM drains first."""
    configure_logs("gateway", config.log_level, config.log_form)
    app = create_app(config)
    dispatcher = app.state.desk.dispatcher
    log = structlog.get_logger()
    if not config.keys and not config.on_loopback:
        log.warning("no API keys are set: everyone who reaches this address can use it", host=config.host)
    log.info("serving", api=f"http://{config.host}:{config.port}/v1", agents=f"ws://{config.host}:{config.port}/device")

    async def drain() -> None:
        log.info("draining", running=dispatcher.running)
        finished = await dispatcher.drain()
        log.info("stopping", finished=finished)

    serve(app, config.host, config.port, drain=drain, max_frame_bytes=MAX_FRAME_BYTES)


main = settings_command(GatewayConfig, run, name="trilby gateway", examples=EXAMPLES)

if __name__ == "__main__":
    main()
