"""Which way of writing calls a chat template means, and how conversations with calls are told to real templates."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest
from checkpoints import DATA, DEMO
from transformers import AutoTokenizer

from device_agent.answering.answer_text import AnswerText
from device_agent.answering.dialect.call_formats import (
    BY_NAME,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    GLM45,
    HERMES,
    KIMI_K2,
    LLAMA3,
    MINIMAX_M2,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    USUAL,
    CallFormat,
)
from device_agent.answering.dialect.dialect import Dialect
from device_agent.answering.dialect.pieces import Argued, Begun, Piece, Said, Thought, joined
from device_agent.answering.dialect.template_turns import RESULT, template_turns
from device_agent.answering.dialect.written_calls import written_calls
from device_agent.answering.tokenizer import Tokenizer
from service.dialect_settings import DialectSettings
from wire.errors import SessionFailed
from wire.request_messages import Calling, ChatTurn, Generate, Rendering, Tool, ToolCall

TEMPLATES = {
    "Qwen-Qwen2.5-7B-Instruct": (HERMES, True, True, False),
    "Qwen-Qwen3-0.6B": (HERMES, True, True, True),
    "meta-llama-Llama-3.1-8B-Instruct": (LLAMA3, True, True, False),
    "meta-llama-Llama-3.3-70B-Instruct": (LLAMA3, True, True, False),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (DEEPSEEK_V3, True, False, True),
    "HuggingFaceTB-SmolLM3-3B": (USUAL, False, False, True),
    "google-gemma-2-2b-it": (USUAL, False, False, False),
    "microsoft-Phi-3.5-mini-instruct": (USUAL, False, False, False),
}
CALLS, CALL, SEP, CALLED, ALL_CALLED = DEEPSEEK_V3.marks
[DSML] = DEEPSEEK_V32.marks
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("weather", "Says the wéather.", json.dumps(SCHEMA), False, "tools[0].function.parameters")
TURNS = [
    ChatTurn("user", "How is it in Oslo and in Rome?"),
    ChatTurn(
        "assistant",
        "",
        tool_calls=[ToolCall("call_1", "weather", '{"city":"Oslo"}'), ToolCall("call_2", "weather", '{"city": "Róm"}')],
        reasoning="I have to look.",
    ),
    ChatTurn("tool", "cold", tool_call_id="call_1"),
    ChatTurn("tool", "warm", tool_call_id="call_2"),
]


def template(name: str) -> str:
    """A real chat template; the test is skipped where it is not at hand."""
    path = DATA / "chat_templates" / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"the chat template {name} is not at hand: the measured data is kept apart from the product")
    return path.read_text(encoding="utf-8")


def speaking(text: str, **how: str) -> Tokenizer:
    """The demo model's tokenizer with another chat template."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    tokenizer.chat_template = text
    return Tokenizer(tokenizer, frozenset([2]), **how)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_template_says_how_its_model_calls_and_thinks(name: str) -> None:
    """Of real templates; what is not known is called in the usual way, and only where it is forced."""
    found = Dialect.of(template(name))
    assert (found.format, found.calls, found.tells, found.thinks) == TEMPLATES[name]


def test_a_setting_wins_over_the_template() -> None:
    """By its name, or none at all; of Mistral's two ways the template still says which."""
    qwen = "<tool_call> tools"
    assert Dialect.of(qwen, "llama3_json").format is LLAMA3 and Dialect.of(qwen).format is HERMES
    assert Dialect.of("plain", "hermes").calls and not Dialect.of("plain").calls
    assert not Dialect.of(qwen, "none").tools and not Dialect.of(qwen, "none").calls
    assert Dialect.of("[TOOL_CALLS] tools [ARGS]", "mistral").format is MISTRAL_NAMED
    assert Dialect.of("[TOOL_CALLS] tools").format is MISTRAL and Dialect.of("", "mistral").format is MISTRAL
    assert Dialect.of("", thoughts="think").thinks and not Dialect.of("</think>", thoughts="none").thinks
    for name, format in BY_NAME.items():
        assert Dialect.of("", name).format is format and Dialect.of("", name).calls
    offered = get_args(get_type_hints(DialectSettings)["tool_call_parser"])
    assert set(offered) == {"auto", "none", *BY_NAME}


