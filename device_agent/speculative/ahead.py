"""What a device has thought ahead: a tree of tokens behind the last chosen one, and how it grows.

One tree serves the draft in flight and what is prepared while its verdict travels. Input submodel, drafter and verdict
are handed the same one, so nodes are numbered alike everywhere and no shallow row is computed twice. For the compute
thread only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from device_agent.chain.chain import ChainSession
from device_agent.chain.local import NODE_ROOM
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from drafting.continuing import Continuing
from drafting.drafter import Guess
from drafting.outcomes import outcomes
from drafting.proposing import Candidate
from service.draft_settings import Prepare
from split_model.device import joined_rows, put
from split_model.stack import Span
from split_model.tree import TRUNK, Branches, Tree

DRAFTING_S = 0.01
"""Seconds after which a draft ends while another tenant's work waits for the thread: a token more is worth a few
milliseconds of somebody's, but on a slow device a whole draft may take half a second."""

MOST, RUNNERS_UP, LEAST_CHANCE = 8, 4, 0.04
"""Outcomes that are prepared for; candidates looked at after each number of accepted tokens; what is less likely to be
needed is not gone on with."""


@dataclass
class Node:
    """One drafted token.

    Attributes:
        row: of the input submodel, ``[1, hidden_size]``.
        chance: calibrated, of being accepted once all before it are.
        guess: what the drafter says may follow; of use once the drafter knows the node.
        unseen: its token, int64 ``[1]`` where the layers are, if it was made before the host knew it.
    """

    candidate: Candidate
    chance: float
    row: torch.Tensor
    guess: Guess | None = None
    unseen: torch.Tensor | None = None


class Ahead:
    """The tree behind the last chosen token.

    Attributes:
        tree: how its nodes follow each other.
        nodes: all of them, in order.
        root_row: the input submodel's row of the last chosen token, ``[1, hidden_size]``; None before the first.
        embedding: what makes the rows of tokens that ``run`` takes.
    """

    def __init__(self, session: ChainSession) -> None:
        self.tree = Tree(0)
        self.nodes: list[Node] = []
        self.root_row: torch.Tensor | None = None
        self._front, cache = session.front, session.front.cache
        assert cache is not None
        self._cache = cache
        self.embedding = session.chain.parts.embedding
        self._drafts = session.drafts
        self._begun: torch.Tensor | None = None
        self._known = 0
        """Nodes that the drafter knows."""
        self._root_guess: Guess | None = None
        self._root_asked = False

    def add(self, parents: Sequence[int], candidates: Sequence[Candidate], chances: Sequence[float]) -> range:
        """New nodes, run by the input submodel in one batch; their numbers."""
        tokens, first = [each.token for each in candidates], len(self.nodes)
        rows = self.run(self.embedding.forward(tokens), self.tree.add(parents, tokens))
        self.nodes += map(Node, candidates, chances, rows.split_with_sizes([1] * len(tokens)))
        return range(first, len(self.nodes))

    @property
    def position(self) -> int:
        """Where the first node goes."""
        return self._front.position - (self._begun is not None)

    def begin(self, token: torch.Tensor) -> torch.Tensor:
        """The row of the token that is chosen next, ``token`` int64 ``[1]`` where the layers are, before anybody else
        knows which it is; ``settle`` must follow."""
        self._begun = self._next(self.embedding.forward(token.clamp(min=0)))
        return self._begun

    def rows(self, nodes: Sequence[int]) -> torch.Tensor:
        """The rows of the last chosen token and of nodes, ``[1 + nodes, hidden_size]``."""
        assert self.root_row is not None
        return joined_rows([self.root_row, *(self.nodes[node].row for node in nodes)])

    def guess(self, node: int) -> Guess | None:
        """What the drafter says may follow ``node``, or the last chosen token for ``TRUNK``."""
        assert self._drafts is not None
        if node == TRUNK:
            if not self._root_asked:
                self._root_guess, self._root_asked = self._drafts.guess(), True
            return self._root_guess
        if new := self.nodes[self._known :]:  # In one batch, however long nobody asked.
            guesses = self._drafts.extend(self.tree, joined_rows([each.row for each in new]), _unseen(new))
            self._known = len(self.nodes)
            for each, guess in zip(new, guesses, strict=True):
                each.guess = guess
        return self.nodes[node].guess

    def settle(self, path: Sequence[int], token: int | None, deep: torch.Tensor) -> list[int]:
        """A verdict: the nodes of ``path`` were accepted and then ``token`` was chosen; None: the answer ends first.

        deep: deep hidden states of the token before the first node and of ``path``, ``[len(path) + 1, hidden_size]``.

        Returns:
            the nodes that go on from ``token``, where that was prepared; renumbered, and all others forgotten.
        """
        tree = self.tree
        found = tree.line_of(path[-1] if path else TRUNK, token) if token is not None else []
        final, line = [*path, *found[:1]], found[1:]
        begun, self._begun = self._begun, None
        if begun is not None and token is None:
            self._front.position -= 1
            self._cache.truncate(self._front.position)
        if self.nodes:
            self._cache.keep(tree.trunk, tree.slots([*final, *line]))
            self._front.position += len(final)
        tokens, rows = [tree.tokens[node] for node in final], [self.nodes[node].row for node in final]
        if token is not None and not found:
            tokens.append(token)
            rows.append(begun if begun is not None else self._next(self.embedding.forward([token])))
        if token is not None:
            self.root_row = rows[-1]
        if self._drafts is None:
            pass
        elif tokens:
            self._drafts.observe(tokens, joined_rows(rows), deep[: len(tokens)])
        else:  # Nothing new, and nothing drafted is needed any more: it may be kept for long.
            self._drafts.truncate(self._drafts.position)
        self.nodes = [self.nodes[node] for node in line]
        self.tree, self._known = Tree(self._front.position), 0
        self.tree.add(range(-1, len(line) - 1), [tree.tokens[node] for node in line])
        self._root_guess, self._root_asked = None, False
        return list(range(len(line)))

    def _next(self, row: torch.Tensor) -> torch.Tensor:
        row = self.run(row)
        self._front.position += 1
        return row

    def run(self, rows: torch.Tensor, branching: Branches | None = None) -> torch.Tensor:
        """Run rows, the next ones or nodes, which count once they are kept. Raises ``CacheFull``."""
        front = self._front
        return front.stack.forward(rows, [Span(self._cache, len(rows), branching)], sources=front.sources)


