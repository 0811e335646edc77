"""Drafts that are made whole, and not token by token.

Medusa's are trees of a fixed size. And on a device that is not the CPU a chain is made *at once*: to look at each token
would be to wait for the device each time. For the compute thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TypeAlias, cast

import torch

from device_agent.chain.chain import ChainSession
from device_agent.speculative.ahead import Ahead, DraftMaker, Node
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from drafting.drafter import Guess, TreeDraftSession
from drafting.proposing import Candidate, Proposer, grown_tree, likeliest_tree
from split_model.device import fetched
from split_model.sampling import NOBODY
from split_model.tree import TRUNK

SIBLINGS = 4
"""Candidates that may follow one node of a tree."""

Whole: TypeAlias = tuple[list[int], torch.Tensor, tuple[int, ...] | None]
"""The nodes of a draft; the rows to be verified, ``[1 + nodes, hidden_size]`` where ``ChainSession.outward`` has them,
the last chosen token's first; and which row each row follows, where they are a tree."""


class Trees:
    """The drafts of one answer that are trees."""

    def __init__(
        self, session: ChainSession, ahead: Ahead, maker: DraftMaker, chooser: Chooser, way: DraftingWay
    ) -> None:
        self._session = session
        self._ahead = ahead
        self._maker = maker
        self._most = way.tree_nodes
        self._masks = chooser.masks

    def make(self, line: Sequence[int], room: int) -> Whole:
        """The likeliest tree of at most the drafter's number of nodes. ``line`` is empty: nothing is prepared for."""
        ahead, levels = self._ahead, cast(TreeDraftSession, self._session.drafts).levels()[:room]
        tree = self._formed(levels) if self._masks is not None else self._likeliest(levels)
        first, nodes = len(ahead.nodes), list[int]()
        if tree:
            parents = [parent if parent == TRUNK else first + parent for parent, _ in tree]
            nodes += ahead.add(parents, [each for _, each in tree], [each.weight for _, each in tree])
        # The last chosen token is one of its nodes for the layers to come.
        row_of = {TRUNK: 0} | {node: row for row, node in enumerate(nodes, 1)}
        follows = (TRUNK, *(row_of[ahead.tree.parents[node]] for node in nodes))
        return nodes, self._session.outward(ahead.rows(nodes)), follows if nodes else None

    def _likeliest(self, levels: Sequence[Guess]) -> list[tuple[int, Candidate]]:
        """Where all nodes of one depth are followed by the same."""
        drafted, choices = list[int](), list[list[Candidate]]()
        for guess in levels:
            found = self._maker.follow.candidates(guess, drafted, SIBLINGS)
            if not found:
                break
            choices.append(found)
            drafted.append(found[0].token)
        return likeliest_tree(choices, self._most)

    def _formed(self, levels: Sequence[Guess]) -> list[tuple[int, Candidate]]:
        """Where the answer's form says of each node what may follow it."""

        def behind(path: Sequence[int]) -> Sequence[Candidate]:
            return self._maker.follow.candidates(levels[len(path)], path, SIBLINGS) if len(path) < len(levels) else ()

        return grown_tree(behind, self._most)


