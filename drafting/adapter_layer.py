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
from drafting.replay import replayed
from split_model.attention import Sight, attend_in
from split_model.kv_cache import KVCache
from split_model.matrix import Matrix
from split_model.norm import RmsNorm
from split_model.projection import Projection
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

    def __init__(self, file: DrafterFile, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        """Reads a file that was checked for this model. Raises BadDrafter."""
        self.fused = file.kind == "fused"
        self.dtype = dtype
        self.device = device
        self.rope = Rope(spec.rope, dtype, device)
        self._spec = spec
        self._norm = RmsNorm(file.tensor("norm", dtype, device), spec.norm_eps)
        matrix = file.matrix(["query", "key", "value"], dtype, device)
        self._qkv = Projection([matrix], spec.num_heads, spec.num_kv_heads, spec.head_dim)
        self._output = file.matrix(["output"], dtype, device)
        if self.fused:
            self._deep_norm = RmsNorm(file.tensor("deep_norm", dtype, device), spec.norm_eps)
            self._fuse = file.matrix(["fuse"], dtype, device)
        self._keep = file.tensor("keep", dtype, device) if "keep" in file.shapes else None
        self._up: Matrix | None = None
        if "up" in file.shapes:
            self._mlp_norm = RmsNorm(file.tensor("mlp_norm", dtype, device), spec.norm_eps)
            self._up = file.matrix(["up"], dtype, device)
            self._down = file.matrix(["down"], dtype, device)
        # A node's step; what is between the two hangs on how long the text is.
        self._replay_begin, self._replay_end = replayed(self._begin, device), replayed(self._end, device)

    @property
    def hidden_size(self) -> int:
        return self._spec.hidden_size

    def new_cache(self, limit: int) -> KVCache:
        """An empty cache of at most ``limit`` rows."""
        return KVCache(1, self._spec.num_kv_heads, self._spec.head_dim, self.dtype, limit, self.device)

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
        rows = x.shape[0]
        alone = rows == 1
        query, key, value = (self._replay_begin if alone else self._begin)(x, *rotations)
        keys, values = cache.append(0, key, value)
        cache.advance(rows)
        if rows > 1 and seen.mask is None and not seen.causal:  # the last row alone
            query, x = query[-1:], x[-1:]
        [out] = (self._replay_end if alone else self._end)(attend_in(seen, query, keys, values), x)
        return out

    def _begin(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values of rows."""
        return self._qkv(self._norm(x), cos, sin)

    def _end(self, context: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of rows ``x``, from what they attended to."""
        out = self._output(context).add_(x)
        if self._up is not None:
            out.add_(self._down(silu(self._up(self._mlp_norm(out)), inplace=True)))
        return (out,)
