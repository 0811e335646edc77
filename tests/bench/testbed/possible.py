"""Whether this machine can carry a testbed at all, found out before anything is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from bench.testbed.hierarchy import this_hierarchy

PACKAGES = {"iproute2": ("bridge", "ip", "tc"), "util-linux": ("nsenter", "setpriv", "unshare")}
TOOLS = {tool: package for package, tools in PACKAGES.items() for tool in tools}
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
TRIAL = (
    "ip link set lo up && ip link add trial0 type veth peer name trial1 && ip link add trial2 type bridge"
    " && tc qdisc add dev trial0 root tbf rate 1mbit burst 2kb latency 50ms"
)
TRIAL_WITHIN_S = 20.0


class NotPossible(RuntimeError):
    """No testbed here; the message says what is missing and what to do."""


@lru_cache(maxsize=1)
def obstacle() -> str:
    """What stands in the way, and what to do about it; '' where nothing does."""
    if sys.platform != "linux":
        return "a testbed is made of Linux's network namespaces and cgroups; run it on Linux"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
        return f"{', '.join(missing)} not found; install the packages {packages}"
    held = _capabilities()
    lacking = [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]
    if os.geteuid() != 0 or lacking:
        return (
            f"this takes root{''.join(f' and {name}' for name in lacking)}, for network namespaces and cgroups; "
            "run it as root, in a container with --privileged"
        )
    trial = subprocess.run(
        ["unshare", "--net", "sh", "-c", TRIAL], capture_output=True, text=True, timeout=TRIAL_WITHIN_S
    )
    if trial.returncode:
        return f"the kernel has to know veth, bridge and tbf (CONFIG_NET_SCH_TBF): {trial.stderr.strip()}"
    try:
        bases = this_hierarchy().bases
    except LookupError as error:
        return f"{error}; mount one of them (a container needs --privileged)"
    closed = sorted({str(base) for base in bases.values() if not os.access(base, os.W_OK)})
    if closed:
        return f"no cgroup can be made in {', '.join(closed)}; a container needs --privileged, not a read-only /sys"
    return ""


def check_possible() -> None:
    """Raises NotPossible."""
    if obstacle():
        raise NotPossible(obstacle())


def _capabilities() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
