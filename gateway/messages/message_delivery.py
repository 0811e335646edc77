"""From a message to bytes at the client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.answer import Answer
from gateway.delivery import TextDelivery, named_events_of
from gateway.error_shapes import messages_error
from gateway.errors import RequestError
from gateway.messages.message_shape import MessageShape


class MessageDelivery(TextDelivery):
    """The response to a request of /v1/messages."""

    def _shape(self, answer: Answer) -> MessageShape:
        return MessageShape(f"msg_{self._request_id}", answer.model, answer.total.prompt_tokens)

    def _told(self, objects: Iterable[Any]) -> bytes:
        return named_events_of(objects)

    def _end(self, shape: Any) -> bytes:
        return b""

    def _failure(self, shape: Any, error: RequestError) -> bytes:
        return named_events_of([messages_error(error, self._request_id)])