SAID: dict[str, list[str]] = {
    "Qwen-Qwen2.5-7B-Instruct": [
        '{"type": "function", "function": {"name": "weather", "description": "Says the wéather.", "parameters": '
        + json.dumps(SCHEMA)
        + "}}",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n<tool_call>\n{"name": '
        '"weather", "arguments": {"city": "Róm"}}\n</tool_call><|im_end|>',
        "<|im_start|>user\n<tool_response>\ncold\n</tool_response>\n<tool_response>\nwarm\n</tool_response><|im_end|>",
    ],
    "Qwen-Qwen3-0.6B": [
        "<|im_start|>assistant\n<think>\nI have to look.\n</think>\n\n<tool_call>",
        '"arguments": {"city": "Róm"}}\n</tool_call><|im_end|>',
    ],
    "meta-llama-Llama-3.1-8B-Instruct": [
        '"description": "Says the wéather."',
        '{"name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>',
        '{"name": "weather", "parameters": {"city": "Róm"}}<|eot_id|>',
        '<|start_header_id|>ipython<|end_header_id|>\n\n"cold"<|eot_id|>',
    ],
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": [
        "".join([CALLS, CALL, "function", SEP, 'weather\n```json\n{"city":"Oslo"}\n```', CALLED, "\n", CALL]),
        "<tool_response>\ncold\n</tool_response>\n<tool_response>\nwarm\n</tool_response>",
    ],
    "google-gemma-2-2b-it": [
        '<start_of_turn>model\n<tool_call>\n{"name": "weather", "arguments": {"city":"Oslo"}}\n</tool_call>',
        "<start_of_turn>user\n<tool_response>\ncold\n</tool_response>\n<tool_response>\nwarm\n</tool_response>",
    ],
}


@pytest.mark.parametrize("name", SAID)
def test_real_templates_tell_calls_and_what_they_gave(name: str) -> None:
    """Arguments as objects, letters as they are; where a template knows no calls they are told as text."""
    text = speaking(template(name)).render(TURNS, Rendering(tools=[WEATHER]))
    for each in SAID[name]:
        assert each in text


BEGIN = "{# tools #}{% for m in messages %}{% for c in m.tool_calls or [] %}{% set f = c.function %}"
LINE = "{{ '' if loop.first else '\\n' }}"
EACH = "{% for name, value in f.arguments.items() %}"
VALUE = "{{ value if value is string else value | tojson }}"
END = "{% endfor %}"
AS_TEMPLATES_SAY: dict[str, tuple[CallFormat, list[str]]] = {
    "DeepSeek V3": (
        DEEPSEEK_V3,
        [
            *(BEGIN, LINE, "{{ '", CALLS, "' if loop.first else '' }}", CALL, "{{ c.type }}", SEP),
            *("{{ f.name }}\n```json\n{{ '' + f.arguments }}\n```", CALLED, END, ALL_CALLED, END),
        ],
    ),
    "DeepSeek V3.1": (
        DEEPSEEK_V31,
        [
            *(BEGIN, "{{ '", CALLS, "' if loop.first else '' }}", CALL, "{{ f.name }}", SEP),
            *("{{ '' + f.arguments }}", CALLED, END, ALL_CALLED, END),
        ],
    ),
    "Qwen3-Coder": (
        QWEN3_CODER,
        [
            *(BEGIN, LINE, "<tool_call>\n<function={{ f.name }}>\n", EACH, "<parameter={{ name }}>\n", VALUE),
            *("\n</parameter>\n", END, "</function>\n</tool_call>", END, END),
        ],
    ),
    "GLM 4.5": (
        GLM45,
        [
            *(BEGIN, LINE, "<tool_call>{{ f.name }}\n", EACH, "<arg_key>{{ name }}</arg_key>\n<arg_value>", VALUE),
            *("</arg_value>\n", END, "</tool_call>", END, END),
        ],
    ),
    "Kimi K2": (
        KIMI_K2,
        [
            *(BEGIN, "{{ '<|tool_calls_section_begin|>' if loop.first else '' }}<|tool_call_begin|>{{ c.id }}"),
            *("<|tool_call_argument_begin|>{{ '' + f.arguments }}<|tool_call_end|>", END),
            *("<|tool_calls_section_end|>", END),
        ],
    ),
    "DeepSeek V3.2": (
        DEEPSEEK_V32,
        [
            *(BEGIN, "{{ '", f"<{DSML}function_calls>\n", "' if loop.first else '' }}", f"<{DSML}invoke name="),
            *('"{{ f.name }}">', "\n", EACH, f"<{DSML}parameter name="),
            '"{{ name }}" string="{{ "true" if value is string else "false" }}">',
            *(VALUE, f"</{DSML}parameter>\n", END, f"</{DSML}invoke>\n", END, f"</{DSML}function_calls>", END),
        ],
    ),
    "MiniMax M2": (
        MINIMAX_M2,
        [
            *(BEGIN, "{{ '<minimax:tool_call>\n' if loop.first else '' }}", '<invoke name="{{ f.name }}">', "\n", EACH),
            *('<parameter name="{{ name }}">', VALUE, "</parameter>\n", END, "</invoke>\n", END),
            *("</minimax:tool_call>", END),
        ],
    ),
}
"""Templates that say calls as those of these models do, and nothing else."""


