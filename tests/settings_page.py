"""Writes docs/settings.md from the settings dataclasses: ``python tests/settings_page.py``."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

from cloud_server.config import CloudConfig
from cloud_server.stages.stage import StageConfig
from device_agent.auditing.config import AuditConfig
from device_agent.config import DeviceConfig
from device_agent.group.member import MemberConfig
from device_agent.plan import PlanConfig
from device_agent.profiling.config import ProfileConfig
from gateway.config import GatewayConfig
from service.bench.config import BenchConfig
from service.chat import ChatConfig
from service.doctor.config import DoctorConfig
from service.secret_files import file_help
from service.serve import DEMO, ServeConfig
from service.setting_names import ENDING, flag_of, variable_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"

HEAD = """# Settings

Every setting is a flag and an environment variable; a flag wins over the variable, the variable over the default.
(`trilby keys`, `certs` and `distill` have flags of their own: see their `--help`.)
A value that does not fit is refused at the start. Secrets belong into the variables or into files:
others on the machine can read a command line. `--help` shows what users decide; what only tunes, or leaves a
part out to see what it is worth, is shown by `--help-all`. No variable means two things: all processes may share one
environment. This page is made from the code by `make settings`.
"""


@dataclass(frozen=True)
class Row:
    """One line of the table of settings; ``tunes``: only ``--help-all`` shows it."""

    flag: str
    variable: str
    default: str
    help: str
    tunes: bool


def table(config_class: type[Any]) -> list[Row]:
    """The settings of a dataclass as rows."""
    rows: list[Row] = []
    for each in fields(config_class):
        about, tunes = str(each.metadata["help"]), each.metadata["tunes"]
        flag = each.name.upper() if each.metadata["argument"] else flag_of(each.name)
        rows.append(Row(flag, variable_of(each), _shown(each), about, tunes))
        if each.metadata["secret"]:
            rows.append(Row(flag_of(each.name + ENDING), variable_of(each, ENDING), "", file_help(each), True))
    return rows


def _shown(each: Field[Any]) -> str:
    if each.default is MISSING:
        return "required"
    default = each.default if each.default is not None else each.metadata["usual"]
    if isinstance(default, tuple):
        return ",".join(default)
    return str(default if default is not None else "")


def page() -> str:
    """The whole page."""
    commands = {
        "trilby serve": ServeConfig,
        "trilby gateway": GatewayConfig,
        "trilby cloud": CloudConfig,
        "trilby stage": StageConfig,
        "trilby device": DeviceConfig,
        "python -m device_agent.group.member": MemberConfig,
        "trilby profile": ProfileConfig,
        "trilby plan": PlanConfig,
        "trilby audit": AuditConfig,
        "trilby chat": ChatConfig,
        "trilby bench": BenchConfig,
        "trilby doctor": DoctorConfig,
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
