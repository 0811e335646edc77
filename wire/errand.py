"""What a session works for, as its device tells a cloud server: for logs and traces, which say the same of a request
in all processes. Both sides do without."""

from __future__ import annotations

import msgspec

from wire.message import Name


class Errand(msgspec.Struct, frozen=True, array_like=True):
    """The id of the client's request, and the trace context (W3C's ``traceparent``) under which what is done for it is
    kept; each empty where there is none. Whoever reads it looks at both as at a stranger's words: ``service.errands``.
    """

    request_id: Name = ""
    traceparent: Name = ""
