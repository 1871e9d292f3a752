"""A unit of systemd: one machine, no container."""

from __future__ import annotations

import re
import shlex

from qserve.deploy.characters import check_text
from qserve.deploy.service import Service
from qserve.deploy.yaml_text import commented
from qserve.errors import UsageError
from qserve.units import GIB

__all__ = ["systemd_unit"]

_CREDENTIAL = "keys"
_ADMIN_CREDENTIAL = "admin-keys"
_DEFAULT_KEYS = "/etc/qserve/keys"
# What systemd takes, in a machine's own words or a directory's (`user@example.com`); 0 is root.
_USER = re.compile(r"(?!0+\Z)[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?")


def systemd_unit(service: Service, qserve: str, python: str, user: str, needs_key: bool) -> str:
    """The text of `<name>.service`; `qserve` and `python` are absolute paths of one environment.

    With `needs_key` the keys come as a credential of systemd: only the service can read them. Raises UsageError for a
    user that is none, and for paths that a unit can't hold.
    """
    if _USER.fullmatch(user) is None or user == "root":
        raise UsageError(
            f"--user {user[:200]!r} is not a user that may serve; name one, not root, as `id -un` prints it"
        )
    for program in (qserve, python):
        check_text("the path of qserve's environment", program)
    keys = service.key_file or _DEFAULT_KEYS
    usage = (
        "",
        f"    sudo cp FILE /etc/systemd/system/{service.name}.service",
        *((f"    openssl rand -hex 24 | sudo install -D -m 600 /dev/stdin {shlex.quote(keys)}",) if needs_key else ()),
        f"    sudo systemctl enable --now {service.name}      # returns when every model takes requests",
    )
    lines = [commented((*service.header, *usage)), "[Unit]", f"Description=qserve ({service.name})"]
    lines += ["Wants=network-online.target", "After=network-online.target nvidia-persistenced.service"]
    lines += ["# A service that fails at once is not started for ever.", "StartLimitIntervalSec=10min"]
    lines += ["StartLimitBurst=5", "", *_service(service, qserve, python, user, keys if needs_key else None)]
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target", ""])


def _service(service: Service, qserve: str, python: str, user: str, keys: str | None) -> list[str]:
    needs, state = service.needs, f"/var/lib/qserve/{service.name}"
    address = [f"--host={service.host}", f"--port={service.port}", f"--state-dir={state}"]
    words = [*map(_quoted, ("up", *service.words, *address))]
    url = f"http://{_asked_at(service.host)}:{service.port}"
    ready = [_program(python), "-m", "qserve.deploy.probe", _quoted(url)]
    lines = ["[Service]", "Type=exec", f"User={user}"]
    if keys is not None:
        lines.append(_credential(_CREDENTIAL, keys))
        words.append(f"--api-key-file=%d/{_CREDENTIAL}")
        ready.append(f"%d/{_CREDENTIAL}")
    if service.admin_key_file is not None:
        lines.append(_credential(_ADMIN_CREDENTIAL, service.admin_key_file))
        words.append(f"--admin-key-file=%d/{_ADMIN_CREDENTIAL}")
    return [
        *lines,
        f"StateDirectory=qserve/{service.name}",
        "StateDirectoryMode=0700",
        f"WorkingDirectory={state}",
        f"Environment=HF_HOME={state}/huggingface VLLM_CACHE_ROOT={state}/vllm TRITON_CACHE_DIR={state}/triton",
        "Environment=VLLM_NO_USAGE_STATS=1",
        f"ExecStart={_program(qserve)} {' '.join(words)}",
        "# The start is over when /ready says so; a first one fetches the weights.",
        f"ExecStartPost={' '.join(ready)}",
        "TimeoutStartSec=1h",
        "ExecReload=kill -HUP $MAINPID",
        "# SIGTERM to qserve alone, which drains and ends its workers; the rest only after the time is over.",
        "KillMode=mixed",
        f"TimeoutStopSec={service.stop_timeout_s}s",
        "# 2: bad input, 3: does not fit. Trying again does not help.",
        "Restart=on-failure",
        "RestartSec=5s",
        "RestartPreventExitStatus=2 3",
        f"MemoryMax={needs.memory_limit_bytes // GIB}G",
        "LimitNOFILE=65536",
        "LimitMEMLOCK=infinity",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "ProtectHome=read-only",
        "PrivateTmp=yes",
        "ProtectKernelTunables=yes",
        "ProtectControlGroups=yes",
        "RestrictSUIDSGID=yes",
    ]


def _credential(name: str, file: str) -> str:
    """systemd takes the rest of the line as it is, but for blanks at its end and a backslash, which goes on."""
    if file.endswith("\\") or file != file.strip():
        raise UsageError(
            f"the file of keys {file!r} ends in a backslash or a blank, which a unit can't have; rename it"
        )
    path = file.replace("%", "%%")
    return f"LoadCredential={name}:{path}"


def _asked_at(host: str) -> str:
    if host in ("0.0.0.0", "::"):  # noqa: S104 - comparing, not binding
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _program(path: str) -> str:
    """The first word of a command: systemd puts no variables into it."""
    return _in_quotes(path)


def _quoted(word: str) -> str:
    """As systemd.service(5) splits a command line."""
    return _in_quotes(word.replace("$", "$$"))


def _in_quotes(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("%", "%%").replace('"', '\\"')
    return escaped if re.fullmatch(r"[\w/.,:=@+-]+", word, re.ASCII) else f'"{escaped}"'
