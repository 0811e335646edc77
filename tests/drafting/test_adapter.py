"""The adapter and its fused form, held to a dense recompute of the whole text in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from checkpoints import DEMO
from drafted_nodes import extend
from drafter_conformance import Follower, Rows, assert_same, check_drafter
from tiny_drafters import DIGEST, SPLIT, adapter_weights, head_weights, random_head, tiny_spec

from drafting.adapter import AdapterDrafter
from drafting.drafter import Guess
from drafting.drafter_file import write_drafter
from split_model.checkpoint import Checkpoint
from split_model.kv_cache import CacheFull
from split_model.spec import ModelSpec

ATOL = 1e-4
FORMS = [("adapter", ""), ("fused", ""), ("fused", "keep"), ("fused", "keep-mlp")]
SPECS = {
    "gqa": tiny_spec(),
    "no-gqa": tiny_spec(num_key_value_heads=4, head_dim=8),
    "one-kv-head": tiny_spec(num_key_value_heads=1, head_dim=16),
}


def loaded(
    folder: Path, spec: ModelSpec, kind: str, form: str = "", dtype: torch.dtype = torch.float32
) -> AdapterDrafter:
    path = folder / f"{kind}.safetensors"
    write_drafter(path, kind, DIGEST, SPLIT, {}, adapter_weights(spec, kind, form), form)
    return AdapterDrafter.load(path, spec, DIGEST, SPLIT, dtype, random_head(spec, dtype), kind)


class Dense:
    """The definition in float64, nothing kept between calls."""

    def __init__(self, spec: ModelSpec, kind: str, form: str) -> None:
        self._spec = spec
        self._weights = {name: each.double() for name, each in adapter_weights(spec, kind, form).items()}
        self._head = {name: each.double() for name, each in head_weights(spec).items()}

    def logits(
        self, observed: torch.Tensor, deep: dict[int, torch.Tensor], nodes: torch.Tensor, root_known: bool = True
    ) -> torch.Tensor:
        """Behind the last of all rows.

        deep: by position, the deep row of the position before, where it is known. nodes: rows of one path behind what
        was observed. root_known: whether the output of the last observed row may be used.
        """
        xs = [self._x(row, deep.get(position)) for position, row in enumerate(observed.double())]
        out = self._out(xs) if xs else None
        for depth, row in enumerate(nodes.double()):
            xs.append(self._x(row, out if root_known or depth else None))
            out = self._out(xs)
        assert out is not None
        return self._head["matrix"] @ self._norm(out, self._head["norm"])

    def _x(self, shallow: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        x = shallow * self._weights.get("keep", torch.ones(()))
        if "fuse" in self._weights and before is not None:
            x = x + self._weights["fuse"] @ self._norm(before.double(), self._weights["deep_norm"])
        return x

    def _out(self, xs: list[torch.Tensor]) -> torch.Tensor:
        """Of the last row."""
        weights, spec = self._weights, self._spec
        rows, heads, kv_heads, head_dim = len(xs), spec.num_heads, spec.num_kv_heads, spec.head_dim
        normed = self._norm(torch.stack(xs), weights["norm"])
        query = self._rotated((weights["query"] @ normed[-1]).view(1, heads, head_dim), rows - 1)[0]
        keys = self._rotated((normed @ weights["key"].t()).view(rows, kv_heads, head_dim), 0)
        values = (normed @ weights["value"].t()).view(rows, kv_heads, head_dim)
        keys, values = (each.repeat_interleave(spec.heads_per_group, 1) for each in (keys, values))
        scores = torch.einsum("hd,phd->hp", query, keys) / head_dim**0.5
        context = torch.einsum("hp,phd->hd", scores.softmax(-1), values)
        out = xs[-1] + weights["output"] @ context.reshape(-1)
        if "up" in weights:
            wide = weights["up"] @ self._norm(out, weights["mlp_norm"])
            out = out + weights["down"] @ (wide * wide.sigmoid())
        return out

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * rows / (rows.square().mean(-1, keepdim=True) + self._spec.norm_eps).sqrt()

    def _rotated(self, heads: torch.Tensor, start: int) -> torch.Tensor:
        """heads [rows, heads, head_dim], the first row at position ``start``."""
        half = self._spec.head_dim // 2
        positions = torch.arange(start, start + len(heads), dtype=torch.float64)[:, None, None]
        angles = positions / self._spec.rope.theta ** (torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angles.cos(), angles.sin()
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Shadow:
    """Takes what a session takes, and says what it should say by recomputing everything."""

    def __init__(self, spec: ModelSpec, kind: str, form: str, rows: Rows) -> None:
        self._dense = Dense(spec, kind, form)
        self._rows = rows
        self.text: list[int] = []
        self._known: dict[int, torch.Tensor] = {}
        self.root_known = True
        self.paths: list[list[int]] = []

    def observe(self, tokens: Sequence[int], known: int) -> None:
        self.text += tokens
        self.paths = []
        self.root_known = True
        if known:
            first = len(self.text) - known
            self._known |= {first + row: deep for row, deep in enumerate(self._rows.deep(self.text, known))}

    def truncate(self, position: int) -> None:
        self.text = self.text[:position]
        self._known = {place: deep for place, deep in self._known.items() if place < position}
        self.paths = []

    def guess(self) -> torch.Tensor:
        return self._said([])

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> list[torch.Tensor]:
        first = len(self.paths)
        for parent, token in zip(parents, tokens, strict=True):
            self.paths.append([*(self.paths[parent] if parent >= 0 else []), token])
        return [self._said(path) for path in self.paths[first:]]

    def _said(self, path: list[int]) -> torch.Tensor:
        observed = self._rows.shallow(self.text, len(self.text))
        nodes = self._rows.shallow(self.text + path, len(path))
        return self._dense.logits(observed, self._known, nodes, self.root_known)


def assert_says(guess: Guess | None, logits: torch.Tensor) -> None:
    assert guess is not None and guess.logits is not None
    torch.testing.assert_close(guess.logits.double(), logits, atol=ATOL, rtol=0)


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_conforms(tmp_path: Path, kind: str, form: str) -> None:
    """Both kinds, and all forms of the fused one, do what every drafter does."""
    drafter = loaded(tmp_path, SPECS["gqa"], kind, form)
    assert (drafter.name, drafter.tree_nodes) == (kind, 0)
    assert drafter.parameters == sum(each.numel() for each in adapter_weights(SPECS["gqa"], kind, form).values())
    check_drafter(drafter, SPECS["gqa"].hidden_size)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_random_lives_of_a_text(tmp_path: Path, name: str, kind: str, form: str) -> None:
    """Whatever is observed, extended and truncated in whatever order, guesses are those of a whole recompute."""
    spec = SPECS[name]
    drafter = loaded(tmp_path, spec, kind, form)
    for seed in range(17):
        _live(drafter, spec, kind, form, random.Random(seed), steps=12)


def test_a_random_life_with_the_demo_models_shapes(tmp_path: Path) -> None:
    """The same at the embedded model's own sizes."""
    spec = Checkpoint.open(DEMO).spec
    for kind, form in FORMS:
        _live(loaded(tmp_path, spec, kind, form), spec, kind, form, random.Random(5), steps=14)


