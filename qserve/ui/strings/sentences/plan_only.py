"""Of cards that are planned for only: what their plans say, and why nothing is served there."""

from __future__ import annotations

__all__ = ["CARDS_OF_OTHERS"]

CARDS_OF_OTHERS: dict[str, str] = {
    "Plan only: {}": "仅供规划：{}",
    "no engine of qserve runs on {}, where {} would serve the model": (
        "qserve 没有能在 {} 上运行的引擎，那里可用 {} 提供服务"
    ),
    "{}; `qserve plan` says what fits there, and --gpu none serves on the CPU": (
        "{}；`qserve plan` 说明那里放得下什么，--gpu none 则在 CPU 上提供服务"
    ),
    "{}; chat models are planned for it, without --engine, and --gpu none takes the CPU": (
        "{}；不加 --engine 可为它规划对话模型，--gpu none 则使用 CPU"
    ),
    "vLLM's XPU build or llama.cpp": "vLLM 的 XPU 版或 llama.cpp",
    "MLX (mlx_lm.server) or llama.cpp (llama-server)": "MLX（mlx_lm.server）或 llama.cpp（llama-server）",
    "Rough: bytes of weights and KV cache are counted, what an engine holds beside them is a guess, and the speed is "
    "what {} to {} % of the memory's bandwidth would give; nothing was measured here": (
        "粗略：权重与 KV 缓存的字节是算出的，引擎此外占用的是估计，速度是内存带宽的 {} 到 {}% 所能达到的；此处未经实测"
    ),
    "Memory is shared with the CPU: macOS lets the GPU take {#}; sysctl's iogpu.wired_limit_mb raises that, and "
    "--gpu like=NAME,memory=SIZE plans it": (
        "内存与 CPU 共用：macOS 允许 GPU 使用 {}；sysctl 的 iogpu.wired_limit_mb 可提高，"
        "--gpu like=NAME,memory=SIZE 按此规划"
    ),
    "What the cards exchange takes time that is not counted": "显卡之间交换数据的时间未计入",
    "{} has no bf16, so it is computed in fp16": "{} 不支持 bf16，因此以 fp16 计算",
    "made while loading, {}": "加载时转换，{}",
    "{} bit in groups of 64, converted for {}": "{} 位，每组 64 个，转换后供 {} 使用",
    "{#} B a token": "每词元 {} B",
    "and {#} B of states": "以及 {} B 的状态",
    "2·T·(3I + 4H) with T={}, H={}, and logits of {} sequences × {} × 4 B": (
        "2·T·(3I + 4H)，T={}，H={}，以及 {} 个序列 × {} × 4 B 的 logits"
    ),
    "the driver's context, compiled kernels and buffers of the engine there": (
        "驱动的上下文、编译的内核与那里引擎的缓冲区"
    ),
    "Takes {} of {} cards: on {}, requests would end at {} tokens": (
        "使用 {1} 张显卡中的 {0} 张：用 {2} 张时请求至多 {3} 词元"
    ),
    "Takes {} of {} cards: on {}, {} requests of {} tokens would run at once": (
        "使用 {1} 张显卡中的 {0} 张：用 {2} 张时可同时运行 {3} 个 {4} 词元的请求"
    ),
    "{} is not planned on {}, nor is a checkpoint of it known; planned are {}": (
        "{} 不能在 {} 上规划，也没有已知的相应检查点；可规划的有：{}"
    ),
    "{} is stored as {}, and what serves there has no kernels for that for {}; name the 16-bit model": (
        "{} 以 {} 存储，那里的引擎没有用于 {} 的相应内核；请指定 16 位模型"
    ),
    "{}: no engine that reads it runs on these cards, which are planned for only; leave it out": (
        "{}：这些显卡仅供规划，没有读取它的引擎；请去掉"
    ),
    "--gpu {}: the GPU of this chip takes its memory from the machine's RAM, of which it has {} GB; name it: --gpu {}. "
    "Another limit is described: --gpu {}": (
        "--gpu {}：此芯片的 GPU 使用本机内存，内存有 {} GB；请写明 --gpu {}；其他上限可这样描述：--gpu {}"
    ),
    "--gpu {}: {} has no compute capability; leave cc= out": "--gpu {}：{} 没有计算能力版本；请去掉 cc=",
    "{} × {}: such a machine has one; leave the count out": "{} × {}：这样的机器只有一个；请去掉数量",
    "{} scores, and on {} only models that write text are planned": "{} 是评分模型，在 {} 上只规划生成文本的模型",
    "--dtype {}: {} has no bf16; take float16, or leave it out": "--dtype {}：{} 不支持 bf16；请用 float16，或去掉",
    "--max-model-len {}: {} has {} positions; give that or less": (
        "--max-model-len {}：{} 有 {} 个位置；请给出不超过它的值"
    ),
    "--max-model-len {}: {} has {} positions; give that or less, or stretch them by YaRN: --context {}": (
        "--max-model-len {}：{} 有 {} 个位置；请给出不超过它的值，或用 YaRN 扩展：--context {}"
    ),
    "--dtype {}: on {} models are planned in 16 bit only; take {}, or leave it out": (
        "--dtype {}：在 {} 上只按 16 位规划模型；请用 {}，或去掉"
    ),
    "float16 or bfloat16": "float16 或 bfloat16",
    "{} stands beside cards of another maker, which share no model with it": (
        "{} 旁边有其他厂商的显卡，它们不能共用一个模型"
    ),
    "training is not planned on {}: what a trainer holds there is not known, and `qserve train` does not run there; "
    "name an NVIDIA or AMD card, or --gpu none for the CPU": (
        "不在 {} 上规划训练：训练程序在那里的占用未知，`qserve train` 也不能在那里运行；请指定 NVIDIA 或 AMD 显卡，"
        "或用 --gpu none 使用 CPU"
    ),
    "{} names {}, which no table of qserve has: it is not counted; --gpu {} plans for one like it": (
        "{} 报告了 {}，qserve 的表中没有它：不计入；--gpu {} 按相近的显卡规划"
    ),
    "--gpu {}: name= is empty; write for example name=mine, or leave it out": (
        "--gpu {}：name= 为空；请写成例如 name=mine，或去掉"
    ),
    "{} names {}, and the installed torch has no ROCm: it is not counted; --gpu plans for it by its name": (
        "{} 报告了 {}，而安装的 torch 没有 ROCm：不计入；可用 --gpu 按名称为它规划"
    ),
    "{} is here and does not answer ({}): none of its cards is counted": ("{} 存在但没有响应（{}）：它的显卡都不计入"),
}
