"""Models that read, served as anybody would, and asked by OpenAI's own client."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import transformers
from reading_models import oracle_rows, text_model
from serving import Serving

pytestmark = pytest.mark.system

TEXTS = ["the quick brown fox", "jumps", "over the lazy dog 42"]


def wanted(folder: Path) -> torch.Tensor:
    """Transformers' mean over all tokens of each text."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    return torch.stack([oracle_rows(folder, tokenizer(text)["input_ids"]).mean(0) for text in TEXTS])


@pytest.mark.parametrize(
    "arguments", [(), ("--mode", "voltage", "--devices", "2", "--shares", "even")], ids=["alone", "group"]
)
def test_embeddings_of_a_served_encoder(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """On one device, which `trilby serve` says it has chosen, and in a group: transformers' numbers, which OpenAI's
    client asks for in base64 where nobody says otherwise. Drained it ends in order, with all its processes."""
    folder = text_model("bert", tmp_path / "model")
    words = ("--model", str(folder), "--dtype", "float32", *arguments)
    with Serving(tmp_path / "log", *words, forked=True) as serving:
        said = serving.log.read_text()
        assert said.count("50% of a prompt's rows") == (2 if arguments else 0)
        assert ("reads whole texts, so all its layers run on the device" in said) is (not arguments)
        assert "/v1/embeddings" in said
        client: Any = openai.OpenAI(base_url=serving.base, api_key="none", max_retries=0)
        for form in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(model="model", input=TEXTS, **form)
            found = torch.tensor([each.embedding for each in answer.data])
            torch.testing.assert_close(found, wanted(folder), rtol=0, atol=1e-4)
        with pytest.raises(openai.BadRequestError, match="it serves /v1/embeddings"):
            client.chat.completions.create(model="model", messages=[{"role": "user", "content": "Hi"}])
        metrics = httpx.get(f"{serving.base.removesuffix('/v1')}/metrics", trust_env=False).text
        assert 'trilby_request_success_total{finished_reason="stop",model_name="model"} 6.0' in metrics
        assert serving.stop(signal.SIGTERM) == []
        assert serving.process.returncode == 0 and "Traceback" not in serving.log.read_text()