class ChainsAtOnce:
    """The drafts of one answer whose tokens, chances and rows cross to the host together.

    So the rule of ``drafting.length`` is asked twice: for how many tokens to make, by what usually comes, and once all
    are there, for how many of them to send. The others are forgotten.
    """

    def __init__(
        self,
        session: ChainSession,
        ahead: Ahead,
        maker: DraftMaker,
        proposer: Proposer,
        chooser: Chooser,
        way: DraftingWay,
    ) -> None:
        self._session = session
        self._ahead = ahead
        self._maker = maker
        self._proposer = proposer
        self._chooser = chooser
        self._way = way

    def make(self, line: Sequence[int], room: int) -> Whole:
        """A chain of at most ``room`` nodes; those of ``line``, which were prepared, are its first."""
        ahead, length, waits, began = self._ahead, self._way.length, self._session.waits, perf_counter()
        nodes, most = list(line[:room]), min(room, length.foreseen())
        picked: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, str]] = []
        chances = [ahead.nodes[node].chance for node in nodes]
        while len(nodes) < (most if picked else room):
            last = nodes[-1] if nodes else TRUNK
            if (chances and not picked and not length.goes_on(chances)) or (guess := ahead.guess(last)) is None:
                break
            if guess.logits is not None:
                known = [ahead.nodes[node].candidate.token for node in nodes[: len(chances)]]
                unseen = [token for token, *_ in picked]
                token, weight, drawn_from = self._proposer.pick(guess, self._chooser.generated, known, unseen)
                picked.append((token, weight, drawn_from, guess.source))
                nodes.append(self._follow(last, token))
                continue
            # Said of the text, which the host knows: it is told at once.
            found = self._maker.follow.candidates(guess, ahead.tree.text_of(last), 1)
            if picked or not found or not length.takes([*chances, chance := self._maker.chance(found[0])]):
                break
            nodes += ahead.add([last], found, [chance])
            chances.append(chance)
        rows = ahead.rows(nodes)
        if not picked:
            taken = self._taken(nodes, [])
            return nodes[:taken], self._session.outward(rows[: 1 + taken]), None
        tokens, weights, all_chances, sources = zip(*picked, strict=True)
        told = fetched(torch.cat(tokens), torch.cat(weights), *([rows] if waits else []))
        self._way.costs.drafted(perf_counter() - began, len(picked))
        new = zip(told[0].tolist(), told[1].tolist(), all_chances, sources, strict=True)
        taken = self._taken(nodes, [Candidate(*each) for each in new])
        return nodes[:taken], (told[2] if waits else rows)[: 1 + taken], None

    def _follow(self, parent: int, token: torch.Tensor) -> int:
        """A new node behind ``parent``, run before anybody here knows its token, int64 ``[1]`` where the layers are.
        Unless ``_taken`` tells it, it counts for nothing."""
        ahead = self._ahead
        row = ahead.run(ahead.embedding.forward(token.clamp(min=0)), ahead.tree.add([parent], [NOBODY]))
        ahead.nodes.append(Node(Candidate(NOBODY, 0.0, None, ""), 0.0, row, unseen=token))
        return len(ahead.nodes) - 1

    def _taken(self, nodes: Sequence[int], new: Sequence[Candidate]) -> int:
        """How many of ``nodes``, the first ones, are sent; the last of them are ``new``, which they are told here."""
        ahead, length, chances, known = self._ahead, self._way.length, list[float](), len(nodes) - len(new)
        for node in nodes[:known]:
            if not length.takes([*chances, ahead.nodes[node].chance]):
                return len(chances)
            chances.append(ahead.nodes[node].chance)
        for node, candidate in zip(nodes[known:], new, strict=True):
            if (chances and not length.goes_on(chances)) or not self._maker.follow.fits(candidate):
                break
            if not length.takes([*chances, chance := self._maker.chance(candidate)]):
                break
            ahead.tree.tell(node, candidate.token)
            ahead.nodes[node].candidate, ahead.nodes[node].chance = candidate, chance
            chances.append(chance)
        return len(chances)


def whole_drafts(
    session: ChainSession, ahead: Ahead, maker: DraftMaker, chooser: Chooser, way: DraftingWay
) -> Trees | ChainsAtOnce | None:
    """Who makes the drafts of an answer, where they are made whole."""
    if way.tree_nodes:
        return Trees(session, ahead, maker, chooser, way)
    proposer = Proposer(chooser.params, chooser.prompt, chooser.seed, way.rule)
    # What may follow in a form depends on each token: the host has to know it before it drafts the next.
    if session.chain.parts.head.device.type == "cpu" or way.drafter is None or chooser.masks is not None:
        return None
    return ChainsAtOnce(session, ahead, maker, proposer, chooser, way)
