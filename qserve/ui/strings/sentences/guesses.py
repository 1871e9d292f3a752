"""What the planner says of checkpoints by others: packed in a known way, or a guess by their names."""

from __future__ import annotations

__all__ = ["GUESSES"]

_LINES = {
    "A guess by its name: {} can't be read here, taken for {} with {}; for exact figures give its folder, or let "
    "qserve plan reach the hub once: it reads config.json alone": (
        "按名称猜测：此处无法读取 {}，当作 {}（{}）；要得到准确数字，请给出它的文件夹，或让 qserve plan 访问一次 hub："
        "只读取 config.json"
    ),
    "A guess by its name: {} can't be read here, and {} packed so has weights of {#} ({}) to {#} ({})": (
        "按名称猜测：此处无法读取 {}，{} 这样打包时权重在 {}（{}）到 {}（{}）之间"
    ),
    "It changed by revision: {} can't be read here, and its revisions have weights of {#} ({}) to {#} ({})": (
        "它随修订版变化：此处无法读取 {}，各修订版的权重为 {}（{}）到 {}（{}）"
    ),
    "the larger decide what fits": "以较大者判断能否放下",
    "for exact figures give its folder, or let qserve plan reach the hub once: it reads config.json alone": (
        "要得到准确数字，请给出它的文件夹，或让 qserve plan 访问一次 hub：只读取 config.json"
    ),
    "with the smaller ones the KV cache holds {#} tokens": "按较小者，KV 缓存可容纳 {} 词元",
    "It may fit: it does if its weights are {#} a device ({}), as planned here; {#} are missing if they are {#} ({})": (
        "可能放得下：如果每个设备的权重为 {0}（{1}），就放得下，这里按此规划；如果为 {3}（{4}），则缺少 {2}"
    ),
    "{} can't be read here: planned as configs/checkpoints.toml has it packed": (
        "此处无法读取 {}：按 configs/checkpoints.toml 中的打包方式规划"
    ),
    "{} can't be read: planned as {} in 16 bit, which its name says it is made from": (
        "无法读取 {}：按 16 位的 {} 规划，名称表明它由该模型制成"
    ),
    "{} can't be read: planned as {} in 16 bit, which its name says it is made from, as the packing that its name "
    "tells ({}) is not known": (
        "无法读取 {}：按 16 位的 {} 规划，名称表明它由该模型制成，而名称所示的打包方式（{}）未知"
    ),
    "--quant {}: {} is packed by its name ({}), and {} packs 16-bit weights alone while loading; leave --quant out, or "
    "name the 16-bit model": (
        "--quant {}：{} 按名称已打包（{}），{} 加载时只打包 16 位权重；请去掉 --quant，或写出 16 位模型"
    ),
    "others have packed it: {}": "他人打包的检查点：{}",
    "Asleep at level 1 the weights lie in RAM, {#} that the plan does not count": (
        "在 1 级睡眠时权重位于内存中，占 {}，规划未计入"
    ),
}
_LAYOUTS = {
    "every linear layer packed": "所有线性层都打包",
    "every linear layer packed, in groups of {}": "所有线性层都打包，每组 {} 个",
    "the inputs of linear attention in 16 bit": "线性注意力的输入投影保持 16 位",
    "the inputs of linear attention in 16 bit, in groups of {}": "线性注意力的输入投影保持 16 位，每组 {} 个",
    "linear attention in 16 bit": "线性注意力保持 16 位",
    "linear attention in 16 bit, in groups of {}": "线性注意力保持 16 位，每组 {} 个",
    "attention and linear attention in 16 bit": "注意力和线性注意力保持 16 位",
    "attention and linear attention in 16 bit, in groups of {}": "注意力和线性注意力保持 16 位，每组 {} 个",
    "attention and the outputs of linear attention in 16 bit": "注意力和线性注意力的输出投影保持 16 位",
    "experts alone packed": "只打包专家层",
    "experts alone packed, in groups of {}": "只打包专家层，每组 {} 个",
    "attention, linear attention and the head in fp8": "注意力、线性注意力和输出层为 fp8",
}
GUESSES: dict[str, str] = {**_LINES, **_LAYOUTS}
