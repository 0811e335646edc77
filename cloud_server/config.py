"""Settings of the cloud server."""

from __future__ import annotations

from dataclasses import dataclass

from service.settings import setting


@dataclass(frozen=True)
class CloudConfig:
    """Run the middle layers of a model for many devices. Sees hidden states only: no text, no token ids."""

    model: str = setting(help="checkpoint folder or Hugging Face id; the same on the devices")
    split: int = setting(2, "layers that devices keep at the front", minimum=0)
    tail: int = setting(0, "layers that devices keep at the end", minimum=0)
    dtype: str = setting("float32", "number format of weights and hidden states", choices=("float32", "bfloat16"))
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8001, "port to listen on", minimum=0, maximum=65535)
    cloud_token: str = setting("", "credential devices must show; required beyond loopback", secret=True)
    model_name: str = setting("", "name of the model; empty: the folder's name or the id")
    max_sessions: int = setting(256, "sessions open at once, all devices together", minimum=1)
    max_device_sessions: int = setting(64, "sessions open at once for one device", minimum=1)
    max_positions: int = setting(32768, "positions of one session", minimum=1)
    kv_positions: int = setting(262144, "positions reserved by all sessions together", minimum=1)
    step_rows: int = setting(512, "rows in one step", minimum=64)
    window_rows: int = setting(1024, "rows a session may send ahead of the answers", minimum=1)
    max_rows: int = setting(512, "rows in one chunk", minimum=1)
    threads: int = setting(0, "threads for the matrix products; 0: PyTorch's choice", minimum=0)
    drain_s: float = setting(20.0, "seconds that open sessions get after SIGTERM", minimum=0)
    log_level: str = setting("info", "what to log", choices=("debug", "info", "warning", "error"))
    log_form: str = setting("text", "how to log", choices=("text", "json"))
