"""What the kinds look like that Kubernetes does not bring with it, and how strictly a resource is held to a schema.

The schemas here are short: the fields that our manifests have, and some that one would write next. That these fields
are right was read in the projects' own definitions, of LeaderWorkerSet 0.10, Gateway API 1.6, Inference Extension 1.6,
KEDA 2.20 and the Prometheus operator 0.93. ``definitions`` reads such files, where somebody has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string", "minLength": 1}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
FLAG: Final[Schema] = {"type": "boolean"}
DURATION: Final[Schema] = {"type": "string", "pattern": r"^(\d{1,5}(h|m|s|ms)){1,4}$"}
POD: Final[Schema] = {"type": "object", "required": ["spec"]}
"""Held to Kubernetes' own schema, as the template of a PodTemplate."""


def thing(required: str = "", /, **properties: Schema) -> Schema:
    """An object with these fields and no others."""
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def some(items: Schema) -> Schema:
    """A list, not empty."""
    return {"type": "array", "minItems": 1, "items": items}


def one_of(*values: str) -> Schema:
    """One of these words."""
    return {"enum": list(values)}


SCALE_DOWN: Final = thing(
    "policies",
    stabilizationWindowSeconds=NUMBER,
    policies=some(
        thing("type value periodSeconds", type=one_of("Pods", "Percent"), value=NUMBER, periodSeconds=NUMBER)
    ),
)
SELECTOR: Final = thing(
    matchLabels=TEXTS,
    matchExpressions=some(
        thing("key operator", key=TEXT, operator=one_of("In", "NotIn", "Exists", "DoesNotExist"), values=some(TEXT))
    ),
)

SPECS: Final[dict[tuple[str, str], Schema]] = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): thing(
        parentRefs=some(
            thing("name", group=TEXT, kind=TEXT, namespace=TEXT, name=TEXT, sectionName=TEXT, port=PORT),
        ),
        hostnames=some(TEXT),
        rules=some(
            thing(
                name=TEXT,
                matches=some(
                    thing(
                        path=thing(type=one_of("Exact", "PathPrefix", "RegularExpression"), value=TEXT),
                        method=one_of("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"),
                    )
                ),
                backendRefs=some(
                    thing("name", group=TEXT, kind=TEXT, namespace=TEXT, name=TEXT, port=PORT, weight=NUMBER)
                ),
                timeouts=thing(request=DURATION, backendRequest=DURATION),
            )
        ),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): thing(
        "selector targetPorts endpointPickerRef",
        selector=thing("matchLabels", matchLabels=TEXTS),
        targetPorts=some(thing("number", number=PORT)),
        endpointPickerRef=thing(
            "name",
            group=TEXT,
            kind=TEXT,
            name=TEXT,
            port=thing("number", number=PORT),
            failureMode=one_of("FailOpen", "FailClose"),
        ),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): thing(
        "scaleTargetRef triggers",
        scaleTargetRef=thing("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        pollingInterval=NUMBER,
        cooldownPeriod=NUMBER,
        advanced=thing("", horizontalPodAutoscalerConfig=thing("", behavior=thing("", scaleDown=SCALE_DOWN))),
        fallback=thing("failureThreshold replicas", failureThreshold=NUMBER, replicas=NUMBER),
        triggers=some(
            thing("type metadata", type=TEXT, name=TEXT, metricType=one_of("AverageValue", "Value"), metadata=TEXTS)
        ),
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): thing(
        "leaderWorkerTemplate",
        replicas=NUMBER,
        startupPolicy=one_of("LeaderCreated", "LeaderReady"),
        networkConfig=thing("subdomainPolicy", subdomainPolicy=one_of("Shared", "UniquePerReplica")),
        leaderWorkerTemplate=thing(
            "workerTemplate",
            size={"type": "integer", "minimum": 1},
            restartPolicy=one_of("Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"),
            leaderTemplate=POD,
            workerTemplate=POD,
        ),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): thing(
        "selector podMetricsEndpoints",
        selector=SELECTOR,
        podMetricsEndpoints=some(
            thing(
                port=TEXT,
                path=TEXT,
                scheme=one_of("http", "https", "HTTP", "HTTPS"),
                interval=DURATION,
                scrapeTimeout=DURATION,
                honorLabels=FLAG,
                tlsConfig=thing(insecureSkipVerify=FLAG, serverName=TEXT),
            )
        ),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): thing(
        groups=some(
            thing(
                "name",
                name=TEXT,
                interval=DURATION,
                rules=some(
                    thing(
                        "expr",
                        alert=TEXT,
                        record=TEXT,
                        expr=TEXT,
                        labels=TEXTS,
                        annotations=TEXTS,
                        **{"for": DURATION},
                    )
                ),
            )
        ),
    ),
}


def schema_of(resource: Schema) -> Schema | None:
    """The schema of a resource of these kinds; None of any other."""
    spec = SPECS.get((resource["apiVersion"], resource["kind"]))
    if spec is None:
        return None
    metadata = thing("name namespace", name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)
    return thing("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=spec)


def definitions(folder: Path) -> Iterator[tuple[tuple[str, str], Schema]]:
    """Of each CustomResourceDefinition in the files of a folder each version: of which resources, and its schema, in
    which no field is allowed that it does not name."""
    for path in sorted(folder.glob("**/*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            if each and each["kind"] == "CustomResourceDefinition":
                spec = each["spec"]
                for version in spec["versions"]:
                    schema = strictly(version["schema"]["openAPIV3Schema"])
                    schema["properties"]["metadata"] = {}
                    yield (f"{spec['group']}/{version['name']}", spec["names"]["kind"]), schema


def strictly(schema: Any) -> Any:
    """A schema as Kubernetes writes it, for a validator that knows nothing of Kubernetes: no further fields, and what
    may be a number or a text may be anything."""
    if isinstance(schema, list):
        return [strictly(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strictly(value) for name, value in schema.items()}
    if isinstance(made.get("pattern"), str) and "(?i)" in made["pattern"]:  # Go has it anywhere, Python in front.
        made["pattern"] = "(?i)" + made["pattern"].replace("(?i)", "")
    if made.get("x-kubernetes-int-or-string"):
        return {}
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made
