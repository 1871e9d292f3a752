"""What workers and the gateway tell: states, phases of a start, where measured memory comes from, results."""

from __future__ import annotations

__all__ = ["SERVICE"]

_STATES = {
    "starting": "正在启动",
    "restarting": "正在重新启动",
    "draining": "正在停止，不再接受新请求",
    "failed": "启动失败",
    "idle": "未运行，有请求时启动",
    "ready": "就绪",
    "the worker ended": "模型进程已退出",
    "the worker {}": "模型进程{}",
    "the worker {} and was ended": "模型进程{}，已被终止",
    "the worker {} and was ended; where its threads were stands in {}": "模型进程{}，已被终止；各线程当时的位置见 {}",
    "{}; it is being restarted": "{}，正在重新启动",
    "it is about to be restarted; running requests finish first": "即将重新启动，先完成正在处理的请求",
    "the service is stopping; running requests finish, new ones are not taken": (
        "服务正在停止：正在处理的请求会完成，不再接受新请求"
    ),
    "a restart was asked for": "已请求重新启动",
    "the worker {} and was ended; its stacks are in {}": "模型进程{}，已被终止；其调用栈见 {}",
    "a restart was requested": "已请求重新启动",
    "reported that it is unhealthy": "报告自身状态异常",
    "the service is stopping; running requests finish, new ones are refused": (
        "服务正在停止：正在处理的请求会完成，不再接受新请求"
    ),
    "said that it is not well": "报告自身状态异常",
    "did not answer {} health checks": "没有回答 {} 次健康检查",
    "hung ({} requests waited for it {} and it did nothing)": "停止响应（{} 个请求等待了 {}，它没有任何动作）",
    "hung (it computed for {} without completing a step)": "停止响应（计算了 {} 仍未完成一步）",
    "killed by {}": "被 {} 终止",
    "{}; it is started again when there is memory for it": "{}，内存足够时会重新启动",
    "{}; new requests are refused until {} are free": "{}；空闲内存达到 {} 前不接受新请求",
    "{}; new requests are refused until they wait no more": "{}；进程不再等待内存前不接受新请求",
    "{}; {} holds {} (planned {}): it was ended to free memory": "{}；{} 占用 {}（计划 {}），已被终止以释放内存",
    "the machine has {} of {} free": "机器的 {1} 内存中剩余 {0}",
    "the cgroup {} has {} of {} free": "控制组 {0} 的 {2} 内存中剩余 {1}",
    "{}, and processes wait for memory {} of the time": "{}，进程有 {} 的时间在等待内存",
}

_PHASES = {
    "starting the process": "启动进程",
    "importing gradio": "导入 gradio",
    "importing torch and transformers": "导入 torch 与 transformers",
    "importing torch": "导入 torch",
    "trying kernels": "试运行内核",
    "loading weights": "加载权重",
    "loading weights and warming up": "加载权重并预热",
    "making the KV pool": "建立 KV 池",
    "making the KV cache": "建立 KV 缓存",
    "comparing with the 16-bit weights": "与 16 位权重比较",
    "warming up": "预热",
    "listening": "开始监听",
    "starting vLLM": "启动 vLLM",
    "starting the engine's processes": "启动引擎进程",
    "compiling": "编译",
    "compiling kernels": "编译内核",
    "capturing CUDA graphs": "捕获 CUDA 图",
    "starting the server": "启动服务器",
    "loading weights, as counted": "加载权重（引擎计时）",
    "compiling, as counted": "编译（引擎计时）",
    "profiling, as counted": "性能分析（引擎计时）",
    "capturing CUDA graphs, as counted": "捕获 CUDA 图（引擎计时）",
    "whole engine, as counted": "整个引擎（引擎计时）",
    "vLLM: {}": "vLLM：{}",
}

