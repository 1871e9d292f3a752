# syntax=docker/dockerfile:1
# qserve with vLLM, for one machine with NVIDIA cards. docs/deployments.md tells how it is run.
#
#     docker build -t qserve .
#     docker run --gpus all --init --ipc host -p 8000:8000 -v qserve:/var/lib/qserve -e QSERVE_API_KEY=secret \
#         qserve up --model Qwen/Qwen3-8B --host 0.0.0.0
#
# Without a card: `--build-arg ACCELERATOR=cpu --build-arg BASE_IMAGE=debian:bookworm-slim`, or any other Debian or Ubuntu
# with Python 3.11 or newer. scripts/image_check.sh builds that variant and serves the demo from it.
#
# 13.0.3 is the CUDA that the pinned torch is built for (`cuda-toolkit==13.0.3` in the metadata of torch 2.13.0);
# its libraries come with the wheels. The driver of the machine has to be 580.65 or newer.
ARG CUDA_VERSION=13.0.3
# `base` holds the CUDA runtime and nothing else: what `runtime` adds (cuBLAS, NCCL, …) torch brings itself.
ARG BASE_IMAGE=nvidia/cuda:${CUDA_VERSION}-base-ubuntu24.04
FROM ${BASE_IMAGE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# What vLLM compiles for the card that it finds needs a compiler at run time: Triton g++ and Python.h, FlashInfer nvcc
# and the headers of CUDA; on a CPU, qserve's own kernels need cc, and vLLM is linked to libnuma. apt's own pins are those of the base image's release.
ARG CUDA_VERSION
ARG ACCELERATOR=cuda
# hadolint ignore=DL3008,SC2086
RUN packages="ca-certificates g++ python3 python3-dev python3-venv" \
    && release="$(echo "${CUDA_VERSION%.*}" | tr . -)" \
    && if [ "${ACCELERATOR}" = cuda ]; then \
        for name in cuda-cudart-dev cuda-cuobjdump cuda-nvcc cuda-nvrtc-dev libcublas-dev libcurand-dev; do \
            packages="${packages} ${name}-${release}"; \
        done; \
    else packages="${packages} libnuma1"; fi \
    && apt-get update \
    && apt-get install -y --no-install-recommends ${packages} \
    && rm -rf /var/lib/apt/lists/*

# One folder holds all that lives longer than a container: it is the user's home, so that every library's own
# default (~/.cache/huggingface, ~/.cache/vllm, ~/.triton, ~/.local/state/qserve) lies in it.
# The image brings a user `ubuntu` with the id 1000, which is what most people have outside.
ARG UID=1000
RUN if id ubuntu >/dev/null 2>&1; then userdel --remove ubuntu; fi \
    && useradd --uid "${UID}" --create-home --home-dir /var/lib/qserve --shell /bin/bash qserve

# The environment, 10 GB, from exactly the files that say what is in it: a change of the code leaves this layer alone.
# The README, the tables and the tasks are named by the package's metadata, so they have to be there; they come further down.
WORKDIR /app
COPY pyproject.toml constraints.txt LICENSE ./
COPY scripts/setup.sh scripts/setup_engine.py scripts/
COPY qserve/__init__.py qserve/version.py qserve/
RUN --mount=type=cache,target=/var/cache/pip \
    mkdir configs evals && touch README.md && PIP_CACHE_DIR=/var/cache/pip scripts/setup.sh "${ACCELERATOR}"

COPY README.md ./
COPY configs configs
COPY evals evals
COPY demo demo
COPY qserve qserve
# The user below may not write here, and imports are quicker with bytecode.
RUN .venv/bin/python -m compileall -q qserve

ENV PATH=/app/.venv/bin:${PATH} \
    CUDA_HOME=/usr/local/cuda \
    VLLM_NO_USAGE_STATS=1
# By number, so that Kubernetes can see that it is not root.
USER ${UID}
# Paths on the command line are seen from here.
WORKDIR /var/lib/qserve
VOLUME /var/lib/qserve
EXPOSE 8000

# The gateway answers /health, without a key, from its first second on: the process lives. Whether the models take
# requests is another question, and /ready answers it (with the key): compose.yaml asks that one.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]

# qserve is the first process and drains on SIGTERM: give it `docker stop --time 45`, or compose.yaml.
ENTRYPOINT ["qserve"]
CMD ["--help"]
