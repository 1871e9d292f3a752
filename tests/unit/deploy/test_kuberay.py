"""qserve deploy kuberay: a RayCluster that KubeRay's own schema takes, with the words that its head runs."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from qserve.cli.up.command import command as up
from qserve.errors import UsageError
from tests.unit.deploy.conftest import SECRET

ROOT = Path(__file__).parents[3]
SCHEMAS = Path(__file__).parent / "schemas"
OF_OPERATORS = {
    "RayCluster": json.loads((SCHEMAS / "raycluster.json").read_text()),
    "PodMonitor": json.loads((SCHEMAS / "podmonitor.json").read_text()),
}


@pytest.fixture
def deployed(deployed):
    return partial(deployed, "kuberay")


def templates(cluster):
    spec = cluster["spec"]
    return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]


def check(one):
    """Raises ValidationError for what the API server or the operator would refuse or drop."""
    if one["kind"] not in OF_OPERATORS:
        kubernetes_validate.validate(one, "1.37", strict=True)
        return
    jsonschema.validate(one, OF_OPERATORS[one["kind"]])
    if one["kind"] == "RayCluster":
        for template in templates(one):
            pod = {"apiVersion": "v1", "kind": "Pod", **template}
            kubernetes_validate.validate(pod, "1.37", strict=True)


def objects_of(text):
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def head_flags(cluster):
    """What `qserve up` makes of the words that the head's container runs."""
    script = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["args"][0]
    words = shlex.split(script.rpartition("exec qserve up ")[2])
    return up.make_context("up", [*words, "--api-key", "x"]).params


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "qwen3-32b-2x24gb", "--max-pods", "8"],
        ["--config", "demo-cpu", "--min-pods", "2", "--max-pods", "2", "--no-pod-monitor", "--namespace", "models"],
        ["--config", "demo-cpu", "--storage-class", "fast", "--admin-key-file", "/etc/keys/admin"],
    ],
)
def test_the_operator_takes_every_object(deployed, words):
    text = deployed(*words)
    for one in yaml.safe_load_all(text):
        check(one)
    assert SECRET not in text


@pytest.mark.parametrize("place", ["spec", "headGroupSpec", "template"])
def test_the_check_sees_a_field_that_nobody_knows(deployed, place):
    cluster = objects_of(deployed("--config", "demo-cpu"))["RayCluster"]
    head = cluster["spec"]["headGroupSpec"]
    {"spec": cluster["spec"], "headGroupSpec": head, "template": head["template"]["spec"]}[place]["replica"] = 1
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(cluster)


def test_a_replica_a_pod_between_the_bounds(deployed):
    cluster = objects_of(deployed("--config", "qwen3-32b-2x24gb", "--min-pods", "2", "--max-pods", "6"))["RayCluster"]
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (2, 6)
    assert cluster["spec"]["enableInTreeAutoscaling"] is True
    container = group["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    flags = head_flags(cluster)
    assert (flags["ray"], flags["ray_nodes"], flags["min_replicas"], flags["max_replicas"]) == ("auto", 2, 2, 6)
    head = cluster["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0", "nothing is placed beside the gateway"
    assert "nvidia.com/gpu" not in json.dumps(head)


def test_processes_of_the_gateway_have_space_in_the_heads_pod(deployed):
    one, four = (
        objects_of(deployed("--config", "demo-cpu", "--gateway-processes", count))["RayCluster"] for count in ("1", "4")
    )
    (head, worker), (larger, same) = map(templates, (one, four))
    before, now = (pod["spec"]["containers"][0]["resources"] for pod in (head, larger))
    assert (before["requests"], now["requests"]["cpu"]) == ({"cpu": "2", "memory": "4Gi"}, "6")
    assert int(now["requests"]["memory"][:-2]) > 4 and int(now["limits"]["memory"][:-2]) > 8
    assert worker == same, "they are where the gateway is"


def test_a_fixed_number_has_no_autoscaler(deployed):
    cluster = objects_of(deployed("--config", "demo-cpu", "--min-pods", "3", "--max-pods", "3"))["RayCluster"]
    assert cluster["spec"]["enableInTreeAutoscaling"] is False
    flags = head_flags(cluster)
    assert (flags["replicas"], flags["max_replicas"]) == (3, None)


def test_the_api_is_all_that_others_reach(deployed):
    objects = objects_of(deployed("--config", "demo-cpu"))
    inside, api = objects["NetworkPolicy"]["spec"]["ingress"]
    assert list(inside) == ["from"] and api == {"ports": [{"port": "http", "protocol": "TCP"}]}
    assert objects["RayCluster"]["spec"]["authOptions"] == {"mode": "token"}
    head, worker = templates(objects["RayCluster"])
    assert "QSERVE_API_KEY" in json.dumps(head) and "QSERVE_API_KEY" not in json.dumps(worker)
    assert "http" not in [port["name"] for port in worker["spec"]["containers"][0].get("ports", ())]


def test_it_names_the_ray_that_is_installed(deployed):
    pinned = re.search(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert objects_of(deployed("--config", "demo-cpu"))["RayCluster"]["spec"]["rayVersion"] == pinned


@pytest.mark.parametrize("words", [["--replicas", "2"], ["--max-replicas", "3"], ["--ray", "auto"], ["--user", "me"]])
def test_what_the_manifest_says_itself_is_refused(deployed, words):
    with pytest.raises(UsageError, match=f"{words[0]}: not for kuberay"):
        deployed("--config", "demo-cpu", *words)


def test_two_models_on_one_card_are_refused(deployed):
    with pytest.raises(UsageError, match="--reward: on Ray a chat and a reward model can't share a card"):
        deployed("--config", "qwen2.5-7b-with-reward-1x24gb")
