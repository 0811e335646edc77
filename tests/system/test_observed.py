"""One installation with a collector: what it gets of a request, what the logs of all processes say, what is counted.

No word of a prompt or an answer is in any of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from canaries import CANARIES, PROMPT, found, needles
from collector import Collector, Exported
from installation import Installation, wait_until

from service.traces import Facts

pytestmark = pytest.mark.system

TRACE, OTHER, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "9" * 32, "00f067aa0ba902b7"
DASHBOARD = Path(__file__).resolve().parents[2] / "k8s" / "components" / "grafana" / "trilby.json"
JSON_LOGS = ("--log-form", "json", "--log-level", "debug")
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Where all processes send their spans."""
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def observed(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Gateway and cloud by the setting, the device by the standard variable."""
    installation = Installation(
        tmp_path_factory.mktemp("observed"),
        forked=True,
        gateway_settings=(*JSON_LOGS, "--otlp-endpoint", collector.url),
        cloud_settings=(*JSON_LOGS, "--otlp-endpoint", collector.url),
        device_settings=JSON_LOGS,
        device_environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # Nobody here waits long for one that is gone.
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        environment.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # Whose own telemetry tells paths and messages.
        installation.__enter__()
    try:
        yield installation
    finally:
        installation.__exit__()


def ask(observed: Installation, request_id: str, trace: str, path: str = "/chat/completions", **body: Any) -> Any:
    """The reply to a request that is one of a trace; a stream's is all its events."""
    headers = {"x-request-id": request_id, "traceparent": f"00-{trace}-{CLIENT}-01"}
    with httpx.Client(base_url=observed.base, trust_env=False, timeout=60, headers=headers) as client:
        reply = client.post(path, json=body)
    assert reply.headers["x-request-id"] == request_id
    return reply


def of(trace: str, spans: list[Exported]) -> list[Exported]:
    """The spans of a trace."""
    return [each for each in spans if each.trace == trace]


def names(parent: Exported, spans: list[Exported]) -> list[str]:
    """What a span's children are called, in the order in which they began."""
    return [each.name for each in sorted(spans, key=lambda each: each.begin_ns) if each.parent == parent.id]


def named(name: str, spans: list[Exported]) -> list[Exported]:
    """The spans of this name."""
    return [each for each in spans if each.name == name]


def test_a_request_is_one_trace_through_all_processes(observed: Installation, collector: Collector) -> None:
    """The client's trace goes on in gateway, device and cloud; each says what took it how long, with counts that agree
    with the answer's."""
    reply = ask(observed, "first", TRACE, **ASKED, n=2, cache_salt="first")
    usage = reply.json()["usage"]
    spans = of(TRACE, collector.wait_for(lambda spans: len(of(TRACE, spans)) == 11))
    assert {each.service for each in spans} == {"trilby-gateway", "trilby-device", "trilby-cloud"}
    [request], [answer] = named("POST /v1/chat/completions", spans), named("answer", spans)
    assert request.parent == CLIENT and names(request, spans) == ["queue", "answer"]
    assert names(answer, spans)[:2] == ["read prompt", "queue"]
    assert sorted(names(answer, spans)) == [
        *("generate", "generate", "prefill", "queue", "queue", "read prompt"), *("session", "session")
    ]  # fmt: skip
    for child in spans:
        above = {each.id: each for each in spans}.get(child.parent)
        assert above is None or (above.begin_ns <= child.begin_ns and child.end_ns <= above.end_ns + 1e9)
    for each in (request, answer):
        assert each.facts["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert each.facts["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
        assert each.facts["trilby.request_id"] == "first" and not each.failed
    assert request.facts["http.response.status_code"] == 200 and request.facts["trilby.outcome"] == "answered"
    assert {"accepted", "first token"} <= set(request.events)
    [prefill], generated = named("prefill", spans), named("generate", spans)
    assert sum(each.facts["gen_ai.usage.output_tokens"] for each in generated) == usage["completion_tokens"]
    assert prefill.facts["trilby.step_s"] > 0 and all(each.facts["trilby.rounds"] > 0 for each in generated)
    sessions = named("session", spans)
    assert sorted(each.facts["trilby.how"] for each in sessions) == ["fork", "open"]
    assert all(each.facts["trilby.steps"] >= each.facts["trilby.forwards"] > 0 for each in sessions)
    assert all("prompt answered" in each.events for each in sessions)


def test_a_next_turn_is_a_trace_of_its_own(observed: Installation, collector: Collector) -> None:
    """The cloud's session goes on where the last turn left it, and works for another request now."""
    one, other = "a" * 32, "b" * 32
    asked = {**ASKED, "cache_salt": "of this test"}
    said = ask(observed, "turn-1", one, **asked).json()["choices"][0]["message"]
    asked["messages"] = [*asked["messages"], said, {"role": "user", "content": "And then?"}]
    ask(observed, "turn-2", other, **asked, stream=True)
    [first] = named("session", of(one, collector.wait_for(lambda spans: named("session", of(one, spans)))))
    assert first.facts["trilby.how"] == "open" and first.facts["trilby.outcome"] == "parked"
    [second] = named("session", of(other, collector.wait_for(lambda spans: named("session", of(other, spans)))))
    assert second.facts["trilby.how"] == "next turn" and second.facts["trilby.request_id"] == "turn-2"
    [prefill] = named("prefill", of(other, collector.wait_for(lambda spans: named("prefill", of(other, spans)))))
    assert prefill.facts["trilby.cached_tokens"] > 0


def test_a_refused_request_says_why_by_its_code(observed: Installation, collector: Collector) -> None:
    """One span, which has failed; the message, which may quote, is not in it."""
    trace = "c" * 32
    assert ask(observed, "refused", trace, messages=[{"role": CANARIES[0], "content": 5}]).status_code == 400
    [span] = of(trace, collector.wait_for(lambda spans: of(trace, spans)))
    assert span.failed and span.facts["http.response.status_code"] == 400
    assert span.facts["error.type"] and span.parent == CLIENT


def test_a_client_that_hangs_up_is_no_error(observed: Installation, collector: Collector) -> None:
    """Its trace ends in all processes, as cancelled."""
    trace = "d" * 32
    headers = {"traceparent": f"00-{trace}-{CLIENT}-01"}
    endless = {**ASKED, "max_tokens": 500, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(base_url=observed.base, trust_env=False, timeout=60, headers=headers) as client,
        client.stream("POST", "/chat/completions", json=endless) as reply,
    ):
        assert reply.status_code == 200
        lines = reply.iter_lines()
        for _ in range(8):  # Not before it generates: of a kept conversation nothing may have reached the cloud yet.
            next(lines)
    ended = collector.wait_for(lambda spans: {"session", "answer"} <= {s.name for s in of(trace, spans)}, 60)
    spans = of(trace, ended)
    collector.wait_for(lambda spans: named("POST /v1/chat/completions", of(trace, spans)))
    [answer], [session] = named("answer", spans), named("session", spans)
    assert answer.facts["trilby.outcome"] == "cancelled" and not answer.failed
    assert session.facts["trilby.outcome"] == "closed" and not session.failed


def test_nothing_of_a_text_is_exported(observed: Installation, collector: Collector) -> None:
    """Neither words nor token ids of prompt and answer are in what is exported, nor what was to be drawn how; and
    nothing is said but what is listed."""
    trace = "e" * 32
    asked = {"prompt": PROMPT, "max_tokens": 24, "echo": True, "stop": CANARIES[1], "temperature": 0.7391}
    text = ask(observed, "texts", trace, "/completions", **asked).json()["choices"][0]["text"]
    collector.wait_for(lambda spans: named("POST /v1/completions", of(trace, spans)))
    httpx.get(f"{observed.base}/models?{CANARIES[3]}", trust_env=False)
    exported = b"\n".join(collector.bodies)
    assert collector.others == [] and {each.service.partition("-")[0] for each in collector.spans} == {"trilby"}
    words = [word.encode() for word in re.findall(r"\w{8,}", text.removeprefix(PROMPT))]
    assert found(exported, [*needles(), *words, PROMPT.encode()]) == []
    assert b"0.7391" not in exported and b"temperature" not in exported
    known = {f"trilby.{name}" for name in Facts.__annotations__}
    facts = [facts for each in collector.spans for facts in (each.facts, *each.events.values())]
    said = {name for each in facts for name in each if not name.startswith(("gen_ai.", "http.", "error."))}
    assert said <= known and "trilby.request_id" in said


def test_logs_name_the_request_in_every_process(observed: Installation, collector: Collector) -> None:
    """Each line is an object of JSON; those of a request have its id, and its trace's where it is kept; none has a word
    of a text."""
    trace = "f" * 32
    ask(observed, "logged", trace, **ASKED)
    said = (observed.gateway, observed.device, observed.cloud)  # Some of it behind the answer.
    wait_until(lambda: all('"logged"' in each.output for each in said), 30)
    for process, events in (
        (observed.gateway, {"request"}),
        (observed.device, {"request done"}),
        (observed.cloud, {"session begun"}),
    ):
        lines = [json.loads(line) for line in process.output.splitlines()]
        own = [each for each in lines if each.get("request_id") == "logged"]
        assert events <= {each["event"] for each in own}
        if process is not observed.cloud:
            assert {each["trace_id"] for each in own} == {trace}
        assert found(process.output.encode(), [word.encode() for word in CANARIES]) == []
    refused = ask(observed, "no-such", trace, "/nothing-here")
    assert refused.status_code == 404
    wait_until(lambda: "no-such" in observed.gateway.output, 10)
    odd = httpx.get(f"{observed.base}/models", headers={"x-request-id": "two words"}, trust_env=False)
    assert re.fullmatch(r"[0-9a-f]{32}", odd.headers["x-request-id"])


def test_the_dashboard_asks_for_what_is_counted(observed: Installation) -> None:
    """Each query names metrics, and groups by labels, that this gateway and this cloud export."""
    ask(observed, "counted", OTHER, **ASKED)
    ask(observed, "refused-too", OTHER, messages=[])  # Codes are labels of what has failed.
    metrics = observed.get("/metrics").text + observed.get("/metrics", observed.cloud_port).text
    kept = set(re.findall(r"^(?:# TYPE )?([a-z_]+)", metrics, re.MULTILINE))
    labels = {"le", "namespace", "pod", "instance", *re.findall(r'[{,]([a-z_]+)="', metrics)}
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 50
    for query in queries:
        asked = re.findall(r"\btrilby_[a-z_]+", query)
        assert asked and set(asked) <= kept, query
        used = re.findall(r"([a-z_]+)(?==~)", query) + re.findall(r"by \(([a-z_]+)\)", query)
        assert set(used) <= labels, query
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    variables = [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert {re.findall(r"trilby_[a-z_]+", each)[0] for each in variables} <= kept


def test_dashboards_of_others_find_their_names(observed: Installation) -> None:
    """What vLLM's dashboards ask for is there under our prefix, with values of this request."""
    ask(observed, "vllm", OTHER, **ASKED)
    metrics, cloud = observed.get("/metrics").text, observed.get("/metrics", observed.cloud_port).text
    for name in (
        "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
        "request_time_per_output_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
        "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
        "request_generation_tokens",
    ):  # fmt: skip
        counts = re.findall(rf'^trilby_{name}_count{{model_name="trilby-demo"}} (\S+)', metrics, re.MULTILINE)
        assert counts and float(counts[0]) > 0, name
    for name in ("prompt_tokens", "prompt_tokens_cached", "generation_tokens", "prefix_cache_queries"):
        assert re.search(rf'^trilby_{name}_total{{model_name="trilby-demo"}} ', metrics, re.MULTILINE), name
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
        assert re.search(rf"^trilby_cloud_{name} ", cloud, re.MULTILINE), name


def test_without_a_collector_answers_are_the_same(observed: Installation, collector: Collector) -> None:
    """It goes away in the middle: the same tokens, as soon; each process says so once, and once that it is back."""
    processes = observed.gateway, observed.device, observed.cloud
    gone, back = "traces cannot be sent", "traces are sent again"
    before = ask(observed, "with", OTHER, **ASKED)
    with collector.away():
        for number in range(5):
            after = ask(observed, f"without-{number}", OTHER, **ASKED)
            assert after.json()["choices"] == before.json()["choices"]
            assert after.elapsed.total_seconds() < 5 * before.elapsed.total_seconds() + 1
        wait_until(lambda: all(gone in each.output for each in processes), 20)
    ask(observed, "again", OTHER, **ASKED)
    wait_until(lambda: all(back in each.output for each in processes), 20)
    assert [each.output.count(gone) for each in processes] == [1, 1, 1]
