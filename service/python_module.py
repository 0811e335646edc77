"""How a program of ours is started as a process of its own: with no code from the folder that its user stands in.

``python -m`` looks for modules there first. A model that was downloaded may have come with a ``json.py``, and a project
of one's own may have a package ``gateway``.
"""

from __future__ import annotations

import sys
from typing import Final

_BEFORE_3_11: Final = (
    "import runpy, sys; sys.path[:] = filter(None, sys.path); del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""Python 3.10 has no ``-P``."""


def python_module(name: str) -> list[str]:
    """The command that runs this module as a program; its arguments come behind."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", name]
    return [sys.executable, "-c", _BEFORE_3_11, name]
