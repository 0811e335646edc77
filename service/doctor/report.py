"""What the doctor prints: each finding as it comes, what is being looked at, and a summary."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection
from typing import Final

import click

from service.doctor.check import Check, run
from service.doctor.finding import Finding, cleaned, told
from service.version import VERSION

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


class Report:
    """Findings as they come.

    Args:
        as_json: nothing is printed before the end, and then all of it as one object.
        secrets: what is never shown.

    Attributes:
        findings: all so far, as they were shown.
    """

    def __init__(self, as_json: bool, secrets: Collection[str]) -> None:
        self.findings: list[Finding] = []
        self._json, self._secrets = as_json, [each for each in secrets if each]
        self._terminal = sys.stderr.isatty()

    def say(self, finding: Finding) -> None:
        """Tell a finding."""
        finding = cleaned(finding, self._secrets)
        self.findings.append(finding)
        if not self._json:
            self.doing("")
            status = finding.status
            click.echo(click.style(status, fg=_COLOURS[status]) + told(finding)[len(status) :])

    def doing(self, what: str) -> None:
        """Show what is looked at now, where somebody looks; nothing: it is over."""
        if self._terminal:
            click.echo(f"\r\033[K{what}", nl=False, err=True)

    def run(self, check: Check) -> None:
        """Run a check and tell what it finds."""
        about = f"{check.about} " if check.about else ""
        self.doing(f"{about}{check.name} … (up to {check.within_s:g} s)")
        run(check, self.say)
        self.doing("")

    def end(self, seconds: float) -> int:
        """Sum up; returns the exit status."""
        counts = Counter(each.status for each in self.findings)
        if self._json:
            facts = [each.facts for each in self.findings]
            click.echo(json.dumps({"version": VERSION, "seconds": round(seconds, 1), "findings": facts}, indent=1))
        else:
            click.echo(
                f"\n{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed, in {seconds:.0f} s."
            )
        return 1 if counts["fail"] else 0
