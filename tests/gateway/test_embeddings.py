"""POST /v1/embeddings: from a client's request through gateway and agent to transformers' own numbers."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from agents_here import Served
from gateway_reading import hang_reading, read_back
from reading_models import change_config, oracle_rows, text_model, tokenizer_of_letters, with_pooling

from wire.request_messages import AgentHello, ServedModel

TOLERANCE = 1e-4
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TEXTS = ["the quick brown fox", "jumps", "over the lazy dog 42"]


async def vectors(http: httpx.AsyncClient, given: Any, **members: Any) -> torch.Tensor:
    answer = await http.post("/v1/embeddings", json={"model": "m", "input": given, **members})
    assert answer.status_code == 200, answer.text
    found = answer.json()["data"]
    assert [each["index"] for each in found] == list(range(len(found)))
    return torch.tensor([each["embedding"] for each in found])


async def refusal(http: httpx.AsyncClient, body: dict[str, Any], path: str = "/v1/embeddings") -> dict[str, Any]:
    answer = await http.post(path, json={"model": "m", **body})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def rows_of(folder: Path, text: str) -> torch.Tensor:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    return oracle_rows(folder, tokenizer(text)["input_ids"])


async def test_where_nothing_is_said_it_is_the_mean_of_all_tokens(tmp_path: Path, served: Served) -> None:
    """Of a text, of several, of ids as they are, and of lists of ids; tokens are counted, and the form is OpenAI's."""
    folder = text_model("bert", tmp_path)
    wanted = torch.stack([rows_of(folder, each).mean(0) for each in TEXTS])
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(each)["input_ids"] for each in TEXTS]
    async with served(folder) as http:
        answer = (await http.post("/v1/embeddings", json={"model": "m", "input": TEXTS, "user": "somebody"})).json()
        assert (answer["object"], answer["model"]) == ("list", "m")
        assert answer["usage"] == dict.fromkeys(("prompt_tokens", "total_tokens"), sum(map(len, ids)))
        assert {each["object"] for each in answer["data"]} == {"embedding"}
        for given, expected in ((TEXTS, wanted), (ids, wanted), (TEXTS[1], wanted[1:2]), (ids[2], wanted[2:])):
            torch.testing.assert_close(await vectors(http, given), expected, rtol=0, atol=TOLERANCE)


async def test_real_text_with_berts_own_vocabulary(tmp_path: Path, served: Served) -> None:
    """Lines of an encyclopaedia, many in one request: each as transformers has it alone."""
    vocabulary, text = DATA / "tokenizers" / "bert-uncased" / "vocab.txt", DATA / "text" / "wikitext2_valid.txt"
    if not (vocabulary.is_file() and text.is_file()):
        pytest.skip("the test data has neither BERT's vocabulary nor the text here")
    folder = text_model("bert", tmp_path, vocab_size=30522, max_position_embeddings=512)
    numbers = {token: number for number, token in enumerate(vocabulary.read_text().splitlines())}
    transformers.BertTokenizer(vocab=numbers).save_pretrained(folder)
    lines = [line.strip() for line in text.read_text().splitlines() if 0 < len(line.strip()) < 1500][:70]
    wanted = torch.stack([rows_of(folder, each).mean(0) for each in lines[::23]])
    async with served(folder) as http:
        torch.testing.assert_close((await vectors(http, lines))[::23], wanted, rtol=0, atol=TOLERANCE)


async def test_base64_has_the_same_numbers(tmp_path: Path, served: Served) -> None:
    """As little-endian float32."""
    async with served(text_model("distilbert", tmp_path)) as http:
        numbers = (await vectors(http, "fox")).flatten()
        answer = await http.post("/v1/embeddings", json={"model": "m", "input": "fox", "encoding_format": "base64"})
        data = base64.b64decode(answer.json()["data"][0]["embedding"])
        assert list(struct.unpack(f"<{len(numbers)}f", data)) == numbers.tolist()


MEAN_AND_MAX = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}


