"""Making nodes: those of a draft, and while its verdict travels those for likely verdicts (HAT section 3.5).

A draft is a chain that ends by the rule of ``drafting.length``, or for Medusa a tree of a fixed size. The paper
prepares for one outcome: that the last drafted token alone is corrected, to one of its runners-up. ``all`` prepares for
every number of accepted tokens, as far as an outcome is likely. All that is prepared goes through the layers together,
one batch a step. For the compute thread only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from time import perf_counter

import torch

from device_agent.chain.chain import ChainSession
from device_agent.chain.local import NODE_ROOM
from device_agent.speculative.ahead import Ahead
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from drafting.drafter import Guess
from drafting.outcomes import outcomes
from drafting.proposing import Candidate, Proposer, likeliest_tree
from service.draft_settings import Prepare
from split_model.device import fetched
from split_model.sampling import NOBODY
from split_model.tree import TRUNK

SIBLINGS = 4
"""Candidates that may follow one node of a tree."""

DRAFTING_S = 0.01
"""Seconds after which a draft ends while another tenant's work waits for the thread: a token more is worth a few
milliseconds of somebody's, but on a slow device a whole draft may take half a second."""


MOST = 8
"""Outcomes that are prepared for."""

RUNNERS_UP = 4
"""Candidates that are looked at after each number of accepted tokens."""

LEAST_CHANCE = 0.04
"""What is less likely to be needed is not gone on with."""


class DraftMaker:
    """Makes the drafts of one answer.

    Attributes:
        blind: whether chains are made ``at_once``: on a device that is not the CPU, where rows alone say what may
            follow. To look at each token there would be to wait for the device each time.
    """

    def __init__(self, session: ChainSession, ahead: Ahead, chooser: Chooser, way: DraftingWay) -> None:
        self._session = session
        self._ahead = ahead
        self._chooser = chooser
        self._way = way
        self._proposer = Proposer(chooser.params, chooser.prompt, chooser.seed, way.rule)
        on_host = session.chain.parts.head.device.type == "cpu"
        reads = way.drafter is None or way.drafter.reads_tokens or self._proposer.looks_back
        self.blind = not (on_host or reads)

    @property
    def room(self) -> int:
        """Tokens that may be drafted: as many as there are positions, and tokens that are still wanted."""
        session, nodes, middle = self._session, self._way.tree_nodes, self._session.chain.middle
        left = session.positions - session.front.position
        # A tree goes whole or not at all, and takes as many slots as it has nodes.
        fits = not nodes or (session.branches and left >= nodes and (middle is None or middle.max_rows > nodes))
        return min(left, self._chooser.left - 1) if self._way.drafter is not None and fits else 0

    def chance(self, candidate: Candidate) -> float:
        """Of acceptance once all before it are accepted, as far as anybody knows."""
        if not self._way.length.calibrated:
            return candidate.weight
        sampled = not self._chooser.params.is_greedy
        return self._way.calibration.chance(candidate.source, sampled, candidate.weight)

    def candidates(self, node: int, count: int) -> list[Candidate]:
        """At most ``count`` tokens that may follow ``node``, best first."""
        return self._candidates(self._ahead.guess(node), self._ahead.tokens(node), count)

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
        known, began = len(chances), None
        while len(chances) < room and (not chances or length.goes_on(chances)):
            if began is not None and perf_counter() - began > DRAFTING_S and self._session.compute.others_wait:
                break
            guess = ahead.guess(node)
            if began is None:  # The first guess may have had to read all that was observed: that is no step.
                began = perf_counter()
            found = self._candidates(guess, ahead.tokens(node), 1)
            if not found or not length.takes([*chances, chance := self.chance(found[0])]):
                break
            [node] = ahead.add([node], found, [chance])
            chances.append(chance)
            yield node
        if began is not None and len(chances) > known:
            self._way.costs.drafted(perf_counter() - began, len(chances) - known)

    def at_once(self, line: Sequence[int], room: int) -> tuple[list[int], torch.Tensor]:
        """The nodes of a draft, and the rows to be verified ``[1 + nodes, hidden_size]`` where ``outward`` has them,
        the last chosen token's first. Tokens, chances and rows cross to the host together.

        So the rule of ``drafting.length`` is asked twice: for how many tokens to make, by what usually comes, and once
        all are there, for how many of them to send. The others are forgotten.
        """
        ahead, waits, began = self._ahead, self._session.waits, perf_counter()
        nodes, most, picked = list(line[:room]), min(room, self._way.length.foreseen()), []
        while len(nodes) < most:
            last = nodes[-1] if nodes else TRUNK
            if (guess := ahead.guess(last)) is None:
                break
            token, weight, chances = self._proposer.pick(guess, len(self._chooser.generated), len(nodes))
            picked.append((token, weight, chances, guess.source))
            nodes.append(ahead.follow(last, token))
        rows = ahead.rows(nodes)
        if not picked:
            taken = self._taken(nodes, [])
            return nodes[:taken], self._session.outward(rows[: 1 + taken])
        tokens, weights, drawn_from, sources = zip(*picked, strict=True)
        told = fetched(torch.cat(tokens), torch.cat(weights), *([rows] if waits else []))
        self._way.costs.drafted(perf_counter() - began, len(picked))
        found = zip(told[0].tolist(), told[1].tolist(), drawn_from, sources, strict=True)
        taken = self._taken(nodes, [Candidate(*each) for each in found])
        return nodes[:taken], (told[2] if waits else rows)[: 1 + taken]

    def _taken(self, nodes: Sequence[int], new: Sequence[Candidate]) -> int:
        """How many of ``nodes``, the first ones, are sent; the last of them are ``new``, which they are told here."""
        ahead, length, chances, known = self._ahead, self._way.length, list[float](), len(nodes) - len(new)
        for node in nodes[:known]:
            if not length.takes([*chances, ahead.nodes[node].chance]):
                return len(chances)
            chances.append(ahead.nodes[node].chance)
        for node, candidate in zip(nodes[known:], new, strict=True):
            if (chances and not length.goes_on(chances)) or not self._fits(candidate):
                break
            if not length.takes([*chances, chance := self.chance(candidate)]):
                break
            ahead.tell(node, candidate, chance)
            chances.append(chance)
        return len(chances)

    def branches(self, levels: Sequence[Guess], room: int) -> Sequence[int]:
        """The likeliest tree of at most the drafter's number of nodes; ``levels[d]`` is about every node of depth d."""
        drafted: list[int] = []
        choices: list[list[Candidate]] = []
        for guess in levels[:room]:
            found = self._candidates(guess, drafted, SIBLINGS)
            if not found:
                break
            choices.append(found)
            drafted.append(found[0].token)
        tree, first = likeliest_tree(choices, self._way.tree_nodes), len(self._ahead.nodes)
        parents = [parent if parent == TRUNK else first + parent for parent, _ in tree]
        return self._ahead.add(parents, [each for _, each in tree], [each.weight for _, each in tree]) if tree else ()

    def _candidates(self, guess: Guess | None, drafted: Sequence[int], count: int) -> list[Candidate]:
        """What may follow."""
        if guess is None:
            return []
        found = self._proposer.candidates(guess, self._chooser.generated, drafted, count)
        return [each for each in found if self._fits(each)]

    def _fits(self, candidate: Candidate) -> bool:
        """Whether it is a token to draft. Nothing comes after an end token, and it is chosen all the same; but one that
        was drawn stays, or the text's distribution would depend on what is not drafted."""
        if candidate.token == NOBODY or not math.isfinite(candidate.weight):
            return False
        return candidate.chances is not None or candidate.token not in self._chooser.end_ids


