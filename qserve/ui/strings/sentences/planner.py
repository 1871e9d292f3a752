"""What the planner says of a plan: why it chose, what it noticed, what would fit."""

from __future__ import annotations

__all__ = ["PLANNER"]

_REASONS = {
    "as trained: nothing is lost": "与训练时相同，没有损失",
    "the checkpoint is stored as {}": "检查点以 {} 存储",
    "the checkpoint is stored as {}, parts of it as {}": "检查点以 {} 存储，部分为 {}",
    "{} was quantized with calibration data": "{} 用校准数据量化而成",
    "{} quantizes it while loading": "{} 在加载时量化",
    "no {} checkpoint of {} is known, so {} quantizes it while loading": (
        "没有已知的 {1} 的 {0} 检查点，因此由 {2} 在加载时量化"
    ),
    "one scale per block of 128 × 128": "每个 128 × 128 块一个缩放系数",
    "one scale per row": "每行一个缩放系数",
    "one scale per tensor": "每个张量一个缩放系数",
    "one scale per 32 weights": "每 32 个权重一个缩放系数",
    "the experts only, everything else stays in 16 bit": "只量化专家层，其余保持 16 位",
    "the card computes in fp8": "显卡支持 fp8 计算",
    "the card has no fp8 arithmetic: it saves memory, not time": "显卡不支持 fp8 计算：只省显存，不省时间",
    "{} missing on {}: {}": "{1} 缺少 {0}：{2}",
    "the device map puts {}; move layers elsewhere, or leave --device-map out": (
        "设备映射使{}；请把部分层移到别处，或去掉 --device-map"
    ),
    "{} too much on {}": "{1} 超出 {0}",
    "--kv-cache-memory-bytes {} is too little: {} needs {}": "--kv-cache-memory-bytes {} 太小：{}需要 {}",
    "a KV cache of {#} tokens": "{} 词元的 KV 缓存",
    "a KV cache of {#} tokens {#}": "{} 词元的 KV 缓存 {}",
    "states of {#} sequences (max_num_seqs)": "{} 个序列的状态（max_num_seqs）",
    "states of {#} sequences (max_num_seqs) {#}": "{} 个序列的状态（max_num_seqs） {}",
    "weights {#}": "权重 {}",
    "activations {#}": "激活 {}",
    "{#} missing of the RAM: tables of n-grams {}, and {} available": "内存缺少 {}：n-gram 表 {}，可用 {}",
    "other processes {#}": "其他进程 {}",
}

