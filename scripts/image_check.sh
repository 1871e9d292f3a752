#!/usr/bin/env bash
# Builds the CPU variant of the Dockerfile and serves the demo from it, as people run it: an unprivileged user, a root
# file system that cannot be written, no network.                                        sudo scripts/image_check.sh
#
# It needs no image registry and no Docker engine: debootstrap makes the base, buildah runs the Dockerfile's steps, podman
# runs the container (apt-get install buildah catatonit debootstrap podman runc). Ten minutes and 15 GB of disk. The image
# stays as localhost/qserve-cpu; --clean removes it, its base and its layers. MIRROR=… names another mirror of Debian.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BASE=localhost/qserve-base:bookworm
IMAGE=localhost/qserve-cpu
NAME=qserve-image-check
HOME_VOLUME=$NAME-home
READY="from urllib.request import Request, urlopen
urlopen(Request('http://127.0.0.1:8000/ready', headers={'authorization': 'Bearer check'}), timeout=4)"

say() { printf 'image: %s\n' "$*"; }
fail() { printf 'image: %s\n' "$@" >&2; exit 1; }

need() {
    [ "$(id -u)" = 0 ] || fail "debootstrap and podman need root here: sudo $0"
    local lacking=()
    for tool in buildah catatonit debootstrap podman runc; do command -v "$tool" >/dev/null || lacking+=("$tool"); done
    [ ${#lacking[@]} = 0 ] || fail "not installed: ${lacking[*]}" "Debian, Ubuntu: apt-get install ${lacking[*]}"
}

make_base() {
    if podman image exists "$BASE"; then return; fi
    local root
    root=$(mktemp -d)
    say "making a base of Debian bookworm"
    debootstrap --variant=minbase bookworm "$root" ${MIRROR:+"$MIRROR"} >"$root.log" 2>&1 || fail "debootstrap failed; its words: $root.log"
    tar --directory "$root" --create . | podman import --quiet - "$BASE" >/dev/null
    rm -rf "$root" "$root.log"
}

# The build asks the same package index as this machine: pip's settings, the folders that they name and the
# certificates of this machine are mounted while it runs, and are no part of the image.
own_settings() {
    local path
    for path in /etc/pip.conf ~/.config/pip/pip.conf /usr/local/share/ca-certificates \
        $(python3 -m pip config list 2>/dev/null | grep -oE "(['[:space:]]|file://)/[^/'[:space:]][^'[:space:]]*" \
            | sed -E "s#^(file://|['[:space:]])##; s#/simple\$##"); do
        if [ -e "$path" ] && [[ $path != /etc/ssl/* ]]; then printf -- '--volume=%s:%s:ro\n' "$path" "$path"; fi
    done | sort -u
}

build() {
    local settings
    mapfile -t settings < <(own_settings)
    say "building $IMAGE"
    buildah build --quiet --format docker --layers --isolation chroot --network host "${settings[@]}" \
        --build-arg ACCELERATOR=cpu --build-arg BASE_IMAGE="$BASE" --tag "$IMAGE" . >/dev/null
    say "built in $SECONDS s; $(podman image inspect --format '{{.Size}}' "$IMAGE" | numfmt --to=si --suffix=B), of which"
    podman history --no-trunc --format '{{.Size}};{{.CreatedBy}}' "$IMAGE" | awk -F';' '
        /setup.sh/ { print "image:   " $1 " what make setup installs" }
        /apt-get/ { print "image:   " $1 " packages of the system" }
        END { print "image:   " $1 " base" }'
}

# podman asks for more files and processes than a machine may allow itself; its timer for health checks needs systemd.
run() {
    podman --runtime runc run --read-only --tmpfs /tmp --network none --cap-drop all --security-opt no-new-privileges \
        --no-healthcheck --ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" --ulimit nproc=8192:8192 "$@"
}

inside() { podman exec "$NAME" "$@"; }

remove_container() { podman rm --force --volumes "$NAME" >/dev/null 2>&1 || true; podman volume rm --force "$HOME_VOLUME" >/dev/null 2>&1 || true; }

# The image's own, as Docker calls it.
health_check() {
    local words
    mapfile -t words < <(podman image inspect --format '{{json .HealthCheck.Test}}' "$IMAGE" \
        | python3 -c 'import json, sys; print(*json.load(sys.stdin)[1:], sep="\n")')
    inside "${words[@]}" >/dev/null
}

# serve ENGINE ARGUMENTS…: the container starts, takes a request of each kind, and stops after answering it.
serve() {
    local engine=$1 begun=$SECONDS
    shift
    remove_container
    run --detach --name "$NAME" --init --shm-size 2g --env QSERVE_API_KEY=check --volume "$HOME_VOLUME:/var/lib/qserve" "$IMAGE" \
        up --host 0.0.0.0 --engine "$engine" "$@" >/dev/null
    until inside python3 -c "$READY" 2>/dev/null; do
        [ "$(podman inspect --format '{{.State.Running}}' "$NAME")" = true ] || { podman logs "$NAME" >&2; fail "$engine: the container ended"; }
        [ $((SECONDS - begun)) -lt 1800 ] || { podman logs "$NAME" >&2; fail "$engine: not ready after 1800 s"; }
        sleep 1
    done
    [ "$(inside id -u)" = 1000 ] || fail "the container runs as user $(inside id -u), expected 1000"
    if inside touch /app/written 2>/dev/null; then fail "the root file system can be written"; fi
    health_check || fail "$engine: the health check of the image fails"
    podman exec --interactive "$NAME" python3 - "$@" <scripts/image_check.py
    podman stop --time 45 "$NAME" >/dev/null
    local status
    status=$(podman inspect --format '{{.State.ExitCode}}' "$NAME")
    [ "$status" = 0 ] || { podman logs --tail 20 "$NAME" >&2; fail "$engine: ended with status $status"; }
    say "$engine: ready, answered and stopped in $((SECONDS - begun)) s"
    remove_container
}

need
case ${1:-} in
    "") ;;
    --clean) remove_container; buildah rmi --force "$IMAGE" "$BASE" >/dev/null 2>&1 || true; buildah rmi --prune >/dev/null; exit ;;
    *) fail "unknown argument: $1 (allowed: --clean)" ;;
esac
trap remove_container EXIT
make_base
build
run --rm "$IMAGE" plan --config qwen3-32b-1x24gb >/dev/null 2>&1 \
    || fail "qserve plan --config qwen3-32b-1x24gb fails in the image"
serve transformers --model demo --reward demo
serve vllm --model demo
say "the demo answers from the image on both engines, as user 1000, on a read-only root, without a network"
