"""The ``trilby`` command: starts the processes, imports none of them."""

from __future__ import annotations

import os
import sys

import click

from service.certs import command as certs
from service.chat import command as chat
from service.huge_pages import with_huge_pages
from service.python_module import python_module
from service.serve import command as serve
from service.version import VERSION

EPILOG = """\b
Examples:
  trilby serve                                      the demo model, everything on this machine
  trilby chat                                       talk to it
  trilby bench                                      how fast it answers, and up to which rate
  trilby serve --model Qwen/Qwen3-0.6B --split 2    any Llama-family checkpoint
  trilby serve --mode galaxy --devices 3            no cloud: several processes share the layers
  trilby distill --model DIR --split 2 --text FILE  train a drafter for a model, so that it answers faster
  trilby doctor                                     what is wrong here, and what to do about it
  trilby audit --model DIR --split 2                how much of a text is read off what the cloud gets

\b
On several machines (the same --model, --split and --tail on cloud and device):
  export TRILBY_DEVICE_TOKEN=… TRILBY_CLOUD_TOKEN=…     or --device-token-file FILE, --cloud-token-file FILE
  trilby gateway --host 0.0.0.0
  trilby cloud   --model DIR --split 2 --host 0.0.0.0
  trilby device  --model DIR --split 2 --gateway ws://… --cloud ws://…

\b
Without a cloud (the same --model and key on all devices):
  export TRILBY_GROUP_KEY=…
  trilby device --model DIR --mode galaxy --devices 3 --gateway ws://… --group-listen ADDRESS:PORT
  trilby device --model DIR --join ADDRESS:PORT
"""


@click.group(epilog=EPILOG, context_settings={"max_content_width": 110})
@click.version_option(VERSION, package_name="trilby")
def main() -> None:
    """Serve language models over an OpenAI-compatible API, split between your devices and a cloud, or among devices.

    Text, tokenizer, the first layers and the head stay on the device; the cloud runs the middle layers and sees
    hidden states only (which hide no text from someone determined: see docs/threat-model.md).
    """


main.add_command(serve, "serve")
main.add_command(chat, "chat")
main.add_command(certs, "certs")


def _process(name: str, summary: str, module: str, *given: str) -> None:
    @main.command(
        name,
        short_help=summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    @click.pass_context
    def start(context: click.Context) -> None:
        # The process takes this one's place, so that signals reach it directly.
        sys.stdout.flush()
        os.execve(sys.executable, [*python_module(module), *given, *context.args], with_huge_pages())


_process("gateway", "Run the OpenAI-compatible gateway.", "service.begin", "gateway")
_process("keys", "Make, show and revoke API keys of a gateway.", "gateway.keys_command")
_process("cloud", "Run the middle layers for many devices.", "service.begin", "cloud_server")
_process("stage", "Run some of a cloud's layers on another machine.", "service.begin", "cloud_server.stages.stage")
_process("device", "Run a device agent: tokenizer, first layers, head.", "service.begin", "device_agent")
_process("bench", "Load an OpenAI-compatible server; say how fast it answers.", "service.bench")
_process("doctor", "Say what is wrong here, and what to do about it.", "service.doctor")
_process("profile", "Measure this device for a model.", "device_agent.profiling")
_process("plan", "Say who would compute what in a group, and how fast.", "device_agent.plan")
_process("audit", "Attack what crosses the wire, and say what is read off it.", "device_agent.auditing")
_process("distill", "Train a drafter for a model, so that it answers faster.", "drafting.distill")

if __name__ == "__main__":
    main()
