"""Answering questions about one conversation: it is read once, and each question goes on from there.

Some questions run side by side, each in a fork of the conversation's session, one after the other: so the cloud gets
the conversation's rows once and runs the rows of several questions in one step. Nothing is generated.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from device_agent.answering.answer import ServedChain
from device_agent.answering.options import OptionTree
from device_agent.answering.prompt import check_known, check_length, rendered_turns, too_long
from device_agent.answering.tokenizer import AS_USUAL, Tokenizer
from device_agent.chain.chain import ChainSession
from device_agent.chain.prefill import begun, prefill
from device_agent.sharing.compute import served_tenant
from device_agent.sharing.served_request import served_request
from device_agent.speculative.scoring import likelihoods
from wire.decision_messages import QUESTIONS_AT_ONCE, Decide, Decided, Question
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Accepted, Done
from wire.text_messages import ChatTurn

MAX_QUESTION_TOKENS: Final = 2048
"""Of one question: it goes in one forward."""

MAX_OPTION_TOKENS: Final = 64

MAX_NODES: Final = 2048
"""Rows that the options of one question need beside its own: their deep hidden states are here at once."""

MAX_ROWS: Final = 2**17
"""Rows of all questions of a request."""


@dataclass(frozen=True)
class Asked:
    """A question as tokens: its ``ids`` follow the conversation's, and the answer follows them."""

    ids: list[int]
    tree: OptionTree

    @property
    def rows(self) -> int:
        """How many it takes, options included."""
        return len(self.ids) + len(self.tree.nodes)

    @property
    def reach(self) -> int:
        """How far it goes behind the conversation."""
        return len(self.ids) + max(map(len, self.tree.nodes), default=0)


async def decide(model: ServedChain, request: Decide, post: Callable[[AnyMessage], None]) -> None:
    """Serve ``request``, from Accepted to Done. Cancelling this frees everything it holds, here and in the cloud.

    Raises:
        SessionFailed: why there is no (complete) answer.
    """
    served_tenant.set(request.tenant)
    if model.chain.sources is not None:
        raise SessionFailed(Code.INVALID_REQUEST, "this model reads one text and writes another", param="model")
    limit = min(model.max_positions, model.chain.max_positions)
    reading = partial(read_questions, request, model.tokenizer, limit, model.chain.parts.spec.vocab_size)
    span = served_request.get().span
    with span.phases() as phases:
        phases.begin("read prompt")
        shared, questions = await model.readers.submit(reading, request.tenant)
        tokens = len(shared) + sum(len(each.ids) for each in questions)
        phases.begin("queue")
        async with model.permits.one(request.tenant):
            reach = len(shared) + max(each.reach for each in questions)
            phases.begin("prefill", prompt_tokens=len(shared))
            session = model.chain.open(reach, len(shared), reach)
            try:
                post(Accepted(request.request, tokens))
                await prefill(session, shared, 1)
                phases.begin("decide", choices=len(questions))
                await _Deciding(model, request, post, session, questions).run()
            finally:
                session.close()
    span.note(prompt_tokens=tokens, choices=len(questions))
    post(Done(request.request, tokens, 0))


def read_questions(
    request: Decide, tokenizer: Tokenizer, max_positions: int, vocabulary: int
) -> tuple[list[int], list[Asked]]:
    """The tokens that all questions share, and the rest of each. Takes time for long text: call it on a thread.

    The conversation and a question become tokens each by itself, and so does each option.

    Raises:
        SessionFailed: ``context_length_exceeded`` or ``invalid_request``; what is too much is named.
    """
    mark, last = secrets.token_hex(16), request.turns[-1]
    turns = [*request.turns[:-1], ChatTurn(last.role, last.content + mark)]
    begin, _, end = rendered_turns(turns, AS_USUAL, tokenizer, max_positions, "input").partition(mark)
    shared = tokenizer.rendered(begin)
    if len(shared) > max_positions:
        raise too_long(str(len(shared)), max_positions, "input")
    check_known(shared, vocabulary, "input")
    if mark in end or not end or not shared:
        told = "this model's chat template does not show its last message once, as it is, with an answer behind it"
        raise SessionFailed(Code.INVALID_REQUEST, told, param="model")
    questions: list[Asked] = []
    for at, question in enumerate(request.questions):
        questions.append(_asked(question, end, tokenizer, max_positions, vocabulary, f"questions[{at}]"))
        if (longest := len(shared) + questions[-1].reach) > max_positions:
            raise too_long(str(longest), max_positions, f"questions[{at}]")
    # What all of them begin with is read with the conversation; of each at least its last token is its own.
    heads = [each.ids[:-1] for each in questions]
    alike = next((at for at, ids in enumerate(zip(*heads, strict=False)) if len(set(ids)) > 1), min(map(len, heads)))
    shared += questions[0].ids[:alike]
    questions = [replace(each, ids=each.ids[alike:]) for each in questions]
    if (rows := sum(each.rows for each in questions)) > MAX_ROWS:
        told = f"all questions have {rows} tokens together, and one request may have {MAX_ROWS}: ask fewer at once"
        raise SessionFailed(Code.INVALID_REQUEST, told, param="questions")
    return shared, questions


