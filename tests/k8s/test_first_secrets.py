"""The job that makes the first secrets, as it runs in the cluster, beside an API server that says what it is asked."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET6
from typing import Any

import pytest
from k8s.rendered import ROOT

from service.certs import Authority

SCRIPT = ROOT / "base" / "first_secrets.py"
RUN = (
    "import pathlib, sys; sys.path.insert(0, sys.argv[1]); "
    "import first_secrets; first_secrets.main(pathlib.Path(sys.argv[2]))"
)


class _OfSix(ThreadingHTTPServer):
    address_family = AF_INET6


@contextmanager
def api_server(lab: Path, host: str, status: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Its port, and what it was asked; it answers all with this status."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append({"path": self.path, "bearer": self.headers["authorization"], **body})
            self.send_response(status)
            self.end_headers()

        def log_message(self, *said: object) -> None: ...

    server = (_OfSix if ":" in host else ThreadingHTTPServer)((host, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(lab / "api.crt", lab / "api.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The API server's certificate, and what the job finds of its account."""
    folder = tmp_path_factory.mktemp("lab")
    Authority(folder).issue(["api"], "server")
    (folder / "namespace").write_text("trilby\n")
    (folder / "token").write_text("of-this-account\n")
    return folder


def run(lab: Path, host: str, port: int) -> subprocess.CompletedProcess[str]:
    """The job, to its end."""
    where = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    words = [sys.executable, "-I", "-c", RUN, str(SCRIPT.parent), str(lab)]
    return subprocess.run(words, env=where, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_they_are_made_by_the_account_in_its_namespace(lab: Path, host: str) -> None:
    """Random ones, another for each, that mean nothing on a command line or in a URL."""
    try:
        with api_server(lab, host, 201) as (port, asked):
            done = run(lab, host, port)
    except OSError:
        assert ":" in host
        pytest.skip("this machine has no IPv6")
    assert done.returncode == 0, done.stderr
    (made,) = asked
    assert made["path"] == "/api/v1/namespaces/trilby/secrets" and made["bearer"] == "Bearer of-this-account"
    assert made["kind"] == "Secret" and made["metadata"]["name"] == "trilby"
    secrets = list(made["stringData"].values())
    assert len(set(secrets)) == len(secrets) >= 7 and all(each.isalnum() and len(each) >= 32 for each in secrets)
    assert not any(each in done.stdout + done.stderr for each in secrets)


@pytest.mark.parametrize(("status", "code", "says"), [(409, 0, "there already"), (403, 1, "refuses")])
def test_what_the_api_server_says_counts(lab: Path, status: int, code: int, says: str) -> None:
    """That they are there is as good; that they may not be made ends the job, which is tried again."""
    with api_server(lab, "127.0.0.1", status) as (port, _):
        done = run(lab, "127.0.0.1", port)
    assert done.returncode == code and says in done.stdout + done.stderr
