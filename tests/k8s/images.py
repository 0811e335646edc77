"""Build the images for gateway, cloud and device (CPU) from the unmodified files, start them, and answer a chat.

    make test-images      as root, with buildah and debootstrap (Debian: apt-get install buildah debootstrap)

No docker and no registry is needed: a small Debian stands in for the base image, packages come from wheels that are
downloaded first, and the builds themselves have no network. So the steps are proved, and the real base is not. The
downloads and the stand-in are kept in ``build/images``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from packaging.markers import Marker

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "build" / "images"
BASE: Final = "localhost/trilby-base:bookworm"
BASE_PYTHON: Final = "3.11.2"
"""Bookworm's."""

ARM: Final = {
    "3.10.12": ("requirements.lock", "docker/traces.lock"),
    "3.12.12": ("requirements.lock", "docker/traces.lock", "docker/gateway.lock"),
}
"""The Pythons of a Jetson with JetPack 6, and of all other images on ARM, with the locks that are installed there."""

ARM_GLIBC: Final = ("2014", "_2_17", "_2_24", "_2_27", "_2_28", "_2_31", "_2_34", "_2_35")
"""What wheels ask for that JetPack 6 has, whose glibc is the oldest."""

LARGEST_MB: Final = {"gateway": 200, "cloud": 1500, "device": 1500}
REAL_BASE_MB: Final = 130
"""What python:3.12-slim takes; the stand-in is larger."""

READ_ONLY: Final = """
mount --make-rprivate /
mount --bind "$0" "$0"
mount -o remount,bind,ro "$0"
mount -t tmpfs tmpfs "$0/tmp"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
exec "$@"
"""
"""Makes the root of a container read-only, its /tmp aside, and runs a command."""

LISTED: Final = (
    "import importlib.metadata as found; "
    "print(*(f'{each.metadata[\"Name\"]} {each.version}' for each in found.distributions()), sep='\\n')"
)
"""A program that prints what Python has installed."""

BUILD_WITHIN_S: Final = 900.0
ANSWER_WITHIN_S: Final = 120.0


def main() -> None:
    """Build, start, ask; ends with an error where a step does."""
    if os.environ.get("TRILBY_IN_NAMESPACE"):
        return chat()
    for program in ("buildah", "debootstrap", "unshare", "ip"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: apt-get install --no-install-recommends buildah debootstrap iproute2")
    if os.geteuid() != 0:
        sys.exit("images are built as root here: sudo make test-images")
    KEPT.mkdir(parents=True, exist_ok=True)
    make_base()
    download()
    download_for_arm()
    for name, most in LARGEST_MB.items():
        began = time.monotonic()
        build(name)
        size = megabytes(image(name)) - megabytes(BASE) + REAL_BASE_MB
        print(f"{name}: built in {time.monotonic() - began:.0f} s, {size:.0f} MB (at most {most})", flush=True)
        if size > most:
            sys.exit(f"the image of {name} is larger than {most} MB")
    environment = {**os.environ, "TRILBY_IN_NAMESPACE": "1"}
    subprocess.run(["unshare", "--net", sys.executable, "-m", "k8s.images"], check=True, env=environment)


def image(name: str) -> str:
    """What an image is called here."""
    return f"localhost/trilby-{name}:test"


def said(*words: str | Path) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=BUILD_WITHIN_S, cwd=ROOT)
    return done.stdout.strip()


def megabytes(name: str) -> float:
    """The size of an image with all below it, unpacked."""
    with_names = json.loads(said("buildah", "images", "--json", name))
    found = re.fullmatch(r"([\d.]+) ([KMG])B", with_names[0]["size"])
    assert found is not None, with_names
    return float(found[1]) * {"K": 1e-3, "M": 1.0, "G": 1e3}[found[2]]


