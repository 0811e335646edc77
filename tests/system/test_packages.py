"""What is installed is the product: every package of it, no recipe, no benchmark, no test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "models.demo.recipe"
"""Makes the embedded model, and is not shipped with it."""


def test_the_packages_of_the_wheel_are_those_of_the_product() -> None:
    """The list names every folder of modules but tests, manifests, the recipe and what that alone imports."""
    listed = re.search(r"\[tool\.setuptools\]\npackages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert listed is not None
    packages = set(re.findall(r'"([^"]+)"', listed[1]))
    folders = {each.parent.relative_to(ROOT) for each in ROOT.glob("*/**/*.py")}
    left_out = {"tests", "build", "docker", "k8s"} | {each.name for each in ROOT.iterdir() if each.name.startswith(".")}
    modules = {".".join(folder.parts) for folder in folders if folder.parts[0] not in left_out}
    assert packages >= {each for each in modules if not each.startswith(RECIPE)}
    assert not [each for each in packages if each.startswith((RECIPE, "tests", "bench"))]