class DraftMaker:
    """Makes the drafts of one answer, token by token: what its form leaves no choice about, and what a drafter guesses,
    for as long as the rule of ``drafting.length`` goes on."""

    def __init__(self, session: ChainSession, ahead: Ahead, chooser: Chooser, way: DraftingWay) -> None:
        self._session = session
        self._ahead = ahead
        self._sampled = not chooser.params.is_greedy
        self._way = way
        self.follow = Continuing(chooser, way.rule)
        """What may follow."""

    def chance(self, candidate: Candidate) -> float:
        """Of acceptance once all before it are accepted, as far as anybody knows."""
        if not self._way.length.calibrated:
            return candidate.weight
        return self._way.calibration.chance(candidate.source, self._sampled, candidate.weight)

    def chain(self, line: Sequence[int], room: int) -> Iterator[int]:
        """The nodes of a draft as they are made, each following the one before it: first those of ``line``, which are
        there, then new ones; at most ``room``."""
        ahead, length = self._ahead, self._way.length
        chances: list[float] = []
        node = TRUNK
        for node in line[:room]:
            chances.append(ahead.nodes[node].chance)
            if not length.takes(chances):
                return
            yield node
        made, began = 0, None
        while len(chances) < room and (not chances or length.goes_on(chances)):
            nodes = self._form(node, chances, room)
            yield from nodes
            if nodes:
                node = nodes[-1]
                continue
            if began is not None and perf_counter() - began > DRAFTING_S and self._session.compute.others_wait:
                break
            guess = ahead.guess(node)
            if began is None:  # The first guess may have had to read all that was observed: that is no step.
                began = perf_counter()
            found = self.follow.candidates(guess, ahead.tree.text_of(node), 1)
            if not found or not length.takes([*chances, chance := self.chance(found[0])]):
                break
            [node] = ahead.add([node], found, [chance])
            chances.append(chance)
            made += 1
            yield node
        if began is not None and made:
            self._way.costs.drafted(perf_counter() - began, made)

    def _form(self, node: int, chances: list[float], room: int) -> Sequence[int]:
        """Nodes of what has to follow ``node`` by the answer's form, run in one batch; their chances join ``chances``,
        of which there are to be no more than ``room``."""
        ahead, new = self._ahead, list[Candidate]()
        for each in self.follow.forced(ahead.tree.text_of(node))[: room - len(chances)]:
            if not self._way.length.takes([*chances, chance := self.chance(each)]):
                break
            chances.append(chance)
            new.append(each)
        if not new:
            return ()
        first = len(ahead.nodes)
        return ahead.add([node, *range(first, first + len(new) - 1)], new, chances[-len(new) :])


