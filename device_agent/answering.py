"""Answering one request: its choices generated side by side, each turned into text and sent as it comes."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import msgspec

from device_agent.chain import Chain, ChainSession
from device_agent.choosing import Chooser, Chosen
from device_agent.conversations import Conversations
from device_agent.detokenizer import Detokenizer
from device_agent.drafting_way import DraftingWay, DraftingWays, Tally
from device_agent.generation import Step, generate
from device_agent.prompt import Prompt, read_prompt
from device_agent.speculation import Speculation
from device_agent.stops import StopScanner
from device_agent.tokenizer import Tokenizer
from split_model.sampling import BadSampling, SamplingParams
from wire.errors import Code, SessionFailed
from wire.messages import (
    Accepted,
    Alternative,
    Delta,
    Done,
    Finished,
    Generate,
    Message,
    Sampling,
    Timings,
    TokenLogprob,
)

MIN_TOP_P = 1e-6
"""What a ``top_p`` of 0 means: the likeliest token only."""


@dataclass(frozen=True)
class ServedChain:
    """A model as this device serves it."""

    name: str
    chain: Chain
    tokenizer: Tokenizer
    max_positions: int
    """Positions of one request, prompt and answer."""
    max_answer: int
    """Tokens of an answer whose request does not say."""
    slots: asyncio.Semaphore
    """One slot for each answer that may be generated at once."""
    conversations: Conversations
    """Sessions of finished answers, kept for a next turn."""
    ways: DraftingWays
    """How requests may have their answers drafted."""
    readers: ThreadPoolExecutor
    """Threads that tokenise prompts; few, so that prompts nobody waits for any more cannot crowd out the others."""


async def answer(model: ServedChain, request: Generate, post: Callable[[Message], None]) -> None:
    """Serve ``request``, from Accepted to Done. Cancelling this frees everything it holds, here and in the cloud.

    Raises:
        SessionFailed: why there is no (complete) answer.
    """
    params = _sampling(request.sampling)
    way = model.ways.get(request.draft)
    vocabulary = model.chain.parts.spec.vocab_size
    if any(token >= vocabulary for token in params.logit_bias):
        raise SessionFailed(Code.INVALID_REQUEST, f"token ids go from 0 to {vocabulary - 1}", param="logit_bias")
    limit = min(model.max_positions, model.chain.max_positions)
    prompt = await asyncio.get_running_loop().run_in_executor(
        model.readers, read_prompt, request, model.tokenizer, limit, model.max_answer, vocabulary
    )
    seed = params.seed if params.seed is not None else secrets.randbits(64)
    answers = [_Answer(model, request, prompt, limit, params, seed, way, index, post) for index in range(request.n)]
    # Accepted is said once a session is open: a cloud that is away is then an HTTP status, not a broken stream.
    choices = [asyncio.create_task(each.run(each is answers[0])) for each in answers]
    try:
        counts = await asyncio.gather(*choices)
    finally:
        for choice in choices:
            choice.cancel()
        await asyncio.gather(*choices, return_exceptions=True)
    proposed, accepted = (sum(getattr(each.tally, count) for each in answers) for count in ("proposed", "accepted"))
    post(Done(request.request, len(prompt.ids), sum(counts), answers[0].cached, proposed, accepted))


class _Answer:
    """One choice of a request.

    Attributes:
        cached: tokens of the prompt that an earlier turn had left here. They count as cached also where the cloud has
            given them up meanwhile and they are replayed: nobody has to compute this device's part of them again.
        tally: what drafting brought.
    """

    def __init__(
        self,
        model: ServedChain,
        request: Generate,
        prompt: Prompt,
        limit: int,
        params: SamplingParams,
        seed: int,
        way: DraftingWay | None,
        index: int,
        post: Callable[[Message], None],
    ) -> None:
        self.cached = 0
        self.tally = Tally()
        self._model = model
        self._request = request
        self._prompt = prompt
        self._limit = limit
        self._way = way
        self._index = index
        self._post = post
        self._chooser = Chooser(params, prompt.ids, _seed_of(seed, index), request.logprobs)
        self._detokenizer = Detokenizer(model.tokenizer.decode, prompt.ids)
        self._scanner = StopScanner(request.stop)
        self._count = 0
        """Tokens generated and read."""
        self._tokens = 0
        """Those of them that are in no delta yet."""
        self._logprobs: list[TokenLogprob] = []

    async def run(self, first: bool) -> int:
        """Generate, send, finish; returns the tokens generated. ``first`` also accepts the request."""
        request = self._request
        async with self._model.slots:
            session = self._session()
            done = False
            try:
                if first:
                    self._post(Accepted(request.request, len(self._prompt.ids)))
                if request.echo and self._prompt.text:
                    self._send(self._prompt.text)
                reason = await self._decode(session)
                timings = self._timings(session)
                done = True
            finally:
                self._leave(session, done)
        self._post(Finished(request.request, self._index, reason, timings))
        return self._count

    def _session(self) -> ChainSession:
        """The session of the conversation that the prompt goes on with, cut back to what they share, or a new one."""
        model, prompt = self._model, self._prompt
        expected = len(prompt.ids) + prompt.max_tokens
        session = None
        # The other choices would only take what somebody else's next turn wants: they are not kept. And where no cloud
        # is connected, opening says so before anything is accepted, and the conversation stays as it is.
        if self._index == 0 and model.chain.connected:
            now = asyncio.get_running_loop().time()
            session = model.conversations.take(self._request.tenant, self._drafter, prompt.ids, expected, now)
        if session is None:
            # Room for later turns, which costs nothing: keys and values grow with what comes. How much there may be is
            # asked anew, since the request may have waited while another cloud server took over.
            positions = max(expected, min(self._limit, model.chain.max_positions))
            drafter = self._way.drafter if self._way is not None else None
            return model.chain.open(positions, len(prompt.ids), expected, drafter)
        self.cached = session.position
        session.expect(len(prompt.ids) - session.position, expected)
        return session

    def _leave(self, session: ChainSession, done: bool) -> None:
        """Keep the session for a next turn. Of several choices at most one will be gone on with: the first is kept."""
        if not done or self._index:
            session.close()
            return
        prompt, now = self._prompt.ids, asyncio.get_running_loop().time()
        held = [*prompt, *self._chooser.generated][: session.position]
        self._model.conversations.keep(self._request.tenant, self._drafter, held, len(prompt), session, now)

    def _timings(self, session: ChainSession) -> Timings | None:
        """Where the answer's time went. A round may be sent, and answered, row by row."""
        timings = session.timings
        if timings is None or self._way is None:
            return timings
        return msgspec.structs.replace(timings, rounds=self.tally.rounds)

    @property
    def _drafter(self) -> str:
        return self._way.drafter.name if self._way is not None else ""

    def _generate(self, session: ChainSession, ends: set[int]) -> AsyncGenerator[Step, None]:
        ids, most = self._prompt.ids, self._prompt.max_tokens
        if self._way is None:
            return generate(session, ids, self._chooser, ends, most)
        speculation = Speculation(session, ids, self._chooser, self._way, ends, most)
        self.tally = speculation.tally
        return speculation.run()

    async def _decode(self, session: ChainSession) -> Literal["stop", "length"]:
        ends = set(self._request.stop_token_ids)
        if not self._request.ignore_eos:
            ends |= self._model.tokenizer.end_ids
        steps = self._generate(session, ends)
        reason: Literal["stop", "length"] = "length"
        async with aclosing(steps):
            async for step in steps:
                self._tokens += 1
                self._count += 1
                reason = step.reason or reason
                if step.reason == "stop":  # An end token is counted and has no text.
                    break
                if self._request.logprobs is not None:
                    self._logprobs.append(self._describe(step.chosen))
                shown, stopped = self._scanner.feed(self._detokenizer.feed(step.chosen.token))
                if stopped:
                    self._send(shown)
                    return "stop"
                if shown:
                    self._send(shown)
        shown, stopped = self._scanner.feed(self._detokenizer.flush())
        self._send(shown if stopped else shown + self._scanner.flush())
        return "stop" if stopped else reason

    def _send(self, text: str) -> None:
        """Send text and what has gathered since the last delta; nothing when there is neither."""
        if not text and not self._tokens and not self._logprobs:
            return
        logprobs = self._logprobs if self._request.logprobs is not None else None
        self._post(Delta(self._request.request, self._index, text, self._tokens, logprobs))
        self._tokens, self._logprobs = 0, []

    def _describe(self, chosen: Chosen) -> TokenLogprob:
        def alternative(token: int, logprob: float) -> Alternative:
            text, raw = self._model.tokenizer.piece(token)
            return Alternative(text, logprob, raw)

        assert chosen.logprob is not None
        return TokenLogprob(alternative(chosen.token, chosen.logprob), [alternative(*each) for each in chosen.top])


def _sampling(given: Sampling) -> SamplingParams:
    """The sampling of a request. Raises ``SessionFailed`` naming the field."""
    try:
        return SamplingParams(
            temperature=given.temperature,
            top_p=given.top_p or MIN_TOP_P,
            top_k=given.top_k,
            min_p=given.min_p,
            presence_penalty=given.presence_penalty,
            frequency_penalty=given.frequency_penalty,
            repetition_penalty=given.repetition_penalty,
            logit_bias=given.logit_bias,
            seed=None if given.seed is None else given.seed % 2**64,
        )
    except BadSampling as error:
        raise SessionFailed(Code.INVALID_REQUEST, str(error), param=error.field) from error


def _seed_of(seed: int, index: int) -> int:
    """Each choice's own noise: the request's seed itself for the first, unrelated ones for the others."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:8], "little")