_SOURCES = {
    "sum of the parameters, buffers and scales in memory, shared ones once": (
        "内存中参数、缓冲区与缩放系数之和，共享的只计一次"
    ),
    "sum of the parameters and buffers in memory, shared ones once": "内存中参数与缓冲区之和，共享的只计一次",
    "size of the KV pool's tensor": "KV 池张量的大小",
    "pages of the KV pool and the tokens of a page": "KV 池的页数与每页词元数",
    "resident memory (RSS)": "常驻内存（RSS）",
    "resident memory (RSS), and the worker before them": "常驻内存（RSS），含此前的模型进程",
    "resident memory (RSS); pages of the KV pool count once they have been written": (
        "常驻内存（RSS）；KV 池的页在写入后才计入"
    ),
    "highest resident memory (VmHWM) since loading, without the weights and the KV cache: buffers of a step, compiled "
    "kernels, free heap; and the resident memory of the processes that read prompts": (
        "加载后常驻内存的峰值（VmHWM），不含权重与 KV 缓存：单步缓冲区、编译的内核、空闲堆，以及读取提示的进程的常驻内"
        "存"
    ),
    "resident memory (VmRSS) before loading, and what loading left: interpreter, libraries": (
        "加载前的常驻内存（VmRSS）与加载后残留的部分：解释器、库"
    ),
    "torch.cuda.max_memory_allocated less memory_allocated, since the worker was ready": (
        "就绪以来 torch.cuda.max_memory_allocated 减去 memory_allocated"
    ),
    "memory of the process by NVML (in a container: of the card, while no other program uses it) less "
    "torch.cuda.memory_reserved; 0 where it is not known": (
        "驱动记录的进程显存（NVML；在容器中取无其他程序时整张卡的用量）减去 torch.cuda.memory_reserved；无法得知时为 0"
    ),
    "cudaMemGetInfo before and after each capture so far; the part outside the allocator is not in runtime_bytes": (
        "每次捕获前后的 cudaMemGetInfo；分配器未持有的部分不计入运行时"
    ),
    "cudaMemGetInfo: {} on the card": "cudaMemGetInfo：{}",
    # As runs recorded before have it.
    "the driver's account of the process (NVML; in a container, of the card while nobody else is on it) less "
    "torch.cuda.memory_reserved; 0 where it can't be told": (
        "驱动记录的进程显存（NVML；在容器中取无其他程序时整张卡的用量）减去 torch.cuda.memory_reserved；无法得知时为 0"
    ),
    "no other process": "没有其他程序",
    "other processes": "有其他程序",
    "NVML, this process": "NVML，本进程",
    "NVML, per process": "NVML，按进程",
    "NVML does not say": "NVML 未提供",
    "no card": "没有显卡",
    "weights + activations + runtime": "权重 + 激活 + 运行时",
    "weights + KV pool + activations + runtime + CUDA graphs": "权重 + KV 池 + 激活 + 运行时 + CUDA 图",
    "vLLM's /metrics, vllm:cache_config_info": "vLLM 的 /metrics，vllm:cache_config_info",
    "vLLM's CPU build does not say": "vLLM 的 CPU 版本未提供",
    "vLLM does not measure it beside --kv-cache-memory-bytes": "指定 --kv-cache-memory-bytes 时 vLLM 不测量",
    "vLLM does not measure it with --kv-cache-memory-bytes": "指定 --kv-cache-memory-bytes 时 vLLM 不测量",
    "vLLM's log": "vLLM 的日志",
    "{}, × {} ranks": "{}，× {} 个进程",
    "sum of proportional set sizes of {} processes (psutil pss)": "{} 个进程的按比例内存之和（psutil pss）",
    "sum over {} processes (psutil uss)": "{} 个进程之和（psutil uss）",
    "torch's allocator": "torch 的分配器",
    "peak resident memory (VmHWM) without shared pages": "常驻内存峰值（VmHWM），不含共享页",
    "gateway": "网关",
    "large bodies": "大请求体",
    "large requests": "大请求",
    "web UI": "网页界面",
    "Ray": "Ray",
}

_TRAINING = {
    "rollout": "采样",
    "evaluation": "评估",
    "forward": "前向",
    "backward": "反向",
    "step": "更新",
    # runs/verdict.py
    "This model is worse than guessing, which gets half of the pairs right.": (
        "该模型不如随机猜测（随机猜测的正确率为一半）。"
    ),
    "{#} held-out pairs do not show that this model is better than guessing.": (
        "留出的 {} 个回答对未能证明该模型优于随机猜测。"
    ),
    "This model predicts no score better than the mean of that score does.": (
        "该模型对任何分数的预测都不优于该分数的平均值。"
    ),
    "Make sure that `chosen` is the better answer everywhere in the data.": (
        "请确认数据中的 `chosen` 都是更好的回答。"
    ),
    "It gets {#} of its training pairs right, and fails on new ones: train on more pairs.": (
        "它答对了训练数据中 {} 的回答对，但没有学会判断新的：请用更多的回答对训练。"
    ),
    "Train longer, and hold out more pairs to be sure: --eval-share or --eval-data.": (
        "请训练更久，并留出更多的回答对以便确认：--eval-share 或 --eval-data。"
    ),
    "Train longer, on more data, or with a higher --learning-rate.": (
        "请训练更久、使用更多数据，或提高 --learning-rate。"
    ),
}

_COMPARED = {
    "Stay with {}: no smaller one is as accurate on these items": "保留 {}：在这些题目上，没有更小的量化能答得同样好",
    "Stay with {}: nothing smaller answers as well on these items": "保留 {}：在这些题目上，没有更小的量化能答得同样好",
    "No recommendation: these tasks have no right or wrong answers": "没有推荐：这些任务没有对错之分",
    "compare the drift with {}": "请比较与 {} 之间的得分漂移",
    "Use {}": "使用 {}",
    "{}: {#} smaller": "{}：小 {}",
    "{}: {#} larger": "{}：大 {}",
    "{}: same size": "{}：大小相同",
    "same speed": "速度相同",
    "{#} × faster": "速度为 {} 倍",
    "{#} × slower": "慢到 1/{}",
    "same answers (0 of {#} changed)": "回答相同（{} 个中 0 个改变）",
    "{#} of {#} answers changed": "{1} 个回答中 {0} 个改变",
    "no measurable loss": "没有可测量的损失",
    "worse on {}": "{} 变差",
    "stay with {}: no smaller one is as accurate on these items": "保留 {}：在这些题目上，没有更小的量化能答得同样好",
    "stay with {}: nothing smaller answers as well on these items": "保留 {}：在这些题目上，没有更小的量化能答得同样好",
    "{} holds {} % less in weights than {} at {} × its speed, and is not measurably worse: {} of {} answers flipped, "
    "which chance alone can do": (
        "{0} 的权重比 {2} 小 {1}%，速度为其 {3} 倍，且没有可测量的变差：{5} 个回答中有 {4} 个改变，属于随机波动"
    ),
}

SERVICE: dict[str, str] = {**_STATES, **_PHASES, **_SOURCES, **_TRAINING, **_COMPARED}
