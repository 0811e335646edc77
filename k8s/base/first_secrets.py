"""Make the secrets that all parts show each other, unless they are there: random ones, once, inside the cluster.

So nobody types a secret or keeps one in a repository. To bring your own, make the Secret ``trilby`` beforehand.
Runs in the gateway's image with nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAMES = ("device-token", "cloud-token", "gateway-token", "operator-token", "stage-token", "redis-password", "api-keys")
WITHIN_S = 30.0


def main(account: Path = ACCOUNT) -> None:
    """Ask the API server of this cluster to make the Secret. That it is there already is as good."""
    namespace = (account / "namespace").read_text().strip()
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "trilby", "labels": {"app.kubernetes.io/part-of": "trilby"}},
        # No character of these means something on a command line or in a URL.
        "stringData": {name: secrets.token_hex(32) for name in NAMES},
    }
    where = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(
        f"https://{where}:{port}/api/v1/namespaces/{namespace}/secrets",
        json.dumps(secret).encode(),
        {
            "Authorization": f"Bearer {(account / 'token').read_text().strip()}",
            "Content-Type": "application/json",
        },
    )
    trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S, context=trusted):
            print("made the Secret trilby")
    except urllib.error.HTTPError as error:
        if error.code != 409:
            sys.exit(f"the API server refuses to make the Secret trilby: {error.code} {error.reason}")
        print("the Secret trilby is there already")


if __name__ == "__main__":
    main()
