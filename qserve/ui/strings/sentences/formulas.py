"""The planner's terms of memory and how each is computed."""

from __future__ import annotations

__all__ = ["FORMULAS"]

FORMULAS: dict[str, str] = {
    "weights": "权重",
    "KV cache": "KV 缓存",
    "activations": "激活",
    "CUDA graphs": "CUDA 图",
    "runtime": "运行时",
    "non-torch": "非 torch",
    "held back": "预留",
    "safety margin": "安全余量",
    "CUDA context": "CUDA 上下文",
    "host processes": "主机进程",
    "kept free": "不使用",
    "kept buffers": "保留的缓冲区",
    "compiled kernels": "编译的内核",
    "reading prompts": "读取提示",
    "penalties": "惩罚计数",
    "sampled step": "采样步",
    "pinned segment": "固定的显存段",
    "LoRA adapters": "LoRA 适配器",
    "repacking": "重新打包",
    "Python": "Python",
    "none": "无",
    "{#} linear layers": "{} 线性层",
    "{#} embeddings": "{} 嵌入",
    "{#} lm_head": "{} lm_head",
    "{#} experts": "{} 专家层",
    "experts {#}": "专家层 {}",
    "{#} norms and the rest": "{} 归一化层与其余",
    "{#} gates of residual streams": "{} 残差流的门控",
    "{#} tables of n-grams": "{} n-gram 表",
    "{#} tokens that the index of each layer chooses in a step": "{} 每层的索引在一步中选出的词元",
    "{#} streams of a step for the MTP head": "{} 供 MTP 头使用的一步残差流",
    "{#} of rows from tables in RAM": "{} 取自内存中的表的行",
    "with {#} residual streams": "含 {} 个残差流",
    "{#} rotary table": "{} 旋转位置表",
    "{#} deepstack buffers of a step": "{} 每步的 deepstack 缓冲区",
    "{#} copy of the head in int8 (few sequences read it first)": "{} int8 的输出头副本（序列少时先读它）",
    "linear layers quantized to {} while loading": "线性层在加载时量化为 {}",
    "over {#} ranks": "分在 {} 个进程上",
    "{} − weights − activations − non-torch": "{} − 权重 − 激活 − 非 torch",
    "{} − weights − activations − non-torch − graphs": "{} − 权重 − 激活 − 非 torch − CUDA 图",
    "as asked by --kv-cache-memory-bytes": "由 --kv-cache-memory-bytes 指定",
    "a third of what {} leaves in whole GiB, or one sequence of full length": (
        "{} 所余的三分之一（取整 GiB），或一个满长度序列"
    ),
    "2 × {#} layers × {#} KV heads × {#} × {#} B = {#} a token": "2 × {} 层 × {} 个 KV 头 × {} × {} B = 每词元 {}",
    "2 × {#} layers × {#} KV heads × {#} × {#} B + {#} × {#} B of index keys = {#} a token": (
        "2 × {} 层 × {} 个 KV 头 × {} × {} B + {} × {} B 索引键 = 每词元 {}"
    ),
    "2 × {#} layers × {#} KV heads × {#} × {#} B per token": "每词元 2 × {} 层 × {} 个 KV 头 × {} × {} B",
    "and {#} B of state per sequence": "每序列另有 {} B 状态",
    "a block of {#} tokens is {#}": "{} 词元的块为 {}",
    "and a sequence pins {#} more for its linear layers": "每序列另占 {} 块用于线性注意力层",
    "and a sequence pins {#} more for its linear layers and index": "每序列另占 {} 块用于线性注意力层与索引",
    "and a sequence pins {#} more for its linear layers and tables of n-grams": (
        "每序列另占 {} 块用于线性注意力层与 n-gram 表"
    ),
    "and a sequence pins {#} more for its linear layers and tables of n-grams and index": (
        "每序列另占 {} 块用于线性注意力层、n-gram 表与索引"
    ),
    "the largest of: {}": "取最大：{}",
    "sampler {}": "采样器 {}",
    "greedy": "贪心",
    "{#} kept for top-k": "{} 为 top-k 保留",
    "widest layer {}": "最宽的层 {}",
    "{#} unpacked from 4 bit": "{} 由 4 位展开",
    "compiler, first start only, {}": "编译器（仅首次启动）{}",
    "audio encoder on {#} × 30 s {#}": "音频编码器处理 {} × 30 秒的音频 {}",
    "vision encoder on {#} tokens of images or video {#}": "视觉编码器处理 {} 词元的图片或视频 {}",
    "cuBLAS' workspace {#}": "cuBLAS 工作区 {}",
    "{} outlives it: no part of it, and off where the peak comes first": "{} 在其后仍保留：不计入，峰值在前时扣除",
    "two buffers of the fused experts": "融合专家层的两个缓冲区",
    "prompt logprobs {}": "提示对数概率 {}",
    "adapters of routed tokens {}": "路由词元的适配器 {}",
    "first steps {}": "最初几步 {}",
    "{#} more graphs": "{} 个图",
    "{#} more graphs × {}": "另外 {} 个图 × {}",
    "{#} graphs × {}": "{} 个图 × {}",
    "{#} layers × {#}": "{} 层 × {}",
    "{#} of experts unpacked from 4 bit": "{} 由 4 位展开的专家层",
    "({}) × ({}): each is captured without and with adapters (vllm#25914)": (
        "({}) × ({})：每个图分别在无适配器与有适配器时捕获（vllm#25914）"
    ),
    "({}) × ({}): each is captured without and with adapters (vllm#25914) + {}": (
        "({}) × ({})：每个图分别在无适配器与有适配器时捕获（vllm#25914）+ {}"
    ),
    "({}) × {} with adapters": "({}) × {}（带适配器）",
    "({}) × {} with adapters + {}": "({}) × {}（带适配器）+ {}",
    "{#} (FlashAttention 3's {#} parts of {#})": "{}（FlashAttention 3 的 {} 份，每份 {} 个词元）",
    "{#} (FlashInfer's workspace)": "{}（FlashInfer 的工作区）",
    "{}, and {#} of its all-reduces in each": "{}，每个图另有 {} 用于其 all-reduce",
    "{}, and {#} of its all-reduces in each + {}": "{}，每个图另有 {} 用于其 all-reduce + {}",
    "{}, and {#} of NCCL's all-reduces in each": "{}，每个图另有 {} 用于 NCCL 的 all-reduce",
    "{}, and {#} of NCCL's all-reduces in each + {}": "{}，每个图另有 {} 用于 NCCL 的 all-reduce + {}",
    "none are captured": "不捕获",
    "driver libraries": "驱动库",
    "cuBLAS": "cuBLAS",
    "NCCL over {#} rank(s)": "{} 个进程的 NCCL",
    "counts for penalties {}": "惩罚计数 {}",
    "less the profiled activations": "减去性能分析时的激活",
    "it does not fit beside the rest": "与其余部分放不下",
    "held but in no account of this release": "占用但此版本未计入",
    "outside vLLM's own account, but on the card": "不在 vLLM 的统计之内，但在显卡上",
    "{} up to {#}": "{}最多 {}",
    "{} more than expected: {}": "{}（超出预期）：{}",
    "each is uncertain by more than {} of the cache, or by more than {#}": "各项的不确定度超过缓存的 {}，或超过 {}",
    "--gpu-memory-utilization takes it": "--gpu-memory-utilization 可以取用",
    "nothing is held back, since it would not fit then": "不预留，否则就放不下",
    "the part of the device that the engine leaves to others": "引擎留给其他程序的部分",
    "the part of the device that the engine leaves to others: gpu_memory_utilization is {}": (
        "引擎留给其他程序的部分：gpu_memory_utilization 为 {}"
    ),
    "a KV cache of {#} tokens": "{} 词元的 KV 缓存",
    "two buffers of the fused experts for {#} tokens": "{} 词元的融合专家层的两个缓冲区",
    "rows of top-k {#}": "top-k 的行 {}",
    "kept after the profile run": "性能分析后保留",
    "the embedding's copy, first start only: cuBLAS put its workspace in it, and a later start has it free": (
        "嵌入的副本（仅首次启动）：cuBLAS 把工作区放在其中，之后的启动不再占用"
    ),
    "{#} adapters × rank {#} × (inputs + outputs) of every part of: {}": (
        "{} 个适配器 × 秩 {} ×（输入 + 输出），各部分：{}"
    ),
    "what the layer does not split over ranks is whole on each": "层中不分到各进程的部分每个进程都有一份",
    "API server, and the engine with its worker, before the model": "加载模型前的 API 服务器与引擎进程",
    "API server and engine core before the model, in the RAM that this card shares": (
        "加载模型前的 API 服务器与引擎核心，位于与显卡共用的内存中"
    ),
    "API server, engine core and worker before the model": "加载模型前的 API 服务器、引擎核心与工作进程",
    "{#} packed × {} B (embedding, lm_head), and a hole of one block a layer in the C library's heap": (
        "{} 个打包 × {} B（嵌入、lm_head），以及 C 库堆中每层一个块的空隙"
    ),
    "2·T·(3I + 4H) with T={#}, I={#}, H={#}, and the larger of logits of {#} sequences × {#} × 6 B and of a piece of a "
    "scored prompt, {}": (
        "2·T·(3I + 4H)，T={}、I={}、H={}，以及 {} 个序列的 logits × {} × 6 B 与一段评分提示中的较大者 {}"
    ),
    "{#} of a quantized weight in {}": "{} 的 {} 量化权重",
    "{#} of rows in fp8": "{} 的 fp8 行",
    "{#} of rows between experts' products": "{} 的行，位于各专家的乘积之间",
    "with {#} of buffers for layers in RAM, which come one ahead": "含 {} 缓冲区，用于提前一层读入内存中的层",
    "{#} shapes of matrices × {#} row counts, {#} each": "{} 种矩阵形状 × {} 种行数，每个 {}",
    "{#} kernels of {#}: no more are kept": "{} 个 {} 的内核：不保留更多",
    "{#} processes, for small and large bodies, of {} words": "{} 个进程，用于小与大的请求体，每个 {} 个词",
    "{#} for one that tries structures": "{} 用于试编译结构的进程",
    "the Python process and its libraries": "Python 进程及其库",
    "CUDA's among them: torch's build for cards is installed": "含 CUDA 的库：安装的是 torch 的显卡版本",
    "what the prompt's peak exceeds the answer's cache by, and cuBLAS workspace": (
        "提示的峰值超出回答缓存的部分，以及 cuBLAS 工作区"
    ),
    "no cuBLAS on a CPU": "CPU 上没有 cuBLAS",
}
