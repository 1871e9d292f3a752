"""The sections of `--help`: where each option of each command is, and which of them are everyday ones."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SECTIONS", "Place", "Section", "place_of"]


@dataclass(frozen=True)
class Section:
    """A heading of `--help`, with options by name; `command:name` is an option of that command alone.

    Attributes:
        title: the heading.
        everyday: options that `--help` shows, in the order of the page.
        further: options that a long command shows with `--help-all` alone.
    """

    title: str
    everyday: tuple[str, ...]
    further: tuple[str, ...] = ()


def _section(title: str, everyday: str, further: str = "") -> Section:
    return Section(title, tuple(everyday.split()), tuple(further.split()))


SECTIONS = (
    _section(
        "Server to ask",
        "url api_key against eval:served_model_name bench:model endpoint timeout",
        "background stream scores:concurrency",
    ),
    _section(
        "Model",
        "model revision into method config quant quants made served_model_name up_args",
        "anyway no_plan dtype load_format hf_overrides language_model_only strict verify_quant packed_cache_gib",
    ),
    _section(
        "Cards",
        "gpu gpus replicas tensor_parallel_size offload",
        "pipeline_parallel_size data_parallel_size enable_expert_parallel gpu_memory_utilization device_map max_memory "
        "cpu_activations",
    ),
    _section(
        "Limits",
        "max_model_len context max_num_seqs",
        "max_num_batched_tokens kv_cache_memory_bytes kv_cache_dtype block_size prompt_len prompt_logprobs "
        "limit_mm_per_prompt mm_processor_kwargs max_queue resume_wait max_body_mib",
    ),
    _section(
        "Load",
        "users rps concurrency input_tokens output_tokens ttft tpot",
        "burst think_time trace num_prompts prefix_share",
    ),
    _section("Prices", "prices", "monthly"),
    _section(
        "Stages",
        "bench:concurrency request_rate sweep bench:num_prompts duration compare_spec",
        "burstiness burst_size max_concurrency num_warmups spec_tokens",
    ),
    _section(
        "Requests",
        "input_len output_len dataset best_of goodput",
        "range_ratio shared_prefix_len ignore_eos temperature extra_body bench:tokenizer bench:seed",
    ),
    _section("Batch", "batch:endpoint completion_window batch:resume no_wait"),
    _section("Tasks", "suite tasks preferences limit num_fewshot include_path seed"),
    _section(
        "Answers",
        "chat thinking max_gen_toks thinking_budget gen_kwargs num_samples max_truncated eval:max_length tokenizer",
    ),
    _section("Data", "data eval_data rows", "eval_share max_broken labels label_weights packing num_workers"),
    _section(
        "Training",
        "epochs learning_rate train:max_length micro_batch gradient_accumulation_steps resume auto",
        "max_steps warmup_steps eval_steps save_steps save_total_limit train:seed patience",
    ),
    _section(
        "Method",
        "lora_rank rewards num_generations",
        "lora_targets train_embeddings load_in_4bit freeze_base num_labels step_labels label_smoothing center_rewards "
        "save_as beta reward_model",
    ),
    _section(
        "Memory",
        "zero_stage",
        "fsdp precision optimizer attention gradient_checkpointing offload_optimizer offload_param completion_length "
        "mean_length fused_loss evaluation tiled_loss kbit_fp32 trl",
    ),
    _section("Beside a service", "", "beside_service meanwhile service_key"),
    _section("Rollouts", "", "vllm vllm_gpus vllm_tensor_parallel_size vllm_sleep train:gpu_memory_utilization"),
    _section(
        "Reward model",
        "reward base judge scores:quant scores:quants",
        "reward_revision scores:dtype reward_quant reward_engine reward_replicas served_reward_name",
    ),
    _section("Embedding model", "embed", "embed_revision embed_quant embed_replicas served_embed_name"),
    _section(
        "How texts are scored",
        "normalize",
        "pooling position head template max_length truncate weights answer_tokens step_token",
    ),
    _section("Quantization", "to texts quantize:num_samples quantize:max_length group_size quantize:seed"),
    _section(
        "Server",
        "host port up:api_key api_key_file ui",
        "keys admin_key_file cors_origin gateway_processes shared_prefix_cache drain_timeout start_timeout "
        "min_free_ram ready_file takeover",
    ),
    _section("What the key may do", "add:models requests_per_minute tokens_per_minute tokens_per_day priority expires"),
    _section("Several machines", "", "ray ray_ports ray_nodes min_replicas max_replicas scale_down_after"),
    _section(
        "Engine",
        "engine engine_args",
        "engine_version enforce_eager enable_prefix_caching num_speculative_tokens num_ngram_tokens "
        "mamba_ssm_cache_dtype max_cudagraph_capture_size performance_mode enable_sleep_mode expandable_segments "
        "skip_mm_profiling engram_config warm_compile_cache",
    ),
    _section(
        "LoRA adapters in vLLM", "", "enable_lora max_loras max_lora_rank fully_sharded_loras lora_target_modules"
    ),
    _section("Deployment", "name image user namespace models_claim storage_class min_pods max_pods pod_monitor"),
    _section(
        "Files and records",
        "up:state_dir up:verbose",
        "state_dir log_level log_format otlp_traces_endpoint keep_runs_days keep_runs_gib max_file_mib keep_files_days "
        "keep_files_gib keep_responses_mib keep_responses_minutes",
    ),
    _section("Checks", "preflight eval:resume measure kernels self_test scores:strict", "no_learn"),
    _section(
        "Output",
        "usage:days as_csv local plan_only out output scores:resume errors csv_file full form as_json explain emit "
        "older_than",
    ),
    _section("Chat", "system verbose"),
    _section("Help", "version help_all help"),
)


@dataclass(frozen=True)
class Place:
    """Where an option is: `order` sorts the options of a command."""

    title: str
    order: int
    is_everyday: bool


def _places() -> dict[str, Place]:
    rows = [
        (name, section.title, is_everyday)
        for section in SECTIONS
        for names, is_everyday in ((section.everyday, True), (section.further, False))
        for name in names
    ]
    return {name: Place(title, order, is_everyday) for order, (name, title, is_everyday) in enumerate(rows)}


_PLACES = _places()
# Commands that score texts share the prefix `scores`.
_SHARED = {"score": "scores", "check": "scores", "eval-reward": "scores"}
_UNKNOWN = Place(SECTIONS[-1].title, 0, True)


def place_of(command: str, name: str) -> Place:
    """The place of an option of `command`; one that the table lacks is shown in the last section."""
    own = f"{_SHARED.get(command, command)}:{name}"
    return _PLACES.get(own) or _PLACES.get(name) or _UNKNOWN
