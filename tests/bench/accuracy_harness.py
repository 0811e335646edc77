"""EleutherAI's lm-evaluation-harness, unchanged, on tasks made of files that are at hand: it looks for none itself.

It is best installed in an environment of its own (``pip install 'lm_eval[api]'``); ``LM_EVAL`` says where its command
is, if it is not on the path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from checkpoints import DATA

from models.demo.recipe.corpus import MAKERS, heldout_sample

MISSING: Final = "lm-evaluation-harness is not installed: pip install 'lm_eval[api]', and let LM_EVAL name its lm_eval"
BATCH: Final = 8
"""Texts in one request, whose scores together are far below what an answer may have."""

DISTRACTORS: Final = 3
"""Wrong answers beside the right one, where a skill of the demo model is asked as a choice."""


@dataclass(frozen=True)
class Row:
    """A question of a task: what is before each choice, the choices, and which of them are right."""

    text: str
    choices: list[str]
    right: list[int]


@dataclass(frozen=True)
class Outcome:
    """What the harness says of a task: its accuracy, 0 to 1, which questions were right, and the scores of choices."""

    accuracy: float
    right: list[bool]
    scores: list[list[float]]


def command() -> str | None:
    """The harness's command, where there is one."""
    return os.environ.get("LM_EVAL") or shutil.which("lm_eval")


# ---- SuperGLUE, each task worded as the harness words its own --------------------------------------------------------


def _boolq(row: Mapping[str, Any]) -> Iterator[Row]:
    text = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    yield Row(text, ["no", "yes"], [int(row["label"])])


def _cb(row: Mapping[str, Any]) -> Iterator[Row]:
    labels = ["entailment", "contradiction", "neutral"]
    text = f"{row['premise']}\nQuestion: {row['hypothesis']}. True, False, or Neither?\nAnswer:"
    yield Row(text, ["True", "False", "Neither"], [labels.index(row["label"])])


def _rte(row: Mapping[str, Any]) -> Iterator[Row]:
    text = f"{row['premise']}\nQuestion: {row['hypothesis']} True or False?\nAnswer:"
    yield Row(text, ["True", "False"], [int(row["label"] != "entailment")])


def _wic(row: Mapping[str, Any]) -> Iterator[Row]:
    word = row["sentence1"][row["start1"] : row["end1"]]
    asked = f"Question: Is the word '{word}' used in the same way in the two sentences above?"
    text = f"Sentence 1: {row['sentence1']}\nSentence 2: {row['sentence2']}\n{asked}\nAnswer:"
    yield Row(text, ["no", "yes"], [int(row["label"])])


def _multirc(row: Mapping[str, Any]) -> Iterator[Row]:
    for question in row["passage"]["questions"]:
        text = f"{row['passage']['text']}\nQuestion: {question['question']}\nAnswer:"
        for answer in question["answers"]:
            choices = [f"{answer['text']}\nIs the answer correct? {word}" for word in ("yes", "no")]
            yield Row(text, choices, [1 - int(answer["label"])])


def _record(row: Mapping[str, Any]) -> Iterator[Row]:
    passage = row["passage"]["text"]
    first, *highlights = passage.strip().split("\n@highlight\n")
    text = first + "\n\n" + "".join(f"  - {each}.\n" for each in highlights)
    spans = [passage[each["start"] : each["end"] + 1] for each in row["passage"]["entities"]]
    names = sorted(set(spans))
    for asked in row["qas"]:
        right = sorted({names.index(each["text"]) for each in asked["answers"] if each["text"] in names})
        if right:
            yield Row(text, [f"  - {asked['query']}".replace("@placeholder", each) for each in names], right)


SUPERGLUE: Final[dict[str, tuple[str, Callable[[Mapping[str, Any]], Iterator[Row]]]]] = {
    "boolq": ("superglue_boolq_val", _boolq),
    "cb": ("superglue_cb_val", _cb),
    "multirc": ("superglue_multirc_val", _multirc),
    "record": ("superglue_record_64", _record),
    "rte": ("superglue_rte_val", _rte),
    "wic": ("superglue_wic_val", _wic),
}


