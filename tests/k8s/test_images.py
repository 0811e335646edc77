"""What can be said of the container files without building them; `make test-images` builds them."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from cloud_server.config import CloudConfig
from device_agent.config import DeviceConfig
from gateway.config import GatewayConfig
from service.alive import FILE_VARIABLE, PORTS
from service.setting_names import ENDING, variable_of
from service.stopping import DRAIN_S, LAST_BYTES_S
from service.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
PINNED = re.compile(r"^ARG (?:BASE|BUILD)_IMAGE=\S+:[\w.-]*\d[\w.-]*$", re.MULTILINE)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_each_file_lints(dockerfile: Path) -> None:
    """hadolint has nothing to warn of."""
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [linter, "--no-color", "--failure-threshold", "warning", dockerfile], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_each_image_says_whether_it_is_alive(dockerfile: Path) -> None:
    """By what runs in it, wherever its variables say that it listens; who listens nowhere touches a file."""
    text = dockerfile.read_text()
    (asked,) = re.findall(r"^HEALTHCHECK [^\n]*\\\n +CMD (\[.*\])$", text, re.MULTILINE)
    part = dockerfile.stem.partition("-")[0]
    assert json.loads(asked) == ["/venv/bin/python", "-m", "service.alive", part]
    assert (FILE_VARIABLE in text) is (part not in PORTS)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_weights_can_be_kept(dockerfile: Path) -> None:
    """Where they are downloaded to belongs to who runs; a volume that is new takes its owner from there. A device's
    units, which it reads at each use, and its profiles lie there too."""
    text = dockerfile.read_text()
    found = re.search(r"^ +HF_HOME=(\S+)", text, re.MULTILINE)
    assert (found is None) is (dockerfile.stem == "gateway")
    if found is not None:
        final = text.rpartition("\nFROM ")[2]
        assert f"\nRUN install --directory --owner=10001 --group=10001 {found[1]}\n" in final.partition("\nUSER ")[0]
        assert (f" XDG_CACHE_HOME={found[1]} " in final) is dockerfile.stem.startswith("device")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_each_image_is_small_and_unprivileged(dockerfile: Path) -> None:
    """Its base is an argument and pinned, its tag this version, what builds it stays behind, nobody in it is root, and
    what it copies exists and is sent to the builder."""
    text = dockerfile.read_text()
    assert PINNED.search(text)
    assert f" -t trilby/{dockerfile.stem}:{VERSION} .\n" in text
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    final = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert "pip install" not in final
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for each in source.split():
            path = each.rstrip("/")
            assert (ROOT / path).exists(), path
            assert any(f"!{part}" in sent for part in (path, path.partition("/")[0], "docker/*.lock")), path


def test_the_gateways_image_has_all_that_it_imports() -> None:
    """Whatever the gateway's own modules import is in its list of packages, or of the standard library."""
    script = "import sys, gateway.__main__; print(*(getattr(each, '__file__', None) for each in sys.modules.values()))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    ours = {path for path in map(Path, done.stdout.split()) if path.is_relative_to(ROOT) and ".venv" not in path.parts}
    copied = {"gateway", "service", "tls", "wire"}
    assert {path.relative_to(ROOT).parts[0] for path in ours} == copied
    imported = {name.partition(".")[0] for path in ours for name in _imported(ast.parse(path.read_text()))}
    named = {line.replace("-", "_") for line in (ROOT / "docker/gateway.in").read_text().splitlines()}
    of_fastapi = {"pydantic", "starlette"}
    assert "fastapi" in imported
    assert imported - copied - sys.stdlib_module_names - of_fastapi <= named


def _imported(module: ast.Module) -> Iterator[str]:
    """What is imported where it runs, and not for types alone."""
    for_types = [node for node in ast.walk(module) if isinstance(node, ast.If) and _is_type_checking(node.test)]
    left_out = {inner for node in for_types for each in node.body for inner in ast.walk(each)}
    for node in ast.walk(module):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def test_compose_names_images_and_files_that_exist() -> None:
    """One machine: each service's file is there, and its tag is this version; nobody but the maker of secrets is root,
    roots are read-only."""
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    for name, service in services.items():
        built = service["build"]
        assert (ROOT / built["dockerfile"]).is_file()
        assert service["image"] == f"trilby/{Path(built['dockerfile']).stem}:{VERSION}"
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert ("user" in service) is (name == "secrets")
        grace_s = float(service.get("stop_grace_period", "40s").removesuffix("s"))
        assert grace_s > DRAIN_S + LAST_BYTES_S


def test_compose_makes_its_secrets_with_the_rights_it_has(tmp_path: Path) -> None:
    """Root without its capabilities but one writes them, and does not touch those that are there."""
    maker = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]["secrets"]
    assert maker["cap_drop"] == ["ALL"] and maker["cap_add"] == ["CHOWN"]
    script = "".join(maker["command"]).replace("/secrets", str(tmp_path))
    command = ["setpriv", "--bounding-set=-all,+chown", "--inh-caps=-all", sys.executable]
    if os.geteuid() or shutil.which("setpriv") is None:
        command, script = [sys.executable], script.replace("os.chown(", "(lambda *to: None)(")
    made = []
    for _ in range(2):
        done = subprocess.run([*command, "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        made.append({path.name: path.stat() for path in tmp_path.iterdir()})
    assert made[0].keys() == made[1].keys() == {"device-token", "cloud-token", "operator-token", "api-keys"}
    assert all(made[0][name].st_ino == made[1][name].st_ino and made[1][name].st_size > 40 for name in made[0])
    assert all(stat.S_IMODE(each.st_mode) == 0o400 for each in made[1].values())


@pytest.mark.parametrize("unit", sorted((ROOT / "docker" / "systemd").iterdir()), ids=lambda path: path.name)
def test_units(unit: Path) -> None:
    """systemd finds nothing wrong with a unit but that the program is not installed here. It has time to drain, by
    one signal to the process that is its command."""
    stops = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and line[0] != "#")
    assert float(stops["TimeoutStopSec"]) > DRAIN_S + LAST_BYTES_S and stops["KillMode"] == "mixed"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if unit.name in line and "/opt/trilby/bin/trilby" not in line]
    assert not said


def test_compose_sets_what_exists() -> None:
    """Each variable of ours is a setting of that process."""
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    for name, config in (("gateway", GatewayConfig), ("cloud", CloudConfig), ("device", DeviceConfig)):
        known = fields(config)
        variables = {variable_of(each) for each in known}
        variables |= {variable_of(each, ENDING) for each in known if each.metadata.get("secret")}
        assert services[name]["environment"].keys() <= variables