_NOTES = {
    "{} is not on this machine: planned from its bundled dimensions": "{} 不在本机上：按内置的模型尺寸规划",
    "{} is not on this machine: planned from its bundled dimensions, which pin no revision": (
        "{} 不在本机上：按内置的模型尺寸规划，未固定版本"
    ),
    "{} is loaded at its main revision; {} is one of {}. To pin the files that are loaded, name {} itself with its "
    "--revision": "{} 按其 main 版本加载；{} 是 {} 的版本。要固定所加载的文件，请直接指定 {} 并给出它的 --revision",
    "Chose {}: {} needs {#} more": "选择 {}：{} 还需要 {}",
    "Chose {}: {} needs {#} more, {}": "选择 {}：{} 还需要 {}，{}",
    "Chose {} over {}, which fits too: answers take {} % of the time; --quant {} keeps 16 bit": (
        "选择 {0}（{1} 也放得下）：回答用时为其 {2}%；--quant {3} 保持 16 位"
    ),
    "YaRN stretches {#} positions to {#}, for short texts as well, which it may cost quality: leave it out where no "
    "text needs it": "YaRN 将 {} 个位置扩展到 {} 个，对短文本也生效，可能降低其质量：没有长文本需要时请勿使用",
    "max_model_len is {} of the model's {}: no more fits": "max_model_len 为 {}（模型支持 {}）：放不下更多",
    "max_model_len is {} of the model's {}: --max-model-len sets more": (
        "max_model_len 为 {}（模型支持 {}）：可用 --max-model-len 提高"
    ),
    "{} has its memory in the machine's RAM: {} of it stay free for the system and the service's other processes": (
        "{} 与系统共用内存：其中 {} 留给系统和服务的其他进程"
    ),
    "{} kept as a safety margin": "预留 {} 作为安全余量",
    "No room for a safety margin; a lower --max-model-len or --max-num-seqs makes some": (
        "没有空间留出安全余量；降低 --max-model-len 或 --max-num-seqs 可以腾出"
    ),
    "No room for a step that samples {} sequences at once: it takes {} beside vLLM's share of the card; a lower "
    "--max-num-seqs or --gpu-memory-utilization makes some": (
        "没有空间容纳一步同时采样 {} 个序列：它在 vLLM 的显存份额之外占用 {}；降低 --max-num-seqs 或 "
        "--gpu-memory-utilization 可以腾出"
    ),
    "--max-num-seqs is {} and not {}, so that a step that samples them all has room beside vLLM's share of the card; a "
    "lower --gpu-memory-utilization makes more": (
        "--max-num-seqs 为 {} 而不是 {}，使一步采样全部序列时在 vLLM 的显存份额之外有空间；降低 "
        "--gpu-memory-utilization 可以腾出更多"
    ),
    "{} of {} cards is enough; the others stay free": "{1} 张显卡中 {0} 张就够，其余空闲",
    "{} of {} cards are enough; the others stay free": "{1} 张显卡中 {0} 张就够，其余空闲",
    "Takes {} of {} cards: on {}, {}; --tensor-parallel-size {} takes fewer": (
        "使用 {1} 张显卡中的 {0} 张：若用 {2} 张，{3}；--tensor-parallel-size {4} 用得更少"
    ),
    "requests would end at {} tokens": "请求最长只有 {} 词元",
    "{} requests of {} tokens would run at once": "同时只能处理 {} 个 {} 词元的请求",
    "{} KV heads on {} ranks: each is kept {} times, so the cache does not shrink": (
        "{} 个 KV 头分在 {} 个进程上：每个保存 {} 份，缓存不会变小"
    ),
    "bitsandbytes needs the package vllm-bnb-plugin from vLLM 0.28 on": (
        "从 vLLM 0.28 起，bitsandbytes 需要安装 vllm-bnb-plugin"
    ),
    "vLLM does not run a pre-quantized bitsandbytes checkpoint on several cards": (
        "vLLM 不能在多张显卡上运行已量化的 bitsandbytes 检查点"
    ),
    "vLLM runs 8-bit bitsandbytes without CUDA graphs": "vLLM 运行 8 位 bitsandbytes 时不用 CUDA 图",
    "Hybrid model: every sequence needs cache blocks for its state; --max-num-seqs is set so that they fit": (
        "混合模型：每个序列的状态都需要缓存块；--max-num-seqs 已按放得下设定"
    ),
    "The encoders of images and audio are loaded; --language-model-only leaves them out": (
        "已加载图片与音频编码器；--language-model-only 可不加载"
    ),
    "The audio encoder is loaded; --language-model-only leaves it out": (
        "已加载音频编码器；--language-model-only 可不加载"
    ),
    "The vision encoder is loaded; --language-model-only leaves it out": (
        "已加载视觉编码器；--language-model-only 可不加载"
    ),
    "vLLM encodes a video at start-up, the longer the larger max_model_len is; --limit-mm-per-prompt '{\"video\": 0}' "
    "leaves it out": (
        "vLLM 启动时会编码一段视频，max_model_len 越大视频越长；--limit-mm-per-prompt '{\"video\": 0}' 可省去"
    ),
    "This family needs vLLM 0.17 or later": "该系列需要 vLLM 0.17 或更新版本",
    "vLLM {} is newer than this planner, which counts it as {}": "vLLM {} 比本规划器新，按 {} 计算",
    "vLLM reads prompts several times more slowly in bf16 on a CPU without AVX-512; --engine transformers is fast "
    "there, and so is --dtype float32, with twice the memory": (
        "在没有 AVX-512 的 CPU 上，vLLM 以 bf16 读取提示要慢几倍；--engine transformers 在此较快，--dtype float32 也快"
        "，但内存加倍"
    ),
    "{} of the weights are tables of n-grams in pinned RAM, which the machine needs beside its cards; --engram-config "
    "{} puts them on the cards": (
        "权重中的 {} 是放在锁页内存中的 n-gram 表，机器除显卡外还需要这些内存；--engram-config {} 把它们放到显卡上"
    ),
    "The checkpoint asks for a KV cache in {}": "检查点要求 KV 缓存使用 {}",
    "The checkpoint asks for a KV cache in {}; --kv-cache-dtype {} overrides it": (
        "检查点要求 KV 缓存使用 {}，由 --kv-cache-dtype {} 覆盖"
    ),
    "`vllm serve` needs config.json's rope_theta in --hf-overrides too, since its rope replaces the whole one; `qserve "
    "up` adds it": (
        "`vllm serve` 的 --hf-overrides 中还需写入 config.json 的 rope_theta，因为它会替换整个 rope；`qserve up` 会自动"
        "加上"
    ),
    "A calibrated {} checkpoint was not taken: on the transformers engine it needs {}": (
        "没有采用校准过的 {} 检查点：在 transformers 引擎上需要 {}"
    ),
    "{} on the transformers engine needs more than the set-up installs: {}": "transformers 引擎运行 {} 还需要安装：{}",
    "No CUDA graphs: {} for them do not fit; a lower --max-num-seqs or --max-model-len makes room": (
        "不用 CUDA 图：它们需要的 {} 放不下；降低 --max-num-seqs 或 --max-model-len 可以腾出空间"
    ),
    "Experts, most of this model, stay in 16 bit: bitsandbytes does not quantize them in transformers 5 "
    "(bitsandbytes#1849)": (
        "占模型大部分的专家层保持 16 位：在 transformers 5 中 bitsandbytes 不量化它们（bitsandbytes#1849）"
    ),
    "--cpu-activations int8 changes nothing here: it needs weights of 4 or 8 bits (not fp8) in bf16 and a CPU with "
    "AVX2 or AVX512-VNNI; this is {} on {}": (
        "--cpu-activations int8 在此不起作用：它需要 bf16 计算的 4 位或 8 位权重（fp8 除外）和支持 AVX2 或 AVX512-VNNI "
        "的 CPU；这里是 {1} 上的 {0}"
    ),
    "{} has compute capability {}, and vLLM's and torch's usual wheels start at {}; torch's build for CUDA 12.6 (index "
    "cu126) supports it": (
        "{} 的计算能力为 {}，vLLM 与 torch 的常规安装包从 {} 起支持；torch 的 CUDA 12.6 版本（索引 cu126）支持它"
    ),
    "--enable-lora keeps {} a rank for {} adapters of rank {}, loaded or not; a lower --max-lora-rank saves most": (
        "--enable-lora 在每个进程上为 {1} 个秩为 {2} 的适配器保留 {0}，不论是否加载；降低 --max-lora-rank 最省"
    ),
    "{} of that are for embed_tokens and lm_head, which few adapters train; --lora-target-modules with the other names "
    "leaves them out": (
        "其中 {} 用于 embed_tokens 与 lm_head，很少有适配器训练它们；用 --lora-target-modules 列出其他模块即可省去"
    ),
    "corrected by what run {} measured: {} (--no-learn turns this off)": (
        "依据运行 {} 的实测修正：{}（--no-learn 不修正）"
    ),
    "weights +{#}": "权重 +{}",
    "weights -{#}": "权重 -{}",
    "activations +{#}": "激活 +{}",
    "activations -{#}": "激活 -{}",
    "runtime +{#}": "运行时 +{}",
    "runtime -{#}": "运行时 -{}",
    "CUDA graphs +{#}": "CUDA 图 +{}",
    "CUDA graphs -{#}": "CUDA 图 -{}",
    "KV cache tokens +{#}": "KV 缓存词元 +{}",
    "KV cache tokens -{#}": "KV 缓存词元 -{}",
    "cuda graphs": "CUDA 图",
    "kv cache tokens": "KV 缓存词元",
    "{} replicas, each a server with this plan": "{} 个副本，每个都是按此规划运行的服务器",
    "{} replicas, each a server with this plan; {} of them share {}": (
        "{} 个副本，每个都是按此规划运行的服务器；其中 {} 个共用{}"
    ),
    "{} engines in one server; each is counted with all experts, which is an upper bound": (
        "一个服务器中有 {} 个引擎；每个都按包含全部专家计算，是上限"
    ),
    "a card": "一张显卡",
    "the CPU": "CPU",
    "the reward model has the last {} cards": "奖励模型使用最后 {} 张显卡",
    "the reward model has the last card to itself": "奖励模型独占最后一张显卡",
    "the reward model runs on the CPU": "奖励模型在 CPU 上运行",
    "chat and reward share {}": "对话模型与奖励模型共用{}",
    "the embedding model has the last {} cards": "嵌入模型使用最后 {} 张显卡",
    "the embedding model has the last card to itself": "嵌入模型独占最后一张显卡",
    "the embedding model runs on the CPU": "嵌入模型在 CPU 上运行",
    "chat and embedding share {}": "对话模型与嵌入模型共用{}",
    "{} has no reward head yet: planned as if it had one": "{} 还没有奖励头：按有奖励头规划",
}

