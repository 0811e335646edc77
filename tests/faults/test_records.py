"""What need not be tried again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from faults import records
from faults.records import TEST, append, commit, done


def test_a_changed_tree_is_no_commit(tmp_path: Path) -> None:
    """Whether a file is changed or new; results are no sources."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words], check=True, cwd=tmp_path)

    assert commit(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    git("add", "a.py")
    git("commit", "-q", "-m", "One")
    commit.cache_clear()
    clean = commit(tmp_path)
    assert clean and not clean.endswith("+")
    for file, changed in (("docs/results/page.md", ""), ("b.py", "+"), ("a.py", "+")):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("2\n")
        commit.cache_clear()
        assert commit(tmp_path) == clean + changed
        if file == "b.py":
            (tmp_path / file).unlink()
    commit.cache_clear()


@pytest.mark.parametrize(("now", "left_out"), [("abc", {"a"}), ("abc+", set()), ("", set())])
def test_what_has_passed_at_this_commit_is_done(
    now: str, left_out: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the sources are those of a commit, and where git says so."""
    monkeypatch.setattr(records, "commit", lambda: now)
    file = tmp_path / "records.jsonl"
    for test, at, outcome in (("a", now, "passed"), ("b", now, "failed"), ("c", "def", "passed")):
        append(file, {"kind": TEST, "test": test, "commit": at, "outcome": outcome})
    assert done(file) == left_out
