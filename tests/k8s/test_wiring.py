"""What parts of the manifests say of one another: volumes, variables, addresses, certificates, GPUs and redis."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import redis
from k8s.rendered import Resource, of_kind, overlay, pods, ports, selects, with_components
from processes import free_port

from cloud_server.config import CloudConfig
from gateway.config import GatewayConfig
from gateway.responses.kept import BOUNDS
from service.addresses import host_and_port
from service.version import VERSION

GPU: Final = "nvidia.com/gpu"
INJECTED: Final = {"LWS_LEADER_ADDRESS"}
"""Variables that an operator puts in front of all others."""

NAMED: Final = re.compile(r"\$\((\w+)\)")
SOON_S: Final = 30.0


def containers(resources: tuple[Resource, ...]) -> Iterator[tuple[Resource, Resource]]:
    """All containers, each with its pod."""
    for pod in pods(resources):
        for container in pod["spec"]["containers"]:
            yield pod, container


def values(container: Resource) -> dict[str, str]:
    """The variables of a container that are written down."""
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}


def of(resources: tuple[Resource, ...], name: str) -> Resource:
    """The one container of this name."""
    (found,) = (container for _, container in containers(resources) if container["name"] == name)
    return found


def test_what_is_mounted_is_there(resources: tuple[Resource, ...]) -> None:
    """Each mount is of a volume, each volume of one source; claims and ConfigMaps are among the manifests."""
    claims = {each["metadata"]["name"] for each in of_kind(resources, "PersistentVolumeClaim")}
    maps = {each["metadata"]["name"] for each in of_kind(resources, "ConfigMap")}
    claimed = {
        one["metadata"]["name"]
        for each in of_kind(resources, "StatefulSet")
        for one in each["spec"].get("volumeClaimTemplates", ())
    }
    for pod, container in containers(resources):
        volumes = pod["spec"].get("volumes", [])
        names = [each["name"] for each in volumes]
        assert len(set(names)) == len(names)
        mounts = [each["name"] for each in container.get("volumeMounts", ())]
        assert set(mounts) - claimed == set(names) and len(set(mounts)) == len(mounts)
        for volume in volumes:
            (source,) = volume.keys() - {"name"}
            if source == "persistentVolumeClaim":
                assert volume[source]["claimName"] in claims
            if source == "configMap":
                assert volume[source]["name"] in maps


def test_variables_stand_behind_those_that_they_name(resources: tuple[Resource, ...]) -> None:
    """Kubernetes leaves ``$(NAME)`` as it is where NAME comes later, or never; that no schema sees."""
    for _, container in containers(resources):
        known = set(INJECTED)
        for each in container.get("env", ()):
            assert set(NAMED.findall(each.get("value", ""))) <= known, each["name"]
            known.add(each["name"])
        for word in (*container.get("command", ()), *container.get("args", ())):
            assert set(NAMED.findall(word)) <= known


def test_addresses_lead_to_what_listens_there(resources: tuple[Resource, ...]) -> None:
    """redis, other gateways, the leader of a pipeline: a port that is open, and a policy that lets it pass."""
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(resources, "Service")}
    gateway = values(of(resources, "gateway"))
    (pod,) = (each for each in pods(resources) if each["of"] == "gateway")
    assert urlsplit(gateway["TRILBY_ADVERTISE"].replace("$(POD_IP)", "::1")).port == ports(pod)["http"]
    if "TRILBY_REDIS" in gateway:
        where = urlsplit(gateway["TRILBY_REDIS"].replace("$(REDIS_PASSWORD)", "p"))
        (port,) = services[where.hostname or ""]["ports"]
        (server,) = (each for each in pods(resources) if selects_by(services["redis"], each))
        assert where.port == port["port"] and ports(server)[port["targetPort"]] == 6379
    for each in (each for each in pods(resources) if each["of"] == "stage"):
        (leader,) = (one for one in pods(resources) if one["of"] == "leader")
        joins = values(each["spec"]["containers"][0])["TRILBY_JOIN"].rpartition(":")[2]
        listens = values(leader["spec"]["containers"][0])["TRILBY_STAGE_ADDRESS"].rpartition(":")[2]
        assert int(joins) == int(listens) == ports(leader)["stages"]


def selects_by(service: Resource, pod: Resource) -> bool:
    """Whether a Service leads to a pod."""
    return selects({"matchLabels": service["selector"]}, pod["metadata"]["labels"])


def test_a_pipeline_has_a_name_of_its_own(resources: tuple[Resource, ...]) -> None:
    """Its operator makes a Service of its name that knows pods before they are ready, unless one is there: stages would
    wait for a leader that waits for them."""
    services = {each["metadata"]["name"] for each in of_kind(resources, "Service")}
    assert not services & {each["metadata"]["name"] for each in of_kind(resources, "LeaderWorkerSet")}


def test_both_families(resources: tuple[Resource, ...]) -> None:
    """Services have addresses of both where the cluster has, servers listen on both, and what is made of a pod's
    address is one of either family."""
    for service in of_kind(resources, "Service"):
        assert service["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    for name in ("gateway", "cloud"):
        assert values(of(resources, name))[f"TRILBY_{name.upper()}_HOST"] == "::"
    advertised, cloud = values(of(resources, "gateway"))["TRILBY_ADVERTISE"], values(of(resources, "cloud"))
    for address, in_url in (("10.1.2.3", "10.1.2.3"), ("fd00::3", "[fd00::3]")):
        fleet: dict[str, Any] = {"redis": "redis://r", "gateway_token": "k" * 16}
        own = GatewayConfig(advertise=advertised.replace("$(POD_IP)", address), **fleet).own_url
        assert own.partition("://")[2] == f"{in_url}:8000"
        if "TRILBY_STAGE_ADDRESS" in cloud:
            joined = cloud["TRILBY_STAGE_ADDRESS"].replace("$(POD_IP)", address)
            CloudConfig(model="m", stages=2, remote_stages=1, stage_address=joined, stage_token="k" * 16)
            assert host_and_port("--stage-address", joined) == (address, 8002)


def test_gpus_are_asked_for_where_they_are(resources: tuple[Resource, ...]) -> None:
    """What runs CUDA's image has a GPU to itself, and goes to a node that has some, whatever keeps others away."""
    for pod, container in containers(resources):
        wanted = [container["resources"][kind].get(GPU) for kind in ("requests", "limits")]
        on_gpu = container["image"].startswith("trilby/cloud-cuda:")
        assert wanted == (["1", "1"] if on_gpu else [None, None])
        assert (pod["spec"].get("nodeSelector") == {f"{GPU}.present": "true"}) is on_gpu
        assert any(each["key"] == GPU for each in pod["spec"].get("tolerations", ())) is on_gpu


