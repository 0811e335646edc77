"""The form that the answers to one request have to have."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from device_agent.answering.dialect.answer_form import answer_form
from device_agent.answering.dialect.dialect import Dialect
from device_agent.answering.grammar_masks import GrammarMasks
from device_agent.answering.grammars import Grammars
from device_agent.answering.prompt import Prompt
from wire.errors import Code, SessionFailed
from wire.request_messages import Generate


@dataclass(frozen=True)
class WantedForm:
    """A form, compiled.

    Attributes:
        masks: makes those of one answer.
        key: what tells it from other forms of its tenant; of another ``cache_salt`` it is another.
    """

    masks: Callable[[], GrammarMasks]
    key: Hashable


async def wanted_form(
    grammars: Grammars | None, dialect: Dialect, request: Generate, prompt: Prompt
) -> WantedForm | None:
    """The form, if there is any.

    Args:
        grammars: what holds answers to forms; None where this device cannot.

    Raises:
        SessionFailed: the answers cannot be held to what is asked for.
    """
    form = answer_form(dialect, request, prompt.ending)
    if form is None or (grammars is None and form.may_be_left):
        return None
    if grammars is None:
        told = "this device cannot hold an answer to a form: it does not know the model's tokenizer well enough"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=form.param)
    masks = await grammars.compiled(form, request.tenant, prompt.max_tokens)
    return WantedForm(masks, (request.cache_salt, form.digest))
