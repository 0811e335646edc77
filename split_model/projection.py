"""Rows to queries, keys and values of some heads, rotated to where the rows stand if positions are rotations."""

from __future__ import annotations

import torch

from split_model.matrix import Matrix
from split_model.norm import Norm


class Projection:
    """The query, key and value matrices of an attention layer, or of some KV groups of it.

    Most want all three of the same rows, which is one product. Who wants the queries of some rows and the keys and
    values of others loads them as two matrices.

    Args:
        matrices: one, query, key and value stacked by rows; or two, the query and the other two stacked.
        query_norm, key_norm: of each head, both or neither.
        stretch: what queries are multiplied by: attention divides all scores by sqrt(head_dim), and some models do not.
    """

    def __init__(
        self,
        matrices: list[Matrix],
        heads: int,
        kv_heads: int,
        head_dim: int,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        stretch: float | None = None,
    ) -> None:
        assert len(matrices) in (1, 2)
        self.matrices = matrices
        """As given; others of the same shapes may take their place while nothing is computed."""
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._rotated, self._all = heads + kv_heads, heads + 2 * kv_heads
        self._query_norm, self._key_norm = query_norm, key_norm
        self._stretch = stretch

    @property
    def nbytes(self) -> int:
        """Bytes of the weights held."""
        norms = [norm.nbytes for norm in (self._query_norm, self._key_norm) if norm is not None]
        return sum(norms) + sum(matrix.nbytes for matrix in self.matrices)

    def of_heads(self, matrices: list[Matrix], heads: int, kv_heads: int) -> Projection:
        """The same with the matrices of other heads: norms, which are a head's, stay."""
        norms = self._query_norm, self._key_norm
        return Projection(matrices, heads, kv_heads, self._head_dim, *norms, self._stretch)

    def __call__(
        self, normed: torch.Tensor, cos: torch.Tensor | None = None, sin: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """normed [rows, hidden], behind the layer's norm; cos, sin [rows, 1, head_dim] as `Rope.span` gives them, or
        neither.

        Returns q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim].
        """
        if len(self.matrices) == 2:
            return self.query(normed, cos, sin), *self.key_value(normed, cos, sin)
        heads = self.matrices[0](normed).view(normed.shape[0], self._all, self._head_dim)
        rotated = heads.narrow(1, 0, self._rotated)
        if self._query_norm is not None and self._key_norm is not None:
            q = self._query_norm(heads.narrow(1, 0, self._heads))
            k = self._key_norm(heads.narrow(1, self._heads, self._kv_heads))
            rotated = torch.cat((q, k), 1)
        q, k = _rotate(rotated, cos, sin).split_with_sizes([self._heads, self._kv_heads], 1)
        if self._stretch is not None:
            q = q * self._stretch
        return q, k, heads.narrow(1, self._rotated, self._kv_heads)

    def query(
        self, normed: torch.Tensor, cos: torch.Tensor | None = None, sin: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The queries alone, of matrices that were loaded apart."""
        query, _ = self.matrices
        heads = query(normed).view(normed.shape[0], self._heads, self._head_dim)
        rotated = _rotate(heads if self._query_norm is None else self._query_norm(heads), cos, sin)
        return rotated if self._stretch is None else rotated * self._stretch

    def key_value(
        self, normed: torch.Tensor, cos: torch.Tensor | None = None, sin: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values alone, of matrices that were loaded apart."""
        _, key_value = self.matrices
        heads = key_value(normed).view(normed.shape[0], 2 * self._kv_heads, self._head_dim)
        keys, values = heads.split_with_sizes([self._kv_heads, self._kv_heads], 1)
        return _rotate(keys if self._key_norm is None else self._key_norm(keys), cos, sin), values

    def sought(self, q: torch.Tensor) -> torch.Tensor:
        """Queries [rows, heads, head_dim] times their heads' key matrices, loaded apart and plain: what is multiplied
        by rows instead of keys.

        Returns [kv_heads, rows * heads / kv_heads, hidden]: of each KV head all heads that share it, row by row.
        """
        by_group = q.view(len(q), self._kv_heads, -1, self._head_dim).transpose(0, 1).flatten(1, 2)
        return torch.bmm(by_group, self._key_value_parts()[0])

    def valued(self, mixed: torch.Tensor) -> torch.Tensor:
        """Rows mixed by scores that sum to one, laid out as `sought` gives them, times their heads' value matrices:
        the context, [rows, heads * head_dim]."""
        found = torch.bmm(mixed, self._key_value_parts()[1].transpose(1, 2))
        bias = self.matrices[1].bias
        if bias is not None:
            found += bias.view(2, self._kv_heads, 1, self._head_dim)[1]
        group = self._heads // self._kv_heads
        return found.view(self._kv_heads, -1, group, self._head_dim).transpose(0, 1).flatten(1)

    def _key_value_parts(self) -> torch.Tensor:
        """[2, kv_heads, head_dim, hidden], a view."""
        return self.matrices[1].weight.view(2, self._kv_heads, self._head_dim, -1)


def _rotate(heads: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None) -> torch.Tensor:
    if cos is None or sin is None:
        return heads
    return torch.addcmul(heads * cos, heads.roll(cos.shape[-1] // 2, -1), sin)