class Preparation:
    """What is drafted behind one draft in flight.

    Args:
        sent: the draft's nodes.
    """

    def __init__(self, ahead: Ahead, maker: DraftMaker, sent: Sequence[int], kind: Prepare) -> None:
        assert kind != "none"
        self._ahead = ahead
        self._maker = maker
        self._sent = sent
        self._kind = kind
        self._leaves: list[tuple[int, float]] | None = None
        self._there: list[tuple[int, float]] = []
        """Ends of lines that were there before, to be gone on with."""

    @property
    def begun(self) -> bool:
        """Whether there is anything that may turn out to be needed."""
        return bool(self._leaves)

    def step(self) -> bool:
        """One token more for everything that is prepared; False when there is nothing left that is likely enough."""
        new = self._roots() if self._leaves is None else self._next()
        new = new[: NODE_ROOM - len(self._ahead.nodes)]
        there, self._there = self._there, []
        if not new:
            self._leaves = there or self._leaves or []
            return bool(there)
        parents, candidates, chances, likelihoods = zip(*new, strict=True)
        self._leaves = [*there, *zip(self._ahead.add(parents, candidates, chances), likelihoods, strict=True)]
        return True

    def _roots(self) -> list[tuple[int, Candidate, float, float]]:
        """The tokens that may be chosen in place of a drafted one, or after the last, as ``_next`` gives them."""
        ahead, nodes = self._ahead, [TRUNK, *self._sent]
        first = max(0, len(self._sent) - 1) if self._kind == "last" else 0
        found: list[list[Candidate]] = []
        for accepted, node in enumerate(nodes):
            candidates = self._maker.candidates(node, RUNNERS_UP) if accepted >= first else []
            if accepted < len(self._sent):
                wrong = ahead.tree.tokens[self._sent[accepted]]
                candidates = [each for each in candidates if each.token != wrong]
            found.append(candidates)
        alternatives = [[(each.token, each.weight) for each in candidates] for candidates in found]
        chances = [ahead.nodes[node].chance for node in self._sent]
        roots = []
        for outcome in outcomes(chances, alternatives, MOST, self._kind):
            there = ahead.line_of(nodes[outcome.accepted], outcome.token)
            if there:  # Prepared before, and not sent.
                self._there.append((there[-1], outcome.probability))
            elif outcome.probability >= LEAST_CHANCE:
                [candidate] = [each for each in found[outcome.accepted] if each.token == outcome.token]
                roots.append((nodes[outcome.accepted], candidate, outcome.probability, outcome.probability))
        return roots

    def _next(self) -> list[tuple[int, Candidate, float, float]]:
        """New nodes: parent, candidate, chance, and how likely the verdict is that needs them."""
        new = []
        for node, likelihood in self._leaves or ():
            found = self._maker.candidates(node, 1)
            if found and likelihood * (chance := self._maker.chance(found[0])) >= LEAST_CHANCE:
                new.append((node, found[0], chance, likelihood * chance))
        return new