def superglue(name: str, most: int | None = None) -> list[Row]:
    """The rows of a task of SuperGLUE, or the first of them. Raises FileNotFoundError where its data is not at hand."""
    file, rows = SUPERGLUE[name]
    lines = (DATA / "prompts" / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()
    return list(islice((row for line in lines for row in rows(json.loads(line))), most))


def skill_choices(render: Callable[[Sequence[Mapping[str, str]]], str], each: int) -> list[Row]:
    """Held-out questions of every skill of the demo model, each with answers to other questions of that skill."""
    found = []
    for skill in MAKERS:
        samples = [heldout_sample(skill, f"choices-{number}") for number in range(4 * each)]
        answers = sorted({sample.answer for sample in samples})
        for number, sample in enumerate(samples[:each]):
            at = answers.index(sample.answer)
            choices = [answers[(at + step) % len(answers)] for step in range(min(1 + DISTRACTORS, len(answers)))]
            turn = number % len(choices)  # The right one is now here, now there.
            found.append(Row(render(sample.prompt), choices[-turn:] + choices[:-turn] if turn else choices, [turn]))
    return found


# ---- the harness -----------------------------------------------------------------------------------------------------


def write_tasks(folder: Path, tasks: Mapping[str, Sequence[Row]]) -> None:
    """Write tasks as the harness reads them; choices follow their text behind a blank, or at once where it ends so."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tasks.items():
        lines = [json.dumps({"text": row.text, "choices": row.choices, "right": row.right}) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"validation": str(folder / f"{name}.jsonl")}},
            "validation_split": "validation",
            "output_type": "multiple_choice",
            "doc_to_text": "text",
            "doc_to_choice": "choices",
            "doc_to_target": "right",
            "target_delimiter": "" if any(row.text.endswith(">") for row in rows) else " ",
            "metric_list": [{"metric": "acc"}],
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML.


def evaluate(
    lm_eval: str,
    folder: Path,
    tasks: Mapping[str, Sequence[Row]],
    model: str,
    *arguments: str,
    within_s: float,
    key: str = "",
) -> dict[str, Outcome]:
    """What the harness finds.

    Args:
        folder: for what it reads and writes.
        model: which of its ways to a model, and ``arguments`` of that, as ``name=value``.
        key: the server's API key, which it takes from its environment; empty: it shows none.

    Raises:
        RuntimeError: it failed; with the end of what it said.
        subprocess.TimeoutExpired: it took longer.
    """
    write_tasks(folder / "tasks", tasks)
    out, names = folder / "out" / model, list(tasks)
    line = [lm_eval, "run", "--model", model, "--model_args", *arguments, "--tasks", ",".join(names)]
    line += [
        "--batch_size",
        str(BATCH),
        "--include_path",
        str(folder / "tasks"),
        "--output_path",
        str(out),
        "--log_samples",
    ]
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    environment = {**os.environ, **offline, "HF_HOME": str(folder / "cache")}
    environment.pop("PYTHONPATH", None)
    environment |= {"OPENAI_API_KEY": key} if key else {}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=within_s, check=False)
    if done.returncode:
        raise RuntimeError(f"lm_eval ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return {name: _outcome(out, name) for name in names}


def _outcome(out: Path, name: str) -> Outcome:
    [results], [samples] = out.rglob("results_*.json"), out.rglob(f"samples_{name}_*.jsonl")
    accuracy = json.loads(results.read_text(encoding="utf-8"))["results"][name]["acc,none"]
    told = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    told.sort(key=lambda each: each["doc_id"])
    scores = [[float(score) for score, _ in each["filtered_resps"]] for each in told]
    return Outcome(float(accuracy), [bool(each["acc"]) for each in told], scores)
