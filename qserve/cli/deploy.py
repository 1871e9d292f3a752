"""`qserve deploy`: deployment files (compose, systemd, Kubernetes) from the flags and plan of `qserve up`."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from qserve.cli.options.command import Command
from qserve.cli.options.deployment import deployment_of
from qserve.cli.options.knowledge import knowledge_of
from qserve.cli.options.numbers import Count
from qserve.cli.up.checks import check_roles
from qserve.cli.up.command import command as up
from qserve.cli.up.passed_on import passed_options
from qserve.deploy.argv import mounted, words_of
from qserve.deploy.compose import compose_file
from qserve.deploy.kuberay import kuberay_text
from qserve.deploy.kubernetes import Cluster, kubernetes_text
from qserve.deploy.needs import Relays
from qserve.deploy.planned import Planned, pinned
from qserve.deploy.service import Service
from qserve.deploy.systemd import systemd_unit
from qserve.errors import UsageError
from qserve.service.machine import Machine, refuse_to_serve
from qserve.service.plan import plan_service
from qserve.service.request import ServiceRequest
from qserve.version import __version__

__all__ = ["command"]

_TARGETS = ("compose", "systemd", "k8s", "kuberay")
# The options of `up` that --help repeats; the others are named in one sentence.
_SHOWN = ("config", "model", "revision", "reward", "embed", "gpu", "replicas", "reward_replicas", "embed_replicas")
# The manifest itself decides where the service listens, its keys and its folders.
_REPLACED = ("host", "port", "api_key_file", "admin_key_file", "state_dir", "gpu")
_OF_THE_CLUSTER = ("namespace", "models_claim", "storage_class", "min_pods", "max_pods", "pod_monitor")
# The manifest decides them: one replica per pod, from --min-pods to --max-pods.
_OF_KUBERAY = ("replicas", "reward_replicas", "embed_replicas", "ray", "ray_nodes", "min_replicas", "max_replicas")
_OF_UP = frozenset(str(option.name) for option in up.params)
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


@dataclass(frozen=True)
class _DeployFlags:
    """What the manifest itself decides, by the names of the options."""

    name: str | None
    image: str | None
    user: str | None
    namespace: str | None
    models_claim: str | None
    storage_class: str | None
    min_pods: int
    max_pods: int
    pod_monitor: bool
    out: Path | None
    gpu: str | None
    api_key: tuple[str, ...] = field(repr=False)
    api_key_file: tuple[Path, ...]
    admin_key_file: tuple[Path, ...]
    ready_file: Path | None
    host: str
    port: int
    drain_timeout: float
    reward: str | None
    embed: str | None


@click.command("deploy", cls=Command)
@click.argument("target", type=click.Choice(_TARGETS))
@click.option("--name", help="Name of the unit, project or objects [the file of --config, else qserve].")
@click.option("--image", help=f"compose, k8s, kuberay: image, built from the Dockerfile [qserve:{__version__}].")
@click.option("--user", help="systemd: user of the service, not root [the current user].")
@click.option("--namespace", help="k8s, kuberay: namespace of the objects [kubectl's].")
@click.option("--models-claim", help="k8s, kuberay: volume claim with your own checkpoints, by folder name.")
@click.option(
    "--storage-class", help="k8s, kuberay: storage class of the volume for runs and caches [the cluster's default]."
)
@click.option("--min-pods", type=Count(min=1), default=1, show_default=True, help="k8s, kuberay: fewest pods.")
@click.option(
    "--max-pods",
    type=Count(min=1),
    default=2,
    show_default=True,
    help="Most pods; k8s scales by the queue, kuberay by the load.",
)
@click.option(
    "--pod-monitor/--no-pod-monitor",
    default=True,
    help="k8s, kuberay: write a PodMonitor for the Prometheus operator [yes].",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="A new file [standard output].")
@click.pass_context
def command(ctx: click.Context, /, target: str, **values: Any) -> None:
    """Write deployment files for a service, from the plan of the same flags.

    Takes every option of `qserve up` in addition to its own. Nothing is started and no key is written: the first
    lines of each file say where the keys go and how to apply it.

    \b
    qserve deploy compose --config qwen3-32b-2x24gb
    qserve deploy systemd --config demo-cpu --user serve --out qserve.service
    qserve deploy k8s --config qwen3-32b-1x80gb --image example.com/qserve:1
    qserve deploy k8s Qwen/Qwen3-8B --gpu l40s --max-model-len 16384
    qserve deploy kuberay --config qwen3-32b-1x80gb --min-pods 1 --max-pods 8

    Exit status: 0 written, 2 bad input, 3 does not fit.
    """
    flags = _DeployFlags(**{one.name: values[one.name] for one in fields(_DeployFlags)})
    _check(ctx, target, flags)
    check_roles(values)
    request, machine = ServiceRequest.from_flags(values), Machine.named(flags.gpu)
    if target != "systemd":  # an image has packages of its own
        machine = replace(machine, packages=None)
    refuse_to_serve(machine.hardware)
    if request.model is None and request.reward is None:
        raise UsageError(
            "there is nothing to deploy; give --config FILE (as for `qserve up`), --model, --reward or --embed"
        )
    relays = Relays.of(request.num_gateways)
    # On a Ray cluster the gateway has the head pod to itself.
    own_relays = Relays.of(1) if target == "kuberay" else relays
    plan = plan_service(request, machine, knowledge_of(values, machine))
    planned = Planned.of(plan, own_relays)
    service = _service(ctx, target, flags, values, pinned(values, plan), planned)
    _write(_text(ctx, target, service, planned, relays, flags), flags.out)
    for line in planned.lines:
        click.secho(f"planned: {line}", err=True)
    for why in filter(None, (plan.passed_over, plan.obstacle)):
        click.secho(f"· {why}", err=True, fg="yellow")


command.params.extend(passed_options(_SHOWN))


def _check(ctx: click.Context, target: str, flags: _DeployFlags) -> None:
    """Refuse options that can't be written to a file, or that this target does not read."""
    if flags.api_key:
        raise UsageError(
            "--api-key would be in the file for all to read; leave it out: the file's first lines say where the key "
            "goes"
        )
    if flags.ready_file:
        raise UsageError("--ready-file is for a program that starts `qserve up` itself; leave it out")
    if flags.port == 0:
        raise UsageError("--port 0 takes another free port at each start, which clients can't know; name a port")
    foreign = {
        "systemd": ("image", *_OF_THE_CLUSTER),
        "compose": ("user", *_OF_THE_CLUSTER),
        "k8s": ("user",),
        "kuberay": ("user", *_OF_KUBERAY),
    }[target]
    strange = [f"--{name.replace('_', '-')}" for name in foreign if _is_given(ctx, name)]
    if strange:
        raise UsageError(f"{', '.join(strange)}: not for {target}; leave it out, or choose another target")
    if flags.out is not None and flags.out.exists():
        raise UsageError(f"--out {flags.out} already exists; move it away, or name another file")


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) in _GIVEN


