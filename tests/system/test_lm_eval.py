"""EleutherAI's lm-evaluation-harness through ``/v1/completions``: the requests it sends, and its own figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from bench import accuracy_harness
from checkpoints import DATA, DEMO
from installation import Installation
from openai import OpenAI
from oracle import oracle_answer, oracle_logits, prompt_for, tolerance

from device_agent.answering.tokenizer import Tokenizer
from wire.request_messages import ChatTurn

pytestmark = pytest.mark.system

SENT = {"model": "trilby-demo", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
"""What its ``local-completions`` sends of a text whose tokens it wants scored, beside the prompt."""

HARNESS_WITHIN_S = 600


def post(installation: Installation, prompt: object, **more: object) -> list[dict[str, Any]]:
    """The choices of an answer, in order."""
    body = {**SENT, "prompt": prompt, **more}
    reply = httpx.post(f"{installation.base}/completions", json=body, timeout=120, trust_env=False)
    assert reply.status_code == 200, reply.text
    return sorted(reply.json()["choices"], key=lambda choice: int(choice["index"]))


def read(choice: dict[str, Any], context: int) -> tuple[float, bool]:
    """What the harness makes of a choice: the log-probability behind the context, and whether it is greedy."""
    scores = choice["logprobs"]["token_logprobs"][context:-1]
    tops = choice["logprobs"]["top_logprobs"][context:-1]
    return sum(scores), all(score == max(top.values()) for score, top in zip(scores, tops, strict=True))


def wanted(ids: tuple[int, ...], context: int) -> tuple[float, bool]:
    """The same from transformers' logits."""
    rows = oracle_logits(DEMO, ids)[:-1].log_softmax(-1)
    own = rows[range(len(rows)), ids[1:]][context - 1 :]
    return float(own.sum()), ids[context:] == tuple(rows.argmax(-1)[context - 1 :].tolist())


def test_the_requests_it_sends(installation: Installation) -> None:
    """Lists of lists of ids, one list, and text: every sum and whether the text is greedy are transformers', also where
    the answer's one token is the end, which has no text."""
    tokenizer = Tokenizer.load(DEMO, ())
    asked = tokenizer.chat([ChatTurn("user", "How much is 12 plus 7?")])
    answer = tokenizer.rendered(oracle_answer(DEMO, "How much is 12 plus 7?", 24)[0])
    texts = [(prompt_for(DEMO, 40), 30), ((*asked, *answer), len(asked)), (prompt_for(DEMO, 300, seed=1), 1)]
    close = 300 * tolerance(oracle_logits(DEMO, texts[2][0]))
    for choices in (
        post(installation, [ids for ids, _ in texts]),
        [post(installation, [ids])[0] for ids, _ in texts],
        [post(installation, ids)[0] for ids, _ in texts],
    ):
        for choice, (ids, context) in zip(choices, texts, strict=True):
            assert len(choice["logprobs"]["token_logprobs"]) == len(ids) + 1
            score, greedy = read(choice, context)
            truth, truly = wanted(ids, context)
            assert abs(score - truth) < close and greedy == truly
        assert read(choices[1], len(asked))[1], "the model's own answer is its greedy one"

    text = "Once there was a small boat"
    ids = tuple(tokenizer.text(text))
    [choice] = post(installation, text)
    assert choice["text"].startswith(text) and abs(read(choice, 1)[0] - wanted(ids, 1)[0]) < close
    assert choice["logprobs"]["token_logprobs"][0] is None


def test_openai_python_reads_a_streamed_echo(installation: Installation) -> None:
    """Its chunks add up to what comes in one piece, and offsets lead to each token's text."""
    prompt, [whole] = "Two foxes: café 🦊.", post(installation, "Two foxes: café 🦊.", max_tokens=4)
    with OpenAI(base_url=installation.base, api_key="none", max_retries=0) as openai:
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "logprobs": 1, "echo": True, "stream": True}
        choices = [each.choices[0] for each in openai.completions.create(model="trilby-demo", prompt=prompt, **asked)]
    assert "".join(each.text for each in choices) == whole["text"]
    told = [each.logprobs for each in choices if each.logprobs is not None]
    scores, same = [score for each in told for score in each.token_logprobs or []], whole["logprobs"]["token_logprobs"]
    assert scores[0] is same[0] is None and scores[1:] == pytest.approx(same[1:], abs=1e-3)
    offsets = [offset for each in told for offset in each.text_offset or []]
    assert offsets == whole["logprobs"]["text_offset"] == sorted(offsets)
    assert whole["text"][offsets[-4] :].startswith(whole["logprobs"]["tokens"][-4])


@pytest.mark.timeout(2 * HARNESS_WITHIN_S + 60)
def test_its_figures_are_those_of_its_own_backend(installation: Installation, tmp_path: Path) -> None:
    """Unchanged, through our endpoint and through transformers on the same checkpoint: the demo model's skills asked as
    choices, and a task of SuperGLUE, which it cannot do."""
    lm_eval = accuracy_harness.command()
    if lm_eval is None:
        pytest.skip(accuracy_harness.MISSING)
    tokenizer = Tokenizer.load(DEMO, ())
    tasks = {
        "skills": accuracy_harness.skill_choices(
            lambda turns: tokenizer.render([ChatTurn(turn["role"], turn["content"]) for turn in turns]), 4
        )
    }
    if (DATA / "prompts").is_dir():
        tasks["cb"] = accuracy_harness.superglue("cb")
    url, ours = f"base_url={installation.base}/completions", tmp_path / "ours"
    through = (url, "model=trilby-demo", f"tokenizer={DEMO}", "tokenizer_backend=huggingface")
    found = accuracy_harness.evaluate(lm_eval, ours, tasks, "local-completions", *through, within_s=HARNESS_WITHIN_S)
    own = (f"pretrained={DEMO}", "dtype=float32")
    truth = accuracy_harness.evaluate(lm_eval, tmp_path / "hf", tasks, "hf", *own, within_s=HARNESS_WITHIN_S)
    for name in tasks:
        assert (found[name].accuracy, found[name].right) == (truth[name].accuracy, truth[name].right)
        for ours_of, theirs_of in zip(found[name].scores, truth[name].scores, strict=True):
            assert ours_of == pytest.approx(theirs_of, abs=0.05)
    assert found["skills"].accuracy > 0.8


def test_it_is_told_the_server_s_key(tmp_path: Path) -> None:
    """In its environment, where it looks for one, and not in its command line, which others can read."""
    told = tmp_path / "lm_eval"
    told.write_text('#!/bin/sh\necho "key: $OPENAI_API_KEY line: $*"\nexit 3\n', encoding="utf-8")
    told.chmod(0o755)
    tasks = {"one": [accuracy_harness.Row("Yes or", ["no", "yes"], [0])]}
    with pytest.raises(RuntimeError, match="key: of-the-server line: run") as ended:
        accuracy_harness.evaluate(str(told), tmp_path, tasks, "local-completions", within_s=60, key="of-the-server")
    assert str(ended.value).count("of-the-server") == 1
