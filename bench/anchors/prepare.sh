#!/usr/bin/env bash
# prepare.sh FOLDER [SHAPE]: what cpu_anchors.py measures beside qserve, in FOLDER. Needs pip, a C++ compiler and 20 GB of disk.
# Run it from the repository with the environment of qserve made (make setup); what is there already is left alone.
# SHAPE [qwen3-0.6b] names the checkpoint of bench/random_checkpoint.py; its formats lie in FOLDER/SHAPE, builds in FOLDER.
set -euo pipefail
into=$(realpath -m "$1"); shape=${2:-qwen3-0.6b}
here=$(realpath "$(dirname "$0")"); root=$(realpath "$here/../.."); mkdir -p "$into/$shape"; cd "$into"

[ -e "$shape/checkpoint/model.safetensors" ] ||
  "$root/.venv/bin/python" "$root/bench/random_checkpoint.py" --shape "$shape" --out "$shape/checkpoint"

# llama.cpp: the source that llama-cpp-python brings, built for this processor.
[ -x llama/bin/cmake ] || { python3 -m venv llama; llama/bin/pip -q install cmake ninja numpy gguf; }
[ -d llama_cpp_python-0.3.36 ] || {
  llama/bin/pip download -q --no-deps --no-binary :all: llama-cpp-python==0.3.36 -d sdist; tar xzf sdist/llama_cpp_python-0.3.36.tar.gz; }
# GCC 12 takes _tile_loadconfig for a reader of 8 bytes, leaves out what else was written, and products by AMX end the process.
sed -i 's/^    _tile_loadconfig(&tc);/    __asm__ volatile("" : : "r"(\&tc) : "memory"); _tile_loadconfig(\&tc);/' \
  llama_cpp_python-0.3.36/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp
[ -x llama.cpp/bin/llama-batched-bench ] || {
  export PATH="$into/llama/bin:$PATH"
  cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B llama.cpp -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF > cmake.log 2>&1
  cmake --build llama.cpp --target llama-batched-bench llama-quantize ${JOBS:+-j "$JOBS"} >> cmake.log 2>&1; }
[ -e "$shape/model-BF16.gguf" ] || llama/bin/python "$here/write_gguf.py" "$shape/checkpoint" "$shape/model-BF16.gguf"
for type in Q8_0 Q4_0; do
  [ -e "$shape/model-$type.gguf" ] ||
    llama.cpp/bin/llama-quantize "$shape/model-BF16.gguf" "$shape/model-$type.gguf" "$type" > "$shape/quantize-$type.log" 2>&1
done

# OpenVINO: its runtime in one environment, its exporter (an older transformers; with qserve's torch, or pip would bring
# gigabytes of CUDA, and without torchvision, which would be of another build and which no text needs) in another.
[ -x openvino/bin/python ] || { python3 -m venv openvino; openvino/bin/pip -q install openvino==2026.4.1 openvino-genai openvino-tokenizers numpy; }
[ -x export/bin/optimum-cli ] || { python3 -m venv export; export/bin/pip -q install "optimum-intel[openvino]" \
  torch=="$("$root/.venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))')"; export/bin/pip -q uninstall -y torchvision; }
for kind in bf16:fp16 int8:int8 int4:int4; do
  [ -e "$shape/openvino-${kind%:*}/openvino_model.xml" ] || export/bin/optimum-cli export openvino --model "$shape/checkpoint" \
    --task text-generation-with-past --weight-format "${kind#*:}" "$shape/openvino-${kind%:*}" > "$shape/export-${kind%:*}.log" 2>&1
done