_SUGGESTIONS = {
    "a smaller model": "更小的模型",
    "{} in {} bit": "{}（{} 位）",
    "{}: {} tokens/s": "{}：{} 词元/秒",
    "{}: {} tokens/s, too slow to chat": "{}：{} 词元/秒，对话过慢",
    "{}: {} a token": "{}：每词元 {}",
    "{}: {} a token, too slow to chat": "{}：每词元 {}，对话过慢",
    "{}; requests of up to {} tokens": "{}；请求最长 {} 词元",
    "costs nothing": "没有代价",
    "let the planner choose the KV cache": "由规划器决定 KV 缓存",
    "let the planner choose the memory fraction": "由规划器决定显存比例",
    "no room for prompt log-probabilities": "不为提示的对数概率留空间",
    "lm-eval's multiple choice fails": "lm-eval 的选择题无法评测",
    "max_model_len {}": "max_model_len {}",
    "longer conversations are refused": "更长的对话会被拒绝",
    "max_num_seqs {}": "max_num_seqs {}",
    "fewer requests run at once, the others wait": "同时处理的请求减少，其余排队",
    "max_num_batched_tokens {}": "max_num_batched_tokens {}",
    "long prompts take more steps": "长提示需要更多步",
    "weights in {}": "权重用 {}",
    "hardly less accurate": "准确度几乎不变",
    "slightly less accurate": "准确度略降",
    "slightly less accurate on long contexts": "长上下文的准确度略降",
    "loses some points on hard benchmarks": "在困难的基准上损失几分",
    "{} cards of this kind": "{} 张同型号显卡",
    "{#} × {}": "{} × {}",
    "{#} more card": "增加 {} 张显卡",
    "{#} more cards": "增加 {} 张显卡",
    "one {}": "一张 {}",
    "another card, of {}": "换一张 {} 的显卡",
    "KV cache in fp8": "KV 缓存用 fp8",
    "tables of n-grams on the cards": "n-gram 表放在显卡上",
    "less room for the cache": "留给缓存的空间更少",
    "no CUDA graphs": "不用 CUDA 图",
    "slower while few requests run": "请求少时较慢",
    "no videos": "不接受视频",
    "images only, no videos": "只接受图片，不接受视频",
    "no vision encoder": "不加载视觉编码器",
    "no audio encoder": "不加载音频编码器",
    "text only": "只处理文本",
    "{} {} at once": "同时 {} 个 {}",
    "requests for other adapters wait": "使用其他适配器的请求要等待",
    "layers in RAM, by the transformers engine": "部分层放在内存中（transformers 引擎）",
    "layers in RAM and on disk, by the transformers engine": "部分层放在内存和磁盘中（transformers 引擎）",
    "these layers cross the bus for every token": "每个词元都要经总线传输这些层",
    "layers on disk are read for every token": "每个词元都要从磁盘读取这些层",
    "quantize to {}": "量化为 {}",
    "{} × {} instead of {}": "用 {} × {} 代替 {}",
    "{} requests/s on these cards": "这些显卡上每秒 {} 个请求",
    "{} requests at once": "同时 {} 个请求",
    "prompts of {} tokens": "提示长 {} 词元",
    "{} % of every prompt from the prefix cache, by a shared system prompt": (
        "共用系统提示，每个提示的 {}% 来自前缀缓存"
    ),
    "{} % keep the targets": "{}% 达到目标",
    "requests do not pile up": "请求不会积压",
}