@pytest.mark.parametrize("name", AS_TEMPLATES_SAY)
def test_calls_are_written_as_templates_say_them(name: str) -> None:
    """What a template makes of calls that are sent back is what is written of them here, and is read as these calls."""
    format, said = AS_TEMPLATES_SAY[name]
    known = speaking("".join(said))
    assert (known.dialect.format, known.dialect.calls, known.dialect.tells) == (format, True, True)
    calls = [("weather", json.dumps({"city": "Oslo\nor", "days": 2})), ("weather", json.dumps({"city": "Rome"}))]
    turn = ChatTurn("assistant", "", tool_calls=[ToolCall("1", *each) for each in calls])
    text = known.render([turn], Rendering(add_generation_prompt=False))
    assert text == written_calls(format, calls)
    reader = known.dialect.reader(request(), "")
    assert reader is not None
    told = [piece for letter in text for piece in reader.feed(letter)] + reader.end()
    arguments = [json.loads(piece.text) for piece in joined(told) if isinstance(piece, Argued)]
    assert arguments == [json.loads(each) for _, each in calls]


WANTS_TEXTS = "tools {% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '>' + c.function.arguments }}{% endfor %}{% endfor %}"  # noqa: E501
WANTS_IDS = "[TOOL_CALLS] tools {% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }} {% endfor %}{{ m.tool_call_id or '' }} {% endfor %}"  # noqa: E501


def test_templates_that_want_texts_get_them() -> None:
    """Where objects make one fail; one that fails with both is a refusal."""
    assert '>{"city":"Oslo"}>{"city": "Róm"}' in speaking(WANTS_TEXTS).render(TURNS)
    with pytest.raises(SessionFailed, match="refuses"):
        speaking("tools {{ raise_exception('no') }}").render(TURNS)


