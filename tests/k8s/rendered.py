"""Manifests as kubectl would apply them, and their parts by what they are."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2] / "k8s"
OVERLAYS = sorted(path.name for path in (ROOT / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (ROOT / "components").iterdir())

TOGETHER = (
    "gpu+pipeline+model-cache+traces+prometheus+tls+outside-redis",
    "prod+http-route+prometheus+grafana+traces+inference-pool",
    "prod+tls+traces+prometheus",
)
"""Components that patch the same resources, in the order in which they say that they come."""

Resource = dict[str, Any]


@cache
def overlay(name: str) -> tuple[Resource, ...]:
    """All resources of an overlay."""
    return _built(ROOT / "overlays" / name)


@cache
def with_components(folder: Path, *names: str, on: str = "gpu") -> tuple[Resource, ...]:
    """All resources of an overlay with components, put together in ``folder``."""
    made = _copied(folder) / "overlays" / "+".join((on, *names))
    made.mkdir(exist_ok=True)
    listed = ", ".join(f"../../components/{name}" for name in names)
    (made / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [../{on}]\ncomponents: [{listed}]\n"
    )
    return _built(made)


@cache
def with_settings(folder: Path, name: str, setting: str) -> tuple[Resource, ...]:
    """All resources of an overlay that gives a setting to gateways or clouds, as the documents say."""
    made = _copied(folder) / "overlays" / f"{name}-{setting}"
    made.mkdir(exist_ok=True)
    given = f"name: {name}, namespace: trilby, behavior: merge, literals: [{setting}]"
    (made / "kustomization.yaml").write_text(f"resources: [../gpu]\nconfigMapGenerator:\n  - {{{given}}}\n")
    return _built(made)


def _copied(folder: Path) -> Path:
    for part in ("base", "overlays", "components"):
        if not (folder / part).exists():
            shutil.copytree(ROOT / part, folder / part)
    return folder


def _built(folder: Path) -> tuple[Resource, ...]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(resources: tuple[Resource, ...], *kinds: str) -> list[Resource]:
    """Those of these kinds."""
    return [each for each in resources if each["kind"] in kinds]


def pods(resources: tuple[Resource, ...]) -> Iterator[Resource]:
    """All pods' templates: ``metadata`` and ``spec``, and how many there are to be (``replicas``; 1 where a scaler
    or a job says)."""
    for each in of_kind(resources, "Deployment", "StatefulSet", "Job"):
        yield {**each["spec"]["template"], "replicas": each["spec"].get("replicas", 1), "of": each["metadata"]["name"]}
    for each in of_kind(resources, "LeaderWorkerSet"):
        both = each["spec"]["leaderWorkerTemplate"]
        yield {**both["leaderTemplate"], "replicas": each["spec"]["replicas"], "of": "leader"}
        yield {**both["workerTemplate"], "replicas": both["size"] - 1, "of": "stage"}


def selects(selector: Resource, labels: dict[str, str]) -> bool:
    """Whether a label selector (``matchLabels`` and ``matchExpressions`` with ``In``) means a pod with these labels."""
    wanted = selector.get("matchLabels", {}).items()
    among = selector.get("matchExpressions", [])
    return wanted <= labels.items() and all(
        each["operator"] == "In" and labels.get(each["key"]) in each["values"] for each in among
    )


def ports(pod: Resource) -> dict[str, int]:
    """The named ports of a pod's containers."""
    return {each["name"]: each["containerPort"] for one in pod["spec"]["containers"] for each in one.get("ports", [])}