_SPEED = {
    "Speed is estimated; this card was not measured": "速度为估计值，此显卡未经实测",
    "Speed is assumed; qserve doctor --measure measures this CPU in seconds": (
        "速度为假定值；qserve doctor --measure 几秒即可测量此 CPU"
    ),
    "Speed corrected by {} requests of {}: {}; --no-learn leaves it out": (
        "速度已按{1}的 {0} 个请求修正：{2}；--no-learn 不修正"
    ),
    "decode {}": "解码 {}",
    "prefill {}": "预填充 {}",
    "intake × {}": "接收 × {}",
    "Other programs took {} % of the processors in that run": "那次运行中其他程序占用了 {}% 的处理器",
    "The KV cache is too small for this load: {} of {} requests are preempted": (
        "KV 缓存对此负载过小：{1} 个请求中有 {0} 个被抢占"
    ),
    "Counted as if the weights and a KV cache of {} tokens fitted": "按权重与 {} 词元的 KV 缓存都能放下来计算",
    "Counted for {} replicas, cards of each: {}": "按 {} 个副本计算，每个副本的卡数：{}",
    "Counted for {} of {} replicas, cards of each: {}; there are no cards for more": (
        "按 {1} 个副本中的 {0} 个计算，每个副本的卡数：{2}；没有更多的卡"
    ),
    "The KV cache of {} tokens is too small for a request of {} + {} tokens": (
        "{} 词元的 KV 缓存放不下 {} + {} 词元的请求"
    ),
    "Nothing that was tried keeps the targets; ask for less, or take a smaller model": (
        "试过的方案都达不到目标；请降低要求，或换用更小的模型"
    ),
    "Fastest for one user: {}, {} a token instead of {} ({})": "单用户最快：{0}，每词元 {1}（{3} 为 {2}）",
    "Most requests: {}, {} a second instead of {} ({})": "请求最多：{0}，每秒 {1}（{3} 为 {2}）",
    "{} is more accurate: {} keep the targets, {} at the slow end of the estimate; --quant {} takes it": (
        "{} 更准确：{} 达到目标，按估计的慢端为 {}；可用 --quant {} 选用"
    ),
    "{} is more accurate, but requests pile up with it at this load": "{} 更准确，但在此负载下请求会积压",
    "Requests pile up: {}; a target such as --ttft 2s plans what would keep it": (
        "请求会积压：{}；给出目标（如 --ttft 2s）即可规划能达到它的方案"
    ),
    "of {} requests/s {} are answered": "每秒 {} 个请求中回答 {} 个",
    "an answer waits {} of its {} for the first token": "回答的 {1} 中有 {0} 在等第一个词元",
    "Chose {}: the fewest cards that keep the targets, also at the slow end of the estimate": (
        "选择 {}：用最少的显卡达到目标，按估计的慢端也达到"
    ),
    "Chose {}: the fewest cards that keep the targets, also at the slow end of the estimate; {}": (
        "选择 {}：用最少的显卡达到目标，按估计的慢端也达到；{}"
    ),
    "Chose {}: {} keep the targets, {} at the slow end of the estimate": "选择 {}：{} 达到目标，按估计的慢端为 {}",
    "Chose {}: {} keep the targets, {} at the slow end of the estimate; {}": (
        "选择 {}：{} 达到目标，按估计的慢端为 {}；{}"
    ),
    "{} of {} cards stay free": "{1} 张显卡中 {0} 张空闲",
    "No layout keeps the targets; with {}, {} of the requests do": "没有方案达到目标；采用 {} 时 {} 的请求达到",
    "{} {}: {} for 90 % of the requests, {} asked": "{} {}：90% 的请求为 {}，要求 {}",
    "Chose {}: {}": "选择 {}：{}",
    "the only layout in {} that fits": "{} 中唯一放得下的方案",
    "the fastest of {} layouts in {} at this load": "此负载下 {1} 的 {0} 个方案中最快",
    "the fewest cards within 5 % of the fastest of {} layouts in {}": (
        "{1} 的 {0} 个方案中，与最快相差不超过 5% 且显卡最少"
    ),
    "fewer bits are faster (--quant)": "位数更少会更快（--quant）",
    "{} on as many cards ({}): answers take {}": "同样多的显卡用 {}（{}）：回答用时{}",
    "{} % less time": "少 {}%",
    "{} % more time": "多 {}%",
    "{} keeps the targets on {} of these {} cards ({}); --quant {} takes it": (
        "{0} 用这 {2} 张显卡中的 {1} 张即达到目标（{3}）；可用 --quant {4} 选用"
    ),
    "No layout in 4 bit runs here; qserve plan --quant {} says why": (
        "这里没有可运行的 4 位方案；原因见 qserve plan --quant {}"
    ),
    "Formats on this CPU, for {} + {} tokens: {}; {}": "此 CPU 上的格式（{} + {} 词元）：{}；{}",
    "{} {} an answer (TTFT {}, TPOT {})": "{} 每个回答 {}（TTFT {}，TPOT {}）",
    "{}; {} times as fast, chosen from {} on (--quant int8)": "{}；快 {} 倍，从 {} 起选用（--quant int8）",
}

_CHART = {
    "tokens/s of one card over tokens/s of one user": "单卡词元/秒（横轴：单用户词元/秒）",
    "tokens/s of one user": "单用户词元/秒",
    "tokens/s of one card": "单卡词元/秒",
    "{}: {} tokens/s a user, {} tokens/s a card": "{}：单用户 {} 词元/秒，单卡 {} 词元/秒",
    "{} ({#} card)": "{}（{} 张卡）",
    "{} ({#} cards)": "{}（{} 张卡）",
    "no layout is better in both": "没有方案两项都更好",
    "another is better in both": "另有方案两项都更好",
    "chosen for this load": "为此负载选用",
    "best trade-off": "最佳折中",
}

PLANNER: dict[str, str] = {**_REASONS, **_NOTES, **_SUGGESTIONS, **_SPEED, **_CHART}
