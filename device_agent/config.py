"""Settings of the device agent."""

from __future__ import annotations

from dataclasses import dataclass

from service.draft_settings import draft_setting, settle, split_setting
from service.settings import setting


@dataclass(frozen=True)
class DeviceConfig:
    """Run a device agent: tokenizer, first layers and head stay here, the middle layers run in the cloud."""

    model: str = setting(help="checkpoint folder or Hugging Face id; the same as the cloud's")
    gateway: str = setting("ws://127.0.0.1:8000", "gateway to serve")
    cloud: tuple[str, ...] = setting(
        ("ws://127.0.0.1:8001",), "cloud server with the middle layers; several times: the first is preferred"
    )
    mode: str = draft_setting("mode")
    split: int = split_setting()
    tail: int = setting(0, "layers kept here at the end", minimum=0)
    dtype: str = setting("float32", "number format of weights and hidden states", choices=("float32", "bfloat16"))
    draft: tuple[str, ...] = draft_setting("draft")
    drafters: str = draft_setting("drafters")
    verify: str = draft_setting("verify")
    draft_length: str = draft_setting("draft_length")
    draft_threshold: float = draft_setting("draft_threshold")
    draft_cap: int = draft_setting("draft_cap")
    prepare: str = draft_setting("prepare")
    stream_rows: str = draft_setting("stream_rows")
    hat_paper: bool = draft_setting("hat_paper")
    name: str = setting("device", "name of this device, shown to operators")
    model_name: str = setting("", "name clients use for the model; empty: the folder's name or the id")
    device_token: str = setting("", "credential the gateway asks for", secret=True)
    cloud_token: str = setting("", "credential the cloud asks for", secret=True)
    capacity: int = setting(16, "requests served at once", minimum=1)
    max_answers: int = setting(32, "answers generated at once, all requests together", minimum=1)
    max_answer: int = setting(4096, "tokens of an answer whose request does not say", minimum=1)
    context: int = setting(0, "positions of one request, prompt and answer; 0: the model's own", minimum=0)
    chunk: int = draft_setting("chunk")
    whole_prompts: bool = draft_setting("whole_prompts")
    download: str = draft_setting("download")
    pack_rows: str = draft_setting("pack_rows")
    reply_within_s: float = setting(
        60.0, "seconds to wait for the cloud's answer to one chunk, and for room in it", minimum=0.1
    )
    recover_within_s: float = setting(30.0, "seconds in which an answer must go on after its cloud is lost", minimum=0)
    conversations: int = setting(8, "finished conversations kept ready for a next turn; 0: none", minimum=0)
    conversation_mb: int = setting(256, "memory on this device for all of them, in MB", minimum=0)
    conversation_s: float = setting(600.0, "seconds for which one is kept", minimum=0)
    threads: int = setting(0, "threads for the matrix products; 0: PyTorch's choice", minimum=0)
    log_level: str = setting("info", "what to log", choices=("debug", "info", "warning", "error"))
    log_form: str = setting("text", "how to log", choices=("text", "json"))

    def __post_init__(self) -> None:
        """Raises ValueError where settings contradict each other."""
        settle(self)
