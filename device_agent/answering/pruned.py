"""Whether a request's heads may be pruned, and must be; what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from device_agent.answering.conversations import Conversations
from device_agent.answering.prompt import Prompt
from device_agent.chain.pruning import PrunedLayers, Pruner
from device_agent.planning.limit import LimitTooShort
from device_agent.sharing.compute import Compute
from split_model.pruning.stack import NoRoomForSets
from wire.errors import Code, SessionFailed
from wire.request_messages import Generate

AGAIN_S = 2.0
"""By then one of the answers that take the memory may be complete."""


async def pruned_layers(
    pruner: Pruner, conversations: Conversations, compute: Compute, request: Generate, prompt: Prompt, kind: Hashable
) -> PrunedLayers | None:
    """The layers for a prompt without the heads that it has no time for; None: all, as a request may ask for. What an
    earlier turn with all heads has left is not computed again, and so needs no time.

    Raises:
        SessionFailed: no pruning makes it fast enough; or memory is full of the weights of requests under way that
            leave other heads out.
    """
    if request.exact or not pruner.needs(len(prompt.ids)):
        return None
    expected, now = len(prompt.ids) + prompt.max_tokens, asyncio.get_running_loop().time()
    held = conversations.held(request.tenant, kind, prompt.ids, expected, now)
    if request.prompt_logprobs is None and not pruner.needs(len(prompt.ids) - held):
        return None
    try:
        return await compute.lane().submit(lambda: pruner.prune(prompt.ids, request.tenant))
    except LimitTooShort as error:
        new = f"the {len(prompt.ids) - held} tokens behind {held} that are known take too long with all heads"
        said = f"{new}, and without, for which all are read again, {error}" if held else str(error)
        raise SessionFailed(Code.INVALID_REQUEST, said) from error
    except NoRoomForSets as error:
        told = 'requests under way leave other heads out, and take all memory for that; "exact": true needs none'
        raise SessionFailed(Code.OVERLOADED, told, retry_after_s=AGAIN_S) from error


def heads_pruned(pruner: Pruner | None, pruned: PrunedLayers | None) -> int | None:
    """What clients are told; None where no heads are ever left out."""
    return None if pruner is None else 0 if pruned is None else pruned.count
