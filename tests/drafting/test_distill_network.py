"""The networks that are trained compute what the drafters compute when they draft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drafted_nodes import extend
from tiny_drafters import DIGEST, SPLIT, head_weights, medusa_weights, random_head, tiny_spec

from drafting.adapter import AdapterDrafter
from drafting.distill.batches import TrainingBatch, places
from drafting.distill.features import groups_of
from drafting.distill.measure import DEEPEST, measured
from drafting.distill.network import Adapter, FrozenHead, Fused, Medusa, largest_rank, new_network, parameters, rounded
from drafting.distill.trainable import Rows, later
from drafting.drafter_file import write_drafter
from split_model.spec import ModelSpec

SPEC = tiny_spec()
PROMPT, LENGTH = 7, 16


def random_network(kind: str, rank: int | None = None, spec: ModelSpec = SPEC) -> Adapter | Fused:
    network = new_network(kind, spec, frozen_head(), 0, rank)
    assert not isinstance(network, Medusa)
    chance = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for each in network.parameters():
            drawn = torch.randn(each.shape, generator=chance)
            each.copy_(drawn / each.shape[-1] ** 0.5 if each.ndim == 2 else 1 + 0.3 * drawn)
    return network


def frozen_head() -> FrozenHead:
    weights = head_weights(SPEC)
    return FrozenHead(weights["norm"], weights["matrix"], SPEC.norm_eps)


def random_batch(texts: int = 1) -> TrainingBatch:
    """A prompt without, and an answer with, deep rows before."""
    chance = torch.Generator().manual_seed(11)
    shallow, deep = (torch.randn(texts, LENGTH, SPEC.hidden_size, generator=chance) for _ in range(2))
    own = (torch.arange(LENGTH) >= PROMPT).repeat(texts, 1)
    ids = torch.randint(0, SPEC.vocab_size, (texts, LENGTH), generator=chance)
    return TrainingBatch(Rows(shallow, deep, own), own, ids)


def written(network: Adapter | Fused, folder: Path) -> AdapterDrafter:
    path = folder / "drafter.safetensors"
    tensors = {name: each.detach() for name, each in network.named_parameters()}
    write_drafter(path, network.kind, DIGEST, SPLIT, {}, tensors, network.form)
    return AdapterDrafter.load(path, SPEC, DIGEST, SPLIT, torch.float32, random_head(SPEC), network.kind)


@pytest.mark.parametrize(("kind", "rank"), [("adapter", None), ("fused", 0), ("fused", 5)])
def test_unrolled_is_what_a_session_drafts(kind: str, rank: int | None, tmp_path: Path) -> None:
    """For every root in the answer and depth, the network's logits are those of a real session that observed the text
    up to the root and was extended from there, token by token."""
    network, head, batch = random_network(kind, rank), frozen_head(), random_batch()
    drafter = written(network, tmp_path)
    with torch.no_grad():
        outs = [head.logits(head.normed(out)) for out in network.drafted(batch.rows, 5)]
    ids, shallow, deep = batch.ids[0].tolist(), batch.rows.shallow[0], batch.rows.deep[0]
    for root in range(PROMPT - 1, LENGTH - 5):
        session = drafter.open(LENGTH)
        session.observe(ids[:PROMPT], shallow[:PROMPT], None)
        if root >= PROMPT:
            session.observe(ids[PROMPT : root + 1], shallow[PROMPT : root + 1], deep[PROMPT - 1 : root])
        guesses = [session.guess()]
        for depth in range(4):
            at = root + 1 + depth
            guesses += extend(session, [depth - 1], [ids[at]], shallow[at : at + 1])
        for depth, guess in enumerate(guesses):
            assert guess is not None and guess.logits is not None
            torch.testing.assert_close(outs[depth][0, root + depth], guess.logits, atol=1e-4, rtol=1e-4)


def test_depths_differ() -> None:
    """A fused drafter's rows depend on the depth; else the test above could not tell them apart."""
    with torch.no_grad():
        outs = random_network("fused", 5).drafted(random_batch().rows, 3)
    assert float((outs[0] - outs[1])[0, PROMPT + 2 :].abs().max()) > 0.05
    assert float((outs[1] - outs[2])[0, PROMPT + 2 :].abs().max()) > 0.05


