"""Drafting with a small model of its own, which reads the same tokens as the large one.

It runs whole on the device and needs nothing of the large model's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn import functional

from drafting.drafter import NODE_SLOTS, Guess, check_fits, new_nodes
from drafting.errors import BadDrafter
from drafting.same_tokenizer import check_same_tokens
from drafting.waiting_rows import BATCH_ROWS
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError
from split_model.hub import resolve
from split_model.names import model_name
from split_model.slices import slice_parts, whole
from split_model.spec import ModelSpec
from split_model.stack import Embedding, Head, Span, Stack
from split_model.tree import Tree


class SmallModel:
    """The weights of all layers, and how its tokens answer to the target's."""

    def __init__(self, embedding: Embedding, stack: Stack, head: Head, vocab_size: int) -> None:
        """vocab_size: of the target."""
        self.stack = stack
        self._embedding = embedding
        self._head = head
        self._vocab_size = vocab_size
        self._own_vocab_size = embedding.weight.shape[0]

    def rows(self, tokens: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """The embedded tokens; of a token that only the target has, whichever the last of this model's own is."""
        last = self._own_vocab_size - 1
        if isinstance(tokens, torch.Tensor):
            return self._embedding.forward(tokens.clamp(0, last))
        return self._embedding.forward([min(token, last) for token in tokens])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 ``[rows, vocab]`` of the target's vocabulary: what this model lacks cannot follow."""
        found = self._head.forward(hidden)
        lacking = self._vocab_size - self._own_vocab_size
        if lacking == 0:
            return found
        return functional.pad(found, (0, lacking), value=float("-inf")) if lacking > 0 else found[:, :lacking]


class SmallModelDrafter:
    """See ``drafting.drafter.Drafter``."""

    tree_nodes = 0

    def __init__(self, name: str, model: SmallModel, parameters: int) -> None:
        self.name = name
        self.parameters = parameters
        self._model = model

    @classmethod
    def load(
        cls,
        model: str,
        target_folder: Path,
        spec: ModelSpec,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> SmallModelDrafter:
        """Reads a whole model: a folder, or a hub id.

        Args:
            target_folder: where the target's tokenizer is, to compare.
            spec: of the target.

        Raises:
            BadDrafter: there is no such model, it cannot be read, or it reads other tokens.
        """
        try:
            folder = resolve(model)
            check_same_tokens(folder, target_folder)
            checkpoint = Checkpoint.open(folder)
            embedding = Embedding.load(checkpoint, dtype, device)
            stack = Stack.load(checkpoint, whole(checkpoint.spec), dtype, device)
            head = Head.load(checkpoint, checkpoint.spec, dtype, embedding, device)
        except ModelError as error:
            raise BadDrafter(f"{model} cannot draft: {error}") from error
        parameters = sum(part.num_elements for part in slice_parts(checkpoint.spec, whole(checkpoint.spec)))
        return cls(model_name(model), SmallModel(embedding, stack, head, spec.vocab_size), parameters)

    def apart(self) -> SmallModelDrafter:
        """Itself: it learns nothing from texts."""
        return self

    def open(self, positions: int, earlier: Sequence[int] = ()) -> SmallModelSession:
        """Follow a text of at most ``positions`` tokens."""
        return SmallModelSession(self.name, self._model, positions)


class SmallModelSession:
    """See ``drafting.drafter.DraftSession``. Behind the last position that the model was made for it says nothing."""

    def __init__(self, source: str, model: SmallModel, positions: int) -> None:
        self._source = source
        self._model = model
        self._positions = positions
        self._limit = min(positions, model.stack.spec.max_positions)
        self._tokens: list[int] = []
        self._cache = model.stack.new_cache(self._limit + NODE_SLOTS)
        self._tree: Tree | None = None  # of which nodes have run
        self._node_guesses: list[Guess] = []
        self._last: torch.Tensor | None = None  # [1, hidden], the output of the last observed token once it has run
        self._guess: Guess | None = None

    @property
    def position(self) -> int:
        return len(self._tokens)

    @property
    def nbytes(self) -> int:
        said = [guess.logits for guess in (self._guess, *self._node_guesses) if guess is not None]
        rows = sum(each.nbytes for each in (self._last, *said) if each is not None)
        return self._cache.nbytes + 8 * len(self._tokens) + rows

    def observe(self, tokens: Sequence[int], shallow: torch.Tensor, before: torch.Tensor | None) -> None:
        """The rows are not looked at. Raises ValueError for more tokens than the text has room for."""
        check_fits(self.position, len(tokens), self._positions)
        if not tokens:
            return
        self._last = self._guess = None
        if (tree := self._tree) is not None:
            path = [node for node in tree.follow(tokens) if node < len(self._node_guesses)]
            self._cache.keep(tree.trunk, tree.slots(path))
            if len(path) == len(tokens):
                self._guess = self._node_guesses[path[-1]]
            self._tree, self._node_guesses = None, []
        self._tokens += tokens
        while self._cache.length + BATCH_ROWS < self.position <= self._limit:
            self._read()

    @torch.inference_mode()
    def guess(self) -> Guess | None:
        if self.position > self._limit:
            return None
        if self._guess is None and self._tokens:
            last = self._catch_up()
            self._guess = Guess(self._source, self._model.logits(last)[0])
        return self._guess

    @torch.inference_mode()
    def extend(self, tree: Tree, shallow: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Guess | None]:
        """Raises CacheFull for too many nodes."""
        if self.position > self._limit:
            return [None] * len(shallow)
        new = new_nodes(tree, shallow, self.position, len(self._node_guesses))
        if not new:
            return []
        if not new.start and self._guess is None and self._tokens:
            self._catch_up()
        self._cache.reserve(len(new))
        self._tree = tree
        span = Span(self._cache, len(new), tree.sees(new.start))
        rows = self._model.rows(tree.tokens[new.start :] if tokens is None else tokens)
        hidden = self._model.stack.forward(rows, [span])
        guesses = [Guess(self._source, row) for row in self._model.logits(hidden).unbind(0)]
        self._node_guesses += guesses
        return list(guesses)

    def truncate(self, position: int) -> None:
        """Raises ValueError for a position that was not observed."""
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot truncate to position {position}: {self.position} tokens are observed")
        if self._tree is not None:
            self._cache.truncate(self._tree.trunk)
            self._tree, self._node_guesses = None, []
        if position < self.position:
            del self._tokens[position:]
            self._cache.truncate(min(position, self._cache.length))
            self._last = self._guess = None

    def fork(self, position: int) -> SmallModelSession:
        """Raises ValueError for a position that was not observed."""
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot fork at position {position}: {self.position} tokens are observed")
        forked = SmallModelSession(self._source, self._model, self._positions)
        forked._tokens = self._tokens[:position]
        forked._cache.begin_as(self._cache, min(position, self._run))
        return forked

    def close(self) -> None:
        self._tokens = []
        self._tree, self._node_guesses = None, []
        self._last = self._guess = None
        self._cache = self._model.stack.new_cache(0)
        self._positions = self._limit = 0

    @property
    def _run(self) -> int:
        """Observed tokens that have run; behind them the cache has nodes."""
        return self._cache.length if self._tree is None else self._tree.trunk

    @torch.inference_mode()
    def _read(self) -> torch.Tensor:
        """Runs the next observed tokens, a batch at most."""
        start = self._cache.length
        rows = self._model.rows(self._tokens[start : start + BATCH_ROWS])
        return self._model.stack.forward(rows, [Span(self._cache, len(rows))])

    def _catch_up(self) -> torch.Tensor:
        """Runs what was observed since, the last token again where its output was not kept; returns that output."""
        if self._last is None:
            assert self._tree is None and self._tokens
            self._cache.truncate(min(self._cache.length, self.position - 1))
            while self._cache.length < self.position:
                hidden = self._read()
            self._last = hidden[-1:].clone()  # a view would hold on to the whole batch
        return self._last
