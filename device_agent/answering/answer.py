"""Answering one request: its choices generated side by side, each turned into text and sent as it comes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Literal

from msgspec.structs import replace

from device_agent.answering.answer_text import AnswerText
from device_agent.answering.choice_phases import ChoicePhases
from device_agent.answering.conversations import Conversations
from device_agent.answering.deltas import Deltas
from device_agent.answering.dialect.pieces import Said
from device_agent.answering.grammars import Grammars
from device_agent.answering.likelihoods import chosen_token, prompt_scores
from device_agent.answering.prompt import Prompt, read_prompt
from device_agent.answering.pruned import heads_pruned, pruned_layers
from device_agent.answering.reading import ServedReader
from device_agent.answering.sampling import check_ids, ends_of, sampling_of, seed_of, with_bans
from device_agent.answering.side_by_side import side_by_side
from device_agent.answering.times import timings_of
from device_agent.answering.tokenizer import Tokenizer
from device_agent.answering.wanted_form import WantedForm, wanted_form
from device_agent.chain.chain import Chain, ChainSession
from device_agent.chain.pruning import PrunedLayers, Pruner
from device_agent.sharing.compute import FairThreads, served_tenant
from device_agent.sharing.permits import Permits
from device_agent.sharing.served_request import served_request
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay, DraftingWays, Tally
from drafting.choosing import Chooser, NotNumbers
from split_model.bans import NothingLeft
from split_model.hints import TurnSpent
from split_model.sampling import SamplingParams
from split_model.usual_sampling import NOTHING_USUAL, UsualSampling
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Accepted, Done, Finished, Generate, Scored

Reason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class ServedChain:
    """A model as this device serves it."""

    chain: Chain
    tokenizer: Tokenizer
    max_positions: int
    """Positions of one request, prompt and answer."""
    default_max_tokens: int
    """Tokens of an answer whose request does not say."""
    permits: Permits
    """One permit for each answer that may be generated at once."""
    conversations: Conversations
    """Sessions of finished answers, kept for a next turn."""
    ways: DraftingWays
    """How requests may have their answers drafted."""
    readers: FairThreads
    """Threads that tokenise prompts."""
    grammars: Grammars | None = None
    """Holds answers to forms, where the tokenizer is one that this is known for."""
    pruner: Pruner | None = None
    """Leaves heads out of prompts that take too long, where that is allowed."""
    usual: UsualSampling = NOTHING_USUAL
    """How tokens are chosen where a request does not say."""
    reader: ServedReader | None = None
    """Says vectors of texts by the same layers, where it can."""


async def answer(model: ServedChain, request: Generate, post: Callable[[AnyMessage], None]) -> None:
    """Serve ``request``, from Accepted to Done. Cancelling this frees everything it holds, here and in the cloud.

    Raises:
        SessionFailed: why there is no (complete) answer.
    """
    served_tenant.set(request.tenant)
    way = model.ways.get(request.draft, request.tenant)
    vocabulary = model.chain.parts.spec.vocab_size
    check_ids(request, vocabulary)
    limit = min(model.max_positions, model.chain.max_positions)
    start = None if model.chain.sources is None else model.chain.sources.start
    plain = sampling_of(request.sampling, model.usual.of(request.left_out))

    def read() -> tuple[Prompt, SamplingParams]:
        tokenizer, usual = model.tokenizer, model.default_max_tokens
        prompt = read_prompt(request, tokenizer, limit, usual, vocabulary, start)
        return prompt, with_bans(plain, request, tokenizer, vocabulary)

    span = served_request.get().span
    with span.phases() as phases:
        phases.begin("read prompt")
        prompt, params = await model.readers.submit(read, request.tenant)
        form = await wanted_form(model.grammars, model.tokenizer.dialect, request, prompt)
    seed = params.seed if params.seed is not None else secrets.randbits(64)
    begun = partial(_Answer, model, request, prompt, limit, params, seed, way, form, post)
    first = begun(0)
    answers = [first, *(begun(index, first) for index in range(1, request.n))]
    try:
        counts = await side_by_side([each.run for each in answers], request.at_once or request.n)
    except NotNumbers as error:
        raise SessionFailed(Code.NOT_FINITE, str(error)) from error
    except NothingLeft as error:
        assert params.bans is not None
        raise SessionFailed(Code.INVALID_REQUEST, str(error), param=params.bans.member) from error
    finally:
        first.leave()
    counted = ("proposed", "accepted", "drafts")
    proposed, accepted, drafts = (sum(getattr(each.tally, count) for each in answers) for count in counted)
    span.note(prompt_tokens=prompt.tokens, completion_tokens=sum(counts), cached_tokens=first.cached)
    span.note(choices=request.n, drafted=proposed, accepted=accepted)
    post(Done(request.request, prompt.tokens, sum(counts), first.cached, proposed, accepted, drafts))


class _Answer:
    """One choice of a request.

    Attributes:
        cached: tokens of the prompt that an earlier turn had left here. They count as cached also where the cloud has
            given them up meanwhile and they are replayed: nobody has to compute this device's part of them again.
        tally: what drafting brought.
        session: the first choice's, once it is open; the others begin as forks of it, however late, until ``leave``.
        prefilled: set once the prompt is in it.
        scored: what was told of the prompt, where its scores are asked for.
    """

    def __init__(
        self,
        model: ServedChain,
        request: Generate,
        prompt: Prompt,
        limit: int,
        params: SamplingParams,
        seed: int,
        way: DraftingWay,
        form: WantedForm | None,
        post: Callable[[AnyMessage], None],
        index: int,
        first: _Answer | None = None,
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
        self.session: ChainSession | None = None
        self.prefilled = asyncio.Event()
        self.scored: list[Scored] = []
        self._first = first
        self._complete = False
        self._kind = way.name, request.cache_salt
        self._form = None if form is None else form.key
        self._masks = None if form is None else form.masks()
        ends, noise = ends_of(request, model.tokenizer), seed_of(seed, index)
        self._chooser = Chooser(params, prompt.ids, noise, request.logprobs, ends, prompt.max_tokens, self._masks)
        dialect = model.tokenizer.dialect
        decode, reader = model.tokenizer.decoding(dialect.marks(request)), dialect.reader(request, prompt.ending)
        self._text = AnswerText(request, decode, reader, prompt.ids)
        self._deltas = Deltas(request, index, post)
        self._count = 0
        """Tokens generated and read."""
        self._pruned: PrunedLayers | None = None
        self._phases = ChoicePhases(index)

    async def run(self) -> int:
        """Generate, send, finish; returns the tokens generated. The first choice also accepts the request."""
        request, first = self._request, self._first
        if first is not None:
            await first.prefilled.wait()  # Without a permit, which the first may still be waiting for.
        with self._phases:
            self._phases.waits()
            async with self._model.permits.one(request.tenant):
                reason, spent = await self._generated(first)
            self._phases.is_over(self._count, self.tally, spent)
        timings, counted = timings_of(spent, self.tally.rounds), heads_pruned(self._model.pruner, self._pruned)
        self._post(Finished(request.request, self._index, reason, timings, counted, self._text.stop))
        return self._count

    async def _generated(self, first: _Answer | None) -> tuple[Reason, TurnSpent | None]:
        """Generate and send; returns why it ended, and where the time went."""
        request = self._request
        if first is None:
            session = self.session = await self._begun()
            self._phases.prefills(len(self._prompt.ids), self.cached)
        else:
            assert first.session is not None
            session, self._pruned = await first.session.fork(), first._pruned
        try:
            if first is None:  # Not before: where the cloud is away, that is an HTTP status, not a broken stream.
                asked = self._prompt.asked if request.return_token_ids else None
                self._post(Accepted(request.request, self._prompt.tokens, asked))
            if request.prompt_logprobs is not None:
                await self._score(session)
            elif self._prompt.text:
                self._deltas.send([Said(self._prompt.text)])
            reason = await self._decode(session) if self._prompt.max_tokens else "length"
            self._complete = True
            if self._form is not None and self._way.drafter is not None:
                self._way.earlier.add(self._form, self._chooser.generated)
            return reason, session.spent
        finally:
            if self._masks is not None:  # Others of the request may go on for long.
                self._masks.close()
            if first is not None or not self._complete:
                session.close()

    def leave(self) -> None:
        """Nobody begins in the first choice's session any more: where it is complete, it is kept for a next turn. Of
        several choices at most one will be gone on with, and nobody goes on with a text that was scored. What was read
        without some heads holds copies of the others' weights, and a longer prompt would have others."""
        if (session := self.session) is not None and self._complete:
            if self._prompt.source is not None or self._request.prompt_logprobs is not None or self._pruned is not None:
                return session.close()
            prompt, now = self._prompt.ids, asyncio.get_running_loop().time()
            held = [*prompt, *self._chooser.generated][: session.position]
            self._model.conversations.keep(self._request.tenant, self._kind, held, len(prompt), session, now)

    async def _begun(self) -> ChainSession:
        """A session for the prompt: where the model reads one text and writes another, with that text read."""
        model, prompt, sources = self._model, self._prompt, self._model.chain.sources
        if sources is None or prompt.source is None:
            if model.pruner is not None:
                self._pruned = await pruned_layers(
                    model.pruner, model.conversations, model.chain.compute, self._request, prompt, self._kind
                )
            return self._session()
        source = await sources.read(prompt.source)
        return model.chain.open(len(prompt.ids) + prompt.max_tokens, len(prompt.ids), source=source)

    def _session(self) -> ChainSession:
        """The session of the conversation that the prompt goes on with, cut back to what they share, or a new one."""
        model, prompt = self._model, self._prompt
        expected = len(prompt.ids) + prompt.max_tokens
        session = None
        # Where no cloud is connected, opening says so before anything is accepted, and the conversation stays as it is.
        # Of rows that are kept nobody has the deep ones any more, which scores are made of.
        if model.chain.connected and self._request.prompt_logprobs is None and self._pruned is None:
            now = asyncio.get_running_loop().time()
            session = model.conversations.take(self._request.tenant, self._kind, prompt.ids, expected, now)
        if session is None:
            # Room for later turns, which costs nothing: keys and values grow with what comes. How much there may be is
            # asked anew, since the request may have waited while another cloud server took over.
            positions = max(expected, min(self._limit, model.chain.max_positions))
            earlier, pruned = self._way.earlier.of(self._form), self._pruned
            return model.chain.open(
                positions, len(prompt.ids), expected, self._way.drafter, pruned=pruned, earlier=earlier
            )
        self.cached = session.position
        session.expect(len(prompt.ids) - session.position, expected)
        return session

    async def _score(self, session: ChainSession) -> None:
        """Tell how likely the prompt's tokens are: the first choice has it prefilled for that, the others know."""
        if self._first is not None:
            for piece in self._first.scored:
                self._post(replace(piece, index=self._index))
            return
        async with aclosing(prompt_scores(self._request, self._prompt, self._model.tokenizer, session)) as pieces:
            async for piece in pieces:
                self._post(piece)
                if self._request.n > 1:
                    self.scored.append(piece)
        self.prefilled.set()
        self._phases.generates(session)

    async def _decode(self, session: ChainSession) -> Reason:
        generation = Generation(session, self._chooser, self._way)
        self.tally = generation.tally
        reason: Reason = "length"
        async with aclosing(generation.run()) as tokens:
            async for chosen in tokens:
                self.prefilled.set()  # By its first token.
                self._phases.generates(session)
                self._count += 1
                self._deltas.token(chosen, session, self._text.held)
                reason = "stop" if chosen.reason == "complete" else chosen.reason or reason
                # An end token is counted and has no text. Behind scores of a prompt it has its own too, since clients
                # tell both apart by counting.
                ended, scored = chosen.reason == "stop", self._request.prompt_logprobs is not None
                if self._request.logprobs is not None and (scored or not ended):
                    self._deltas.logprob(chosen_token(self._model.tokenizer, chosen))
                if ended and not self._request.include_stop_str_in_output:
                    break
                shown, stopped = self._text.feed(chosen.token)
                if shown or stopped:
                    self._deltas.send(shown)
                if stopped:
                    return self._text.reason
        shown, stopped = self._text.end(whole=reason != "length")
        self._deltas.send(shown)
        return self._text.reason if stopped or reason == "stop" else reason
