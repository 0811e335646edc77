"""The device's side of llama.cpp's RPC split: layers between the first and the last run on an RPC server.

    PYTHONPATH=tests PYTHON -m bench.rivals.llama_rpc_client CHECKPOINT GGUF HOST:PORT
                            [--front M] [--tail K | --head server] [--threads N] [--positions P]

Needs what ``llama_rpc.py`` says. CHECKPOINT is converted to GGUF, float16, unless that file is there. Then all weights
of the layers that are not kept here go over the link, so a link is best shaped after the first line has come out:
``{"version": …, "layers": ["CPU", …, "RPC0", …, "CPU"]}``, where every layer is and, last, the head.

Every line in, ``{"prompt": [ids], "new": n}``, is one request, answered before the next is read, by ``{"tokens": [ids],
"began": s, "times": [s, …]}``: greedy tokens, when the line was read on this machine's monotonic clock, and when each
token was known, in seconds since. An end-of-sequence id ends nothing. Where the link breaks, llama.cpp aborts (SIGABRT)
with a line on standard error.

The embedding is always the device's. With ``--tail`` (0 unless said) the last layers, the norm and the head are too, as
in a U-shape; ``--head server`` is what llama.cpp does by itself, and logits come back.

What crosses the link, as llama.cpp has it: hidden states in float32, on the way up two for each row (the two addends of
the last sum before the border, or that sum and its norm); a mask of every row by the positions so far; and the graph,
anew for the first token after a prompt and whenever the positions outgrow a multiple of 256. A token takes one round
trip.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from bench.rivals.gguf_file import write_gguf
from bench.rivals.llama_rpc import Ggml, RpcUnavailable

_PLACED = re.compile(rb"layer +(\d+) assigned to device (\w+)")
_ERROR_LEVEL = 4


class SplitModel:
    """A loaded model: ``front`` layers here, ``tail`` layers with the head too or (None) neither, the rest remote."""

    def __init__(
        self,
        gguf: Path,
        layers: int,
        endpoint: str,
        *,
        front: int,
        tail: int | None,
        threads: int,
        positions: int,
    ) -> None:
        """``layers`` are those of the model.

        Raises RpcUnavailable, ValueError where no layer is left for the server, RuntimeError where llama.cpp fails.
        """
        remote = layers - front - (tail or 0)
        if min(front, tail or 0) < 0 or remote < 1:
            raise ValueError(f"of {layers} layers, {front} at the front and {tail or 0} at the end leave none")
        ggml = Ggml()
        self.version = ggml.version
        self.placed: dict[int, str] = {}
        self._llama: Any = importlib.import_module("llama_cpp")
        self._log = self._llama.llama_log_callback(self._read_log)
        self._llama.llama_log_set(self._log, None)
        self._llama.llama_backend_init()
        params = self._llama.llama_model_default_params()
        # llama.cpp offloads the last layers, and counts the head as one more.
        params.n_gpu_layers = layers + 1 - front
        params.split_mode = self._llama.LLAMA_SPLIT_MODE_LAYER
        # So layers at the end stay here only where the CPU is one of the devices to offload to, behind the remote one.
        devices = [ggml.remote(endpoint)] + ([] if tail is None else [ggml.cpu()])
        self._devices = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
        params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        if tail is not None:
            # The shares are compared as float32; half a layer keeps their border off the layers' own.
            self._shares = (ctypes.c_float * self._llama.llama_max_devices())(remote - 0.5, tail + 1.5)
            params.tensor_split = self._shares
        self._model = self._llama.llama_model_load_from_file(str(gguf).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        self._vocab = self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(self._model))
        self._positions = positions
        context = self._llama.llama_context_default_params()
        context.n_ctx = context.n_batch = positions
        context.n_seq_max = 1
        # Without it masks are twice as large, and a row number for every value of the cache crosses the link as well.
        context.flash_attn_type = self._llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        context.n_threads = context.n_threads_batch = threads
        self._context = self._llama.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no context of {positions} positions")
        # The first forward sets up what later ones reuse; llama.cpp's own programs run one before they serve, too.
        self._forward([0])

    def generate(self, prompt: Sequence[int], new: int) -> tuple[list[int], list[float]]:
        """Greedy tokens, and when each was known, in seconds from now.

        Raises ValueError for an empty prompt, one without room, or logits that are not finite; RuntimeError where
        llama.cpp fails.
        """
        if not prompt or len(prompt) + new > self._positions:
            raise ValueError(f"{len(prompt)} + {new} positions, of {self._positions} at most and one at least")
        began = time.perf_counter()
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), False)
        tokens: list[int] = []
        times: list[float] = []
        rows = list(prompt)
        while len(tokens) < new:
            logits = self._forward(rows)
            rows = [int(logits.argmax())]
            tokens += rows
            times.append(time.perf_counter() - began)
            if not numpy.isfinite(logits).all():
                raise ValueError("llama.cpp's logits are not finite")
        return tokens, times

    def _forward(self, rows: list[int]) -> Any:
        """Run the next positions; logits [vocab] of the last one, good until the next call."""
        ids = (self._llama.llama_token * len(rows))(*rows)
        code = self._llama.llama_decode(self._context, self._llama.llama_batch_get_one(ids, len(rows)))
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        return numpy.ctypeslib.as_array(self._llama.llama_get_logits_ith(self._context, -1), (self._vocab,))

    def _read_log(self, level: int, text: bytes, _data: Any) -> None:
        """Keep where layers are placed; pass errors on."""
        found = _PLACED.search(text)
        if found:
            self.placed[int(found[1])] = found[2].decode()
        elif level == _ERROR_LEVEL:
            print(text.decode(errors="replace"), end="", file=sys.stderr)


def convert(checkpoint: Path, gguf: Path) -> None:
    """Write the GGUF file unless it is there; a conversion that is cut short leaves none."""
    if not gguf.exists():
        part = gguf.with_name(f"{gguf.name}.{os.getpid()}")
        write_gguf(checkpoint, part).replace(gguf)


def main() -> None:
    """Convert, load, and answer lines until there are no more."""
    parser = argparse.ArgumentParser(description="llama.cpp with most layers on an RPC server.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("endpoint", metavar="HOST:PORT")
    parser.add_argument("--front", type=int, default=2, help="layers kept here at the front")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--tail", type=int, default=0, help="layers kept here at the end, with the head")
    ends.add_argument("--head", choices=("server",), help="the last layers and the head are the server's")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--positions", type=int, help="room for a prompt and its answer; as many as the model has")
    options = parser.parse_args()
    config = json.loads((options.checkpoint / "config.json").read_text(encoding="utf-8"))
    try:
        convert(options.checkpoint, options.gguf)
        model = SplitModel(
            options.gguf,
            config["num_hidden_layers"],
            options.endpoint,
            front=options.front,
            tail=None if options.head else options.tail,
            threads=options.threads,
            positions=options.positions or config["max_position_embeddings"],
        )
    except (RpcUnavailable, ValueError, RuntimeError) as error:
        sys.exit(str(error))
    _say({"version": model.version, "layers": [device for _, device in sorted(model.placed.items())]})
    for line in sys.stdin:
        began = time.perf_counter()
        work = json.loads(line)
        tokens, times = model.generate(work["prompt"], work["new"])
        _say({"tokens": tokens, "began": began, "times": times})


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
