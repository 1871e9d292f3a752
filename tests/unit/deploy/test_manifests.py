"""qserve deploy: what each format's schema allows, started as the command line knows it, and no key in any file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from qserve.cli.up.command import command as up
from qserve.deploy.service import HOME
from qserve.gateway.routes import ROUTES
from qserve.gateway.telemetry.worker_gauges import _READINGS
from tests.unit.deploy.conftest import SECRET

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
POD_MONITOR = json.loads((Path(__file__).parent / "schemas" / "podmonitor.json").read_text())
PATHS = {route.path for route in ROUTES if route.method == "GET"}


def objects_of(text):
    return {
        one["kind"] if one["kind"] != "Service" else one["metadata"]["name"]: one for one in yaml.safe_load_all(text)
    }


def check(one):
    """Raises ValidationError for what the API server would refuse or drop."""
    if one["apiVersion"].startswith("monitoring.coreos.com/"):
        jsonschema.validate(one, POD_MONITOR)
    else:
        kubernetes_validate.validate(one, "1.37", strict=True)


def flags_of(arguments):
    """What `qserve up` makes of the words that a manifest runs."""
    return up.make_context("up", [*arguments[1:], "--api-key", "x"]).params


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "qwen3-32b-2x24gb"],
        ["--config", "qwen2.5-7b-with-reward-1x24gb", "--namespace", "models", "--storage-class", "fast"],
        ["--config", "demo-cpu", "--max-pods", "1", "--no-pod-monitor"],
    ],
)
def test_kubernetes_takes_every_object(deployed, words):
    objects = list(yaml.safe_load_all(deployed("k8s", *words)))
    for one in objects:
        check(one)
    named = {one["metadata"].get("namespace") for one in objects}
    assert named == ({"models"} if "--namespace" in words else {None})


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("StatefulSet", ["spec", "template", "spec"]),
        ("HorizontalPodAutoscaler", ["spec"]),
        ("PodMonitor", ["spec", "podMetricsEndpoints", 0]),
    ],
)
def test_the_check_sees_a_field_that_nobody_knows(deployed, kind, where):
    one = place = objects_of(deployed("k8s", "--config", "demo-cpu"))[kind]
    for key in where:
        place = place[key]
    place["terminationGracePeriod"] = 60
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(one)


def test_a_pod_has_what_the_plan_says(deployed):
    objects = objects_of(deployed("k8s", "--config", "qwen3-32b-2x24gb", "--drain-timeout", "120", "--port", "9000"))
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    resources = container["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "2"
    assert int(resources["limits"]["memory"][:-2]) >= int(resources["requests"]["memory"][:-2]) > 8
    assert int(pod["volumes"][0]["emptyDir"]["sizeLimit"][:-2]) > 2
    assert pod["terminationGracePeriodSeconds"] > 120 + 5
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    assert flags_of(container["args"])["drain_timeout"] == 120
    assert flags_of(container["args"])["port"] == container["ports"][0]["containerPort"] == 8000
    assert objects["qwen3-32b-2x24gb"]["spec"]["ports"][0]["port"] == 9000
    assert "NVIDIA-GeForce-RTX-4090" in json.dumps(pod["affinity"])


def test_a_pod_is_the_image_s_user_and_keeps_its_home(deployed):
    pod = objects_of(deployed("k8s", "--config", "demo-cpu"))["StatefulSet"]["spec"]["template"]["spec"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"ARG UID={pod['securityContext']['runAsUser']}" in dockerfile
    assert f"VOLUME {HOME}" in dockerfile
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {"state": HOME, "shm": "/dev/shm"}
    assert "nvidia.com/gpu" not in json.dumps(pod)


def test_the_probes_ask_routes_that_there_are(deployed):
    pod = objects_of(deployed("k8s", "--config", "demo-cpu"))["StatefulSet"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/health"
    ready = container["readinessProbe"]["exec"]["command"]
    assert {"/health", "/ready", "/metrics"} <= PATHS
    assert ready == yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["qserve"]["healthcheck"]["test"][1:]


def test_the_autoscaler_reads_a_metric_that_there_is(deployed):
    text = deployed("k8s", "--config", "demo-cpu", "--min-pods", "2", "--max-pods", "5")
    spec = objects_of(text)["HorizontalPodAutoscaler"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    name = spec["metrics"][0]["pods"]["metric"]["name"]
    assert name.removeprefix("qserve_gateway_") in _READINGS
    assert name in (ROOT / "docs" / "deployments.md").read_text()
    assert "replicas" not in objects_of(text)["StatefulSet"]["spec"]


@pytest.mark.parametrize(
    ("words", "num_cards"),
    [
        (["--gpu", "l40s:4", "--replicas", "4"], 4),
        (["--gpu", "l40s:4", "--replicas", "2", "--tensor-parallel-size", "2"], 4),
        (["--gpu", "l40s:2", "--replicas", "auto"], 2),
        (["--gpu", "h100-80gb", "--replicas", "2"], 1),  # they share it
        (["--gpu", "l40s:3", "--replicas", "2", "--reward", "Qwen/Qwen3-0.6B"], 3),
    ],
)
def test_replicas_have_their_cards(deployed, words, num_cards):
    text = deployed("k8s", "--model", "Qwen/Qwen3-8B", "--max-model-len", "4096", *words)
    container = objects_of(text)["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(num_cards)
    assert str(flags_of(container["args"])["replicas"]) == words[3]
    assert "replicas of Qwen/Qwen3-8B" in text


@pytest.mark.parametrize("target", ["compose", "k8s", "systemd"])
def test_keys_of_administrators_are_a_file_that_the_service_reads(deployed, tmp_path, target):
    file = tmp_path / "admin"
    file.write_text(SECRET)
    user = ["--user", "serve"] if target == "systemd" else []
    text = deployed(target, "--config", "demo-cpu", "--admin-key-file", str(file), *user)
    assert SECRET not in text
    assert str(file) in text
    if target == "k8s":
        pod = objects_of(text)["StatefulSet"]
        check(pod)
        assert (
            "--admin-key-file=/run/secrets/qserve/admin-keys"
            in pod["spec"]["template"]["spec"]["containers"][0]["args"]
        )
    elif target == "compose":
        assert yaml.safe_load(text)["secrets"] == {"admin-keys": {"file": str(file)}}
        assert "--admin-key-file=/run/secrets/admin-keys" in text
    else:
        assert "--admin-key-file=%d/admin-keys" in text and f"LoadCredential=admin-keys:{file}\n" in text


def test_equal_bounds_are_a_fixed_number_of_pods(deployed):
    objects = objects_of(deployed("k8s", "--config", "demo-cpu", "--min-pods", "2", "--max-pods", "2"))
    assert "HorizontalPodAutoscaler" not in objects
    assert objects["StatefulSet"]["spec"]["replicas"] == 2


def test_compose_is_what_the_specification_allows(deployed, tmp_path):
    file = tmp_path / "compose.yaml"
    file.write_text(
        deployed(
            "compose",
            "--config",
            "qwen3-32b-2x24gb",
            "--drain-timeout",
            "90",
            "--port",
            "9000",
            "--admin-key-file",
            "keys",
        )
    )
    checker = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file]
    done = subprocess.run(checker, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    service = yaml.safe_load(file.read_text())["services"]["qserve"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert service["stop_grace_period"] == "120s"
    assert service["ports"] == ["127.0.0.1:9000:8000"]
    assert flags_of(service["command"])["tensor_parallel_size"] == 2


def said_by_systemd(file):
    """What `systemd-analyze verify` says of this file; of the units of the machine it says other things."""
    call = ["systemd-analyze", "verify", "--man=no", file]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60)
    return [line for line in done.stderr.splitlines() if file.name in line]


def test_a_unit_is_what_systemd_reads(deployed, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    unit = deployed("systemd", "--config", "demo-cpu", "--user", "daemon", "--host", "0.0.0.0")
    broken = tmp_path / "broken.service"
    broken.write_text(unit.replace("KillMode=mixed", "KillMode=both"))
    if not any("kill mode" in line for line in said_by_systemd(broken)):
        pytest.skip("systemd-analyze reads no unit here")
    file = tmp_path / "demo-cpu.service"
    file.write_text(unit)
    assert said_by_systemd(file) == []


def test_a_unit_runs_this_environment_and_waits_for_ready(deployed):
    unit = deployed("systemd", "--config", "demo-cpu", "--user", "serve", "--drain-timeout", "45")
    lines = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and line[0] not in "# ")
    program, *words = lines["ExecStart"].split()
    assert Path(program).name == "qserve" and Path(program).is_absolute()
    assert flags_of(words)["state_dir"] == Path("/var/lib/qserve/demo-cpu")
    assert lines["ExecStartPost"] == f"{sys.executable} -m qserve.deploy.probe http://127.0.0.1:8000"
    assert lines["TimeoutStopSec"] == "75s"
    assert (lines["User"], lines["RestartPreventExitStatus"]) == ("serve", "2 3")


def test_a_unit_gets_its_keys_as_a_credential(deployed, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(SECRET)
    unit = deployed("systemd", "--config", "demo-cpu", "--user", "serve", "--api-key-file", str(keys))
    assert f"LoadCredential=keys:{keys}\n" in unit
    assert "--api-key-file=%d/keys" in unit


def test_words_are_quoted_as_systemd_splits_them(deployed):
    given = '--engine-args=--seed 7 --x "100%" $HOME'
    unit = deployed("systemd", "--model", "demo", "--gpu", "none", "--user", "serve", given)
    assert '"--engine-args=--seed 7 --x \\"100%%\\" $$HOME"' in unit


@pytest.mark.parametrize("target", ["compose", "k8s", "systemd"])
def test_no_key_is_ever_written(deployed, tmp_path, target):
    keys = tmp_path / "keys"
    keys.write_text(SECRET)
    user = ["--user", "serve"] if target == "systemd" else []
    assert SECRET not in deployed(target, "--config", "demo-cpu", "--api-key-file", str(keys), *user)


def test_processes_of_the_gateway_take_memory(deployed):
    def reserved(count):
        words = ("compose", "--config", "demo-cpu", "--gateway-processes", count)
        return yaml.safe_load(deployed(*words))["services"]["qserve"]["deploy"]["resources"]["reservations"]["memory"]

    assert int(reserved("16").removesuffix("gb")) >= int(reserved("1").removesuffix("gb")) + 3


def test_a_file_of_keys_is_where_the_service_finds_it(deployed, tmp_path):
    (tmp_path / "keys.yaml").write_text(f"keys: [{{name: a, sha256: {'a' * 64}}}]\n")
    words = ("--config", "demo-cpu", "--keys", str(tmp_path / "keys.yaml"))
    (service,) = yaml.safe_load(deployed("compose", *words))["services"].values()
    assert "--keys=/models/keys.yaml" in service["command"]
    assert "/models/keys.yaml" in [one["target"] for one in service["volumes"] if isinstance(one, dict)]
    assert f"--keys={tmp_path}/keys.yaml" in deployed("systemd", *words, "--user", "nobody")