def test_gradients_reach_everything() -> None:
    """Every parameter of every kind gets a gradient from deep drafts."""
    for network in (random_network("adapter"), random_network("fused", 5)):
        torch.autograd.backward(network.drafted(random_batch().rows, 3)[-1][0, PROMPT + 3 :].square().sum())
        for name, each in network.named_parameters():
            assert each.grad is not None and float(each.grad.abs().max()) > 0, name


def test_the_future_is_not_seen() -> None:
    """Changing the rows of a position changes no row before it, and not its own through its own deep row."""
    network, batch = random_network("fused", 5), random_batch()
    with torch.no_grad():
        before = network.drafted(batch.rows, 3)
        batch.rows.shallow[0, 12:] += 1
        batch.rows.deep[0, 11:] += 1
        after = network.drafted(batch.rows, 3)
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a[0, :12], b[0, :12])
    assert float((before[0][0, 12] - after[0][0, 12]).abs().max()) > 0.01


def test_filling_changes_nothing() -> None:
    """Rows behind a text's end have no part in it."""
    network, batch = random_network("fused", 5), random_batch()
    short = Rows(batch.rows.shallow[:, :12], batch.rows.deep[:, :12], batch.rows.known[:, :12])
    with torch.no_grad():
        for a, b in zip(network.drafted(batch.rows, 3), network.drafted(short, 3), strict=True):
            torch.testing.assert_close(a[:, :12], b)


