"""llama.cpp with its weights mapped from a file: runs under an interpreter that has llama-cpp-python and gguf.

    PYTHON -m bench.rivals.llama_mmap CHECKPOINT FOLDER DTYPE

Lines as those of `accelerate_disk`. Weights are float32 whatever DTYPE says of others, and keys and values float16, so
tokens may differ from transformers'. The file is in FOLDER, which has to be on the disk that is measured.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from bench.rivals.gguf_file import write_gguf
from bench.rivals.llama_decode import Decoder, say


def main() -> None:
    """See above."""
    checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2])
    say({"version": f"llama.cpp of llama-cpp-python {importlib.import_module('llama_cpp').__version__}"})
    sys.stdin.readline()
    file = write_gguf(checkpoint, folder / "model-f32.gguf", single=True)
    os.sync()
    opened = os.open(file, os.O_RDONLY)
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(opened)
    decoder = Decoder(file, threads=1)
    say({"loaded": True})
    for line in sys.stdin:
        work = json.loads(line)
        decoder.prepare(1, -(-(len(work["prompt"]) + work["new"] + 1) // 256) * 256)
        [tokens], [times] = decoder.generate([work["prompt"]], work["new"] + 1)
        say({"tokens": tokens, "times": [each - times[0] for each in times[1:]]})


if __name__ == "__main__":
    main()