def _service(
    ctx: click.Context,
    target: str,
    flags: _DeployFlags,
    values: dict[str, Any],
    served: dict[str, Any],
    planned: Planned,
) -> Service:
    """`served`: `values` with what the files are to serve in the place of what was named."""
    given = {name: served[name] for name in served if name in _OF_UP and _is_given(ctx, name)}
    kept, mounts = mounted(
        {name: value for name, value in given.items() if name not in _REPLACED}, absolute=target == "systemd"
    )
    if flags.gpu == "none":
        kept["gpu"] = "none"
    return Service(
        flags.name or _default_name(ctx),
        tuple(words_of(up.params, kept)),
        planned.needs,
        planned.lines,
        _call(ctx, target, values),
        flags.host,
        flags.port,
        flags.drain_timeout,
        mounts,
        _only_file("--api-key-file", flags.api_key_file),
        _only_file("--admin-key-file", flags.admin_key_file),
    )


def _only_file(flag: str, files: tuple[Path, ...]) -> str | None:
    if len(files) > 1:
        raise UsageError(
            f"{flag} {files[1]}: a manifest names only one file of keys; put all keys into one file, one per line"
        )
    return str(files[0].expanduser().absolute()) if files else None


def _text(
    ctx: click.Context, target: str, service: Service, planned: Planned, relays: Relays, flags: _DeployFlags
) -> str:
    image = flags.image or f"qserve:{__version__}"
    if target == "compose":
        return compose_file(service, image)
    if target == "kuberay" and (flags.reward or flags.embed) and planned.needs.num_cards:
        flag, what = ("--reward", "a reward") if flags.reward else ("--embed", "an embedding")
        raise UsageError(
            f"{flag}: on Ray a chat and {what} model can't share a card, and kuberay gives all pods one plan"
        )
    if target in ("k8s", "kuberay"):
        cluster = Cluster(
            image,
            planned.max_num_seqs,
            flags.namespace,
            flags.models_claim,
            flags.storage_class,
            flags.min_pods,
            flags.max_pods,
            flags.pod_monitor,
        )
        return kubernetes_text(service, cluster) if target == "k8s" else kuberay_text(service, cluster, relays)
    user = flags.user or _own_user()
    if user == "root":
        raise UsageError("a unit of root would serve with all rights; name another user with --user")
    needs_key = service.key_file is not None or service.host not in ("127.0.0.1", "localhost", "::1")
    qserve = Path(sys.executable).with_name("qserve")
    return systemd_unit(service, str(qserve), sys.executable, user, needs_key)


def _own_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as containers have them
        raise UsageError(f"the user id {os.getuid()} has no name; name the user of the unit with --user") from None


def _default_name(ctx: click.Context) -> str:
    deployment = deployment_of(ctx)
    stem = deployment.path.stem if deployment is not None else "qserve"
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-")


def _call(ctx: click.Context, target: str, values: dict[str, Any]) -> str:
    """The command line of this call, for the file's first line."""
    words = ["qserve", "deploy", target]
    deployment = deployment_of(ctx)
    if deployment is not None:
        words.append(f"--config={deployment.name}")
    replaced = {
        name: value
        for name, value in values.items()
        if name != "out" and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return shlex.join([*words, *words_of((one for one in ctx.command.params if one.name != "target"), replaced)])


def _write(text: str, out: Path | None) -> None:
    if out is None:
        click.echo(text, nl=False)
        return
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.rename(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"--out {out} can't be written: {error.strerror}") from error
    click.echo(f"written: {out}", err=True)
