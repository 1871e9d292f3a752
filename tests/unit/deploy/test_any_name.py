"""Whatever a flag, a path or a file of keys is called: a deployment file says exactly that, or is refused."""

from __future__ import annotations

import unicodedata

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as some

from qserve.cli.main import cli
from qserve.deploy.compose import compose_file
from qserve.deploy.kuberay import kuberay_text
from qserve.deploy.kubernetes import Cluster, kubernetes_text
from qserve.deploy.needs import Needs, Relays
from qserve.deploy.service import Mount, Service
from qserve.deploy.systemd import systemd_unit
from qserve.errors import UsageError
from qserve.units import GIB
from tests.unit.deploy.readers import by_compose, by_kuberay_s_shell, by_kubernetes, unit_lines, unit_words

NEEDS = Needs(0, "", GIB, 2 * GIB, GIB, 2, 20 * GIB)
# What some reader of these files gives a meaning, and what none can hold.
NASTY = list("$%\\\"'`#:;&|>{}[]()!@*?,=- \t\n\r\0\x85\u2028\u2029\x7f\x9b\ufeff\ufffe\u202eäあ😀\ud800")
ANY = some.text(some.one_of(some.sampled_from(NASTY), some.characters()), max_size=12)
Made = Cluster("qserve:1", 8, models_claim="models")


def service(text, **changed):
    kept = {
        "words": (f"--engine-args={text}",),
        "command": f"qserve deploy {text}",
        "plan_lines": ("a plan",),
        "mounts": (Mount(f"/data/{text}", f"/models/{text}"),),
        "key_file": f"/etc/{text}",
        "admin_key_file": f"/etc/admin/{text}",
    }
    return Service("qserve", needs=NEEDS, **(kept | changed))


def written(make, *parts, **more):
    """The file's text; None where it is refused, and then in one line."""
    try:
        return make(*parts, **more)
    except UsageError as error:
        assert "\n" not in str(error)
        return None


def anything(test):
    return settings(max_examples=75, deadline=None)(given(ANY)(example("\n")(example("$(x) $$ ")(test))))


def is_plain(text):
    return all(unicodedata.category(one) not in ("Cc", "Cs", "Zl", "Zp") for one in text)


@anything
def test_a_unit_says_what_was_given(text):
    unit = written(lambda: systemd_unit(service(text), f"/usr/lib/{text}/qserve", "/usr/lib/python", "serve", True))
    if unit is None:
        return
    lines = unit_lines(unit)
    assert is_plain(text) and len(lines) == len(unit_lines(systemd_unit(service("x"), "/q", "/p", "serve", True)))
    found = dict(lines)
    program, *words = unit_words(found["ExecStart"])
    assert program == f"/usr/lib/{text}/qserve" and f"--engine-args={text}" in words
    assert [key for key, _ in lines if key.startswith("Exec")] == ["ExecStart", "ExecStartPost", "ExecReload"]
    loaded = [value.partition(":")[2].replace("%%", "%") for key, value in lines if key == "LoadCredential"]
    assert loaded == [f"/etc/{text}", f"/etc/admin/{text}"]


@anything
def test_a_compose_file_says_what_was_given(text):
    file = written(lambda: compose_file(service(text), "qserve:1"))
    if file is None:
        return
    project = by_compose(yaml.safe_load(file))
    assert is_plain(text) and list(project) == ["name", "services", "volumes", "secrets"]
    container = project["services"]["qserve"]
    assert container["command"][1] == f"--engine-args={text}"
    assert container["volumes"][1]["source"] == f"/data/{text}"
    assert project["secrets"]["admin-keys"]["file"] == f"/etc/admin/{text}"


@anything
def test_kubernetes_objects_say_what_was_given(text):
    file = written(lambda: kubernetes_text(service(text), Made))
    if file is None:
        return
    objects = list(yaml.safe_load_all(file))
    assert is_plain(text) and len(objects) == 7
    args = next(one for one in objects if one["kind"] == "StatefulSet")["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    assert by_kubernetes(args[1]) == f"--engine-args={text}"


@anything
def test_a_ray_cluster_says_what_was_given(text):
    file = written(lambda: kuberay_text(service(text), Made, Relays(0, 0)))
    if file is None:
        return
    ray = next(one for one in yaml.safe_load_all(file) if one["kind"] == "RayCluster")
    (script,) = ray["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["args"]
    assert is_plain(text) and by_kuberay_s_shell(script)[1] == f"--engine-args={text}"


@given(ANY)
@settings(max_examples=100, deadline=None)
def test_names_of_the_cluster_the_image_the_host_and_the_user_are_names_or_refused(text):
    for make in (
        lambda: Cluster(text, 8),
        lambda: Cluster("a", 8, text),
        lambda: Cluster("a", 8, None, text),
        lambda: Cluster("a", 8, None, None, text),
        lambda: service("x", host=text),
        lambda: compose_file(service("x"), text),
        lambda: systemd_unit(service("x"), "/q", "/p", text, False),
    ):
        assert written(make) is None or (
            text.isascii() and text.isprintable() and not set(text) & set(" '\"`;&|%\\#\n")
        )


@pytest.mark.parametrize("bad", ["\n", "\r", "\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\udcff", "\u202e"])
@pytest.mark.parametrize("target", ["systemd", "compose", "k8s", "kuberay"])
def test_a_control_character_is_refused_with_its_flag(target, bad, capsys):
    user = ["--user", "serve"] if target == "systemd" else []
    call = ["deploy", target, "--model", "demo", "--gpu", "none", *user]
    for flag, value in {"--served-model-name": f"a{bad}b", "--api-key-file": f"/etc/a{bad}b"}.items():
        with pytest.raises(UsageError) as refused:
            cli.main([*call, f"{flag}={value}"], standalone_mode=False)
        assert flag in str(refused.value) and ascii(bad)[1:-1] in str(refused.value)
        assert refused.value.exit_status == 2 and "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("line", ['served_model_name: ["a\\0b"]', 'api_key_file: "/etc/a\\0b"', 'host: "a\\nb"'])
def test_a_control_character_in_a_file_of_settings_is_refused_with_its_name(line, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(f"model: demo\ngpu: none\n{line}\n")
    with pytest.raises(UsageError) as refused:
        cli.main(["deploy", "compose", "--config", str(file)], standalone_mode=False)
    name = line.partition(":")[0]
    assert name in str(refused.value).replace("-", "_") and "\n" not in str(refused.value)


@pytest.mark.parametrize("user", ["root", "0", "000", "a b", "a\nb", "", "%u", "-x", "a:b", "a/b"])
def test_a_user_that_is_none_is_refused(user):
    with pytest.raises(UsageError, match="--user"):
        systemd_unit(service("x"), "/q", "/p", user, False)
