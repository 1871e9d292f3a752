"""Why the planner can't plan something."""

from __future__ import annotations

__all__ = ["REFUSALS"]

REFUSALS: dict[str, str] = {
    "Invalid value for '{}': {} is not one of {} (see qserve plan --help)": "{} 的值 {} 无效，应为 {} 之一",
    "Invalid value for '{}': {} (see qserve plan --help)": "{} 的值无效：{}",
    # click before 8.5, then as it is since.
    "No such option: {} (see qserve plan --help)": "没有 {} 这个参数",
    "No such option '{}' (see qserve plan --help)": "没有 {} 这个参数",
    "No such option '{}'. Did you mean '{}'? (see qserve plan --help)": "没有 {} 这个参数；是否指 {}？",
    "No such option '{}'. (Did you mean one of: {}?) (see qserve plan --help)": "没有 {} 这个参数；是否指 {} 之一？",
    "{} is not a whole number": "{} 不是整数",
    "{} is not a number": "{} 不是数字",
    "{} is not in the range {}": "{} 不在范围 {} 内",
    "{} is not a duration; write for example 50ms or 1s": "{} 不是时长；例如写作 50ms 或 1s",
    "there is no folder {}; a model is named by its folder, its hub id, a short name like qwen3-8b, or demo": (
        "没有文件夹 {}；模型可用文件夹、hub 名称、qwen3-8b 这样的简称或 demo 指定"
    ),
    "{} is not a folder, not a known model and not in the local cache; {} (a model is named by its folder, its hub id, "
    "a short name like qwen3-8b, or demo)": (
        "{} 不是文件夹，不是已知模型，也不在本地缓存中；{}（模型可用文件夹、hub 名称、qwen3-8b 这样的简称或 demo 指定）"
    ),
    "{} is not a folder, not a known model and not in the local cache{}; {} (a model is named by its folder, its hub "
    "id, a short name like qwen3-8b, or demo)": (
        "{} 不是文件夹，不是已知模型，也不在本地缓存中{}；{}（模型可用文件夹、hub 名称、qwen3-8b 这样的简称或 demo "
        "指定）"
    ),
    "{} {} is not a revision; it takes a branch, a tag or a commit: letters, digits and . _ - + /, such as main, v1.0 "
    "or 40 hex digits": (
        "{} {} 不是版本；应为分支、标签或提交：字母、数字与 . _ - + /，例如 main、v1.0 或 40 位十六进制数"
    ),
    "{} {}: {} comes with qserve and has no revisions; leave it out, or name a model of the hub by its id": (
        "{} {}：{} 随 qserve 提供，没有版本；请去掉，或用 hub 名称指定模型"
    ),
    "{} {}: {} is a path on this machine and has no revisions; leave it out, or name a model of the hub by its id": (
        "{} {}：{} 是本机上的路径，没有版本；请去掉，或用 hub 名称指定模型"
    ),
    "{} at revision {} is not in the local cache, {}; {}": "{} 的版本 {} 不在本地缓存中，{}；{}",
    "and HF_HUB_OFFLINE={} forbids asking the hub": "且 HF_HUB_OFFLINE={} 禁止访问 hub",
    "and the hub could not be asked": "且无法访问 hub",
    "which is no id of the hub that could be asked for it": "且它不是可以向 hub 查询的名称",
    "the cache has {}; name one of these, fetch it where there is a network, or leave the revision out": (
        "缓存中有 {}；请指定其中之一，或在有网络处下载，或去掉版本"
    ),
    "fetch it where there is a network, or leave the revision out": "请在有网络处下载，或去掉版本",
    "fetch it where there is a network, or leave the revision out to plan from the bundled dimensions, which pin "
    "none": ("请在有网络处下载，或去掉版本，按内置的模型尺寸规划（不固定版本）"),
    "the hub has no revision {} of {}; --revision takes a branch, a tag or a commit of it (its page lists them: {})": (
        "hub 上没有 {1} 的版本 {0}；--revision 应为它的分支、标签或提交（见其页面：{2}）"
    ),
    ", and HF_HUB_OFFLINE={} forbids asking the hub": "，且 HF_HUB_OFFLINE={} 禁止访问 hub",
    ", and the hub could not be asked": "，且无法访问 hub",
    "did you mean {} or {}?": "是否指 {} 或 {}？",
    "did you mean {}?": "是否指 {}？",
    "see `qserve models`": "见 `qserve models`",
    "no model is named; write it after the command: {}": "未指定模型；请写在命令之后：{}",
    "--gpu {} is not a card of configs/gpus.toml; near matches: {}. Any card can be described: --gpu "
    "memory=23.6GiB,sm=128": (
        "--gpu {}：configs/gpus.toml 中没有这种显卡；相近的有：{}。任何显卡都可以这样描述：--gpu memory=23.6GiB,sm=128"
    ),
    "--gpu {} is not a card of configs/gpus.toml; known are for example: {}. Any card can be described: --gpu "
    "memory=23.6GiB,sm=128": (
        "--gpu {}：configs/gpus.toml 中没有这种显卡；已知的例如：{}。任何显卡都可以这样描述：--gpu "
        "memory=23.6GiB,sm=128"
    ),
    "--gpu {}: {} is {#} bytes; write for example 24GiB": "--gpu {}：`{}` 只有 {} 字节；例如写作 24GiB",
    "--gpu {}: the count after ':' is {}, but must be a whole number from {#} to {#}": (
        "--gpu {}：冒号后的数量为 {}，应为 {} 到 {} 的整数"
    ),
    "--quant {} is not a quantization (did you mean {}?); it takes auto | fp16 | bf16 | fp8 | int8 | 4bit or an exact "
    "scheme: {}": "--quant {} 不是量化方式；是否指 {}？可以是 auto | fp16 | bf16 | fp8 | int8 | 4bit，或具体方案：{}",
    "--quant {} is not a quantization; it takes auto | fp16 | bf16 | fp8 | int8 | 4bit or an exact scheme: {}": (
        "--quant {} 不是量化方式；可以是 auto | fp16 | bf16 | fp8 | int8 | 4bit，或具体方案：{}"
    ),
    "--quant {} of {} does not run on {}: no checkpoint of it is known that does, and {} can't quantize to it while "
    "loading here. It can: {}; vllm {} does: leave out --engine-version {}": (
        "{1} 的 --quant {0} 不能在 {2} 上运行：没有已知的可用检查点，{3} 在此也不能在加载时量化成它。可以用：{4}；"
        "vllm {5} 可以：请去掉 --engine-version {6}"
    ),
    "--quant {} of {} does not run on {}: no checkpoint of it is known that does, and {} can't quantize to it while "
    "loading here. It can: {}; or give {}; vllm {} does: leave out --engine-version {}": (
        "{1} 的 --quant {0} 不能在 {2} 上运行：没有已知的可用检查点，{3} 在此也不能在加载时量化成它。可以用：{4}；或指"
        "定 {5}；vllm {6} 可以：请去掉 --engine-version {7}"
    ),
    "--quant {} of {} does not run on {}: no checkpoint of it is known that does, and {} can't quantize to it while "
    "loading here. It can: {}": (
        "{1} 的 --quant {0} 不能在 {2} 上运行：没有已知的可用检查点，{3} 在此也不能在加载时量化成它。可以用：{4}"
    ),
    "--quant {} of {} does not run on {}: no checkpoint of it is known that does, and {} can't quantize to it while "
    "loading here. It can: {}; or give {}": (
        "{1} 的 --quant {0} 不能在 {2} 上运行：没有已知的可用检查点，{3} 在此也不能在加载时量化成它。可以用：{4}；或指"
        "定 {5}"
    ),
    "{} on a CPU": "CPU 上的 {}",
    "{} is stored as {}, and --quant {} can't requantize it; leave --quant out, or name the 16-bit model": (
        "{} 以 {} 存储，--quant {} 不能重新量化它；请去掉 --quant，或指定 16 位模型"
    ),
    "{} is stored as {}, and {} has no kernels for that on this CPU; use {}, or name the 16-bit model": (
        "{} 以 {} 存储，{} 在此 CPU 上没有相应内核；请用 {}，或指定 16 位模型"
    ),
    "{} is stored as {}, and {} has no kernels for that on {}; use {}, or name the 16-bit model": (
        "{} 以 {} 存储，{} 在 {} 上没有相应内核；请用 {}，或指定 16 位模型"
    ),
    "{}: vLLM's alone, and this plan is for the transformers engine; leave it out, or give --engine vllm": (
        "{} 仅用于 vLLM，而此规划用于 transformers 引擎；请去掉它，或指定 --engine vllm"
    ),
    "{}: the transformers engine's alone, and this plan is for vLLM; leave it out, or give --engine transformers": (
        "{} 仅用于 transformers 引擎，而此规划用于 vLLM；请去掉它，或指定 --engine transformers"
    ),
    "{}: no engine has such an option": "{}：没有引擎支持此参数",
    "--engine {} is not a registered engine; it takes {}": "--engine {} 不是已注册的引擎；可以是 {}",
    "--engine-version {} is not a release; write for example 0.32.0": (
        "--engine-version {} 不是版本号；例如写作 0.32.0"
    ),
    "--engine-version {}: vLLM has {} from {} on; give that or a later one": (
        "--engine-version {0}：vLLM 从 {2} 起支持 {1}；请指定该版本或更新版本"
    ),
    "--engine-version {} is not a release of vLLM; give --engine transformers with it": (
        "--engine-version {} 不是 vLLM 的版本；请同时指定 --engine transformers"
    ),
    "--engine-version {}: transformers before 4.38 is not planned for; leave it out, or give --engine vllm": (
        "--engine-version {}：不支持 4.38 之前的 transformers；请去掉它，或指定 --engine vllm"
    ),
    "--engine-version {}: vLLM before 0.5 is not planned for; use {}": (
        "--engine-version {}：不支持 0.5 之前的 vLLM；请用 {}"
    ),
    "--max-model-len {}: {} has {} positions on {} {}; give that or less": (
        "--max-model-len {0}：{1} 在 {3} {4} 上有 {2} 个位置；请给出不超过它的值"
    ),
    "--max-model-len {}: {} has {} positions on {} {}; give that or less, or stretch them by YaRN: --context {}": (
        "--max-model-len {0}：{1} 在 {3} {4} 上有 {2} 个位置；请给出不超过它的值，或用 YaRN 扩展：--context {5}"
    ),
    "--hf-overrides: {} does not read it; leave it out": "--hf-overrides：{} 不读取它；请去掉",
    "--context {}: {} has {} positions on {} {}; give that or less": (
        "--context {0}：{1} 在 {3} {4} 上有 {2} 个位置；请给出不超过它的值"
    ),
    "--context {} writes the keys of --hf-overrides itself; give one of the two": (
        "--context {} 会自行写入 --hf-overrides 的键；请只给出其中之一"
    ),
    "--max-model-len {} is more than --context {}, which is all that there is; raise --context, or leave "
    "--max-model-len out": (
        "--max-model-len {} 超过了 --context {}，而后者就是全部长度；请提高 --context，或去掉 --max-model-len"
    ),
    "--context {}: {} has {} positions, and YaRN stretches them to {} at most; give as many or fewer": (
        "--context {}：{} 有 {} 个位置，YaRN 最多扩展到 {} 个；请给出不超过它的值"
    ),
    "--context {}: {} has {} positions, by a rope of type {} that YaRN can't stretch; give as many or fewer": (
        "--context {}：{} 有 {} 个位置，其 rope 类型为 {}，YaRN 无法扩展；请给出不超过它的值"
    ),
    "--prompt-len {} is more than --max-model-len {}, which counts prompt and answer together; raise --max-model-len": (
        "--prompt-len {} 大于 --max-model-len {}，后者包括提示和回答；请提高 --max-model-len"
    ),
    "{} has dual-chunk attention, which vLLM's engine does not compute: remove dual_chunk_attention_config from the "
    "config.json of a copy and name its folder. Or give --engine transformers": (
        "{} 使用双块注意力，vLLM 的引擎不计算它：请从副本的 config.json 中删除 "
        "dual_chunk_attention_config 并给出其文件夹，或指定 --engine transformers"
    ),
    "{} has dual-chunk attention, which vLLM's engine does not compute: remove dual_chunk_attention_config from the "
    "config.json of a copy and name its folder; it then serves the {#} tokens that it was trained with. Or give "
    "--engine transformers": (
        "{} 使用双块注意力，vLLM 的引擎不计算它：请从副本的 config.json 中删除 "
        "dual_chunk_attention_config 并给出其文件夹（届时可用训练时的 {} 词元），或指定 --engine transformers"
    ),
    "{} is a {}, which has no language-model head and writes no text; plan it as a reward model: qserve plan --reward "
    "{}": "{} 是 {}，没有语言模型输出层，不能生成文本；请按奖励模型规划：qserve plan --reward {}",
    "{} is an embedding model, trained for vectors and not for text; serve it at /v1/embeddings: --embed {} instead of "
    "--model": "{} 是嵌入模型，为向量而非文本训练；请在 /v1/embeddings 提供它：用 --embed {} 代替 --model",
    "{} is an embedding model, trained for vectors and not for text; serve it at /v1/embeddings: qserve up --embed "
    "{}": "{} 是嵌入模型，为向量而非文本训练；请在 /v1/embeddings 提供它：qserve up --embed {}",
    "--num-speculative-tokens {}: {} has no MTP head to draft with; leave it out": (
        "--num-speculative-tokens {}：{} 没有用于草拟的 MTP 头；请去掉它"
    ),
    "--num-ngram-tokens {} and --num-speculative-tokens {} are two ways to draft, and vLLM takes one; leave one of "
    "them out": "--num-ngram-tokens {} 与 --num-speculative-tokens {} 是两种草拟方式，vLLM 只接受一种；请去掉其中一个",
    "--num-ngram-tokens {}: the plan does not count what drafts by n-grams keep beside the attention of {}; leave it "
    "out": "--num-ngram-tokens {}：规划未计入 n-gram 草拟在 {} 的注意力之外占用的内存；请去掉它",
    "--num-ngram-tokens {}: the plan does not count what drafts by n-grams keep beside the attention of {}; leave it "
    "out; its MTP head drafts with --num-speculative-tokens": (
        "--num-ngram-tokens {}：规划未计入 n-gram 草拟在 {} 的注意力之外占用的内存；请去掉它，改用其 MTP 头："
        "--num-speculative-tokens"
    ),
    "--kv-cache-dtype {}: {} has no attention kernel for it": "--kv-cache-dtype {}：{} 没有相应的注意力内核",
    "--kv-cache-dtype nvfp4: {} has no attention kernel for it, which are for compute capability 8.0 and later; leave "
    "it out, or give fp8 where the card reads it": (
        "--kv-cache-dtype nvfp4：{} 没有相应的注意力内核，需要计算能力 8.0 或更高；请去掉它，或在显卡支持时用 fp8"
    ),
    "--kv-cache-dtype {} is unknown; it takes auto or one of {}": "--kv-cache-dtype {} 未知；可以是 auto 或 {} 之一",
    "--dtype {} is unknown; it takes auto or one of {}": "--dtype {} 未知；可以是 auto 或 {} 之一",
    "--block-size {}: vLLM's attention takes multiples of 16": "--block-size {}：vLLM 的注意力需要 16 的倍数",
    "--max-num-batched-tokens {} is less than --max-num-seqs {}: a step of vLLM holds a token of every sequence; raise "
    "the first or lower the second": (
        "--max-num-batched-tokens {} 小于 --max-num-seqs {}：vLLM 的一步包含每个序列的一个词元；请提高前者或降低后者"
    ),
    "--tensor-parallel-size {} with --pipeline-parallel-size {} needs {} cards, but there are {}; lower them, or "
    "describe more cards: --gpu NAME:COUNT": (
        "--tensor-parallel-size {} 与 --pipeline-parallel-size {} 需要 {} 张显卡，但只有 {} 张；请降低它们，或描述更多"
        "显卡：--gpu NAME:COUNT"
    ),
    "--tensor-parallel-size {}: {}; {} divides over {}; with --enable-expert-parallel, which keeps experts whole, "
    "also over {}": (
        "--tensor-parallel-size {}：{}；{} 可以分在 {} 上；"
        "加上 --enable-expert-parallel（专家保持完整）也可以分在 {} 上"
    ),
    "--tensor-parallel-size {}: {}; {} divides over {}": "--tensor-parallel-size {}：{}；{} 可以分在 {} 上",
    "{#} attention heads don't divide by {#}": "{} 个注意力头不能被 {} 整除",
    "{#} KV heads neither divide by {#} nor replicate evenly": "{} 个 KV 头既不能被 {} 整除，也不能均匀复制",
    "--max-loras is for adapters, and they are off; add --enable-lora": (
        "--max-loras 用于适配器，但未启用；请加上 --enable-lora"
    ),
    "--{} is for adapters, and they are off; add --enable-lora": "--{} 用于适配器，但未启用；请加上 --enable-lora",
    "--max-lora-rank {}: vLLM takes {}; {} holds {}": "--max-lora-rank {}：vLLM 支持 {}；{} 可容纳{}",
    "adapters of that rank": "该秩的适配器",
    "the largest": "最大的秩",
    "--lora-target-modules {}: {} has no such module; it has {}": "--lora-target-modules {}：{} 没有这个模块；它有 {}",
    "{} {} is not a JSON object; write for example '{}'": "{} {} 不是 JSON 对象；例如写作 '{}'",
    "--max-memory {}: can't read {}; write for example 0=20GiB,1=20GiB,cpu=64GiB": (
        "--max-memory {}：无法读取 {}；例如写作 0=20GiB,1=20GiB,cpu=64GiB"
    ),
    "{} has compute capability {}, and no wheel of torch has kernels below {}; --gpu none plans for the CPU": (
        "{} 的计算能力为 {}，torch 的安装包没有低于 {} 的内核；--gpu none 可按 CPU 规划"
    ),
    "{} has compute capability {}, and the wheels of vLLM {} and its torch hold kernels from {} on; give --engine "
    "transformers": "{} 的计算能力为 {}，vLLM {} 及其 torch 的安装包从 {} 起支持；请指定 --engine transformers",
    "{} is not a size in memory; write for example 23.6GiB, 24GB, 512MiB or plain bytes": (
        "{} 不是内存大小；例如写作 23.6GiB、24GB、512MiB 或字节数"
    ),
    "{} is not a flag; give flags of `qserve plan`, such as --kv-cache-dtype fp8": (
        "{} 不是参数；请填写 `qserve plan` 的参数，例如 --kv-cache-dtype fp8"
    ),
    "--{} can only be used on the server's own command line: it reads or writes files there": (
        "--{} 只能在服务器自己的命令行上使用：它会读写那里的文件"
    ),
    "{} is given twice: in its own field and under other flags; remove one of the two": (
        "{} 给出了两次：在它自己的字段和其他参数中；请去掉其中一个"
    ),
    "the other flags can't be read: {}": "无法读取其他参数：{}",
    "the planner ended without a message": "规划器没有给出说明就结束了",
    "{#} {} don't divide by {#}": "{} 个{}不能被 {} 整除",
    "attention heads": "注意力头",
    "attention columns": "注意力列",
    "expert columns": "专家列",
    "shared expert's columns": "共享专家的列",
    "linear-attention key heads": "线性注意力键头",
    "weights stored as {} don't split, bitsandbytes made them whole": (
        "以 {} 存储的权重不能切分，bitsandbytes 把它们作为整体"
    ),
    "{#} {} over {#} ranks cut {}": "{} 个{}分在 {} 个进程上会切断{}",
    "quantization groups of {#}": "大小为 {} 的量化组",
    "FP8 blocks of {#}": "大小为 {} 的 FP8 块",
    "--fully-sharded-loras: a rank of {} does not divide by {} cards; leave it out": (
        "--fully-sharded-loras：秩 {} 不能被 {} 张显卡整除；请去掉它"
    ),
    "--enable-lora: vLLM adapts an lm_head of {} entries at most": "--enable-lora：vLLM 只支持不超过 {} 项的 lm_head",
    "--limit-mm-per-prompt names {}; it takes image, video and audio": (
        "--limit-mm-per-prompt 中有 {}；只能是 image、video 和 audio"
    ),
    "--limit-mm-per-prompt: {} is {}, but must be a whole number, 0 or more": (
        "--limit-mm-per-prompt：{} 为 {}，应为不小于 0 的整数"
    ),
    "--mm-processor-kwargs: max_pixels is {}, but must be a whole number, 1 or more": (
        "--mm-processor-kwargs：max_pixels 为 {}，应为不小于 1 的整数"
    ),
    "{} is for models with experts, and {} has none; --replicas N starts N servers of it": (
        "{} 用于有专家层的模型，而 {} 没有；--replicas N 可启动 N 个服务器"
    ),
    "--kv-cache-dtype nvfp4: vLLM's kernels for {} misread heads of 64, and {} has them; give fp8": (
        "--kv-cache-dtype nvfp4：vLLM 在 {} 上的内核不能正确读取大小为 64 的头，而 {} 正是如此；请用 fp8"
    ),
    "--reward-replicas {} with a chat model takes {} cards, and there are {}; lower --reward-replicas, or leave both "
    "--replicas out to share a card": (
        "--reward-replicas {} 与对话模型共需要 {} 张显卡，而只有 {} 张；请降低 --reward-replicas，或去掉两个 "
        "--replicas 以共用一张卡"
    ),
    "{} {} times {} cards each are more than the {} that are there; lower {} or --tensor-parallel-size": (
        "{} {} 乘以每个 {} 张显卡超过了现有的 {} 张；请降低 {} 或 --tensor-parallel-size"
    ),
    "{} {} and {} {}: one or the other; leave one of them out": "{} {} 与 {} {} 只能选一个；请去掉其中一个",
    "{} {} takes at least {} cards, and there are {}": "{} {} 至少需要 {} 张显卡，而只有 {} 张",
    "--replicas {} of {} each need {} cards, and {} are there; lower --replicas or --tensor-parallel-size": (
        "--replicas {} 每个用 {}，共需要 {} 张显卡，而只有 {} 张；请降低 --replicas 或 --tensor-parallel-size"
    ),
    "--replicas {} and --data-parallel-size {}: one or the other; leave one out": (
        "--replicas {} 与 --data-parallel-size {} 只能选一个；请去掉其中一个"
    ),
    "{}: a load arrives in one way; leave all but one out": "{}：负载只能有一种到达方式；请只保留一个",
    "--input {} --output {}: both are 1 token or more": "--input {} --output {}：两者都至少为 1 词元",
    "--prefix-share {}: give a share of at least 0 and below 1": "--prefix-share {}：应为不小于 0 且小于 1 的比例",
    "--prefix-share {}: --trace names the tokens of each request; leave --prefix-share out and write into its lines "
    "what the cache does not hold": (
        "--prefix-share {}：--trace 已写明每个请求的词元数；请去掉 --prefix-share，并在各行中只写缓存中没有的部分"
    ),
    "--{} {}: at most {} are simulated; plan a part": "--{} {}：最多模拟 {} 个；请规划其中一部分",
    "{}: {} tokens are more than {} {}; shorten them": "{}：{} 词元超过了{} {}；请缩短",
    "{}: {} tokens are more than {} {}; shorten them, or stretch them by YaRN: --context {}": (
        "{}：{} 词元超过了{} {}；请缩短，或用 YaRN 扩展：--context {}"
    ),
    "{}: {} tokens are more than {} {}; shorten them, or raise it": "{}：{} 词元超过了{} {}；请缩短，或提高它",
    "the longest request of the trace": "记录中最长的请求",
    "--gpu any: this model fits none of the cards with a price; give --gpu, or --prices FILE": (
        "--gpu any：有价格的显卡都放不下此模型；请指定 --gpu，或用 --prices FILE"
    ),
    "--gpu any: this model fits none of the cards with a price (not known: {}; names are those of configs/gpus.toml); "
    "give --gpu, or --prices FILE": (
        "--gpu any：有价格的显卡都放不下此模型（未知的显卡：{}；名称以 configs/gpus.toml 为准）；请指定 --gpu，或用 "
        "--prices FILE"
    ),
    "{}: the factor of its yarn rope is null in config.json, and vLLM needs a number": (
        "{}：config.json 中 `yarn` 的 factor 为 null，而 vLLM 需要数值"
    ),
    "{}: a rope of type mrope needs mrope_section in config.json": (
        "{}：mrope 类型的 rope 需要 config.json 中的 mrope_section"
    ),
    "{}: its rope has rope_type {} and type {}, which vLLM refuses to choose between; leave type out of config.json": (
        "{}：rope 的 rope_type 为 {}、type 为 {}，vLLM 拒绝二选一；请从 config.json 中去掉 type"
    ),
    "{} is in vLLM from {} on, and not in {}; leave one of them out": (
        "vLLM 从 {1} 起才有 {0}，{2} 没有；请去掉其中之一"
    ),
    "--enable-sleep-mode: vLLM puts models on cards alone to sleep; leave it out": (
        "--enable-sleep-mode：vLLM 只能让显卡上的模型休眠；请去掉它"
    ),
    "--engram-config: {} has no tables of n-grams; leave it out": "--engram-config：{} 没有 n-gram 表；请去掉它",
    "--engram-config {} is not a JSON object of true and false; write for example {}, with which tables of n-grams lie "
    "on the cards": "--engram-config {} 不是由 true 和 false 组成的 JSON 对象；例如写作 {}，把 n-gram 表放到显卡上",
    "--engram-config names {}, which no table of a Qwen model reads; it takes {}": (
        "--engram-config 中有 {}，Qwen 模型的表都不读它；可以是 {}"
    ),
    "{} has sparse attention or tables of n-grams, which vLLM computes on cards alone; describe cards with --gpu "
    "NAME:COUNT": "{} 有稀疏注意力或 n-gram 表，vLLM 只在显卡上计算它们；请用 --gpu 名称:数量 描述显卡",
    "--pipeline-parallel-size {}: tables of n-grams are looked up by the tokens of a prompt, which vLLM gives to the "
    "first stage alone; leave it out, and share the layers of {} by --tensor-parallel-size": (
        "--pipeline-parallel-size {}：n-gram 表按提示的词元查找，而 vLLM 只把词元交给第一级；请去掉它，用 "
        "--tensor-parallel-size 分摊 {} 的各层"
    ),
    "{} is stored by {}, and vLLM loads tables of n-grams beside {} alone; give another checkpoint of the model": (
        "{} 以 {} 存储，而 vLLM 只在 {} 之下加载 n-gram 表；请换用该模型的另一个检查点"
    ),
    "--quant {}: vLLM loads tables of n-grams as they are stored, and makes no other format of {} while loading": (
        "--quant {}：vLLM 按存储格式加载 n-gram 表，不能在加载时把 {} 变为其他格式"
    ),
    "checkpoints are known in {}": "已知的检查点格式：{}",
    "{} {}: vLLM's kernels for the index of {} compute in bfloat16; leave it out": (
        "{} {}：vLLM 用于 {} 的索引的内核以 bfloat16 计算；请去掉它"
    ),
    "{} has no bfloat16, in which alone vLLM computes the index of {}; it needs a card of compute capability 8.0 or "
    "later": "{} 不支持 bfloat16，而 vLLM 只以它计算 {} 的索引；需要计算能力 8.0 或更高的显卡",
    "--kv-cache-dtype {}: vLLM's kernels for the index of {} read a cache in {}; give one of these": (
        "--kv-cache-dtype {}：vLLM 用于 {} 的索引的内核只读取 {} 格式的缓存；请用其中之一"
    ),
    "--num-speculative-tokens {}: the index of {} keeps {} keys of a sequence, which must divide a block of its cache; "
    "{}, or --block-size {}": (
        "--num-speculative-tokens {}：{} 的索引为每个序列保留 {} 个键，其数须能整除缓存块；{}，或用 --block-size {}"
    ),
    "give {#} or fewer": "请用不超过 {} 的值",
    "give {#} or fewer, or {#} to {#}": "请用不超过 {} 或在 {} 到 {} 之间的值",
    "give {#} or fewer, or {#} to {#}, or {#} to {#}": "请用不超过 {}、在 {} 到 {} 之间或在 {} 到 {} 之间的值",
    "--block-size {}: the index of {} keeps {} keys of a sequence, which must divide a block of its cache; give "
    "--block-size {}": "--block-size {}：{} 的索引为每个序列保留 {} 个键，其数须能整除缓存块；请用 --block-size {}",
    "leave it out": "请去掉它",
    "{} has {}, which the transformers engine does not serve; give --engine vllm, with cards": (
        "{} 有{}，transformers 引擎不支持；请用显卡并指定 --engine vllm"
    ),
    "an index of sparse attention": "稀疏注意力的索引",
    "tables of n-grams": "n-gram 表",
    "residual streams": "残差流",
    "{} has {}, whose training is not planned; fine-tune a model without, for example {}": (
        "{} 有{}，不规划其训练；请微调没有这些部分的模型，例如 {}"
    ),
}
