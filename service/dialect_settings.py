"""How a model writes what is not text, as settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.settings import tuning


@dataclass(frozen=True)
class DialectSettings:
    """How the model writes what is not text."""

    tool_call_parser: Literal[
        "auto",
        "hermes",
        "llama3_json",
        "mistral",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v32",
        "qwen3_coder",
        "glm45",
        "kimi_k2",
        "minimax_m2",
        "none",
    ] = tuning(
        "auto",
        "calls of tools: hermes: Qwen 2.5 and 3, Hermes; llama3_json: Llama 3.1 to 3.3; mistral; deepseek_v3: V3, R1; "
        "deepseek_v31; deepseek_v32; qwen3_coder; glm45: GLM 4.5 and 4.6; kimi_k2; minimax_m2; auto: as the chat "
        "template says; none: requests with tools are refused",
    )
    reasoning_parser: Literal["auto", "think", "none"] = tuning(
        "auto",
        "what it thinks before it answers: think: between <think> and </think>; auto: as the chat template says; none: "
        "all is answer",
    )
