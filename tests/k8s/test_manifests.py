"""What is applied with kubectl holds together: what schemas cannot say is asked here of the rendered manifests."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute
from fastapi.testclient import TestClient
from k8s.kinds import definitions, schema_of
from k8s.rendered import ROOT, Resource, of_kind, overlay, pods, ports, selects, with_components, with_settings

from cloud_server.app import create_app as create_cloud
from cloud_server.config import CloudConfig
from cloud_server.metrics import CloudMetrics
from cloud_server.stages.stage import StageConfig
from gateway.app import create_app as create_gateway
from gateway.config import GatewayConfig
from service.setting_names import ENDING, variable_of
from service.stopping import LAST_BYTES_S

OLDEST, NEWEST = "1.30", "1.37"
CONFIGS: dict[str, type[Any]] = {"gateway": GatewayConfig, "cloud": CloudConfig, "stage": StageConfig}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_schemas(resources: tuple[Resource, ...], version: str) -> None:
    """Every resource that Kubernetes itself knows is strictly what its oldest and newest supported version expects, and
    so are the pods of a LeaderWorkerSet."""
    templates = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template}
        for each in of_kind(resources, "LeaderWorkerSet")
        for name, template in each["spec"]["leaderWorkerTemplate"].items()
        if name.endswith("Template")
    ]
    checked = [each for each in resources if schema_of(each) is None]
    for each in (*checked, *templates):
        _validate(json.dumps(each, sort_keys=True), version)
    assert len(checked) > 10


@cache
def _validate(resource: str, version: str) -> None:
    """Once for all overlays that have it."""
    kubernetes_validate.validate(json.loads(resource), version, strict=True)


def test_kinds_of_others(resources: tuple[Resource, ...]) -> None:
    """Every resource of another kind has the fields that its project has defined, and no others."""
    for each in resources:
        schema = schema_of(each)
        if schema is not None:
            jsonschema.validate(each, schema)


def test_a_wrong_field_of_another_kind_is_found(folder: Path) -> None:
    """The check before this one can fail, at any depth."""
    (monitor,) = of_kind(with_components(folder, "prometheus"), "PodMonitor")
    schema = schema_of(monitor)
    assert schema is not None
    wrong = copy.deepcopy(monitor)
    wrong["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


@pytest.mark.skipif("CRDS" not in os.environ, reason="CRDS names no folder of definitions")
def test_the_projects_own_definitions(resources: tuple[Resource, ...]) -> None:
    """With CRDS=FOLDER: every resource of another kind is strictly what the definitions there say."""
    found = dict(definitions(Path(os.environ["CRDS"])))
    for each in resources:
        if schema_of(each) is not None:
            jsonschema.validate(each, found[each["apiVersion"], each["kind"]])


def test_a_wrong_field_is_found() -> None:
    """The check before this one can fail."""
    deployment = of_kind(overlay("dev"), "Deployment")[0]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**deployment, "spec": {**deployment["spec"], "replica": 1}}, NEWEST, strict=True)


def test_selectors_mean_pods_that_exist(resources: tuple[Resource, ...]) -> None:
    """A Service, a budget, a policy or a spread that selects nothing is a typing error."""
    labels = [pod["metadata"]["labels"] for pod in pods(resources)]

    def asked() -> Iterator[Resource]:
        for service in of_kind(resources, "Service"):
            yield {"matchLabels": service["spec"]["selector"]}
        for each in of_kind(
            resources, "PodDisruptionBudget", "PodMonitor", "InferencePool", "Deployment", "StatefulSet"
        ):
            yield each["spec"]["selector"]
        for policy in of_kind(resources, "NetworkPolicy"):
            if policy["metadata"]["name"] != "endpoint-picker":  # Whose pods are not ours.
                yield policy["spec"]["podSelector"]
            for way in (*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())):
                for peer in (*way.get("from", ()), *way.get("to", ())):
                    if "namespaceSelector" not in peer:
                        yield peer["podSelector"]
        for pod in pods(resources):
            for spread in pod["spec"].get("topologySpreadConstraints", ()):
                yield spread["labelSelector"]

    for selector in asked():
        if "redis" not in str(selector) or of_kind(resources, "StatefulSet"):  # With an outside redis its policy idles.
            assert any(selects(selector, each) for each in labels), selector


def test_ports_are_those_of_the_pods(resources: tuple[Resource, ...]) -> None:
    """Services, routes and policies name ports that the pods they select have."""
    all_pods = list(pods(resources))
    for service in of_kind(resources, "Service"):
        chosen = [
            pod for pod in all_pods if selects({"matchLabels": service["spec"]["selector"]}, pod["metadata"]["labels"])
        ]
        for port in service["spec"]["ports"]:
            assert all(port["targetPort"] in ports(pod) for pod in chosen), service["metadata"]["name"]
    for policy in of_kind(resources, "NetworkPolicy"):
        own = [pod for pod in all_pods if selects(policy["spec"]["podSelector"], pod["metadata"]["labels"])]
        for way in policy["spec"].get("ingress", ()):
            for port in way.get("ports", ()):
                assert all(port["port"] in ports(pod) for pod in own), policy["metadata"]["name"]
    services = {each["metadata"]["name"]: each for each in of_kind(resources, "Service")}
    for route in of_kind(resources, "HTTPRoute"):
        for backend in (each for rule in route["spec"]["rules"] for each in rule["backendRefs"]):
            assert backend["port"] in [port["port"] for port in services[backend["name"]]["spec"]["ports"]]
    for policy in of_kind(resources, "NetworkPolicy"):
        for way in policy["spec"].get("egress", ()):
            named = [peer["podSelector"] for peer in way.get("to", ()) if "namespaceSelector" not in peer]
            goals = [pod for pod in all_pods if any(selects(each, pod["metadata"]["labels"]) for each in named)]
            for port in way.get("ports", ()) if named else ():
                assert all(port["port"] in ports(pod) for pod in goals), policy["metadata"]["name"]
    for pool in of_kind(resources, "InferencePool"):
        (gateway,) = (pod for pod in all_pods if pod["of"] == "gateway")
        assert [each["number"] for each in pool["spec"]["targetPorts"]] == [ports(gateway)["http"]]


def test_who_may_reach_whom(resources: tuple[Resource, ...]) -> None:
    """Nothing passes by default; redis is reached by gateways alone, and the middle layers reach no other pod."""
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(resources, "NetworkPolicy")}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    (way,) = policies["redis"]["ingress"]
    assert way["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "gateway"}}}]
    assert policies["cloud"]["egress"] == [{"ports": [{"port": 443}]}]


def test_the_api_server_is_reached_wherever_it_listens(resources: tuple[Resource, ...]) -> None:
    """By who asks it something: behind 443 of its Service it is at a port that depends on who made the cluster."""
    policies = {each["metadata"]["name"]: each["spec"]["egress"] for each in of_kind(resources, "NetworkPolicy")
                if each["metadata"]["name"] in ("first-secrets", "endpoint-picker")}  # fmt: skip
    assert "first-secrets" in policies
    for egress in policies.values():
        (anywhere,) = (way for way in egress if "to" not in way)
        assert {each["port"] for each in anywhere["ports"]} == {443, 6443, 8443}


def test_pods_are_restricted(resources: tuple[Resource, ...]) -> None:
    """The namespace enforces the profile ``restricted``, so every pod must fit it, and a little more is ours: no
    writable root, no account's token but where it is needed, users of their own."""
    (namespace,) = of_kind(resources, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(resources):
        spec, whole = pod["spec"], pod["spec"]["securityContext"]
        assert whole["runAsNonRoot"] and whole["runAsUser"] > 10_000
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is (pod["of"] == "first-secrets")
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_quantities_can_be_read(resources: tuple[Resource, ...]) -> None:
    """``2Gx`` passes the schemas; and no limit is below what is requested."""
    factors = {"": Decimal(1), "m": Decimal("0.001")}
    for power, letter in enumerate("KMGT", 1):
        factors["k" if letter == "K" else letter] = Decimal(1000**power)
        factors[f"{letter}i"] = Decimal(1024**power)

    def read(quantity: str) -> Decimal:
        found = QUANTITY.fullmatch(quantity)
        assert found is not None, quantity
        return Decimal(found[1]) * factors[found[2] or ""]

    for container in (one for pod in pods(resources) for one in pod["spec"]["containers"]):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        for name in (*requests, *limits):
            assert read(requests.get(name, "0")) <= read(limits.get(name, "1T")), name
    for volume in (one for pod in pods(resources) for one in pod["spec"].get("volumes", ())):
        read(volume.get("emptyDir", {}).get("sizeLimit", "1"))


def test_probes_ask_what_is_served(resources: tuple[Resource, ...]) -> None:
    """Each probe's path is a route of that server; what may end a pod asks for the event loop alone."""
    gateway = create_gateway(GatewayConfig())
    cloud: Any = SimpleNamespace(config=CloudConfig(model="unused"))
    routes = {
        "gateway": {each.path for each in gateway.routes if isinstance(each, APIRoute)},
        "cloud": {each.path for each in create_cloud(cloud).routes if isinstance(each, APIRoute)},
    }
    probed = 0
    for container in (one for pod in pods(resources) for one in pod["spec"]["containers"] if one["name"] in routes):
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[kind]["httpGet"]
            assert asked["path"] in routes[container["name"]]
            assert (asked["path"] == "/health") is (kind == "readinessProbe")
            assert asked["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
            probed += 1
    assert probed == 6
    (device,) = (each for each in gateway.routes if isinstance(each, APIWebSocketRoute) and each.path == "/device")
    for route in of_kind(resources, "HTTPRoute"):
        if route["metadata"]["name"] == "cloud":
            assert route["spec"]["rules"][0]["matches"][0]["path"]["value"] == device.path


def test_probes_are_answered_whoever_else_is() -> None:
    """Where only some names are answered a pod's address is none of them; what probes say is answered all the same."""
    named: dict[str, Any] = {"allowed_hosts": "trilby.example", "operator_token": "o" * 16}
    cloud = CloudConfig(model="unused", host="::", cloud_token="c" * 16, **named)
    well = SimpleNamespace(alive=True, ledger=SimpleNamespace(draining=False))
    here: Any = SimpleNamespace(config=cloud, engine=well)
    gateway = GatewayConfig(host="::", api_keys="k" * 16, device_token="d" * 16, **named)
    apps = {"gateway": create_gateway(gateway), "cloud": create_cloud(here)}
    for container in (one for pod in pods(overlay("prod")) for one in pod["spec"]["containers"] if one["name"] in apps):
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[kind]["httpGet"]
            port = next(each["containerPort"] for each in container["ports"] if each["name"] == asked["port"])
            client = TestClient(apps[container["name"]], base_url=f"http://10.1.2.3:{port}")
            assert client.get(asked["path"]).status_code == 403
            said = {each["name"]: each["value"] for each in asked["httpHeaders"]}
            assert client.get(asked["path"], headers=said).status_code == 200


def test_settings_exist(resources: tuple[Resource, ...]) -> None:
    """Each variable of ours that a pod sets is a setting of what runs in it, and each file of a secret is mounted."""
    maps = {each["metadata"]["name"]: each.get("data", {}) for each in of_kind(resources, "ConfigMap")}
    for pod in pods(resources):
        for container in pod["spec"]["containers"]:
            if container["name"] not in CONFIGS:
                continue
            known = fields(CONFIGS[container["name"]])
            variables = {variable_of(each) for each in known}
            variables |= {variable_of(each, ENDING) for each in known if each.metadata.get("secret")}
            given = {each["name"]: each.get("value", "") for each in container["env"]}
            for source in container.get("envFrom", ()):
                given |= maps[source["configMapRef"]["name"]]
            for each in container["env"]:
                named = each.get("valueFrom", {}).get("configMapKeyRef")
                assert named is None or named["key"] in maps[named["name"]]
            assert {name for name in given if name.startswith("TRILBY_")} <= variables
            (secrets,) = (each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "secrets")
            mounted = {f"/secrets/{each['path']}" for each in secrets["items"]}
            assert {value for name, value in given.items() if name.endswith(ENDING.upper())} == mounted


@pytest.mark.parametrize(("name", "setting"), [("gateway", "TRILBY_MAX_WAITING=7"), ("cloud", "TRILBY_KV_MB=7")])
def test_any_setting_may_be_given(folder: Path, name: str, setting: str) -> None:
    """What an overlay puts into the ConfigMap of gateways or clouds is a variable of their pods, whose name for it is
    another one then, so that they start anew."""
    found, before = with_settings(folder, name, setting), overlay("gpu")
    variable, _, value = setting.partition("=")

    def named(resources: tuple[Resource, ...]) -> str:
        (pod,) = (each for each in pods(resources) if each["of"] == name)
        (source,) = pod["spec"]["containers"][0]["envFrom"]
        asked: str = source["configMapRef"]["name"]
        return asked

    (told,) = (each for each in of_kind(found, "ConfigMap") if each["metadata"]["name"] == named(found))
    assert told["data"][variable] == value
    assert named(found) != named(before)


def test_the_first_secrets_are_those_that_pods_mount(resources: tuple[Resource, ...]) -> None:
    """Whoever mounts a key that nobody makes never starts. Nor does who has one as a variable."""
    (script,) = (each["data"] for each in of_kind(resources, "ConfigMap") if "first_secrets.py" in each.get("data", {}))
    for pod in pods(resources):
        for volume in pod["spec"].get("volumes", ()):
            for item in volume.get("secret", {}).get("items", ()):
                assert f'"{item["key"]}"' in script["first_secrets.py"]
        for each in (one for container in pod["spec"]["containers"] for one in container.get("env", ())):
            named = each.get("valueFrom", {}).get("secretKeyRef", {})
            assert named.get("name") != "trilby" or f'"{named["key"]}"' in script["first_secrets.py"]


def test_time_to_stop(resources: tuple[Resource, ...]) -> None:
    """Before a pod is killed there is time for preStop, for draining as long as usual, and for the last bytes."""
    stopped, drains_s = 0, GatewayConfig.drain_within_s
    assert drains_s == CloudConfig.drain_within_s
    for pod in pods(resources):
        for container in pod["spec"]["containers"]:
            if "lifecycle" in container:
                before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
                assert pod["spec"]["terminationGracePeriodSeconds"] > before + drains_s + LAST_BYTES_S
                given = {each["name"] for each in container["env"]}
                assert "TRILBY_DRAIN_WITHIN_S" not in given, "nobody could raise it in a ConfigMap"
                stopped += 1
    assert stopped == 2


def test_budgets_let_a_node_be_emptied(resources: tuple[Resource, ...]) -> None:
    """A budget that allows no pod to go keeps a node from being emptied for ever: it is below how many there are."""
    for budget in of_kind(resources, "PodDisruptionBudget"):
        (pod,) = (each for each in pods(resources) if selects(budget["spec"]["selector"], each["metadata"]["labels"]))
        assert budget["spec"].get("maxUnavailable", 1) >= 1
        assert budget["spec"].get("minAvailable", 0) < pod["replicas"]


def test_an_upgrade_leaves_somebody_who_answers(resources: tuple[Resource, ...]) -> None:
    """Where a pod may go before the new one comes there is another one, by the manifest or by the least of a scaler."""
    scalers = [each["spec"] for each in of_kind(resources, "HorizontalPodAutoscaler", "ScaledObject")]
    least = {each["scaleTargetRef"]["name"]: each.get("minReplicas", each.get("minReplicaCount")) for each in scalers}
    for each in of_kind(resources, "Deployment"):
        replicas = each["spec"].get("replicas", least.get(each["metadata"]["name"]))
        assert replicas > each["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], each["metadata"]["name"]


def test_scalers_mean_what_exists(resources: tuple[Resource, ...]) -> None:
    """What is scaled is there and says no number of its own, which an apply would set back."""
    deployments = {each["metadata"]["name"]: each["spec"] for each in of_kind(resources, "Deployment")}
    for scaler in of_kind(resources, "HorizontalPodAutoscaler", "ScaledObject"):
        assert "replicas" not in deployments[scaler["spec"]["scaleTargetRef"]["name"]]


@cache
def figures() -> set[str]:
    """The names of all figures that a gateway with redis, or a cloud, says."""
    fleet = GatewayConfig(redis="redis://r:6379", gateway_token="sixteen-characters", advertise="http://g:8000")
    said = TestClient(create_gateway(fleet), base_url="http://127.0.0.1").get("/metrics").text
    return set(re.findall(r"^# TYPE (\w+)", said + CloudMetrics().text().decode(), re.MULTILINE))


def test_figures_that_are_asked_for_exist(resources: tuple[Resource, ...]) -> None:
    """Whatever scalers and rules ask Prometheus or the metrics API for, a gateway or a cloud says."""
    there = figures()
    for each in of_kind(resources, "HorizontalPodAutoscaler", "ScaledObject", "PrometheusRule"):
        asked = set(re.findall(r"\btrilby_\w+", str(each["spec"])))
        assert asked <= there
        assert asked or each["kind"] == "HorizontalPodAutoscaler"


def test_an_outage_of_all_is_told(folder: Path) -> None:
    """Sums and means over what nobody scrapes are nothing, and raise no alert: something must ask whether it is there,
    of what gateways say and of what clouds say."""
    (rules,) = of_kind(with_components(folder, "prometheus"), "PrometheusRule")
    asked = [part for rule in rules["spec"]["groups"][0]["rules"] for part in rule["expr"].split(" or ")]
    absent = [re.fullmatch(r"absent\((trilby_\w+)\{namespace=\"trilby\"\}\)", each) for each in asked]
    told = {found[1].startswith("trilby_cloud_") for found in absent if found is not None}
    assert told == {True, False}


def test_images_are_built_here_and_pinned(resources: tuple[Resource, ...]) -> None:
    """Each image is redis's, or one that a file in ``docker/`` makes; none is whatever is newest."""
    for container in (one for pod in pods(resources) for one in pod["spec"]["containers"]):
        name, _, tag = container["image"].partition(":")
        assert tag and tag != "latest"
        if name != "redis":
            owner, _, image = name.partition("/")
            assert owner == "trilby" and (ROOT.parent / "docker" / f"{image}.Dockerfile").is_file()


def test_traces_reach_the_collector(folder: Path) -> None:
    """Gateways and clouds know its address, and nothing but its port is opened for them."""
    found = with_components(folder, "traces")
    for pod in pods(found):
        for container in pod["spec"]["containers"]:
            if container["name"] in ("gateway", "cloud"):
                (url,) = (each["value"] for each in container["env"] if each["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT")
                assert url.startswith("http://") and url.endswith(":4318")
    (policy,) = (each["spec"] for each in of_kind(found, "NetworkPolicy") if each["metadata"]["name"] == "to-collector")
    assert policy["policyTypes"] == ["Egress"] and policy["egress"] == [{"ports": [{"port": 4318}]}]


def test_grafana_finds_the_dashboard(folder: Path) -> None:
    """Its sidecar looks for the label; what is in the ConfigMap is the file."""
    found = with_components(folder, "grafana")
    (shown,) = (each for each in of_kind(found, "ConfigMap") if each["metadata"]["name"] == "trilby-dashboard")
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads(shown["data"]["trilby.json"])
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert dashboard["uid"] == "trilby" and all(each["x"] + each["w"] <= 24 for each in places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) > 20


def test_the_outside_redis_takes_the_place_of_the_one_here(folder: Path) -> None:
    """Its URL is a secret, and no pod of redis is left."""
    found = with_components(folder, "outside-redis")
    assert not of_kind(found, "StatefulSet")
    (gateway,) = (pod for pod in pods(found) if pod["of"] == "gateway")
    (url,) = (each for each in gateway["spec"]["containers"][0]["env"] if each["name"] == "TRILBY_REDIS")
    assert "value" not in url and url["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "url"}
