"""The cloud's side of llama.cpp's RPC split: lends this host's CPU to whoever dials.

    PYTHONPATH=tests PYTHON -m bench.rivals.llama_rpc_server HOST:PORT --threads N

Needs what ``llama_rpc.py`` says, and no model: weights and graphs come over the link. HOST is a numeric address.
``{"ready": "HOST:PORT", "version": …}`` on standard output says that it listens; it runs until SIGTERM.

It serves one client at a time: a second one waits until the first is gone. So every device needs a server of its own,
with weights of its own, and nothing is batched across devices; that is llama.cpp's, not this program's.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from threading import Thread

from bench.rivals.llama_rpc import Ggml, RpcUnavailable

LISTENING_WITHIN_S = 10.0


def _listens(host: str, port: int, server: Thread) -> bool:
    """Wait until somebody accepts there; False where the server has ended instead or takes too long."""
    deadline = time.monotonic() + LISTENING_WITHIN_S
    while time.monotonic() < deadline and server.is_alive():
        try:
            with socket.create_connection(("127.0.0.1" if host == "0.0.0.0" else host, port), timeout=1.0):
                # Where the port is another program's, it is that one who has accepted, and the server ends.
                server.join(0.2)
                return server.is_alive()
        except OSError:
            time.sleep(0.02)
    return False


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description="llama.cpp's RPC server with this host's CPU.")
    parser.add_argument("endpoint", metavar="HOST:PORT")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    host, _, port = options.endpoint.rpartition(":")
    if not host or not port.isdigit():
        parser.error(f"{options.endpoint} is not HOST:PORT")
    try:
        ggml = Ggml()
    except RpcUnavailable as error:
        sys.exit(str(error))
    server = Thread(target=ggml.serve, args=(options.endpoint, options.threads), daemon=True)
    server.start()
    if not _listens(host, int(port), server):
        sys.exit(f"llama.cpp's RPC server cannot listen at {options.endpoint}")
    print(json.dumps({"ready": options.endpoint, "version": ggml.version}), flush=True)
    server.join()
    sys.exit("llama.cpp's RPC server has given up")


if __name__ == "__main__":
    main()
