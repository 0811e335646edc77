"""Runs under llama.cpp's own interpreter: decodes what it reads from standard input with llama.cpp, line by line.

    PYTHONPATH=tests PYTHON -m bench.rivals.llama_decode CHECKPOINT THREADS

Needs ``llama-cpp-python``, ``gguf`` and numpy. The first line out says that the model is loaded; then every line in,
``{"prompts": [[ids]], "new": n}``, is answered by ``{"tokens": [[ids]], "times": [[seconds since the line came]]}``.

This is the work of llama.cpp's server without HTTP, slots, sampling chain and JSON, so its best case: all prompts in
as few batches as hold them, then one batch of one row for each session, greedy by argmax.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy
from bench.rivals.gguf_file import write_gguf

BATCH_ROWS = 2048
"""Rows in one batch, the server's default."""

Row = tuple[int, int, int, bool]
"""Token id, position, session, and whether its logits are wanted."""


class Decoder:
    """A loaded model and a context for the number of sessions and positions last asked for."""

    def __init__(self, model: Path, threads: int) -> None:
        """Raises RuntimeError where the file cannot be loaded."""
        self._llama: Any = importlib.import_module("llama_cpp")
        self._silence = self._llama.llama_log_callback(lambda level, text, data: None)
        self._llama.llama_log_set(self._silence, None)
        self._llama.llama_backend_init()
        self._model = self._llama.llama_model_load_from_file(
            str(model).encode(), self._llama.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self._vocab = self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(self._model))
        self._batch = self._llama.llama_batch_init(BATCH_ROWS, 0, 1)
        self._threads = threads
        self._shape = (0, 0)
        self._context: Any = None

    def prepare(self, sessions: int, positions: int) -> None:
        """Have an empty context for these, float16 keys and values.

        Raises RuntimeError where there is no memory for it.
        """
        if self._shape != (sessions, positions):
            if self._context:
                self._llama.llama_free(self._context)
            params = self._llama.llama_context_default_params()
            params.n_ctx = sessions * positions
            params.n_seq_max = sessions
            params.n_batch = BATCH_ROWS
            # Left to itself llama.cpp chooses flash attention, with which 8 rows decode at 0.8 of the speed on a CPU.
            params.flash_attn_type = self._llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
            params.n_threads = params.n_threads_batch = self._threads
            self._context = self._llama.llama_init_from_model(self._model, params)
            if not self._context:
                raise RuntimeError(f"llama.cpp has no context for {sessions} sessions of {positions} positions")
            self._shape = (sessions, positions)
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), False)

    def generate(self, prompts: list[list[int]], new: int) -> tuple[list[list[int]], list[list[float]]]:
        """New tokens of every prompt, and when each was known, in seconds from now.

        Raises RuntimeError where llama.cpp fails, ValueError where its last logits are not finite.
        """
        began = time.perf_counter()
        tokens: list[list[int]] = [[] for _ in prompts]
        times: list[list[float]] = [[] for _ in prompts]
        rows: list[Row] = []
        for session, prompt in enumerate(prompts):
            rows += [(token, position, session, False) for position, token in enumerate(prompt[:-1])]
            rows.append((prompt[-1], len(prompt) - 1, session, True))
        logits: Any = None
        while len(tokens[-1]) < new:
            for begin in range(0, len(rows), BATCH_ROWS):
                part = rows[begin : begin + BATCH_ROWS]
                asking = [session for _, _, session, wanted in part if wanted]
                logits = self._decode(part, len(asking))
                chosen = logits.argmax(1).tolist() if asking else []
                now = time.perf_counter() - began
                for session, token in zip(asking, chosen, strict=True):
                    tokens[session].append(token)
                    times[session].append(now)
            rows = [
                (tokens[session][-1], len(prompt) + len(tokens[session]) - 1, session, True)
                for session, prompt in enumerate(prompts)
            ]
        if not numpy.isfinite(logits).all():
            raise ValueError("llama.cpp's logits are not finite")
        return tokens, times

    def _decode(self, rows: list[Row], wanted: int) -> Any:
        """Run one batch; logits [wanted, vocab], good until the next."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, session, want) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = session
            batch.logits[index] = want
        code = self._llama.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        # A batch runs on after the call returns, until somebody asks for its logits.
        self._llama.llama_synchronize(self._context)
        pointer = self._llama.llama_get_logits(self._context)
        return numpy.ctypeslib.as_array(pointer, (wanted, self._vocab)) if wanted else None


def main() -> None:
    """Convert the checkpoint unless that is done, load it, and answer lines until there are no more."""
    checkpoint, threads = Path(sys.argv[1]), int(sys.argv[2])
    model = checkpoint / "model-f16.gguf"
    if not model.exists():
        write_gguf(checkpoint, model)
    decoder = Decoder(model, threads)
    say({"version": importlib.import_module("llama_cpp").__version__})
    for line in sys.stdin:
        work = json.loads(line)
        # A context is a multiple of 256 positions for each session.
        longest = max(map(len, work["prompts"])) + work["new"]
        decoder.prepare(len(work["prompts"]), -(-longest // 256) * 256)
        tokens, times = decoder.generate(work["prompts"], work["new"])
        say({"tokens": tokens, "times": times})


def say(message: dict[str, Any]) -> None:
    """A line of JSON."""
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
