"""Cases of which some are tested always, and the others where there is time: ``make test-slow``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def sample(cases: Iterable[Any], always: str) -> list[Any]:
    """Parameters of a test: all cases, single values or tuples; slow are those that are not named in ``always``, by
    their values with hyphens between them."""
    kept, found = set(always.split()), [case if isinstance(case, tuple) else (case,) for case in cases]
    names = ["-".join(map(str, case)) for case in found]
    assert kept <= set(names), kept - set(names)
    marks = [() if name in kept else (pytest.mark.slow,) for name in names]
    return [pytest.param(*case, marks=mark) for case, mark in zip(found, marks, strict=True)]


def named_sample(cases: Mapping[str, Any], always: Iterable[str]) -> list[Any]:
    """The same of single values that have names; ``always`` are those tested always."""
    kept = set(always)
    assert kept <= set(cases), kept - set(cases)
    return [pytest.param(case, id=name, marks=() if name in kept else pytest.mark.slow) for name, case in cases.items()]
