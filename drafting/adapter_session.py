"""One text that an adapter follows: what waits, what is in the cache, and the nodes behind it.

Observed rows wait until somebody asks; then they run in one batch, of which only the last row's output is computed.
Rows of kind ``fused`` use the deep row of the position before where it was observed, and nothing in its place where it
was not; a node uses its parent's own output. What the nodes of kind ``adapter`` left in the cache is what observing
them would have left, so it stays when they turn out final; those of kind ``fused`` are run again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from drafting.adapter_layer import AdapterLayer
from drafting.drafter import NODE_SLOTS, Guess, check_fits, check_rows, new_nodes
from drafting.waiting_rows import BATCH_ROWS, WaitingRows
from split_model.attention import Sight, sight_of
from split_model.device import joined_rows, put
from split_model.stack import Head, Span
from split_model.tree import TRUNK, Tree


class AdapterSession:
    """See ``drafting.drafter.DraftSession``."""

    def __init__(self, source: str, layer: AdapterLayer, head: Head, positions: int) -> None:
        self._source = source
        self._layer = layer
        self._head = head
        self._positions = positions
        self._position = 0
        self._cache = layer.new_cache(positions + NODE_SLOTS)
        self._waiting = WaitingRows()
        self._tree: Tree | None = None  # of which nodes have run
        self._node_outs: list[torch.Tensor] = []  # [1, hidden] each
        self._node_guesses: list[Guess] = []
        # Of the last observed token, once it has run and unless it was the end of a truncated text.
        self._out: torch.Tensor | None = None  # [1, hidden]
        self._guess: Guess | None = None

    @property
    def position(self) -> int:
        return self._position

    @property
    def nbytes(self) -> int:
        said = [guess.logits for guess in (self._guess, *self._node_guesses) if guess is not None]
        rows = [self._out, *self._node_outs, *said]
        return self._cache.nbytes + self._waiting.nbytes + sum(each.nbytes for each in rows if each is not None)

    @torch.inference_mode()
    def observe(self, tokens: Sequence[int], shallow: torch.Tensor, before: torch.Tensor | None) -> None:
        """Raises ValueError for rows that are not those of the tokens, or more tokens than the text has room for."""
        count = len(tokens)
        check_rows(count, self._layer.hidden_size, shallow, before)
        check_fits(self._position, count, self._positions)
        if not count:
            return
        settled = self._settle(tokens)
        self._position += count
        if settled < count:
            self._out = self._guess = None
            self._waiting.add(shallow[settled:], before if self._layer.fused else None)
            # Run unasked, so that a long stretch without drafts does not make the next guess wait long.
            while self._waiting.count > BATCH_ROWS:
                self._run_waiting()

    @torch.inference_mode()
    def guess(self) -> Guess | None:
        if self._guess is None:
            self._catch_up()
            if self._out is not None:
                self._guess = Guess(self._source, self._head.forward(self._out)[0])
        return self._guess

    @torch.inference_mode()
    def extend(self, tree: Tree, shallow: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Guess | None]:
        """Raises CacheFull for too many nodes."""
        new = new_nodes(tree, shallow, self._position, len(self._node_outs))
        if shallow.shape[1] != self._layer.hidden_size:
            raise ValueError(f"nodes cannot have rows {list(shallow.shape)}")
        if not new:
            return []
        if not new.start:
            self._catch_up()
        self._cache.reserve(len(new))
        self._tree = tree
        first, outs = new.start, []
        for end in self._waves(tree, new):
            outs.append(self._run_nodes(tree, range(first, end), shallow[first - new.start : end - new.start]))
            first = end
        logits = self._head.forward(joined_rows(outs))
        guesses = [Guess(self._source, row) for row in logits.unbind(0)]
        self._node_guesses += guesses
        return list(guesses)

    def truncate(self, position: int) -> None:
        """Where the row to guess from has gone, a guess is None until something is observed. Raises ValueError."""
        if not 0 <= position <= self._position:
            raise ValueError(f"cannot truncate to position {position}: {self._position} tokens are observed")
        self._forget_nodes()
        if position == self._position:
            return
        self._out = self._guess = None
        self._position = position
        run = min(position, self._cache.length)
        self._cache.truncate(run)
        self._waiting.truncate(position - run)

    def fork(self, position: int) -> AdapterSession:
        """Where the row to guess from is not the last, a guess is None until something is observed. Raises
        ValueError."""
        if not 0 <= position <= self._position:
            raise ValueError(f"cannot fork at position {position}: {self._position} tokens are observed")
        forked = AdapterSession(self._source, self._layer, self._head, self._positions)
        run = min(position, self._cache.length if self._tree is None else self._tree.trunk)
        forked._position = position
        forked._cache.begin_as(self._cache, run)
        forked._waiting = self._waiting.first(position - run)
        if position == self._position:
            forked._out, forked._guess = self._out, self._guess
        return forked

    def close(self) -> None:
        self._forget_nodes()
        self._waiting.truncate(0)
        self._cache = self._layer.new_cache(0)
        self._out = self._guess = None
        self._positions = self._position = 0

    def _forget_nodes(self) -> None:
        if self._tree is not None:
            self._cache.truncate(self._tree.trunk)
            self._tree, self._node_outs, self._node_guesses = None, [], []

    def _settle(self, tokens: Sequence[int]) -> int:
        """Forgets the nodes, but for what can stay of those that ``tokens`` follow: that many tokens have run."""
        tree = self._tree
        if tree is None:
            return 0
        path = () if self._layer.fused else _run_of(tree.follow(tokens), len(self._node_outs))
        if path:
            self._out, self._guess = self._node_outs[path[-1]], self._node_guesses[path[-1]]
            self._cache.keep(tree.trunk, tree.slots(path))
            self._tree, self._node_outs, self._node_guesses = None, [], []
        else:
            self._forget_nodes()
        return len(path)

    def _catch_up(self) -> None:
        while self._waiting.count:
            self._run_waiting()

    def _run_waiting(self) -> None:
        """Runs the first rows that wait, in one batch."""
        pieces = self._waiting.take(BATCH_ROWS)
        x = self._layer.kept(joined_rows([shallow for shallow, _ in pieces]))
        if any(deep is not None for _, deep in pieces):
            x = self._with_deep(x, pieces)
        rows, start = x.shape[0], self._cache.length
        last = Sight(0, start + rows, None, causal=False)
        self._out = self._layer.step(x, self._layer.rope.span(start, rows), last, self._cache)

    def _with_deep(self, x: torch.Tensor, pieces: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> torch.Tensor:
        """``x`` of all pieces with what the deep rows of some of them add."""
        added = self._layer.added(joined_rows([deep for _, deep in pieces if deep is not None]))
        if len(added) == len(x):
            return x + added
        parts = []
        at = known = 0
        for shallow, deep in pieces:
            rows = shallow.shape[0]
            part = x[at : at + rows]
            at += rows
            if deep is not None:
                part = part + added[known : known + rows]
                known += rows
            parts.append(part)
        return torch.cat(parts)

    def _waves(self, tree: Tree, new: range) -> list[int]:
        """Where new nodes are cut into batches: a row that uses its parent's output must come after it."""
        ends = []
        if self._layer.fused:
            known = new.start
            for node in new:
                if tree.parents[node] >= known:
                    ends.append(node)
                    known = node
        return [*ends, new.stop]

    def _run_nodes(self, tree: Tree, nodes: range, shallow: torch.Tensor) -> torch.Tensor:
        layer, rows = self._layer, len(nodes)
        x = layer.kept(shallow)
        if layer.fused:
            x = self._with_outputs_of(tree.parents[nodes.start : nodes.stop], x)
        span = Span(self._cache, rows, tree.sees(nodes.start, nodes.stop))
        rotations, seen = layer.rope.of([span]), sight_of(span, None, layer.dtype, layer.device)
        out = layer.step(x, rotations, seen, self._cache)
        self._node_outs += out.split_with_sizes([1] * rows)
        return out

    def _with_outputs_of(self, parents: Sequence[int], x: torch.Tensor) -> torch.Tensor:
        """``x`` of nodes with what the output of each one's parent adds: nothing where the text's last row has none."""
        outs = [self._out if parent == TRUNK else self._node_outs[parent] for parent in parents]
        known = [(row, out) for row, out in enumerate(outs) if out is not None]
        if not known:
            return x
        added = self._layer.added(joined_rows([out for _, out in known]))
        if len(known) == len(outs):
            return x + added
        return x.index_add(0, put(torch.tensor([row for row, _ in known]), x.device), added)


def _run_of(path: tuple[int, ...], known: int) -> tuple[int, ...]:
    """As much of ``path`` as is among the first ``known`` nodes."""
    return tuple(node for node in path if node < known)
