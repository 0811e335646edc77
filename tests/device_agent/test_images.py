"""How images become pixels: what a checkpoint may say of it, and what a camera says of its own."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as pillow
from tiny_models import build_tiny

from device_agent.answering.images import Image, Pixels
from split_model.errors import BadCheckpoint, ModelError, UnsupportedModel
from split_model.hub import described
from wire.errors import SessionFailed

SIZE = {"height": 12, "width": 20}


def loaded(path: Path, settings: dict[str, Any] | None, **changes: Any) -> Pixels:
    folder = build_tiny("vit-classifier", path, **changes)
    if settings is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps({"size": SIZE, **settings}))
    return Pixels.load(folder, described(str(folder)))


def file_of(width: int, height: int, orientation: int = 1) -> bytes:
    """A PNG of noise, as a camera writes it that was turned."""
    noise = torch.randint(0, 256, (width * height * 3,), generator=torch.Generator().manual_seed(3))
    exif, file = pillow.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    pillow.frombytes("RGB", (width, height), bytes(noise.tolist())).save(file, "PNG", exif=exif)
    return file.getvalue()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (None, BadCheckpoint),
        ({"do_center_crop": True}, UnsupportedModel),
        ({"size": {"shortest_edge": 12}}, UnsupportedModel),
        ({"size": 224}, UnsupportedModel),
        ({"resample": "bicubic"}, UnsupportedModel),
        ({"resample": 6}, UnsupportedModel),
        ({"rescale_factor": float("nan")}, UnsupportedModel),
        ({"image_mean": [0.5, 0.5]}, UnsupportedModel),
        ({"image_std": [0.5, 0.5, "half"]}, UnsupportedModel),
        ({"image_std": [0.5, 0.0, 0.5]}, UnsupportedModel),
        ({"rescale_factor": None}, UnsupportedModel),
    ],
)
def test_what_is_not_done_is_refused(tmp_path: Path, settings: dict[str, Any] | None, error: type[ModelError]) -> None:
    """By the field, before anything is served."""
    with pytest.raises(error, match="preprocessor_config"):
        loaded(tmp_path, settings)


def test_without_pillow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra: most models read no images."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedModel, match="pip install"):
        loaded(tmp_path, {})


def test_grey_models_see_grey(tmp_path: Path) -> None:
    """One channel; five are no image."""
    pixels = loaded(tmp_path / "grey", {"image_mean": [0.5], "image_std": [0.5]}, num_channels=1)
    assert Image("input", file_of(7, 9), pixels).pixels().shape == (1, 12, 20)
    with pytest.raises(UnsupportedModel, match="1 or 3 channels"):
        loaded(tmp_path / "five", {}, num_channels=5)


def test_a_turned_camera_is_turned_back(tmp_path: Path) -> None:
    """Its picture is upright first; an image of the right size may be asked for instead of scaling."""
    pixels = loaded(tmp_path, {"do_resize": False})
    turned = Image("input", file_of(12, 20, orientation=6), pixels).pixels()
    plain = pillow.open(io.BytesIO(file_of(12, 20))).transpose(pillow.Transpose.ROTATE_270)
    wanted = torch.tensor(list(plain.tobytes())).view(12, 20, 3).permute(2, 0, 1) / 255 * 2 - 1
    torch.testing.assert_close(turned, wanted, rtol=0, atol=1e-6)
    with pytest.raises(SessionFailed, match="is 20 x 13; this model takes 20 x 12"):
        Image("input", file_of(20, 13), pixels).pixels()
