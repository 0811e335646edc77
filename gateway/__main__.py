"""``python -m gateway``: listen for clients and device agents."""

from __future__ import annotations

import structlog

from gateway.app import create_app
from gateway.config import GatewayConfig
from gateway.key_stores import BadKeyStore
from service.addresses import host_port
from service.lifecycle import serve
from service.logs import configure_logs
from service.settings import settings_command
from service.stopping import end_at_once
from wire.limits import MESSAGE_BYTES

EXAMPLES = """
trilby gateway
TRILBY_DEVICE_TOKEN=… TRILBY_API_KEYS=…,… trilby gateway --host 0.0.0.0 --port 8000
trilby gateway --host 0.0.0.0 --tls-cert lab/gateway.crt --tls-key lab/gateway.key --tls-ca lab/ca.crt
trilby gateway --host 0.0.0.0 --device-token-file /run/secrets/device-token --api-keys-file /run/secrets/api-keys
"""


def run(config: GatewayConfig) -> None:
    """Serve until a signal; SIGTERM drains first."""
    end_at_once()
    configure_logs("gateway", config.log_level, config.log_form)
    traces = config.traces("gateway")
    try:
        app = create_app(config, traces)
    except BadKeyStore as error:
        raise SystemExit(str(error)) from error
    log = structlog.get_logger()
    if not config.keys and not config.key_store and not config.on_loopback:
        log.warning("no API keys are set: everyone who reaches this address can use it", host=config.host)
    address = host_port(config.host, config.port)
    tls = config.tls()
    safe = "s" if config.tls_cert else ""
    log.info("serving", api=f"http{safe}://{address}/v1", agents=f"ws{safe}://{address}/device")
    longest = max(MESSAGE_BYTES, config.max_body_bytes + 1)
    serve(app, config.host, config.port, drain=app.state.desk.dispatcher.drain, max_frame_bytes=longest, tls=tls)
    traces.close()


main = settings_command(GatewayConfig, run, name="trilby gateway", examples=EXAMPLES)

if __name__ == "__main__":
    main()
