"""Whether the part that runs in a container is alive, for the container's health check.

    HEALTHCHECK CMD ["/venv/bin/python", "-m", "service.alive", "cloud"]

Gateway and cloud are asked for /live, where their variables say that they listen. A device, a member of a group and a
stage of a pipeline listen nowhere that everybody could ask: their event loop touches a file (``alive_file.py``), which
must not be old. Nothing but the standard library is loaded.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final

from service.addresses import reachable

PORTS: Final = {"gateway": 8000, "cloud": 8001}
"""Who is asked at a port, and where nothing else is said."""

FILE_VARIABLE: Final = "TRILBY_ALIVE_PATH"

BEAT_EVERY_S: Final = 5.0

OLD_S: Final = 30.0
"""A file that was touched so long ago says that the event loop stands still."""

ANSWER_WITHIN_S: Final = 3.0


def why_not(part: str, variables: Mapping[str, str]) -> str:
    """Why a part of an installation is not alive; empty where it is.

    Args:
        part: ``gateway``, ``cloud``, or any other that touches a file.
        variables: of its environment.
    """
    return _asked(part, variables) if part in PORTS else _touched(variables)


def _asked(part: str, variables: Mapping[str, str]) -> str:
    own = f"TRILBY_{part.upper()}_"
    host, port = reachable(variables.get(own + "HOST", "")), int(variables.get(own + "PORT") or PORTS[part])
    connection = HTTPConnection(host, port, timeout=ANSWER_WITHIN_S)
    if variables.get("TRILBY_TLS_CERT"):
        # As a kubelet asks: any certificate will do, since nothing is told here, and nothing but a status read.
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname = False
        anybody.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection(host, port, timeout=ANSWER_WITHIN_S, context=anybody)
    try:
        connection.request("GET", "/live")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        return f"{part} does not answer at {host} port {port}: {error}"
    finally:
        connection.close()
    return f"{part} says that it has failed ({status})" if status >= 500 else ""


def _touched(variables: Mapping[str, str]) -> str:
    path = variables.get(FILE_VARIABLE, "")
    if not path:
        return f"{FILE_VARIABLE} names no file to look at"
    try:
        age_s = time.time() - os.stat(path).st_mtime
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path} was last touched {age_s:.0f} s ago: the event loop stands still" if age_s > OLD_S else ""


if __name__ == "__main__":
    sys.exit(why_not(sys.argv[1], os.environ) or 0)