def test_size_of_a_fused_drafter() -> None:
    """With the largest rank, a fused drafter has at most half as many parameters again as an adapter, and nearly so."""
    spec = tiny_spec(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    chance = torch.Generator().manual_seed(0)
    adapter, fused = parameters(Adapter(spec, chance)), parameters(Fused(spec, chance))
    assert largest_rank(spec) > 0
    assert 1.5 * adapter - 4 * spec.hidden_size < fused <= 1.5 * adapter


def test_small_attention_leaves_no_room_for_an_mlp() -> None:
    """Where the attention is small beside the rows, the fused form does without."""
    assert largest_rank(tiny_spec(num_key_value_heads=1)) == 0
    assert new_network("fused", tiny_spec(num_key_value_heads=1), frozen_head(), 0).form == "keep"


def test_rounded_for_a_while() -> None:
    """Within `rounded` the parameters are bfloat16's, behind it the old ones."""
    network = random_network("adapter")
    exact = network.query.detach().clone()
    with rounded(network, torch.bfloat16):
        assert torch.equal(network.query, exact.bfloat16().float()) and not torch.equal(network.query, exact)
    assert torch.equal(network.query, exact)


@pytest.mark.parametrize(("kind", "rank"), [("adapter", None), ("fused", 0), ("fused", 5)])
def test_the_unit_of_rows_means_nothing(kind: str, rank: int | None) -> None:
    """A network on rows divided by a unit says what it says on whole rows once its matrices are in their unit."""
    network, head, batch = random_network(kind, rank), frozen_head(), random_batch()
    rows = batch.rows
    with torch.no_grad():
        divided = network.drafted(rows, 3)
        network.in_rows_of(50.0)
        whole = network.drafted(Rows(rows.shallow * 50, rows.deep, rows.known), 3)
        for a, b in zip(divided, whole, strict=True):
            torch.testing.assert_close(head.normed(a), head.normed(b), atol=1e-3, rtol=1e-2)


def test_places_of_a_depth() -> None:
    """A place needs its next token to be the model's, and all tokens behind its root."""
    own = torch.tensor([[False, False, True, True, True, False, True]])
    expected = {0: [1, 2, 3, 5], 1: [2, 3], 2: [3], 3: []}
    for depth, wanted in expected.items():
        assert places(own, depth)[0].nonzero()[:, 0].tolist() == wanted


def test_later_shifts() -> None:
    """Each position gets an earlier one's row, the first ones zero."""
    rows = torch.arange(4.0).view(1, 4, 1)
    assert later(rows, 2)[0, :, 0].tolist() == [0, 0, 0, 1]


def test_medusa_guesses_tokens_from_the_row_before_the_root() -> None:
    """At depth d the draft of Medusa is what head d says of the deep row before the root."""
    head, batch = frozen_head(), random_batch()
    network = Medusa(head)
    weights = medusa_weights(SPEC)
    network.load_state_dict(weights)
    root = PROMPT + 1
    n = head.normed(batch.rows.deep[0, root - 1])
    for number in range(4):
        y = n + torch.nn.functional.silu(weights[f"heads.{number}.block"] @ n + weights[f"heads.{number}.bias"])
        batch.ids[0, root + 1 + number] = int((weights[f"heads.{number}.head"] @ y).argmax())
    (found,) = measured(network, head, batch)
    # From that root all four are accepted; `accepted` at depth 4 counts it.
    assert found.accepted[3] >= 1


@pytest.mark.parametrize("kind", ["adapter", "fused"])
def test_measured_is_what_sessions_accept(kind: str, tmp_path: Path) -> None:
    """Tokens, rounds and acceptance by depth equal those of a real session that drafts greedily from every root."""
    network, head, batch = random_network(kind, 5), frozen_head(), random_batch()
    drafter = written(network, tmp_path)
    shallow, deep = batch.rows.shallow[0], batch.rows.deep[0]
    # Make the text agree with the drafter at many places, so that there is something to accept.
    chance = torch.Generator().manual_seed(2)
    for at in range(PROMPT, LENGTH):
        with torch.no_grad():
            guess = head.logits(head.normed(network.drafted(batch.rows, 1)[0]))[0, at - 1].argmax()
        if float(torch.rand((), generator=chance)) < 0.8:
            batch.ids[0, at] = guess
    (found,) = measured(network, head, batch)
    ids = batch.ids[0].tolist()
    accepted = {root: _accepted(drafter, ids, shallow, deep, root) for root in range(PROMPT, LENGTH - 1)}
    rounds, root = 0, PROMPT
    while root < LENGTH - 1:
        rounds, root = rounds + 1, root + min(6, accepted[root]) + 1
    assert (found.tokens, found.rounds) == (LENGTH - 1 - PROMPT, rounds)
    assert found.accepted == [sum(count > depth for count in accepted.values()) for depth in range(DEEPEST)]
    assert max(accepted.values()) >= 2


def _accepted(drafter: AdapterDrafter, ids: list[int], shallow: torch.Tensor, deep: torch.Tensor, root: int) -> int:
    session = drafter.open(LENGTH)
    session.observe(ids[:PROMPT], shallow[:PROMPT], None)
    session.observe(ids[PROMPT : root + 1], shallow[PROMPT : root + 1], deep[PROMPT - 1 : root])
    guess = session.guess()
    for count in range(LENGTH - 1 - root):
        assert guess is not None and guess.logits is not None
        if int(guess.logits.argmax()) != ids[root + 1 + count] or count == DEEPEST:
            return count
        at = root + 1 + count
        (guess,) = extend(session, [count - 1], [ids[at]], shallow[at : at + 1])
    return LENGTH - 1 - root


def test_groups_hold_every_document_once() -> None:
    """Documents are put together by length, none twice, none forgotten."""
    from drafting.distill.text import Document

    texts = [Document(torch.zeros(n).int().numpy(), torch.ones(n).bool().numpy()) for n in (5, 4000, 3, 9000, 7)]
    assert sorted(each for group in groups_of(texts) for each in group) == [0, 1, 2, 3, 4]
