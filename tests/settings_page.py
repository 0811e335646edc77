"""Writes docs/settings.md from the settings dataclasses: ``python tests/settings_page.py``."""

from __future__ import annotations

from pathlib import Path

from cloud_server.config import CloudConfig
from cloud_server.stages.stage import StageConfig
from device_agent.config import DeviceConfig
from gateway.config import GatewayConfig
from service.chat import ChatConfig
from service.serve import DEMO, ServeConfig
from service.settings import table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"

HEAD = """# Settings

Every setting is a flag and an environment variable; a flag wins over the variable, the variable over the default.
A value that does not fit is refused at the start. Secrets belong into the variables or into files:
others on the machine can read a command line. `--help` shows what users decide; what only tunes, or leaves a
part out to see what it is worth, is shown by `--help-all`. No variable means two things: all processes may share one
environment. This page is made from the code by `make settings`.
"""


def page() -> str:
    """The whole page."""
    commands = {
        "trilby serve": ServeConfig,
        "trilby gateway": GatewayConfig,
        "trilby cloud": CloudConfig,
        "trilby stage": StageConfig,
        "trilby device": DeviceConfig,
        "trilby chat": ChatConfig,
    }
    parts = [HEAD]
    for command, config in commands.items():
        rows = ["| flag | variable | default | for | meaning |", "| --- | --- | --- | --- | --- |"]
        rows += [
            f"| `{row.flag}` | `{row.variable}` | {row.default.replace(str(DEMO), 'the demo model')} | "
            f"{'tuning' if row.tunes else 'users'} | {row.help} |"
            for row in table(config)
        ]
        parts.append(f"## {command}\n\n{(config.__doc__ or '').strip().splitlines()[0]}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