def make_base() -> None:
    """A Debian with Python, as a base image."""
    if subprocess.run(["buildah", "inspect", "--type", "image", BASE], capture_output=True).returncode == 0:
        return
    print("making a base image from Debian's packages …", flush=True)
    root = KEPT / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    said("debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", root)
    container = said("buildah", "from", "scratch")
    said("buildah", "add", "--quiet", container, root, "/")
    said("buildah", "commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(root)


def download() -> None:
    """All wheels of the lock files, for the base's Python."""
    wheels, wanted = KEPT / "wheels", KEPT / "wanted.txt"
    for lock in ("docker/gateway.lock", "docker/traces.lock", "requirements.lock", "requirements-torch.lock"):
        print(f"downloading {lock} …", flush=True)
        wanted.write_text("\n".join(that_hold((ROOT / lock).read_text())))
        words: list[str | Path] = [
            "download",
            "--quiet",
            "--only-binary",
            ":all:",
            "--python-version",
            BASE_PYTHON,
            "--dest",
            wheels,
        ]
        if "torch" not in lock:
            words.append("--no-deps")
        said(sys.executable, "-m", "pip", "--disable-pip-version-check", *words, "-r", wanted)
    (KEPT / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")


def download_for_arm() -> None:
    """The same for the images that no machine here builds: of all that is pinned, PyTorch aside, there is a wheel."""
    wanted, platforms = KEPT / "wanted.txt", [f"--platform=manylinux{each}_aarch64" for each in ARM_GLIBC]
    for python, locks in ARM.items():
        for lock in locks:
            there = that_hold((ROOT / lock).read_text(), python, platform_machine="aarch64")
            wanted.write_text("\n".join(there))
            words = ["--quiet", "--no-deps", "--only-binary=:all:", f"--python-version={python}", *platforms]
            into = f"--dest={KEPT}/wheels-for-arm"
            said(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *words, into, "-r", wanted)
        print(f"all wheels are there for ARM and Python {python}", flush=True)


def that_hold(lock: str, python: str = BASE_PYTHON, **machine: str) -> Iterator[str]:
    """The requirements of a lock file that hold for a Python, the base's. pip would ask the one that runs it."""
    there = {"python_version": ".".join(python.split(".")[:2]), "python_full_version": python, **machine}
    for line in lock.replace("\\\n", " ").splitlines():
        requirement, _, hashes = line.partition(" --hash")
        name, _, marker = requirement.partition(";")
        if name and not name.startswith("#") and (not marker or Marker(marker).evaluate(there)):
            yield f"{name.strip()}{' --hash' if hashes else ''}{hashes}"


def build(name: str) -> None:
    """One image, without a network."""
    mounts = [f"--volume={KEPT}/wheels:/wheels:ro", f"--volume={KEPT}/pip.conf:/etc/pip.conf:ro"]
    quiet = ["--quiet", "--pull-never", "--isolation=chroot", "--network=host", "--format=docker", "--layers"]
    named = [f"--build-arg=BASE_IMAGE={BASE}", f"--tag={image(name)}", f"--file=docker/{name}.Dockerfile"]
    said("unshare", "--net", "buildah", "bud", *quiet, *mounts, *named, ".")


def sbom_lacks(made: Any, installed: Iterable[tuple[str, str]]) -> list[str]:
    """Of names and versions that are installed, those that an image's list of its parts does not have."""
    there = {(each["name"], each["version"]) for each in made["components"]}
    return [f"{name} {version}" for name, version in installed if (name, version) not in there]


def check_sbom(name: str, root: Path) -> None:
    """The list in an image has its own name, and all that Python and Debian say is installed."""
    made = json.loads((root / "srv/trilby/sbom.cdx.json").read_text())
    distributions = said("chroot", root, "/venv/bin/python", "-c", LISTED)
    packages = said("chroot", root, "dpkg-query", "--show", "--showformat", "${Package} ${Version}\n")
    lacks = sbom_lacks(made, [tuple(line.split()) for line in f"{distributions}\n{packages}".splitlines()])  # type: ignore[misc]
    if lacks or made["metadata"]["component"]["name"] != f"trilby/{name}":
        sys.exit(f"the list of parts in the image of {name} is not its own, or lacks {', '.join(lacks)}")
    print(f"{name}: {len(made['components'])} parts in its list", flush=True)


def chat() -> None:
    """Start the three in this process's own network, each with a root that cannot be written, and ask."""
    said("ip", "link", "set", "lo", "up")
    token, key, cloud = (secrets.token_urlsafe(24) for _ in range(3))
    demo = {"TRILBY_MODEL": "/srv/trilby/models/demo", "TRILBY_CLOUD_TOKEN": cloud}
    settings = {
        "gateway": {"TRILBY_DEVICE_TOKEN": token, "TRILBY_API_KEYS": key},
        "cloud": demo,
        "device": {**demo, "TRILBY_DEVICE_TOKEN": token},
    }
    with ExitStack() as stack:
        running = [stack.enter_context(started(name, values)) for name, values in settings.items()]
        with httpx.Client(base_url="http://127.0.0.1:8000", timeout=30, trust_env=False) as client:
            _await_ready(client)
            asked = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 16}
            answer = client.post("/v1/chat/completions", json=asked, headers={"Authorization": f"Bearer {key}"})
            answer.raise_for_status()
            print("answered:", answer.json()["choices"][0]["message"]["content"], flush=True)
            if client.post("/v1/chat/completions", json=asked).status_code != 401:
                sys.exit("a request without a key was answered")
        for each in running:
            each.check()


@dataclass
class Running:
    """A container that runs: its process, its files, how to run something else beside it, and its health check."""

    name: str
    process: subprocess.Popen[bytes]
    root: Path
    inside: list[str]
    health: list[str]

    def check(self) -> None:
        """It says that it is alive, as docker would ask it; nothing of its root can be written, even by root."""
        beside = ["nsenter", "--mount", f"--target={self.process.pid}"]
        done = subprocess.run([*beside, *self.inside, *self.health], timeout=ANSWER_WITHIN_S)
        touch = [*beside, "touch", str(self.root / "srv/trilby/written")]
        wrote = subprocess.run(touch, capture_output=True, text=True, timeout=ANSWER_WITHIN_S)
        if done.returncode or "Read-only" not in wrote.stderr:
            sys.exit(f"{self.name} does not say that it is alive, or its root can be written")
        print(f"{self.name}: alive, its root read-only", flush=True)


@contextmanager
def started(name: str, values: dict[str, str]) -> Iterator[Running]:
    """An image as docker would run it with ``--read-only --tmpfs /tmp``: its own user, variables and command."""
    container = said("buildah", "from", "--pull-never", image(name))
    try:
        about = json.loads(said("buildah", "inspect", "--type", "image", image(name)))["Docker"]["config"]
        health = (about.get("Healthcheck") or {}).get("Test", [])
        if about["User"] != "10001:10001" or health[:1] != ["CMD"]:
            sys.exit(f"the image of {name} has lost its user or its health check")
        root = Path(said("buildah", "mount", container))
        check_sbom(name, root)
        if name != "gateway" and (root / "cache").stat().st_uid != 10001:
            sys.exit(f"weights could not be kept in the image of {name}: its folder for them is another's")
        variables = ["HOME=/", *about["Env"], *(f"{variable}={value}" for variable, value in values.items())]
        within = ["env", "-i", f"--chdir={about['WorkingDir']}", *variables]
        inside = ["chroot", "--userspec=10001:10001", "--groups=", str(root), *within]
        entry = [*(about.get("Entrypoint") or ()), *(about.get("Cmd") or ())]
        words = ["unshare", "--mount", "sh", "-ec", READ_ONLY, str(root), *inside, *entry]
        with subprocess.Popen(words) as process:
            try:
                yield Running(name, process, root, inside, health[1:])
            finally:
                process.terminate()
    finally:
        said("buildah", "rm", container)


def _await_ready(client: httpx.Client) -> None:
    until = time.monotonic() + ANSWER_WITHIN_S
    while time.monotonic() < until:
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    sys.exit(f"no device was ready within {ANSWER_WITHIN_S:.0f} s")


if __name__ == "__main__":
    main()
