"""`python -m device_agent.auditing`, which is `trilby audit`: how much of a text is read off what crosses the wire."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console

from device_agent.auditing.audit import audit
from device_agent.auditing.cloud_process import AuditFailed
from device_agent.auditing.config import AuditConfig
from device_agent.auditing.figures import AuditFigures
from device_agent.auditing.report import data, plot, tables
from device_agent.auditing.texts import BadText
from drafting.errors import BadDrafter
from service.bars import Bars
from service.logs import configure_logs
from service.setting_names import ENVIRONMENT_PREFIX
from service.settings import settings_command
from service.stopping import end_in_order
from split_model.errors import ModelError

EXAMPLES = """
trilby audit
trilby audit --model ~/models/Qwen3-0.6B --split 4 --text notes.txt --out audited
trilby audit --split 2 --draft none --pairs 100,1000
"""


def run(config: AuditConfig) -> None:
    """Audit, show, write."""
    end_in_order()
    configure_logs("audit", "error", "text")
    for name in [each for each in os.environ if each.startswith(ENVIRONMENT_PREFIX)]:
        del os.environ[name]  # They are read; what else they say is not meant for the cloud server of an audit.
    try:
        with Bars(Console(stderr=True)) as bars:
            found = audit(config, bars)
    except (ModelError, BadDrafter, BadText, AuditFailed, ValueError) as error:
        raise SystemExit(f"Cannot audit {config.model}: {error}") from None
    click.echo(data(found) if config.json else tables(found), nl=False)
    if config.out:
        _write(Path(config.out), found)


def _write(folder: Path, found: AuditFigures) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in {"audit.md": tables(found), "audit.svg": plot(found), "audit.json": data(found)}.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"Cannot write to {folder}: {error.strerror}") from None
    click.echo(f"Written to {folder}: audit.md, audit.svg, audit.json", err=True)


main = settings_command(AuditConfig, run, name="trilby audit", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
