"""POST /v1/classify: texts, pairs of texts and images, to the chances that transformers gives their labels."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from agents_here import Served
from PIL import Image
from reading_models import change_config, text_model, with_pooling
from tiny_models import build_tiny

TOLERANCE = 1e-4
TEXTS = ["the quick brown fox", "jumps", "over the lazy dog 42"]
PHOTOGRAPHS = Path(__file__).resolve().parents[3] / "shared" / "data" / "images" / "imagenet_sample"


async def classes(http: httpx.AsyncClient, given: Any) -> list[dict[str, Any]]:
    answer = await http.post("/v1/classify", json={"model": "m", "input": given})
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "list" and answer.json()["model"] == "m"
    found: list[dict[str, Any]] = answer.json()["data"]
    assert [each["index"] for each in found] == list(range(len(found)))
    return found


async def refusal(http: httpx.AsyncClient, given: Any) -> dict[str, Any]:
    answer = await http.post("/v1/classify", json={"model": "m", "input": given})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@torch.inference_mode()
def logits_of(folder: Path, *texts: str) -> torch.Tensor:
    """What transformers says of a text, or of two together."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    kind: Any = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    logits: torch.Tensor = model(**tokenizer(*texts, return_tensors="pt")).logits[0]
    return logits


@pytest.mark.parametrize("name", ["bert-classifier", "distilbert-classifier"])
async def test_texts_get_the_chances_of_their_labels(tmp_path: Path, served: Served, name: str) -> None:
    """A text alone and several, with the labels' names; a classifier without a pooling gives no vectors."""
    labels = {3: ["bad", "middling", "good"], 5: list("abcde")}[3 if name == "bert-classifier" else 5]
    folder = change_config(text_model(name, tmp_path), id2label=dict(enumerate(labels)))
    wanted = [logits_of(folder, each).softmax(-1) for each in TEXTS]
    async with served(folder) as http:
        for given, expected in ((TEXTS, wanted), (TEXTS[1], wanted[1:2])):
            found = await classes(http, given)
            torch.testing.assert_close(
                torch.tensor([each["probs"] for each in found]), torch.stack(expected), rtol=0, atol=TOLERANCE
            )
            assert [each["label"] for each in found] == [labels[int(each.argmax())] for each in expected]
            assert {each["num_classes"] for each in found} == {len(labels)}
        answer = await http.post("/v1/embeddings", json={"model": "m", "input": "fox"})
        assert answer.status_code == 400 and "it serves /v1/classify" in answer.json()["error"]["message"]


async def test_pairs_of_texts_are_read_together(tmp_path: Path, served: Served) -> None:
    """With the tokenizer's types for the second; a model that has none refuses them, and too long ones are counted."""
    folder = text_model("bert-classifier", tmp_path / "bert")
    pairs = [["the fox", "jumps"], ["a dog", "is lazy"]]
    wanted = torch.stack([logits_of(folder, *pair).softmax(-1) for pair in pairs])
    async with served(folder) as http:
        found = await classes(http, pairs)
        chances = torch.tensor([each["probs"] for each in found])
        torch.testing.assert_close(chances, wanted, rtol=0, atol=TOLERANCE)
        error = await refusal(http, [["fox", "dog"], ["a " * 40, "b " * 40]])
        assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
        assert "has 83: shorten it" in error["message"]
        assert (await refusal(http, [["fox", "dog", "cat"]]))["param"] == "input[0]"
    async with served(text_model("distilbert-classifier", tmp_path / "distilbert")) as http:
        assert "one at a time" in (await refusal(http, pairs))["message"]