def _asked(
    question: Question, end: str, tokenizer: Tokenizer, max_positions: int, vocabulary: int, param: str
) -> Asked:
    most = min(max_positions, MAX_QUESTION_TOKENS)
    check_length(question.text, tokenizer, most, param)
    ids = tokenizer.rendered(question.text + end)
    if len(ids) > most:
        told = f"this question has {len(ids)} tokens, and it may have {most}: shorten it"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=param)
    options = [tokenizer.rendered(each) for each in question.options]
    if not all(0 < len(each) <= MAX_OPTION_TOKENS for each in options):
        told = f"an option has no tokens, or more than {MAX_OPTION_TOKENS}"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=param)
    for each in (ids, *options):
        check_known(each, vocabulary, param)
    if len(set(map(tuple, options))) < len(options):
        raise SessionFailed(Code.INVALID_REQUEST, "two options have the same tokens: tell them apart", param=param)
    tree = OptionTree(options)
    if len(tree.nodes) > MAX_NODES:
        told = f"the options have over {MAX_NODES} tokens together: shorten them, or leave some out"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=param)
    return Asked(ids, tree)


class _Deciding:
    """The questions of one request, and who runs the next. ``session`` holds the conversation and nothing else."""

    def __init__(
        self,
        model: ServedChain,
        request: Decide,
        post: Callable[[AnyMessage], None],
        session: ChainSession,
        questions: list[Asked],
    ) -> None:
        self._model, self._request, self._post = model, request, post
        self._session = session
        self._waiting = deque(enumerate(questions))
        self._open = len(questions)

    async def run(self) -> None:
        """Answer all. When one fails all end, and nothing goes on behind this."""
        lanes = min(self._request.at_once or QUESTIONS_AT_ONCE, QUESTIONS_AT_ONCE, self._open)
        left = {asyncio.create_task(self._lane(first=not at)) for at in range(lanes)}
        try:
            while self._open:  # Who still waits for a permit when no question is left is not waited for.
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        finally:
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _lane(self, *, first: bool) -> None:
        """Take one question after the other: in the conversation's session, whose permit is there, or in a fork."""
        async with AsyncExitStack() as stack:
            session = self._session
            if not first:
                await stack.enter_async_context(self._model.permits.one(self._request.tenant))
                if not self._waiting:
                    return
                session = await session.fork()
                stack.callback(session.close)
            start = self._session.prompt_end
            while self._waiting:
                index, question = self._waiting.popleft()
                chances = question.tree.chances(await _logprobs(session, question))
                if chances is None:
                    raise SessionFailed(Code.NOT_FINITE, "a question cannot be answered: the model gives no numbers")
                session.truncate(start)
                self._post(Decided(self._request.request, index, chances))
                self._open -= 1


async def _logprobs(session: ChainSession, question: Asked) -> list[float]:
    """Of what the question's tree asks. Its rows are behind the conversation's afterwards."""
    chain, tree, end = session.chain, question.tree, session.position + len(question.ids)
    async with AsyncExitStack() as stack:
        if session.waits:
            await stack.enter_async_context(chain.prompts.turn(session.compute.tenant, question.rows))
        first, *others = tree.legs
        answers = [await begun(session, question.ids + first.tokens, 1 + len(first.tokens))]
        for leg in others:
            if chain.back is not None:  # It is behind the cloud, and so has not come as far yet.
                await answers[-1]
            session.truncate(end + leg.depth)
            answers.append(await begun(session, leg.tokens, len(leg.tokens)))
        deep = torch.cat([await each for each in answers])
    return await likelihoods(session, deep, tree.asked)
