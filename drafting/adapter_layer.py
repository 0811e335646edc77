"""The one attention layer that stands for the middle of the model: its weights and its arithmetic, without state.

``out = x + output(attention(rope(query(norm x)), rope(key(norm x)), value(norm x)))``; kind ``adapter`` takes the
shallow row itself for ``x``, kind ``fused`` adds ``fuse(deep_norm(f))``, f being the deep row of the position before.
A fused drafter may have more, as its tensors say: ``keep``, by which the shallow row is multiplied, and a narrow MLP
behind the attention, ``out += down(silu(up(mlp_norm(out))))``.
Every row sees all before it, also in models whose own layers have a sliding window.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import silu

from drafting.drafter_file import DrafterFile
from split_model.attention import Sight, attend_in
from split_model.kv_cache import KVCache
from split_model.matrix import Matrix
from split_model.norm import RmsNorm
from split_model.rope import Rope
from split_model.spec import ModelSpec


def adapter_shapes(
    spec: ModelSpec, kind: str, present: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a drafter of kind ``adapter`` or ``fused``.

    present: shapes of the tensors that a file has. Those that a fused drafter may have more are among the shapes
    where the file has them.
    """
    hidden = spec.hidden_size
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "norm": (hidden,),
        "query": (heads, hidden),
        "key": (kv, hidden),
        "value": (kv, hidden),
        "output": (hidden, heads),
    }
    if kind == "fused":
        shapes |= {"deep_norm": (hidden,), "fuse": (hidden, hidden)}
        present = present or {}
        if "keep" in present:
            shapes["keep"] = (hidden,)
        if "up" in present:
            rank = (*present["up"], 0)[0]
            shapes |= {"mlp_norm": (hidden,), "up": (rank, hidden), "down": (hidden, rank)}
    return shapes


class AdapterLayer:
    """The weights in memory.

    Attributes:
        fused: whether ``x`` is more than the shallow row.
    """

    def __init__(self, file: DrafterFile, spec: ModelSpec, dtype: torch.dtype) -> None:
        """Reads a file that was checked for this model. Raises BadDrafter."""
        self.fused = file.kind == "fused"
        self.dtype = dtype
        self.rope = Rope(spec.rope, dtype)
        self._spec = spec
        self._heads = spec.num_heads
        self._kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._rotated = spec.num_heads + spec.num_kv_heads
        self._all_heads = spec.num_heads + 2 * spec.num_kv_heads
        self._norm = RmsNorm(file.tensor("norm", dtype), spec.norm_eps)
        self._qkv = file.matrix(["query", "key", "value"], dtype)
        self._output = file.matrix(["output"], dtype)
        if self.fused:
            self._deep_norm = RmsNorm(file.tensor("deep_norm", dtype), spec.norm_eps)
            self._fuse = file.matrix(["fuse"], dtype)
        self._keep = file.tensor("keep", dtype) if "keep" in file.shapes else None
        self._up: Matrix | None = None
        if "up" in file.shapes:
            self._mlp_norm = RmsNorm(file.tensor("mlp_norm", dtype), spec.norm_eps)
            self._up = file.matrix(["up"], dtype)
            self._down = file.matrix(["down"], dtype)

    @property
    def hidden_size(self) -> int:
        return self._spec.hidden_size

    def new_cache(self, limit: int) -> KVCache:
        """An empty cache of at most ``limit`` rows."""
        return KVCache(1, self._kv_heads, self._head_dim, self.dtype, limit)

    def kept(self, shallow: torch.Tensor) -> torch.Tensor:
        """``x`` of rows before which no deep row is known, ``[rows, hidden_size]``; perhaps ``shallow`` itself."""
        return shallow if self._keep is None else shallow * self._keep

    def added(self, deep: torch.Tensor) -> torch.Tensor:
        """What deep rows ``[rows, hidden_size]`` add to ``x`` of the positions behind them."""
        return self._fuse(self._deep_norm(deep))

    def step(
        self, x: torch.Tensor, rotations: tuple[torch.Tensor, torch.Tensor], seen: Sight, cache: KVCache
    ) -> torch.Tensor:
        """Appends the keys and values of rows ``x [rows, hidden_size]`` to the cache.

        rotations: of their positions, as ``Rope.span`` gives them. seen: by the last rows, as many as its mask or its
        causal order is for, all of the cache included; fewer than all where only those outputs are wanted.

        Returns:
            the outputs of the last rows, ``[wanted, hidden_size]``.
        """
        cos, sin = rotations
        rows = x.shape[0]
        projected = self._qkv(self._norm(x)).view(rows, self._all_heads, self._head_dim)
        rotated = projected.narrow(1, 0, self._rotated)
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_dim // 2, -1), sin)
        query, key = rotated.split_with_sizes([self._heads, self._kv_heads], 1)
        keys, values = cache.append(0, key, projected.narrow(1, self._rotated, self._kv_heads))
        cache.advance(rows)
        if rows > 1 and seen.mask is None and not seen.causal:  # the last row alone
            query, x = query[-1:], x[-1:]
        out = self._output(attend_in(seen, query, keys, values)).add_(x)
        if self._up is None:
            return out
        return out.add_(self._down(silu(self._up(self._mlp_norm(out)), inplace=True)))
