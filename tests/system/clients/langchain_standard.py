"""LangChain's own standard tests of chat models and embeddings, pointed at a server: TRILBY_BASE, TRILBY_KEY."""

from __future__ import annotations

import os
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

WAY: dict[str, Any] = {
    "base_url": os.environ.get("TRILBY_BASE", ""),
    "api_key": os.environ.get("TRILBY_KEY", ""),
    "model": "trilby-demo",
}


class TestChat(ChatModelIntegrationTests):  # type: ignore[misc]
    @property
    def chat_model_class(self) -> Any:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**WAY, "temperature": 0, "max_tokens": 64, "stream_usage": True}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False  # Its forms have texts of any length, which so small a model never ends.


class TestEmbeddings(EmbeddingsIntegrationTests):  # type: ignore[misc]
    @property
    def embeddings_class(self) -> Any:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {**WAY, "check_embedding_ctx_length": False}