def test_pods_of_one_kind_are_spread(resources: tuple[Resource, ...]) -> None:
    """Over nodes, as far as there are any: gateways, clouds, and the stages of a pipeline."""
    for pod in pods(resources):
        spread = pod["spec"].get("topologySpreadConstraints", [])
        if pod["of"] not in ("redis", "first-secrets"):
            (each,) = spread
            assert each["topologyKey"] == "kubernetes.io/hostname"


def test_tags_are_the_version_that_is_built(resources: tuple[Resource, ...]) -> None:
    """An image of another version than these manifests would not know their settings."""
    for _, container in containers(resources):
        name, _, tag = container["image"].partition(":")
        assert tag == VERSION or not name.startswith("trilby/")


def test_stages_say_that_they_are_alive(folder: Path) -> None:
    """They have no port that could be asked: the probe looks at a file that they can write, in a scratch volume."""
    stage = of(with_components(folder, "pipeline"), "stage")
    assert stage["livenessProbe"]["exec"]["command"] == ["/venv/bin/python", "-m", "service.alive", "stage"]
    path = Path(values(stage)["TRILBY_ALIVE_PATH"])
    (mount,) = (each for each in stage["volumeMounts"] if each["mountPath"] == str(path.parent))
    assert mount["name"] == "tmp"


