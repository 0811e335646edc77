"""A checkpoint as a GGUF file that also says how YaRN stretches its positions, which ``gguf_file.py`` does not.

    PYTHONPATH=tests PYTHON -m bench.rivals.gguf_yarn CHECKPOINT GGUF

Needs numpy and the PyPI package ``gguf`` and nothing of this project, since it runs under llama.cpp's own interpreter.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from bench.rivals.gguf_file import write_gguf

_WRITTEN = {"rope_type", "rope_theta", "factor", "original_max_position_embeddings"}


def write_stretched(checkpoint: Path, target: Path) -> Path:
    """Convert ``config.json`` and ``model.safetensors`` of a folder; returns ``target``.

    Raises ValueError where positions are stretched in a way that cannot be said here.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") == "default":
        return write_gguf(checkpoint, target)
    if rope["rope_type"] != "yarn" or rope.keys() - _WRITTEN:
        raise ValueError(f"only plain YaRN is converted, not {json.dumps(rope)}")
    gguf: Any = importlib.import_module("gguf")
    copying: Any = importlib.import_module("gguf.scripts.gguf_new_metadata")
    plain = write_gguf(checkpoint, target.with_name(f"{target.name}.plain"))
    keys, kinds = gguf.Keys.Rope, gguf.GGUFValueType
    more = {
        keys.SCALING_TYPE: (kinds.STRING, "yarn"),
        keys.SCALING_FACTOR: (kinds.FLOAT32, float(rope["factor"])),
        keys.SCALING_ORIG_CTX_LEN: (kinds.UINT32, int(rope["original_max_position_embeddings"])),
    }
    named = {key.format(arch="llama"): copying.MetadataDetails(*value) for key, value in more.items()}
    copying.copy_with_new_metadata(gguf.GGUFReader(plain), gguf.GGUFWriter(target, "llama"), named, [])
    plain.unlink()
    return target


def main() -> None:
    """Convert one checkpoint."""
    parser = argparse.ArgumentParser(description="A checkpoint as a GGUF file, its stretched positions included.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("gguf", type=Path)
    options = parser.parse_args()
    try:
        write_stretched(options.checkpoint, options.gguf)
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"{options.checkpoint} is not converted: {error}")


if __name__ == "__main__":
    main()