def _live(drafter: AdapterDrafter, spec: ModelSpec, kind: str, form: str, chance: random.Random, steps: int) -> None:
    rows = Rows(spec.hidden_size, seed=chance.randrange(1000))
    follower, shadow = Follower(drafter, rows), Shadow(spec, kind, form, rows)
    for _ in range(steps):
        act = chance.choice(("observe", "observe", "accept", "guess", "extend", "extend", "truncate"))
        if act == "truncate" and shadow.text:
            position = chance.randint(len(shadow.text) // 2, len(shadow.text))
            follower.truncate(position)
            shadow.truncate(position)
            # The last row may have gone with what was cut off; then there is no guess, and no output to draft from.
            shadow.root_known = position > 0 and follower.session.guess() is not None
            if shadow.root_known:
                assert_says(follower.session.guess(), shadow.guess())
        elif act == "extend":
            first = len(shadow.paths)
            count = chance.randint(1, 4)
            parents = [chance.randint(-1, first + node - 1) for node in range(count)]
            tokens = [chance.randrange(4) for _ in range(count)]
            wanted = shadow.extend(parents, tokens)
            for guess, logits in zip(follower.extend(parents, tokens), wanted, strict=True):
                assert_says(guess, logits)
        elif act == "guess":
            if shadow.text and shadow.root_known:
                assert_says(follower.session.guess(), shadow.guess())
        elif len(shadow.text) < 40:
            tokens = [chance.randrange(4) for _ in range(chance.randint(1, 6))]
            if act == "accept" and shadow.paths:
                tokens = chance.choice(shadow.paths) + tokens[: chance.randint(0, 2)]
            known = chance.choice((0, len(tokens), chance.randint(0, len(tokens))))
            follower.observe(tokens, known)
            shadow.observe(tokens, known)
    if shadow.text and shadow.root_known:
        assert_says(follower.session.guess(), shadow.guess())


@pytest.mark.parametrize("kind", ["adapter", "fused"])
def test_a_long_text_is_read_in_batches(tmp_path: Path, kind: str) -> None:
    """More rows than one batch takes: only the first ones run unasked, and the guess is that of one batch."""
    spec = SPECS["gqa"]
    drafter = loaded(tmp_path, spec, kind)
    shallow = torch.randn((1100, spec.hidden_size), generator=torch.Generator().manual_seed(3))
    deep = torch.randn((500, spec.hidden_size), generator=torch.Generator().manual_seed(4))
    tokens = [row % spec.vocab_size for row in range(1100)]
    at_once, one_by_one = drafter.open(1100), drafter.open(1100)
    at_once.observe(tokens, shallow, deep)
    one_by_one.observe(tokens[:600], shallow[:600], None)
    for row in range(600, 1100):
        one_by_one.observe(tokens[row : row + 1], shallow[row : row + 1], deep[row - 600 : row - 599])
    known = dict(enumerate(deep, 600)) if kind == "fused" else {}
    wanted = Dense(spec, kind, "").logits(shallow, known, shallow[:0])
    for session in (at_once, one_by_one):
        assert_says(session.guess(), wanted)


def test_what_waits_is_counted_and_bounded(tmp_path: Path) -> None:
    """Rows that wait are held until they have run, never more than one batch of them once observing returns."""
    spec = SPECS["gqa"]
    session = loaded(tmp_path, spec, "fused").open(4000)
    row = spec.hidden_size * 4
    shallow, deep = torch.randn((1, spec.hidden_size)), torch.randn((1, spec.hidden_size))
    for count in range(1, 513):
        session.observe([1], shallow, deep)
        assert session.nbytes == count * 2 * row
    session.observe([1], shallow, deep)
    cache = 2 * 512 * spec.num_kv_heads * spec.head_dim * 4
    assert session.nbytes <= cache + 4 * row
    session.guess()
    assert session.nbytes > cache


def test_accepted_nodes_of_an_adapter_are_not_run_again(tmp_path: Path) -> None:
    """A guess about an accepted path was made when its last node was, and is the same object still."""
    spec = SPECS["gqa"]
    follower = Follower(loaded(tmp_path, spec, "adapter"), Rows(spec.hidden_size)).observe((1, 2, 3))
    said = follower.extend((-1, 0, 0, 2), (4, 5, 6, 7))
    assert follower.observe((4, 6, 7)).session.guess() is said[3]
    fresh = Follower(loaded(tmp_path, spec, "adapter"), Rows(spec.hidden_size))
    assert_same(said[3], fresh.observe((1, 2, 3, 4, 6, 7)).session.guess())


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Rows of another number or width, positions and parents that are not there, a full text, too many nodes."""
    spec = SPECS["gqa"]
    rows = Rows(spec.hidden_size)
    for kind in ("adapter", "fused"):
        session = loaded(tmp_path, spec, kind).open(4)
        shallow = rows.shallow((1, 2, 3), 3)
        session.observe((1, 2, 3), shallow, None)
        wanted = session.guess()
        for tokens, given, before in (
            ((1, 2), shallow[:1], None),
            ((1,), shallow[:1, 1:], None),
            ((1,), shallow[:1], shallow[:2]),
            ((1,), shallow[:1], shallow[:1, 1:]),
            ((1, 2), shallow[:2], None),
        ):
            with pytest.raises(ValueError):
                session.observe(tokens, given, before)
        for parents, tokens, given in (([-1], (1, 2), shallow[:1]), ([0], (1,), shallow[:1]), ([-1], (1,), shallow)):
            with pytest.raises(ValueError):
                extend(session, parents, tokens, given)
        for position in (-1, 4):
            with pytest.raises(ValueError):
                session.truncate(position)
        assert extend(session, [], [], shallow[:0]) == []
        with pytest.raises(CacheFull):
            extend(session, [-1] * 300, [1] * 300, shallow[:1].expand(300, -1))
        assert session.position == 3
        assert len(extend(session, [-1] * 256, [1] * 256, shallow[:1].expand(256, -1))) == 256
        assert_same(session.guess(), wanted)


@pytest.mark.parametrize("kind", ["adapter", "fused"])
def test_in_bfloat16_guesses_are_close(tmp_path: Path, kind: str) -> None:
    """Packed bfloat16 matrices give the logits of float32 but for rounding."""
    spec = tiny_spec(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    rows = Rows(spec.hidden_size)
    text = [1, 5, 2, 8, 3, 9]
    exact = Follower(loaded(tmp_path, spec, kind), rows).observe(text, 3).session.guess()
    session = loaded(tmp_path, spec, kind, dtype=torch.bfloat16).open(10)
    session.observe(text, rows.shallow(text, 6).bfloat16(), rows.deep(text, 3).bfloat16())
    rough = session.guess()
    assert rough is not None and rough.logits is not None and rough.logits.dtype == torch.float32
    assert exact is not None and exact.logits is not None
    torch.testing.assert_close(rough.logits, exact.logits, atol=0.1, rtol=0)


def test_rows_are_not_written_to(tmp_path: Path) -> None:
    """What is handed over stays as it was, also where the drafter uses it as it is."""
    spec = SPECS["gqa"]
    for kind, form in FORMS:
        session = loaded(tmp_path, spec, kind, form).open(10)
        shallow, deep = torch.randn((3, spec.hidden_size)), torch.randn((2, spec.hidden_size))
        before = shallow.clone(), deep.clone()
        session.observe((1, 2, 3), shallow, deep)
        session.guess()
        extend(session, (-1, 0, 0), (1, 2, 3), shallow)
        assert torch.equal(shallow, before[0]) and torch.equal(deep, before[1])
