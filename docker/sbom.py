"""Print what an image is made of, as CycloneDX 1.6 in JSON: Python, its distributions, and the system's packages.

    /venv/bin/python sbom.py trilby/gateway > sbom.cdx.json

It is run where the image is built, and reads what is installed there: nothing is taken from a list of what should be.
Nothing but the standard library is needed. The same image gives the same bytes.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from service.version import VERSION

ROOT = Path("/")
PLACES = (
    "usr/lib/python3*/dist-packages",
    "usr/local/lib/python3*/site-packages",
    "usr/local/lib/python3*/dist-packages",
)
"""Where images have distributions beside those of the environment that runs."""

LICENCE_CHARACTERS = 200
"""Some put the whole text where a name belongs."""


def main(name: str) -> None:
    """Print the document for an image of this name."""
    json.dump(document(name, ROOT), sys.stdout, indent=1)


def document(name: str, root: Path) -> dict[str, Any]:
    """What runs this script, and the system at ``root``."""
    found = sorted({each["bom-ref"]: each for each in (*interpreter(), *distributions(root), *packages(root))}.items())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": VERSION}},
        "components": [each for _, each in found],
    }


def component(kind: str, name: str, version: str, purl: str) -> dict[str, Any]:
    """One part."""
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def interpreter() -> Iterator[dict[str, Any]]:
    """Python, which is not always one of the system's packages."""
    name, version = platform.python_implementation().lower(), platform.python_version()
    yield component("application", name, version, f"pkg:generic/{name}@{version}")


def distributions(root: Path) -> Iterator[dict[str, Any]]:
    """The distributions of the Python that runs this, and of the system's."""
    others = [str(each) for place in PLACES for each in root.glob(place)]
    for each in importlib.metadata.distributions(path=[*sys.path, *others]):
        name, version = each.metadata["Name"], each.version
        normal = re.sub(r"[-_.]+", "-", name).lower()
        part = component("library", name, version, f"pkg:pypi/{normal}@{quote(version)}")
        expression = each.metadata["License-Expression"]
        named = next(iter((each.metadata["License"] or "").strip().splitlines()), "")[:LICENCE_CHARACTERS]
        if expression:
            part["licenses"] = [{"expression": expression}]
        elif named:
            part["licenses"] = [{"license": {"name": named}}]
        yield part


def packages(root: Path) -> Iterator[dict[str, Any]]:
    """The system's packages, where it has Debian's list of them, and the system itself."""
    about = dict(line.split("=", 1) for line in _lines(root / "etc/os-release") if "=" in line)
    system, version = (about.get(key, "").strip('"') for key in ("ID", "VERSION_ID"))
    if system:
        yield component("operating-system", system, version, f"pkg:generic/{system}@{version}")
    for entry in "\n".join(_lines(root / "var/lib/dpkg/status")).split("\n\n"):
        fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            name, version, machine = (fields[key] for key in ("Package", "Version", "Architecture"))
            yield component("library", name, version, f"pkg:deb/{system}/{quote(name)}@{quote(version)}?arch={machine}")


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8", "replace").splitlines() if path.is_file() else []


if __name__ == "__main__":
    main(sys.argv[1])
