"""Clients of others against real processes: what each is told is what transformers says, and its errors are its own.

``make test-clients`` installs them, each version as it is locked; where they are not there these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import torch
from checkpoints import DEMO
from installation import Installation, wait_until
from oracle import oracle_answer, oracle_model
from processes import ROOT
from reading_models import oracle_rows
from transformers import AutoTokenizer

pytestmark = [pytest.mark.system, pytest.mark.slow]

CLIENTS: Final = Path(__file__).parent / "clients"
BIN: Final = ROOT / ".venv-clients" / "bin"
READY: Final = BIN.parent / ".ready"
"""There once all of it is installed."""
KEY: Final = "sk-of-a-client"
QUESTION: Final = "Tell me a story about a fox."
TOKENS: Final = 64
PROMPT: Final = "Once there was a small boat"
WITHIN_S: Final = 170
"""Some take half a minute to be imported, where cores are few."""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Gateway, cloud and device, with a key that clients must show."""
    with Installation(tmp_path_factory.mktemp("keyed"), forked=True, gateway_settings=("--api-keys", KEY)) as running:
        yield running


def told(command: list[str | Path], given: str = "", **environment: str) -> str:
    """What a client prints that reads ``given``; no proxy stands between."""
    if not (READY.exists() and Path(command[0]).exists()):
        pytest.skip(f"{Path(command[0]).name} is not in .venv-clients: make test-clients installs it")
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    about = {**plain, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", **environment}
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": WITHIN_S, "cwd": BIN.parent}
    done = subprocess.run(command, input=given, env=about, **how)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return str(done.stdout)


def said_by(client: str, installation: Installation, *more: str) -> dict[str, Any]:
    """What a script here was told."""
    script = CLIENTS / client
    command: list[str | Path] = [BIN / "python", script]
    if script.suffix == ".mjs":  # What it imports is looked for where it runs, since it is told and not named.
        command = [BIN / "node", "--input-type=module", "-"]
    output = told([*command, installation.base, KEY, *more], script.read_text(encoding="utf-8"))
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@lru_cache
def answer() -> tuple[str, int]:
    """To the question, and the prompt's tokens."""
    return oracle_answer(DEMO, QUESTION, TOKENS)


@lru_cache
def completion(prompt: str = PROMPT) -> str:
    """What follows a prompt."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    inputs = tokenizer(prompt, return_tensors="pt")
    output = oracle_model(DEMO).generate(**inputs, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(output[0], skip_special_tokens=True))[len(prompt) :]


def check_vectors(found: list[list[float]], texts: tuple[str, ...] = (QUESTION, "fox")) -> None:
    """They are transformers' last hidden states."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    wanted = torch.stack([oracle_rows(DEMO, tokenizer(text)["input_ids"])[-1] for text in texts])
    torch.testing.assert_close(torch.tensor(found), wanted, rtol=0, atol=1e-4)


def check_animal(animal: dict[str, Any]) -> None:
    """It is held to its form."""
    assert animal["kind"] in ("fox", "owl") and isinstance(animal["legs"], int)


def check_call(call: dict[str, Any]) -> None:
    """The same whole and streamed, held to its schema; and something is said to what the tool gave."""
    [[name, arguments]] = call["whole"]
    assert call["streamed"] == call["whole"] and call["later"]
    assert name == "weather" and arguments.keys() == {"city", "days"}
    assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9


def test_langchain(keyed: Installation) -> None:
    """Whole, streamed, several at once, later turns, forms, calls, responses, completions and vectors."""
    said, (text, prompt) = said_by("langchain_client.py", keyed, QUESTION), answer()
    assert said["whole"] == "".join(said["pieces"]) == said["responses"] == text
    assert said["batch"] == [text] * 4 and len(said["pieces"]) > 10
    assert said["usage"]["input_tokens"] == prompt and said["later"]
    assert said["completion"] == completion()
    check_animal(said["form"])
    check_animal(said["called_form"])
    check_call(said["call"])
    assert said["call_in_responses"]["whole"] == said["call"]["whole"]
    check_call(said["call_in_responses"])
    check_vectors(said["vectors"])
    assert "NotFoundError" in said["wrong"]["model"] and "AuthenticationError" in said["wrong"]["key"]


def test_langchains_own_tests(keyed: Installation) -> None:
    """Those of chat models and of embeddings, but for what is about tools."""
    own = f"-q -c {os.devnull} --rootdir {CLIENTS} --confcutdir {CLIENTS} -p no:cacheprovider -o asyncio_mode=auto"
    command: list[str | Path] = [BIN / "python", "-m", "pytest", *own.split(), CLIENTS / "langchain_standard.py"]
    last = told(command, TRILBY_BASE=keyed.base, TRILBY_KEY=KEY).splitlines()[-1]
    passed = re.search(r"([0-9]+) passed", last)
    assert passed is not None and int(passed.group(1)) >= 20 and "failed" not in last, last


def test_litellm(keyed: Installation) -> None:
    """Whole, streamed with usage, asynchronous, forms, calls, responses, completions, vectors; it knows each error."""
    said, (text, prompt) = said_by("litellm_client.py", keyed, QUESTION), answer()
    assert said["whole"] == "".join(said["pieces"]) == said["asynchronous"] == said["responses"] == text
    assert said["usage"] == said["streamed_usage"] and said["usage"][0] == prompt
    assert said["completion"] == completion() and said["finish"] in ("stop", "length")
    assert isinstance(said["form"]["legs"], int)
    check_call(said["call"])
    check_vectors(said["vectors"])
    assert said["wrong"] == {
        "model": "NotFoundError",
        "key": "AuthenticationError",
        "length": "ContextWindowExceededError",
        "value": "BadRequestError",
    }


def test_instructor(keyed: Installation) -> None:
    """An object of the model, held to a schema and by a call, piece by piece too; what its own rules refuse is asked
    for again, as often as said, with the call and what was wrong with it."""
    said = said_by("instructor_client.py", keyed)
    check_animal(said["found"])
    assert said["found"] == said["said"] == said["last"] == said["asynchronous"]
    check_animal(said["called"])
    assert said["called"] == said["called_last"]
    assert said["steps"] > 3 and min(said["retried"]) > 1


def test_openai_node(keyed: Installation) -> None:
    """Whole, streamed with usage and by its helper, forms, calls, responses, completions, models, vectors; each error
    has its class, code and member; who aborts a stream leaves nothing behind."""
    said, (text, prompt) = said_by("openai_client.mjs", keyed, QUESTION), answer()
    assert said["whole"] == "".join(said["pieces"]) == said["helped"] == said["heard"] == said["responses"] == text
    assert said["usage"] == said["streamed_usage"] and said["usage"][0] == prompt
    assert said["completion"] == completion() and said["models"] == [said["retrieved"]] == ["trilby-demo"]
    whole = said["usage"][1] < TOKENS
    assert said["events"][0] == "response.created"
    assert said["events"][-1] == ("response.completed" if whole else "response.incomplete")
    check_animal(said["form"])
    check_vectors(said["vectors"])
    check_call(said["call"])
    [[_, arguments]] = said["call"]["whole"]
    assert said["parsed"] == arguments and said["ran"] == [arguments]
    assert said["left"]
    wait_until(lambda: not keyed.open_sessions(keyed.cloud_port), 20)
    assert said["wrong"] == {
        "model": {"name": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"},
        "key": {"name": "AuthenticationError", "status": 401, "code": "invalid_api_key", "param": None},
        "value": {"name": "BadRequestError", "status": 400, "code": "invalid_value", "param": "temperature"},
        "length": {
            "name": "BadRequestError", "status": 400, "code": "context_length_exceeded", "param": "messages"
        },
    }  # fmt: skip


def test_vercel_ai_sdk(keyed: Installation) -> None:
    """Whole, streamed with usage, objects whole and as they grow, calls, completions, vectors, and turns whose content
    is in parts; what is wrong is told with its status."""
    said, (text, prompt) = said_by("ai_sdk_client.mjs", keyed, QUESTION), answer()
    assert said["whole"] == "".join(said["pieces"]) == text and said["turns"]
    assert said["usage"] == said["streamed_usage"] and said["usage"][0] == prompt
    # Whatever it is given it makes a conversation of, as text; its stop string is not reached.
    assert said["completion"] == completion(f"user:\n{PROMPT}\n\nassistant:\n")
    assert said["form"] == said["grown"]
    check_animal(said["form"])
    check_call(said["call"])
    [[_, arguments]] = said["call"]["whole"]
    assert said["ran"] == [f"It is warm in {arguments['city']} for {arguments['days']} days."]
    assert said["called_finish"] == "tool-calls"
    check_vectors(said["vectors"])
    assert (said["wrong"]["model"]["status"], said["wrong"]["value"]["status"]) == (404, 400)
    assert "temperature" in said["wrong"]["value"]["message"]


def test_llm(keyed: Installation, tmp_path: Path) -> None:
    """Simon Willison's command: streamed and whole, with a tool that it offers, a conversation that goes on, a form,
    and its log of tokens."""
    way = {"model_name": "trilby-demo", "api_base": keyed.base, "api_key_name": "trilby"}
    able = {"supports_schema": True, "supports_tools": True}
    models = [{"model_id": "trilby", **able, **way}, {"model_id": "plain", "completion": True, **way}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))

    def llm(*arguments: str) -> str:
        return told([BIN / "llm", *arguments], LLM_USER_PATH=str(tmp_path)).strip()

    text, prompt = answer()
    asked = ("-o", "temperature", "0", "-o", "max_tokens", str(TOKENS))
    llm("keys", "set", "trilby", "--value", KEY)
    assert llm("-m", "trilby", *asked, QUESTION) == llm("-m", "trilby", "--no-stream", *asked, QUESTION) == text
    assert llm("-m", "trilby", "-T", "llm_time", *asked, QUESTION) == text
    assert llm("-c", "Why?", "-o", "max_tokens", "8")
    [logged] = json.loads(llm("logs", "--json", "-n", "1"))
    assert logged["input_tokens"] > prompt and 0 < logged["output_tokens"] <= 8
    schema = {
        "type": "object",
        "properties": {"legs": {"type": "integer", "minimum": 2, "maximum": 4}},
        "required": ["legs"],
    }
    held = json.loads(llm("-m", "trilby", "--schema", json.dumps(schema), "How many legs has a fox?"))
    assert isinstance(held["legs"], int)
    assert llm("-m", "plain", "-o", "temperature", "0", "-o", "max_tokens", "24", PROMPT) == completion().strip()


def test_nothing_was_left(keyed: Installation) -> None:
    """Behind all of them the gateway answers, and nobody's request is running."""
    state = httpx.get(f"{keyed.base.removesuffix('/v1')}/state", headers={"Authorization": f"Bearer {KEY}"}, timeout=10)
    assert [agent["running"] for agent in state.json()["agents"]] == [0]
