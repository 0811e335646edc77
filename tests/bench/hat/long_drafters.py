"""Drafters for the demo model with stretched positions: as its own were made, of text as long as its prompts.

A drafter is made for a model. Stretched and behind a thousand tokens of stories the demo model says other things than
it was taught, and drafters that have seen it behind a hundred tokens at most guess them badly: all of them, ours and
those of the methods that ours is compared with. So all are trained anew, for as long and in the same way
(``models/demo/recipe/drafters.py``), on conversations of the side that training may see, their answers being the
stretched model's own. The folder ``drafters`` has them.

    PYTHONPATH=tests python -m bench.hat.long_drafters

makes that folder again, in half an hour of one core.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Final

from bench.hat.lengths import CNN_DM, POSITIONS, SPECBENCH, draw
from bench.hat.long_demo import KINDS, SMALL, long_demo
from bench.hat.prompts import demo_prompts, taught_conversations
from rich.console import Console

from drafting.distill.corpus import Renewal, Source
from drafting.distill.making import Described, make_drafter
from drafting.distill.network import FrozenHead
from drafting.distill.text import Document
from drafting.distill.training import TrainingPlan
from drafting.drafter_file import read_drafter
from models.demo.recipe.drafters import LOSSES, RATES
from models.demo.recipe.sample import Message
from models.demo.recipe.small import save_small, small_model, train_small
from service.bars import Bars
from split_model.checkpoint import Checkpoint

MADE: Final = Path(__file__).with_name("drafters")
SPLIT: Final = 2
ANSWER_TOKENS: Final = 128
CONVERSATIONS: Final = 1000
MEASURED_ON: Final = 40
TOKENS: Final = 2_200_000
"""Read by each drafter, as by those of the demo model."""

BATCH_TOKENS: Final = 2048
SMALL_SHAPE: Final = "body"
SEED: Final = 7000
"""Of the text; no seed of a measured prompt is near it."""


def drafted(model: Path, made: Path = MADE) -> Path:
    """The same folder with copies of the drafters in ``made``. Raises ValueError where they are for another model."""
    done = model / "drafters" / "distilled"
    if not fitting(made, model):
        raise ValueError(f"{made} has no drafters for {model}: make them with `python -m bench.hat.long_drafters`")
    if not done.is_file() or done.read_text(encoding="utf-8") != digest(made):
        for each in (*(made / f"{kind}.safetensors" for kind in KINDS), made / SMALL):
            _put(each, model / "drafters" / each.name)
        done.write_text(digest(made), encoding="utf-8")
    return model


def fitting(made: Path, model: Path) -> bool:
    """Whether a folder has every drafter, each trained for this very model."""
    files = _files(made)
    if not all(file.is_file() for file in files):
        return False
    wanted = Checkpoint.open(model).digest(), SPLIT
    return all((found.digest, found.split) == wanted for found in map(read_drafter, files[:-1]))


def digest(made: Path) -> str:
    """Of the weights of all drafters in a folder."""
    found = hashlib.sha256()
    for file in _files(made):
        found.update(hashlib.sha256(file.read_bytes()).digest())
    return f"sha256:{found.hexdigest()}"


def _files(made: Path) -> list[Path]:
    return [*(made / f"{kind}.safetensors" for kind in KINDS), made / SMALL / "model.safetensors"]


def trained(
    model: Path, run: Path, *, conversations: int = CONVERSATIONS, tokens: int = TOKENS, measured_on: int = MEASURED_ON
) -> Path:
    """Train all of them; the folder within ``run`` that they are in. What was done when it was stopped is kept there.

    Args:
        conversations: of the text; ``tokens``: read by each drafter; ``measured_on``: prompts that it is measured on.
    """
    source, console, made = Source(model, POSITIONS), Console(stderr=True), run / "made"
    console.print("Training drafters for long prompts: half an hour, once.")
    with Bars(console) as bars:
        texts = source.answered(_texts(source, conversations), Renewal((0.0, 1.0), ANSWER_TOKENS, SEED), run, bars)
        files = source.features(texts, SPLIT, run / "features", bars)
        asked = [_document(source, prompt.messages) for prompt in demo_prompts(_lengths(measured_on), SEED)]
        greedy = Renewal((0.0,), ANSWER_TOKENS, SEED)
        measured = source.answered(asked, greedy, run, bars, source.exact_model())
        words = Described("stories of the recipe, long, the last one as the model says it", "prompts as measured")
        for kind in KINDS:
            plan = TrainingPlan(LOSSES[kind], tokens=tokens, batch_tokens=BATCH_TOKENS, rate=RATES[kind])
            drafter = make_drafter(source, kind, files, measured, plan, run / kind, made, words, bars)
            bars.console.print(f"{kind}: tau {drafter.acceptance.tau:.2f}")
        small = small_model(SMALL_SHAPE, source.spec, 0)
        with bars.training(tokens) as told:
            train_small(small, FrozenHead.load(source.checkpoint), files, tokens, 0, lambda read: told(read, ""))
        save_small(small, model, made / SMALL)
    return made


def main() -> None:
    """Train, and put what was made where it is kept."""
    with tempfile.TemporaryDirectory(prefix="long-drafters.") as folder:
        for each in trained(long_demo(Path(folder) / "long-demo"), Path(folder) / "run").iterdir():
            _put(each, MADE / each.name)


def _put(each: Path, there: Path) -> None:
    if each.is_dir():
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(each, there)
    else:
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each, there)


def _lengths(count: int) -> list[int]:
    """As the prompts that are measured: of both sets in equal parts, with room for the answer."""
    most = POSITIONS - ANSWER_TOKENS - 16
    return [length for each in (SPECBENCH, CNN_DM) for length in draw(each, -(-count // 2), SEED, most)]


def _texts(source: Source, count: int) -> list[Document]:
    return [_document(source, messages) for messages in taught_conversations(_lengths(count), SEED)]


def _document(source: Source, messages: list[Message]) -> Document:
    """A conversation with a place for the answer that the model will give."""
    found = source.writer.conversation([*messages, {"role": "assistant", "content": "Once"}])
    assert found is not None
    return found


if __name__ == "__main__":
    main()
