"""Images of a request: bounded by what their headers say before they are decoded, then scaled as the checkpoint says.

They come inside the request, as data URLs of PNG or JPEG. Nothing is ever fetched.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy
import torch

from device_agent.answering.inputs import named
from split_model.checkpoint import MAX_CONFIG_BYTES, read_object
from split_model.errors import BadCheckpoint, UnsupportedModel
from split_model.spec import ModelSpec
from wire.errors import Code, SessionFailed
from wire.reading_messages import Read

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_IMAGE_PIXELS: Final = 2**24
"""Of an image before it is scaled: 4096 x 4096, some 50 MB once decoded, whatever its file's size is."""

INSTALL: Final = "pip install '.[vision]' in Trilby's folder"

PROCESSOR_FILE: Final = "preprocessor_config.json"

_DATA_URL: Final = re.compile(r"data:image/(?:png|jpe?g);base64,", re.IGNORECASE)
_NOT_DONE: Final = ("do_center_crop", "do_pad", "do_reduce_labels")
_BILINEAR: Final = 2
_FILTERS: Final = range(6)
"""Pillow's, by number."""


@dataclass(frozen=True)
class Pixels:
    """How images become pixels: converted to so many channels, scaled, and their numbers moved and stretched.

    Attributes:
        shape: channels, height and width that the model takes.
        resample: by Pillow's number; None where images are not scaled, and have to be of that size.
        factor: by which a channel's 0 to 255 is multiplied.
        mean, std: of each channel, what is taken off then and what it is divided by.
    """

    shape: tuple[int, int, int]
    resample: int | None
    factor: float
    mean: Sequence[float]
    std: Sequence[float]

    @classmethod
    def load(cls, folder: Path, spec: ModelSpec) -> Pixels:
        """As the checkpoint's image processor is configured.

        Raises:
            BadCheckpoint: the folder does not say, or its file cannot be read.
            UnsupportedModel: by name, what is not done here; or Pillow is missing.
        """
        try:
            import PIL.Image  # noqa: F401 (an extra: most models read no images)
        except ImportError:
            raise UnsupportedModel(f"a model that reads images needs Pillow: {INSTALL}") from None
        assert spec.patches is not None
        if not (folder / PROCESSOR_FILE).is_file():
            raise BadCheckpoint(f"{folder} has no {PROCESSOR_FILE}, which says how images are scaled")
        config = read_object(folder / PROCESSOR_FILE, MAX_CONFIG_BYTES)
        for field in _NOT_DONE:
            if config.get(field):
                raise UnsupportedModel(f"{PROCESSOR_FILE}: {field} is not supported")
        channels, (height, width) = spec.patches.channels, spec.patches.image
        if channels not in (1, 3):
            raise UnsupportedModel(f"images have 1 or 3 channels, and this model takes {channels}")
        resizes = config.get("do_resize", True)
        if resizes and _size(config.get("size")) != (height, width):
            raise UnsupportedModel(f"{PROCESSOR_FILE}: size must be height {height} and width {width}, the model's own")
        normal = config.get("do_normalize", True)
        resample = _number(config, "resample", _BILINEAR)
        if resample not in _FILTERS:
            raise UnsupportedModel(
                f"{PROCESSOR_FILE}: resample is {resample!r}; it must be from 0 to {len(_FILTERS) - 1}"
            )
        std = _each(config, "image_std", channels) if normal else [1.0] * channels
        if not all(std):
            raise UnsupportedModel(f"{PROCESSOR_FILE}: image_std is {std}; none of it may be 0")
        return cls(
            shape=(channels, height, width),
            resample=int(resample) if resizes else None,
            factor=float(_number(config, "rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
            mean=_each(config, "image_mean", channels) if normal else [0.0] * channels,
            std=std,
        )


@dataclass(frozen=True)
class Image:
    """An image that may be decoded: its file, and what the client calls it."""

    name: str
    data: bytes
    to: Pixels

    def pixels(self) -> torch.Tensor:
        """float32 [channels, height, width]. Takes time and memory: call it on a thread. Raises ``SessionFailed``."""
        from PIL import ImageOps

        channels, height, width = self.to.shape
        try:
            picture = ImageOps.exif_transpose(_opened(self.name, self.data)).convert("RGB" if channels == 3 else "L")
        except Exception as error:  # Broken EXIF raises whatever its reader stumbles over.
            raise _refused(self.name, "is broken: it cannot be decoded to its end") from error
        if self.to.resample is not None:
            picture = picture.resize((width, height), resample=self.to.resample)
        elif picture.size != (width, height):
            raise _refused(self.name, f"is {picture.size[0]} x {picture.size[1]}; this model takes {width} x {height}")
        numbers = numpy.asarray(picture, dtype=numpy.float64).reshape(height, width, channels) * self.to.factor
        scaled = (numbers - numpy.array(self.to.mean)) / numpy.array(self.to.std)
        return torch.from_numpy(numpy.ascontiguousarray(scaled.transpose(2, 0, 1), dtype=numpy.float32))


def read_images(request: Read, to: Pixels) -> list[Image]:
    """The images of a request, none of them decoded yet. Call it on a thread.

    Raises:
        SessionFailed: one is no data URL, no PNG or JPEG, or of more than ``MAX_IMAGE_PIXELS`` pixels.
    """
    if not request.texts:
        raise SessionFailed(Code.INVALID_REQUEST, "this model reads images, not token ids", param="input")
    images = []
    for at, texts in enumerate(request.texts):
        name = named(request, at)
        images.append(Image(name, _file(name, texts), to))
        picture = _opened(name, images[-1].data)
        width, height = picture.size
        if width * height > MAX_IMAGE_PIXELS:
            raise _refused(name, f"has {width} x {height} pixels, more than the {MAX_IMAGE_PIXELS} that are decoded")
    return images


def _file(name: str, texts: Sequence[str]) -> bytes:
    if len(texts) > 1:
        raise _refused(name, "has two texts: this model reads images, one at a time")
    [url] = texts
    if re.match(r"https?:", url, re.IGNORECASE):
        raise _refused(name, "is an address, and nothing is fetched: send the image itself, as a data URL")
    begin = _DATA_URL.match(url)
    if begin is None:
        raise _refused(name, "is no data URL of a PNG or JPEG image in base64: data:image/png;base64,…")
    try:
        return base64.b64decode(url[begin.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refused(name, "is not in base64") from error


def _opened(name: str, data: bytes) -> Picture:
    """The image with its header read, and nothing else."""
    from PIL import Image as pillow

    try:
        return pillow.open(io.BytesIO(data), formats=("PNG", "JPEG"))
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise _refused(name, f"has more than the {MAX_IMAGE_PIXELS} pixels that are decoded") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise _refused(name, "is no PNG or JPEG image that can be read") from error


def _refused(name: str, why: str) -> SessionFailed:
    return SessionFailed(Code.INVALID_REQUEST, f"{name} {why}", param=name)


def _size(given: Any) -> tuple[int, int] | None:
    if isinstance(given, int):
        return given, given
    both = (given.get("height"), given.get("width")) if isinstance(given, dict) else (None, None)
    return both if all(isinstance(each, int) for each in both) else None  # type: ignore[return-value]


def _number(config: dict[str, Any], field: str, default: float) -> Any:
    value = config.get(field, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UnsupportedModel(f"{PROCESSOR_FILE}: {field} is {value!r}; it must be a number")
    return value


def _each(config: dict[str, Any], field: str, channels: int) -> list[float]:
    value = config.get(field, [0.5] * channels)
    if not isinstance(value, list) or len(value) != channels:
        raise UnsupportedModel(f"{PROCESSOR_FILE}: {field} is {value!r}; it must be {channels} numbers")
    return [float(_number({field: each}, field, 0.0)) for each in value]
