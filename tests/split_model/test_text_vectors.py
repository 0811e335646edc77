"""How a checkpoint's texts become vectors: sentence-transformers' files, computed or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reading_models import with_pooling
from safetensors.torch import save_file
from tiny_models import build_tiny

from split_model.errors import BadCheckpoint, ModelError, UnsupportedModel
from split_model.hub import described
from split_model.text_vectors import TextVectors, pooling_files, text_vectors

ROWS = torch.randn(7, 32, generator=torch.Generator().manual_seed(5))


def said(folder: Path) -> TextVectors | None:
    return text_vectors(folder, described(str(folder)))


def with_dense(folder: Path, kinds: tuple[str, ...], **config: Any) -> dict[str, torch.Tensor]:
    """The same folder with such modules; the weights of its Dense."""
    with_pooling(folder, pooling_mode_mean_tokens=True)
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, kind)} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Dense").mkdir()
    weights = {"linear.weight": torch.randn(12, 32), "linear.bias": torch.randn(12)}
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    given = {"in_features": 32, "out_features": 12, "bias": True, **config}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(given))
    return weights


@pytest.mark.parametrize("name", ["bert-classifier", "vit", "t5"])
def test_nothing_is_taken_for_granted(tmp_path: Path, name: str) -> None:
    """Of a classifier, of images, and of what reads one text and writes another."""
    assert said(build_tiny(name, tmp_path)) is None


def test_a_model_that_writes_and_says_nothing_gives_the_last_token(tmp_path: Path) -> None:
    """As it is; where the table of tokens is narrower than the rows, as many numbers as that has."""
    found = said(build_tiny("qwen3", tmp_path / "qwen3"))
    assert found is not None and found.last_alone
    torch.testing.assert_close(found.vectors(ROWS, [3, 4]), ROWS[[2, 6]])
    assert found.numbers(described(str(build_tiny("opt-post-norm", tmp_path / "opt")))) == 20


def test_an_encoder_that_says_nothing_gives_the_mean(tmp_path: Path) -> None:
    """Of all its tokens, as it is."""
    for name in ("bert", "bert-masked", "distilbert", "t5-encoder"):
        found = said(build_tiny(name, tmp_path / name))
        assert found is not None
        torch.testing.assert_close(found.vectors(ROWS, [3, 4]), torch.stack([ROWS[:3].mean(0), ROWS[3:].mean(0)]))


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"activation_function": "torch.nn.modules.linear.Identity"}, lambda x: x),
        ({"activation_function": "torch.nn.modules.activation.Tanh"}, torch.tanh),
        ({}, torch.tanh),
    ],
)
def test_a_dense_module_stands_between_pooling_and_length(
    tmp_path: Path, config: dict[str, Any], activation: Any
) -> None:
    """As LaBSE and sentence-t5 have it."""
    weights = with_dense(build_tiny("bert", tmp_path), ("Transformer", "Pooling", "Dense", "Normalize"), **config)
    found = said(tmp_path)
    assert found is not None and found.numbers(described(str(tmp_path))) == 12
    wanted = activation(weights["linear.weight"] @ ROWS.mean(0) + weights["linear.bias"])
    torch.testing.assert_close(found.vectors(ROWS, [7])[0], wanted / wanted.norm())
    assert set(pooling_files(tmp_path)) >= {"1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"}


@pytest.mark.parametrize(
    ("kinds", "config", "error"),
    [
        (("Transformer", "Pooling", "LayerNorm"), {}, UnsupportedModel),
        (("Transformer",), {}, UnsupportedModel),
        (("Pooling", "Transformer"), {}, UnsupportedModel),
        (("Transformer", "Pooling", "Normalize", "Dense"), {}, UnsupportedModel),
        (("Transformer", "Pooling", "Dense"), {"out_features": 1 << 40}, UnsupportedModel),
        (("Transformer", "Pooling", "Dense"), {"out_features": 11}, BadCheckpoint),
        (("Transformer", "Pooling", "Dense"), {"activation_function": "os.system"}, UnsupportedModel),
        (("Transformer", "Pooling", "../../Dense"), {}, BadCheckpoint),
    ],
)
def test_what_cannot_be_computed_is_refused(
    tmp_path: Path, kinds: tuple[str, ...], config: dict[str, Any], error: type[ModelError]
) -> None:
    """Other modules or another order, sizes that are not the file's, folders elsewhere."""
    with_dense(build_tiny("bert", tmp_path), kinds, **config)
    with pytest.raises(error):
        said(tmp_path)


@pytest.mark.parametrize("pooling", [{}, {"pooling_mode": "middle"}, {"pooling_mode": "mean", "include_prompt": False}])
def test_a_pooling_that_is_not_known_is_refused(tmp_path: Path, pooling: dict[str, Any]) -> None:
    """None at all, another one, or one that leaves tokens out."""
    with pytest.raises(UnsupportedModel):
        said(with_pooling(build_tiny("bert", tmp_path), **pooling))
