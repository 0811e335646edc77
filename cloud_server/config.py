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
    max_device_sessions: int = setting(64, "sessions open at once on one connection of a device", minimum=1)
    max_positions: int = setting(32768, "positions of one session", minimum=1)
    kv_mb: int = setting(
        0, "memory for keys and values, in MB; 0: half of what is free at start", minimum=0, maximum=10**9
    )
    page_positions: int = setting(32, "positions in one page of the KV cache", minimum=1)
    attention: str = setting("auto", "attention kernels", choices=("auto", "sdpa", "varlen", "flash"))
    device: str = setting("cpu", "where the layers run: cpu, cuda, cuda:1 …")
    stages: int = setting(1, "processes (on GPUs: devices) that share the layers as a pipeline", minimum=1)
    transport: str = setting(
        "gloo", "how hidden states go from stage to stage; nccl needs a GPU for each", choices=("gloo", "nccl")
    )
    step_rows: int = setting(512, "most rows in one step", minimum=64)
    step_slack: float = setting(
        1.25,
        "how many times longer than without chunks of prompts a decoder's answer may take; 0: no limit",
        minimum=0,
    )
    parked_sessions: int = setting(32, "finished sessions of one device kept for a next turn", minimum=0)
    idle_s: float = setting(600.0, "seconds after which a session nobody uses is given up", minimum=1)
    resume_s: float = setting(30.0, "seconds that sessions outlive their connection", minimum=0)
    window_rows: int = setting(2048, "rows a session may send ahead of the answers", minimum=1)
    max_rows: int = setting(512, "rows in one chunk", minimum=1)
    threads: int = setting(0, "threads for the matrix products; 0: PyTorch's choice", minimum=0)
    drain_s: float = setting(20.0, "seconds that open sessions get after SIGTERM", minimum=0)
    log_level: str = setting("info", "what to log", choices=("debug", "info", "warning", "error"))
    log_form: str = setting("text", "how to log", choices=("text", "json"))

    def __post_init__(self) -> None:
        """Raises ValueError for a slack that would leave no step any time."""
        if 0 < self.step_slack < 1:
            raise ValueError(f"--step-slack is a factor of 1 or more, or 0 for no limit, not {self.step_slack:g}")
