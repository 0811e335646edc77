"""The process that looks at models and wire: whatever it does, what it has found is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from service.doctor import apart
from service.doctor.apart import examined
from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding

FINE = 'import sys; print(\'{"check": "a", "status": "ok", "seen": "b"}\', flush=True); '


def told(script: str, config: DoctorConfig | None = None) -> tuple[list[Finding], list[str]]:
    """What is found, and what was said to be looked at, where that process is this script."""
    found: list[Finding] = []
    doing: list[str] = []
    examined(config or DoctorConfig(), [], found.append, doing.append, (sys.executable, "-c", script))
    return found, doing


def test_findings_are_told_as_they_come() -> None:
    """And what libraries print is not."""
    found, doing = told(FINE + "print('{\"doing\": \"it\"}'); print('a library'); print('[]'); print('\\xff')")
    assert found == [Finding("a", "ok", "b")] and doing == ["it"]


@pytest.mark.parametrize(
    ("end", "word"),
    [
        ("raise ImportError('libcudart.so.12 is missing')", "ImportError: libcudart.so.12 is missing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "instructions that this processor does not have"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "too little memory"),
        ("sys.exit(3)", "exit status 3"),
    ],
)
def test_a_process_that_dies(end: str, word: str) -> None:
    """What it had found stays, and why it has ended is said."""
    found, _ = told(FINE + end)
    assert found[0].status == "ok" and found[1].status == "fail"
    assert word in found[1].seen and "PyTorch" in found[1].todo


def test_a_process_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, and is gone behind it."""
    monkeypatch.setattr(apart, "SILENT_WITHIN_S", 3.0)
    script = FINE + 'import os, time; print(\'{"doing": "%d"}\' % os.getpid(), flush=True); time.sleep(60)'
    found, [pid] = told(script)
    assert found[-1].status == "fail" and "nothing was heard" in found[-1].seen
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_secrets_go_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads them on a command line; what came from a file goes as that file, and nothing is given twice."""
    monkeypatch.setenv("TRILBY_DEVICE_TOKEN_FILE", str(tmp_path / "elsewhere"))
    script = (
        "import os, sys, json; "
        "names = ('TRILBY_CLOUD_TOKEN', 'TRILBY_DEVICE_TOKEN', 'TRILBY_DEVICE_TOKEN_FILE'); "
        "said = [str('sesame' in str(sys.argv)), *(str(os.environ.get(name)) for name in names)]; "
        "print(json.dumps({'doing': ' '.join(said)}))"
    )
    found, [said] = told(script, DoctorConfig(cloud_token="sesame", split=3, cloud=("ws://a:1",)))
    assert not found and said.split(" ") == ["False", "sesame", "", "None"]
