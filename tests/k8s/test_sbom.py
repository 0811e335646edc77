"""What an image says that it is made of; `make test-images` asks images that are built."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from k8s.images import sbom_lacks
from processes import ROOT, with_paths

DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
SCRIPT = ROOT / "docker" / "sbom.py"
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Description: GNU C Library
 with a line that says Version: 9
Version: 2.36-9+deb12u10

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1:1.0
"""


def printed(*more: str) -> Any:
    """The document as the script prints it, of what is installed here."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "trilby/gateway", *more], capture_output=True, env=with_paths(), timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_every_installed_distribution_is_in_it() -> None:
    """By name and version, once each; so are the interpreter and the system."""
    made = printed()
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["name"] == "trilby/gateway"
    assert not sbom_lacks(made, [(each.metadata["Name"], each.version) for each in distributions()])
    kinds = [each["type"] for each in made["components"]]
    assert kinds.count("application") == 1
    references = [each["bom-ref"] for each in made["components"]]
    assert len(references) == len(set(references)) and references == sorted(references)
    assert sbom_lacks(made, [("numpy", "0.0"), ("nothing", "1")]) == ["numpy 0.0", "nothing 1"]


def test_the_same_image_gives_the_same_bytes() -> None:
    """Nothing of when or where it was made."""
    assert printed() == printed()


def test_the_systems_packages_are_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are installed, of any Debian; not what was taken off again, and no line of a description."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import sbom  # type: ignore[import-not-found]

    for path, text in (
        ("var/lib/dpkg/status", STATUS),
        ("etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n'),
        ("usr/lib/python3/dist-packages/Some_Thing-1.2.dist-info/METADATA", "Name: Some_Thing\nVersion: 1.2\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    found = {each["purl"] for each in sbom.document("any", tmp_path)["components"]}
    assert {each for each in found if not each.startswith("pkg:pypi/")} >= {
        "pkg:deb/ubuntu/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:generic/ubuntu@24.04",
    }
    assert "pkg:pypi/some-thing@1.2" in found
    assert not [each for each in found if "gone" in each]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_every_image_has_one(dockerfile: Path) -> None:
    """Made in the image itself, behind all that is installed there, by its name."""
    final = dockerfile.read_text().rpartition("\nFROM ")[2]
    made = re.search(r"^COPY docker/sbom\.py \./\nRUN \S+ sbom\.py (\S+) > sbom\.cdx\.json\nUSER ", final, re.MULTILINE)
    assert made is not None and made[1] == f"trilby/{dockerfile.stem}"
    assert "apt-get" not in final[made.end() :] and "COPY" not in final[made.end() :]