@pytest.mark.parametrize(
    ("pooling", "of_rows"),
    [
        ({"pooling_mode_cls_token": True}, lambda rows: rows[0]),
        ({"pooling_mode_max_tokens": True}, lambda rows: rows.max(0).values),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, lambda rows: rows.sum(0) / len(rows) ** 0.5),
        ({"pooling_mode": "weightedmean"}, lambda rows: sum((at + 1) * row for at, row in enumerate(rows))
            / sum(range(1, len(rows) + 1))),
        (MEAN_AND_MAX, lambda rows: torch.cat([rows.max(0).values, rows.mean(0)])),
    ],
)  # fmt: skip
async def test_a_checkpoint_says_how_its_texts_become_vectors(
    tmp_path: Path, served: Served, pooling: dict[str, Any], of_rows: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """By sentence-transformers' arithmetic, its length made 1 where the checkpoint says so."""
    folder = with_pooling(text_model("bert", tmp_path), normalize="pooling_mode" in pooling, **pooling)
    wanted = torch.stack([of_rows(rows_of(folder, each)) for each in TEXTS])
    if "pooling_mode" in pooling:
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
    async with served(folder) as http:
        torch.testing.assert_close(await vectors(http, TEXTS), wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2", "opt", "opt-post-norm"])
async def test_a_model_that_writes_says_vectors_too(tmp_path: Path, served: Served, name: str) -> None:
    """Of the last token, as it is; tokens are counted, what is too long is refused, and it goes on writing."""
    folder = text_model(name, tmp_path)
    wanted = torch.stack([rows_of(folder, each)[-1] for each in TEXTS])
    async with served(folder, max_model_len=100) as http:
        torch.testing.assert_close(await vectors(http, TEXTS), wanted, rtol=0, atol=TOLERANCE)
        answer = (
            await http.post("/v1/embeddings", json={"input": [[7] * 100, [8]], "encoding_format": "base64"})
        ).json()
        assert answer["usage"] == {"prompt_tokens": 101, "total_tokens": 101}
        last = torch.frombuffer(bytearray(base64.b64decode(answer["data"][0]["embedding"])), dtype=torch.float32)
        torch.testing.assert_close(last, oracle_rows(folder, [7] * 100)[-1], rtol=0, atol=TOLERANCE)
        for given, code in (
            ([7] * 101, "context_length_exceeded"),
            ("a " * 101, "context_length_exceeded"),
            ([97], "invalid_value"),
        ):
            error = await refusal(http, {"input": given})
            assert (error["param"], error["code"]) == ("input", code), error
        error = await refusal(http, {"input": "fox", "dimensions": 8})
        assert error["param"] == "dimensions" and f"have {wanted.shape[1]} numbers" in error["message"]
        written = await http.post("/v1/completions", json={"prompt": "fox", "max_tokens": 3})
        assert written.status_code == 200, written.text
        [card] = (await http.get("/v1/models")).json()["data"]
        assert card["tasks"] == ["generate", "embed", "decide"]


async def test_a_model_that_writes_says_vectors_as_its_checkpoint_says(tmp_path: Path, served: Served) -> None:
    """Another pooling, length 1, and all rows of a text that goes in chunks; it goes on writing all the same."""
    folder = with_pooling(text_model("qwen3", tmp_path), normalize=True, pooling_mode_mean_tokens=True)
    wanted = torch.stack([rows_of(folder, each).mean(0) for each in [*TEXTS, "long " * 30]])
    async with served(folder, chunk=16) as http:
        found = await vectors(http, [*TEXTS, "long " * 30])
        torch.testing.assert_close(found, wanted / wanted.norm(dim=1, keepdim=True), rtol=0, atol=TOLERANCE)
        written = await http.post("/v1/completions", json={"prompt": "fox", "max_tokens": 3})
        assert written.status_code == 200, written.text


async def test_what_only_reads_does_not_write(tmp_path: Path, served: Served) -> None:
    """It says what it does instead."""
    async with served(text_model("bert", tmp_path)) as http:
        error = await refusal(http, {"messages": [{"role": "user", "content": "Hi"}]}, "/v1/chat/completions")
        assert (error["code"], error["param"]) == ("unsupported_value", "model")
        assert "it serves /v1/embeddings" in error["message"]


async def test_what_a_checkpoint_says_of_its_texts_is_done(tmp_path: Path, served: Served) -> None:
    """Fewer tokens than positions, lower case, and what it puts before each text."""
    folder = text_model("bert", tmp_path)
    tokenizer_of_letters(folder, do_lower_case=False)
    settings = {"max_seq_length": 9, "do_lower_case": True, "prompts": {"q": "ab "}, "default_prompt_name": "q"}
    with_pooling(folder, pooling_mode_mean_tokens=True, settings=settings)
    wanted = rows_of(folder, "ab fox").mean(0)[None]
    async with served(folder) as http:
        torch.testing.assert_close(await vectors(http, "FOX"), wanted, rtol=0, atol=TOLERANCE)
        error = await refusal(http, {"input": ["fox", "abcdefgh"]})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert error["message"] == "this model's maximum context length is 9 tokens, and input[1] has 12: shorten it"


async def test_dimensions_are_right_or_refused(tmp_path: Path, served: Served) -> None:
    """Cut before the length is made 1, where the config names such sizes; else only all of them."""
    folder = with_pooling(text_model("bert", tmp_path), normalize=True, pooling_mode_mean_tokens=True)
    async with served(folder) as http:
        whole = await vectors(http, TEXTS, dimensions=32)
        error = await refusal(http, {"input": "fox", "dimensions": 8})
        assert error["param"] == "dimensions" and "have 32 numbers" in error["message"]
    async with served(change_config(folder, matryoshka_dimensions=[8, 16])) as http:
        cut = await vectors(http, TEXTS, dimensions=8)
        wanted = whole[:, :8] / whole[:, :8].norm(dim=1, keepdim=True)
        torch.testing.assert_close(cut, wanted, rtol=0, atol=TOLERANCE)
        assert "8 or 16 or 32" in (await refusal(http, {"input": "fox", "dimensions": 9}))["message"]


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ([], "input", "invalid_value"),
        ("", "input", "invalid_value"),
        (["fox", ""], "input[1]", "invalid_value"),
        ([[1], []], "input[1]", "invalid_value"),
        ([1, -1], "input", "invalid_value"),
        ({"text": "fox"}, "input", "invalid_type"),
        ([["fox", "dog"]], "input[0]", "invalid_value"),
        ([1, 97], "input", "invalid_value"),
        (["a"] * 2049, "input", "invalid_value"),
        ([7] * 65, "input", "context_length_exceeded"),
        ([[7], [7] * 65], "input[1]", "context_length_exceeded"),
        ("fox " * 10_000, "input", "context_length_exceeded"),
        ("a" * 65, "input", "context_length_exceeded"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(
    tmp_path: Path, served: Served, given: Any, param: str, code: str
) -> None:
    """Nothing at all, what is no text, ids that the model has not, too many inputs, and texts that are too long."""
    async with served(text_model("bert", tmp_path)) as http:
        error = await refusal(http, {"input": given})
        assert (error["param"], error["code"]) == (param, code), error
        assert (await vectors(http, "fox")).shape == (1, 32)


async def test_a_client_that_hangs_up_frees_the_agent(tmp_path: Path, served: Served) -> None:
    """It ends between two portions, and the next client is answered though hours of work were asked for."""
    folder = text_model("bert", tmp_path, num_hidden_layers=32, hidden_size=256, max_position_embeddings=512)
    async with served(folder, max_num_seqs=1) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/embeddings", json={"input": [[7] * 500] * 1000}, timeout=0.5)
        state = await http.post("/v1/embeddings", json={"input": [7]}, timeout=20)
        assert state.status_code == 200, state.text


async def test_many_inputs_go_to_several_agents_in_parts(gateway: Any, connected: Any) -> None:
    """And come back in their order; a client that has gone is forgotten at each of them."""
    models = (ServedModel("m", 64, 1, [], 0, ["embed"], 2),)
    async with connected(gateway, read_back, models=models) as one, connected(gateway, read_back, models=models) as two:
        answer = await gateway.http.post("/v1/embeddings", json={"input": [[at] for at in range(300)]})
        assert [each["embedding"][0] for each in answer.json()["data"]] == list(range(300))
        assert len(one.asked) + len(two.asked) == 5 and min(len(one.asked), len(two.asked)) > 0
        one.script = two.script = hang_reading
        asking = asyncio.create_task(gateway.http.post("/v1/embeddings", json={"input": [[at] for at in range(65)]}))
        await gateway.until(lambda: len(one.asked) + len(two.asked) == 7)
        asking.cancel()
        await gateway.until(lambda: len(one.cancelled) + len(two.cancelled) == 2)


def test_an_agent_of_before_says_nothing_of_tasks() -> None:
    """Then it writes."""
    assert AgentHello("a", "", [ServedModel("m", 1, 1)], 1).models[0].tasks == ["generate"]
