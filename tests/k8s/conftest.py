"""Manifests as they would be applied: each overlay, each component on one, and those that are applied together."""

from __future__ import annotations

from pathlib import Path

import pytest
from k8s.rendered import COMPONENTS, OVERLAYS, TOGETHER, Resource, overlay, with_components


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where overlays with components are put together."""
    return tmp_path_factory.mktemp("k8s")


@pytest.fixture(params=[*OVERLAYS, *(f"gpu+{name}" for name in COMPONENTS), *TOGETHER])
def resources(request: pytest.FixtureRequest, folder: Path) -> tuple[Resource, ...]:
    """Each overlay, each component on top of the one for GPUs, and components that meet."""
    name, *components = str(request.param).split("+")
    return with_components(folder, *components, on=name) if components else overlay(name)