@pytest.mark.parametrize(
    ("changes", "chances"),
    [
        ({"problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"problem_type": "regression"}, lambda logits: logits),
    ],
)
async def test_chances_are_as_the_checkpoint_has_its_problem(
    tmp_path: Path, served: Served, changes: dict[str, Any], chances: Any
) -> None:
    """Labels that may hold together each have their own; a regression has its number."""
    folder = change_config(text_model("bert-classifier", tmp_path), **changes)
    async with served(folder) as http:
        [found] = await classes(http, "fox")
        torch.testing.assert_close(torch.tensor(found["probs"]), chances(logits_of(folder, "fox")), rtol=0, atol=1e-4)


async def test_a_classifier_that_says_how_its_texts_become_vectors_serves_both(tmp_path: Path, served: Served) -> None:
    """What is put before a text for its vector is not put before one that is classified."""
    folder = text_model("bert-classifier", tmp_path)
    wanted = logits_of(folder, "fox").softmax(-1)
    settings = {"prompts": {"q": "query "}, "default_prompt_name": "q"}
    with_pooling(folder, pooling_mode_cls_token=True, settings=settings)
    async with served(folder) as http:
        [found] = await classes(http, "fox")
        torch.testing.assert_close(torch.tensor(found["probs"]), wanted, rtol=0, atol=TOLERANCE)
        answer = await http.post("/v1/embeddings", json={"model": "m", "input": "fox"})
        assert answer.json()["usage"]["prompt_tokens"] == 2 + len("query") + len("fox")


# ---- images ----------------------------------------------------------------------------------------------------------


def image_model(path: Path, **settings: Any) -> Path:
    """The tiny classifier of images of 12 x 20 pixels."""
    build_tiny("vit-classifier", path)
    said = {"image_processor_type": "ViTImageProcessor", "size": {"height": 12, "width": 20}, **settings}
    (path / "preprocessor_config.json").write_text(json.dumps(said))
    return path


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A picture of noise."""
    channels = len(mode)
    noise = torch.randint(0, 256, (height * width * channels,), generator=torch.Generator().manual_seed(width))
    return Image.frombytes(mode, (width, height), bytes(noise.tolist()))


def url_of(image: Image.Image, kind: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, kind, quality=90)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


@torch.inference_mode()
def chances_of(folder: Path, *images: Image.Image) -> torch.Tensor:
    """What transformers' own image processor and model say."""
    processor: Any = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    kind: Any = transformers.AutoModelForImageClassification
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    pixels = processor([image.convert("RGB") for image in images], return_tensors="pt").pixel_values
    chances: torch.Tensor = model(pixel_values=pixels).logits.softmax(-1)
    return chances


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"resample": 3, "image_mean": [0.48, 0.45, 0.4], "image_std": [0.26, 0.25, 0.27], "rescale_factor": 0.0039},
        {"do_normalize": False, "resample": 0},
    ],
)
async def test_images_get_the_chances_of_their_labels(tmp_path: Path, served: Served, settings: dict[str, Any]) -> None:
    """Of any size and mode, as the checkpoint's image processor scales them."""
    folder = image_model(tmp_path, **settings)
    images = [picture(31, 17), picture(20, 12, "L"), picture(5, 44, "RGBA")]
    async with served(folder) as http:
        found = await classes(http, [url_of(each) for each in images])
        chances = torch.tensor([each["probs"] for each in found])
        torch.testing.assert_close(chances, chances_of(folder, *images), rtol=0, atol=TOLERANCE)
        assert found[0]["num_classes"] == 7 and found[0]["label"].startswith("LABEL_")


async def test_a_photograph_from_a_camera(tmp_path: Path, served: Served) -> None:
    """A JPEG, decoded and scaled down as transformers does it."""
    files = sorted(PHOTOGRAPHS.glob("*.jpg"))[:2]
    if not files:
        pytest.skip("the photographs of the test data are not here")
    folder = image_model(tmp_path)
    async with served(folder) as http:
        urls = [f"data:image/jpeg;base64,{base64.b64encode(each.read_bytes()).decode()}" for each in files]
        found = torch.tensor([each["probs"] for each in await classes(http, urls)])
        images = [Image.open(each) for each in files]
        torch.testing.assert_close(found, chances_of(folder, *images), rtol=0, atol=TOLERANCE)


def bomb(width: int, height: int) -> str:
    """A PNG whose header promises so many pixels, and that has none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


GOOD = url_of(picture(20, 12))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("http://example.com/cat.png", "nothing is fetched"),
        ("HTTPS://example.com/cat.png", "nothing is fetched"),
        ("file:///etc/passwd", "no data URL"),
        ("data:image/svg+xml;base64,AAAA", "no data URL"),
        ("data:image/png;base64,####", "not in base64"),
        ("data:image/png;base64," + base64.b64encode(b"GIF89a" + bytes(40)).decode(), "no PNG or JPEG"),
        (GOOD[:-80], "is broken"),
        (bomb(5000, 5000), "more than the 16777216"),
        (bomb(200_000, 200_000), "more than the 16777216"),
        (bomb(64, 64), "is broken"),
        ([[1, 2, 3]], "not token ids"),
        ([[GOOD, GOOD]], "one at a time"),
    ],
)
async def test_what_is_no_image_is_refused(tmp_path: Path, served: Served, given: Any, why: str) -> None:
    """Before it is decoded, where its header says enough; the next one is served."""
    async with served(image_model(tmp_path)) as http:
        assert why in (await refusal(http, given))["message"]
        error = await refusal(http, [GOOD, given] if isinstance(given, str) else given)
        assert error["param"] == ("input[1]" if isinstance(given, str) else error["param"])
        assert len(await classes(http, GOOD)) == 1
