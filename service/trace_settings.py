"""Where traces go, as settings and OpenTelemetry's standard variables say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from service.settings import tuning
from service.traces import NO_TRACES, Traces

EXTRA: Final = "pip install '.[traces]' in Trilby's folder"

PATH: Final = "/v1/traces"

SCHEMES: Final = ("http://", "https://")


@dataclass(frozen=True)
class TraceSettings:
    """Traces."""

    otlp_endpoint: str = tuning(
        "",
        "collector that gets a trace of each request, by OTLP over HTTP: http://HOST:4318; empty: what "
        "OTEL_EXPORTER_OTLP_ENDPOINT says, else none; needs the extra traces",
    )

    def check_traces(self) -> None:
        """Raises ValueError where the collector's address is none."""
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(SCHEMES):
            raise ValueError("--otlp-endpoint is http://HOST:PORT or https://HOST:PORT")

    def traces(self, process: str) -> Traces:
        """Return where the spans of this process begin. Once logs are configured.

        Raises:
            SystemExit: a collector was named, and what sends to it is not installed.
        """
        endpoint = endpoint_of(self.otlp_endpoint, os.environ)
        if not endpoint:
            return NO_TRACES
        try:
            from service.span_export import SentTraces
        except ImportError as error:
            if self.otlp_endpoint:
                raise SystemExit(f"--otlp-endpoint needs OpenTelemetry's SDK and exporter: {EXTRA}") from error
            why = f"OpenTelemetry's SDK or exporter is missing: {EXTRA}"
            structlog.get_logger().warning("traces are not sent", where=endpoint, why=why)
            return NO_TRACES
        return SentTraces(process, endpoint)


def endpoint_of(said: str, variables: Mapping[str, str]) -> str:
    """Return the URL that traces are sent to, an empty text where none are. Pure.

    Args:
        said: as a setting names the collector, without the path.
        variables: the environment. ``OTEL_SDK_DISABLED``, and an ``OTEL_TRACES_EXPORTER`` other than ``otlp``, turn
            traces off; the setting goes before the other variables.
    """
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if variables.get("OTEL_TRACES_EXPORTER", "").strip() not in ("", "otlp"):
        return ""
    if not said and (whole := variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()):
        return whole
    base = said or variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    return base.rstrip("/") + PATH if base else ""
