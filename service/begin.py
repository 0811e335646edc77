"""``python -m service.begin PACKAGE …``: as ``python -m PACKAGE …``, which Ctrl-C ends without a word from the first
moment on: importing the libraries takes seconds, and Python would answer with a traceback of wherever it was."""

from __future__ import annotations

import runpy
import sys

from service.stopping import end_at_once

if __name__ == "__main__":
    end_at_once()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
