"""Which part of a schema cannot be compiled, where a whole one cannot. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from device_agent.answering.form_limits import read_schema
from device_agent.answering.schema_parts import Part, parts_of
from wire.request_messages import Grammar

MAX_LOOKS: Final = 50
"""Parts of a schema that are compiled by themselves to find the one that cannot be."""

MAX_LOOKED_AT: Final = 2**14
"""Characters of a schema whose parts are looked at."""


def faulty_part(grammar: Grammar, why_not: Callable[[str], str | None], reason: str) -> str:
    """The member of the request to name where a form cannot be compiled: of a schema its innermost part that by itself
    cannot be compiled for the same reason.

    why_not: why a schema cannot be compiled; None where it can.
    """
    if grammar.kind != "json" or len(grammar.text) > MAX_LOOKED_AT:
        return grammar.param
    whole = Part(grammar.param, read_schema(grammar))
    shared = {name: whole.schema[name] for name in ("$defs", "definitions") if name in whole.schema}
    left, part = MAX_LOOKS, whole
    while True:
        for inner in parts_of(part):
            left -= 1
            if left < 0:
                return part.place
            if why_not(json.dumps(shared | inner.schema)) == reason:
                part = inner
                break
        else:
            return part.place