def test_arguments_that_are_no_objects_stay_texts() -> None:
    """What a client sends back may be broken, or as deep as it likes."""
    for broken in ('{"a":', "[1]", "[" * 100_000, "x"):
        turn = ChatTurn("assistant", "", tool_calls=[ToolCall("1", "f", broken)])
        [message] = template_turns([turn], Dialect(tells=True))
        assert message["tool_calls"][0]["function"]["arguments"] == broken
    turn = ChatTurn("assistant", "", tool_calls=[ToolCall("1", "f", "")])
    assert template_turns([turn], Dialect(tells=True))[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_what_many_tools_gave_is_joined_quickly() -> None:
    """As much as a request may bring, all in a row, in the time of a quick look: each was once copied for each that
    follows. What stands between two runs keeps them apart."""
    run = [ChatTurn("tool", "x" * 1000 + "\U0001f600")] * 4096
    spent = []
    for _ in range(3):
        began = time.process_time()
        first, between, last = template_turns([*run, ChatTurn("user", "y"), run[0]], Dialect())
        spent.append(time.process_time() - began)
    assert min(spent) < 0.15
    one = RESULT.format(run[0].content)
    assert first == {"role": "user", "content": "\n".join([one] * len(run))}
    assert (between["content"], last) == ("y", {"role": "user", "content": one})


def test_mistrals_ids_are_short() -> None:
    """Nine letters and digits, the same for the call and for what it gave; those that are so already stay."""
    turns = [replace_id(turn, "abcDEF123") for turn in TURNS[1:3]]
    one, other, answered = speaking(WANTS_IDS).render(TURNS[1:3]).split()[2:]
    assert len(one) == 9 and one.isalnum() and answered == one != other
    assert speaking(WANTS_IDS).render(turns).split()[2:] == ["abcDEF123", "abcDEF123"]
    parser = Dialect(MISTRAL, calls=True)._parser(request())
    assert parser is not None
    [begun, _] = parser.feed('[TOOL_CALLS][{"name": "weather", "arguments": {')
    assert isinstance(begun, Begun) and len(begun.id) == 9 and begun.id.isalnum()


def test_kimis_ids_are_names_and_numbers() -> None:
    """Those that its template writes as they are: from the first call of the conversation on, the same for a call and
    for what it gave, even where a client has used an id twice."""
    known = speaking(WANTS_IDS.replace("[TOOL_CALLS]", KIMI_K2.opener))
    assert known.render(TURNS).split()[2:] == [f"functions.weather:{at}" for at in (0, 1, 0, 1)]
    again = known.render([*TURNS[1:3], *TURNS[1:3]]).split()[2:]
    assert again == [f"functions.weather:{at}" for at in (0, 1, 0, 2, 3, 2)]


def replace_id(turn: ChatTurn, id: str) -> ChatTurn:
    """A turn of one call, or its answer, under another id."""
    calls = [ToolCall(id, call.name, call.arguments) for call in turn.tool_calls[:1]]
    return ChatTurn(turn.role, turn.content, None, calls, id if turn.tool_call_id else "")


def request(**changed: Any) -> Generate:
    """A request that may call the weather."""
    usual: dict[str, Any] = {"rendering": Rendering(tools=[WEATHER]), "calling": Calling(), "thoughts": True}
    return Generate(1, "id", "m", TURNS[:1], **(usual | changed))


def test_an_answer_is_read_where_that_is_asked_for() -> None:
    """Calls where tools are offered and the model writes them, or has to; thoughts where it thinks; else it is text."""
    knows, plain = Dialect(calls=True, thinks=True), Dialect()
    text = 'Hm.</think><tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    reader = knows.reader(request(), "<think>\n")
    assert reader is not None
    thought, begun, argued = [*reader.feed(text), *reader.end()]
    assert (thought, argued) == (Thought("Hm."), Argued("{}")) and isinstance(begun, Begun)
    assert begun.id.startswith("call_") and reader.called and not reader.over
    assert plain.reader(request(), "") is None and knows.reader(request(calling=None, thoughts=False), "") is None
    forced = plain.reader(request(calling=Calling(forced=True, name="weather")), "<think>")
    assert forced is not None and [type(each) for each in forced.feed(text[11:])] == [Begun, Argued] and forced.over
    assert replace(knows, tools=False).reader(request(thoughts=False), "") is None
    quiet = knows.reader(request(calling=None), "")
    assert quiet is not None and [*quiet.feed(text), *quiet.end()] == [Said(text)]


def test_marks_without_a_text_of_their_own_are_shown() -> None:
    """Of an answer that is read, and only there; bytes of characters before and behind them stay whole."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    tokenizer.add_tokens(["[TOOL_CALLS]", "[ARGS]"], special_tokens=True)
    tokenizer.chat_template = "[TOOL_CALLS] tools [ARGS]"
    known = Tokenizer(tokenizer, frozenset([2]))
    text = 'é🙂[TOOL_CALLS]weather[ARGS]{"city": "Róm"}'
    ids = known.rendered(text)
    assert known.decoding(known.dialect.marks(request()))(ids) == text
    assert known.decoding(known.dialect.marks(request(calling=None)))(ids) == 'é🙂weather{"city": "Róm"}'


def test_real_qwen_tokens_are_read() -> None:
    """Token by token, as its tokenizer has them: thoughts, text, and two calls; a stop text ends none of them but the
    text."""
    path = DATA / "tokenizers" / "qwen"
    if not path.is_dir():
        pytest.skip("qwen is not at hand: the measured data is kept apart from the product")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = template("Qwen-Qwen3-0.6B")
    known = Tokenizer(tokenizer, frozenset([151645]))
    calls = known.render(TURNS[:2], Rendering(add_generation_prompt=False)).rpartition("</think>\n\n")[2]
    answer = f"<think>\nHm, Oslo.\n</think>\n\nSo, é 🙂:\n{calls.removesuffix('<|im_end|>' + chr(10))}"
    told, stopped = answered(known, answer, ["Oslo", "tool"])
    assert not stopped and [type(piece) for piece in told] == [Thought, Said, Begun, Argued, Begun, Argued]
    assert told[:2] == [Thought("Hm, Oslo."), Said("So, é 🙂:")]
    assert [json.loads(piece.text) for piece in told if isinstance(piece, Argued)] == [
        {"city": "Oslo"},
        {"city": "Róm"},
    ]
    assert answered(known, answer, [" é"]) == ([Thought("Hm, Oslo."), Said("So,")], True)


def answered(known: Tokenizer, text: str, stops: list[str]) -> tuple[list[Piece], bool]:
    """What an answer of these letters tells, and whether a stop text ends it."""
    asked = request(stop=stops)
    reading = AnswerText(asked, known.decoding(known.dialect.marks(asked)), known.dialect.reader(asked, ""), [])
    told: list[Piece] = []
    for token in known.rendered(text):
        pieces, stopped = reading.feed(token)
        told += pieces
        if stopped:
            return joined(told), True
    pieces, stopped = reading.end(whole=True)
    return joined(told + pieces), stopped
