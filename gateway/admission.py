"""Whether a request is of a size that can be answered at all. Pure."""

from __future__ import annotations

from gateway.asking import Ask
from gateway.errors import RequestError


def too_large(ask: Ask, max_positions: int, max_total_tokens: int) -> RequestError | None:
    """Why a request asks for too much, None when it does not.

    Args:
        max_positions: positions, prompt and answer, of one request to the model.
        max_total_tokens: tokens that all answers of one request may have together.
    """
    for at, prompt in enumerate(ask.prompts):
        if isinstance(prompt, tuple) and len(prompt) >= max_positions:
            return RequestError(
                400,
                f"the prompt has {len(prompt)} tokens, with the answer there is room for {max_positions}",
                code="context_length_exceeded",
                param="prompt" if len(ask.prompts) == 1 else f"prompt[{at}]",
            )
    each = min(ask.max_tokens or max_positions, max_positions)
    if ask.choices > 1 and ask.choices * each > max_total_tokens:
        return RequestError(
            400,
            f"{ask.choices} answers of up to {each} tokens are more than the {max_total_tokens} tokens one request "
            "may ask for: lower 'max_tokens' or 'n'",
            code="invalid_value",
            param="n",
        )
    return None
