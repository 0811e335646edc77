"""The parts of one layer, or of a shard of it, as they run in a step of the model: real weights, made-up rows."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from device_agent.profiling.timing import Run
from split_model.attention import Sight, attend_in
from split_model.blocks import Block
from split_model.cached_batch import CacheBatch
from split_model.checkpoint import Checkpoint
from split_model.device import put
from split_model.kv_cache import KVCache
from split_model.relative import RelativeBias
from split_model.rope import Rope
from split_model.stack import Span

LAYER = 0
"""All layers are alike but for their windows."""

NORMS = ("norm before", "norm between", "norm behind")
"""The parts of a layer that are its two norms and residuals together."""

KEPT_BYTES: Final = 64 << 20
"""More than most CPUs keep near their cores: weights of which so much is used by turns come from memory."""


class LayerRuns:
    """As many copies of a layer as the model has layers, or as `KEPT_BYTES` need."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        groups: int,
        columns: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Reads these KV groups and columns of one layer. Raises BadCheckpoint."""
        spec, held = checkpoint.spec, range(groups)
        self._spec, self._dtype, self._device = spec, dtype, device
        of = checkpoint, LAYER, dtype, held, range(columns), device
        self._blocks = [Block(*of, apart=True)]
        for _ in range(1, self._copies(self._blocks[0].loaded_bytes)):
            self._blocks.append(Block(*of, apart=True))
        self._rope = Rope(spec.rope, dtype, device) if spec.positions == "rotary" else None
        self._relative = RelativeBias.load(checkpoint, held, dtype, device)
        self.groups, self.columns = groups, columns

    def parts(self, rows: int) -> list[dict[str, Run]]:
        """Of each copy what does not depend on positions, in the order of a layer; norms and residuals by `NORMS`.

        Rows are made up, the same for all copies.
        """
        hidden, added = self._random(rows, self._spec.hidden_size), self._random(rows, self._spec.hidden_size)
        turned = (None, None) if self._rope is None else self._rope.span(0, rows)
        context = self._random(rows, self._blocks[0].heads * self._spec.head_dim)
        inner = self._random(rows, self.columns)

        summed = added.clone()

        def between(block: Block) -> torch.Tensor:
            return block.mlp_norm(block.after_attention(hidden, added))

        return [
            {
                "norm before": partial(block.input_norm, hidden),
                "query": partial(block.qkv.query, hidden, *turned),
                "key_value": partial(block.qkv.key_value, hidden, *turned),
                "output": partial(block.attention_output, context),
                "norm between": partial(between, block),
                "up": partial(block.mlp_inner, hidden),
                "down": partial(block.mlp_output, inner),
                "norm behind": partial(block.after_mlp, summed, added),
            }
            for block in self._blocks
        ]

    def attend(self, rows: int, positions: int) -> list[dict[str, Run]]:
        """Attention of rows that see so many positions each, in the mean; of keys and values in as many copies.

        Rows of a causal model are the last of so many, and are stored; where they would have to be more than that, they
        all see the same positions, as another member's.
        """
        block, spec = self._blocks[0], self._spec
        q = self._heads(rows, block.heads)
        before = positions - (rows + 1) // 2
        copies = self._copies(2 * positions * block.kv_heads * block.head_dim * self._dtype.itemsize)
        if spec.attention != "causal" or before < 0:
            seen = Sight(0, positions, self._added(rows, positions), causal=False)
            return [
                {
                    "attend": partial(
                        attend_in, seen, q, *(each.transpose(0, 1) for each in self._keys_values(positions))
                    )
                }
                for _ in range(copies)
            ]
        found: list[dict[str, Run]] = []
        for _ in range(copies):
            cache = KVCache(1, block.kv_heads, block.head_dim, self._dtype, before + rows, self._device)
            cache.append(0, *self._keys_values(before))
            cache.advance(before)
            batch = CacheBatch([Span(cache, rows)])
            found.append({"attend": partial(batch.attend, 0, block.window, q, *self._keys_values(rows))})
        return found

    def _copies(self, size: int) -> int:
        return min(self._spec.num_layers, -(-KEPT_BYTES // max(size, 1)))

    def _added(self, rows: int, positions: int) -> torch.Tensor | None:
        """What relative positions add to the scores."""
        if self._relative is None:
            return None
        return self._relative.between(torch.arange(rows), torch.arange(positions)).unsqueeze(1)

    def _keys_values(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        kv_heads = self._blocks[0].kv_heads
        return self._heads(positions, kv_heads), self._heads(positions, kv_heads)

    def _heads(self, rows: int, heads: int) -> torch.Tensor:
        return self._random(rows, heads, self._spec.head_dim)

    def _random(self, *shape: int) -> torch.Tensor:
        return put(torch.randn(shape, dtype=self._dtype), self._device)