class Preparation:
    """What is drafted behind one draft in flight: nodes for likely verdicts (HAT section 3.5). The paper has one, that
    the last token alone is corrected, to a runner-up; ``all`` prepares for each number accepted that is likely.

    Args:
        sent: the draft's nodes."""

    def __init__(self, ahead: Ahead, maker: DraftMaker, sent: Sequence[int], kind: Prepare) -> None:
        assert kind != "none"
        self._ahead = ahead
        self._maker = maker
        self._sent = sent
        self._kind = kind
        self.leaves: list[tuple[int, float]] | None = None
        """Ends of what is prepared, each with how likely it is that it is needed; None before the first step."""
        self._there: list[tuple[int, float]] = []
        """Ends of lines that were there before, to be gone on with."""

    def step(self) -> bool:
        """One token more for everything that is prepared; False when there is nothing left that is likely enough."""
        new = self._roots() if self.leaves is None else self._next()
        new = new[: NODE_ROOM - len(self._ahead.nodes)]
        there, self._there = self._there, []
        if not new:
            self.leaves = there or self.leaves or []
            return bool(there)
        parents, candidates, chances, likelihoods = zip(*new, strict=True)
        self.leaves = [*there, *zip(self._ahead.add(parents, candidates, chances), likelihoods, strict=True)]
        return True

    def _roots(self) -> list[tuple[int, Candidate, float, float]]:
        """The tokens that may be chosen in place of a drafted one, or after the last, as ``_next`` gives them."""
        ahead, nodes = self._ahead, [TRUNK, *self._sent]
        first = max(0, len(self._sent) - 1) if self._kind == "last" else 0
        found: list[list[Candidate]] = []
        for accepted, node in enumerate(nodes):
            follow = self._maker.follow if accepted >= first else None
            candidates = follow.candidates(ahead.guess(node), ahead.tree.text_of(node), RUNNERS_UP) if follow else []
            if accepted < len(self._sent):
                wrong = ahead.tree.tokens[self._sent[accepted]]
                candidates = [each for each in candidates if each.token != wrong]
            found.append(candidates)
        alternatives = [[(each.token, each.weight) for each in candidates] for candidates in found]
        chances = [ahead.nodes[node].chance for node in self._sent]
        roots = []
        for outcome in outcomes(chances, alternatives, MOST, self._kind):
            there = ahead.tree.line_of(nodes[outcome.accepted], outcome.token)
            if there:  # Prepared before, and not sent.
                self._there.append((there[-1], outcome.probability))
            elif outcome.probability >= LEAST_CHANCE:
                [candidate] = [each for each in found[outcome.accepted] if each.token == outcome.token]
                roots.append((nodes[outcome.accepted], candidate, outcome.probability, outcome.probability))
        return roots

    def _next(self) -> list[tuple[int, Candidate, float, float]]:
        """New nodes: parent, candidate, chance, and how likely the verdict is that needs them."""
        new = []
        for node, likelihood in self.leaves or ():
            found = self._maker.follow.candidates(self._ahead.guess(node), self._ahead.tree.text_of(node), 1)
            if found and likelihood * (chance := self._maker.chance(found[0])) >= LEAST_CHANCE:
                new.append((node, found[0], chance, likelihood * chance))
        return new


def _unseen(nodes: Sequence[Node]) -> torch.Tensor | None:
    """The tokens of nodes where the host does not know all of them yet, int64 ``[nodes]`` where their rows are."""
    if all(each.unseen is None for each in nodes):
        return None
    given = (each.unseen if each.unseen is not None else torch.tensor([each.candidate.token]) for each in nodes)
    return torch.cat([put(token, node.row.device) for token, node in zip(given, nodes, strict=True)])