def test_all_of_a_pipeline_keeps_weights_and_traces(folder: Path) -> None:
    """Components that are about the cloud know it as a pipeline too."""
    found = with_components(folder, "pipeline", "model-cache", "traces")
    for pod in (each for each in pods(found) if each["of"] in ("leader", "stage")):
        (cache,) = (each for each in pod["spec"]["volumes"] if each["name"] == "cache")
        assert cache["persistentVolumeClaim"] == {"claimName": "models"}
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in values(of(found, "cloud"))


def test_tls_is_spoken_by_all_who_listen(folder: Path) -> None:
    """Each has a certificate of its own, from files that are mounted; probes and scrapers dial TLS."""
    for names in (("tls",), ("pipeline", "prometheus", "tls")):
        found = with_components(folder, *names)
        shown = {"gateway": "gateway-tls", "cloud": "cloud-tls", "stage": "cloud-tls"}
        speaking = [(pod, each) for pod, each in containers(found) if each["name"] in shown]
        assert len(speaking) == (2 if names == ("tls",) else 3)
        for pod, container in speaking:
            (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "tls")
            (mount,) = (each for each in container["volumeMounts"] if each["name"] == "tls")
            assert volume["secret"]["secretName"] == shown[container["name"]]
            own = values(container)
            files = [own[f"TRILBY_TLS_{kind}"] for kind in ("CERT", "KEY", "CA")]
            assert files == [f"{mount['mountPath']}/{file}" for file in ("tls.crt", "tls.key", "ca.crt")]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert "httpGet" not in container.get(probe, {}) or container[probe]["httpGet"]["scheme"] == "HTTPS"
        gateway = values(of(found, "gateway"))
        assert gateway["TRILBY_ADVERTISE"].startswith("https://") and gateway["TRILBY_PEER_NAME"] == "gateway"
        for monitor in of_kind(found, "PodMonitor"):
            assert monitor["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"


def test_redis_answers_who_has_its_password_alone(tmp_path: Path) -> None:
    """A real one with the words of the manifest, and the URL that gateways have; so its probe asks too."""
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    found, password, port = overlay("dev"), "0123456789abcdef" * 4, free_port()
    server = of(found, "redis")
    told = {each["name"] for each in server["env"] if each["valueFrom"]["secretKeyRef"]["key"] == "redis-password"}
    assert told == {"REDIS_PASSWORD", "REDISCLI_AUTH"}
    *shell, script = server["command"]
    assert "args" not in server and "$(" not in script, "what Kubernetes fills in is seen in the list of processes"
    script = script.replace("/data", str(tmp_path)).replace(" - ", f" - --port {port} --bind 127.0.0.1 ", 1)
    url = values(of(found, "gateway"))["TRILBY_REDIS"].replace("$(REDIS_PASSWORD)", password)
    here = url.replace("redis:6379", f"127.0.0.1:{port}")
    probe = [*server["readinessProbe"]["exec"]["command"], "-p", str(port)]
    probe = [*probe[:1], *probe[-2:], *probe[1:-2]]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    told_to_it = {**os.environ, "REDIS_PASSWORD": password}
    process = subprocess.Popen([*shell, script], env=told_to_it, **quiet)
    try:
        with redis.Redis.from_url(here, protocol=2) as client:
            deadline = time.monotonic() + SOON_S
            while True:
                try:
                    assert client.set("a", "b")
                    break
                except redis.ConnectionError:
                    assert time.monotonic() < deadline and process.poll() is None
                    time.sleep(0.01)
            room = int(client.config_get("maxmemory")["maxmemory"])
            assert room > BOUNDS.all_bytes, "stored responses would throw out who is there"
        with redis.Redis(port=port, protocol=2) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.get("a")
        command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"redis-server" in command_line and password.encode() not in command_line
        own = {**os.environ, "REDISCLI_AUTH": password}
        assert subprocess.run(probe, env=own, timeout=SOON_S, **quiet).returncode == 0
        assert subprocess.run(probe, timeout=SOON_S, **quiet).returncode != 0
    finally:
        process.kill()
        process.wait()
