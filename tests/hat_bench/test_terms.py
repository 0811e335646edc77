"""What methods were compared on is told as it was: lengths of prompts, and what goodput asks."""

from __future__ import annotations

from typing import Any

from bench.hat import terms
from bench.hat.lengths import CNN_DM, POSITIONS, draw
from bench.hat.prompts import TOLERANCE
from bench.hat.summary import Measured
from hat_bench.invented import parsed, record


def test_lengths_stand_beside_table_3() -> None:
    """Of as many as were drawn; where the model has no room for all of a prompt, that is counted."""
    made = [
        record("rates", "hat", rate=2.0, dataset=dataset, tokens=tokens)
        for dataset, tokens in (("cnndm", 500), ("specbench", 128))
    ]
    lines = terms.prompt_lengths(Measured(parsed(*made))).splitlines()[2:]
    news, bench = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert bench[:4] == ["SpecBench lengths", "rates", "24", "128"] and bench[4].endswith(" / 351.2")
    assert bench[7:] == ["0", "350.0"]
    cut = sum(each > POSITIONS - 500 - TOLERANCE for each in draw(CNN_DM, 24, 3))
    assert news[5].endswith(" / 1772.0") and news[7] == str(cut) and cut > 0
    (real,) = terms.prompt_lengths(Measured(parsed(record("real", "hat", dataset="real")))).splitlines()[2:]
    assert [cell.strip() for cell in real.strip("|").split("|")][2:] == ["24", "128", *"––––", "350.0"]


def test_limits_of_goodput_are_as_long_as_our_steps() -> None:
    """A base of 8 ms beside 26 makes half a second 154 ms; a chunk twice as long as the paper's doubles the other."""
    made = record("rates", "hat", rate=2.0)
    made["scaling"] |= {"paper_chunk_ms": 43.5, "our_chunk_ms": 87.0}
    line = terms.goodput_limits(Measured(parsed(made))).splitlines()[-1]
    assert [cell.strip() for cell in line.strip("|").split("|")][2:] == ["700", "154"]


def test_a_drafted_token_stands_beside_a_token_of_u_shape() -> None:
    """Rounds of 5.5 tokens, each in 20 ms where U-shape takes 55, are two of its tokens long: of five drafted tokens
    each adds a fifth of one. In Table 4 2.06 tokens at 1.65 times the speed leave 0.23 for each that was accepted."""
    drafted: dict[str, Any] = {"latency__tau": 5.5, "latency__tokens": 2224, "latency__proposed": 2000}
    made = [record("rates", "ushape", rate=2.0), record("rates", "hat-paper", rate=2.0, **drafted)]
    line = terms.drafted_tokens(Measured(parsed(*made))).splitlines()[-1]
    assert [cell.strip() for cell in line.strip("|").split("|")][2:] == ["middle rate", "0.20", "0.23"]
    alone = [record("single", "ushape"), record("single", "hat-paper", **drafted)]
    assert "one device" in terms.drafted_tokens(Measured(parsed(*made, *alone)))
    assert not terms.drafted_tokens(Measured(parsed(made[0])))
    nothing = record("rates", "hat-paper", rate=2.0, **(drafted | {"latency__proposed": 0}))
    assert "–" in terms.drafted_tokens(Measured(parsed(made[0], nothing)))


def test_an_installation_is_told_as_it_is_declared() -> None:
    """Devices, their modes, and the cloud's cores."""
    made = [record("rates", "hat", setting=setting, rate=2.0) for setting in ("demo", "wide")]
    lines = terms.installations(Measured(parsed(*made))).splitlines()[2:]
    demo, wide = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert demo[1:] == ["3", "0.5 / 0.4 / 0.3", "0.25"]
    assert wide[1:] == ["3", "0.4 / 0.32 / 0.24", "0.6"]
