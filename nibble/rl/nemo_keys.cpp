#include "rl/nemo_keys.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace nibble {
namespace {

constexpr std::string_view not_built = "not built",
                           rate = "the learning rate rises from 0 in the warm-up and is then constant",
                           masters = "weights are updated in FP32 and published in policy.precision",
                           newest = "not supported: the newest checkpoints are kept",
                           all_learn = "not supported: all parameters are trained";

constexpr NemoKey known[] = {
    {"grpo.max_num_epochs", "", "epochs do not end a run; grpo.max_num_steps does"},
    {"grpo.val_start_at", "-1", "not supported: grpo.val_period determines validations"},
    {"grpo.val_at_start", "false", "not supported: validation follows a step"},
    {"grpo.val_at_end", "false", "not supported: grpo.val_period determines validations"},
    {"grpo.stop_at_validation_metric", "null", "not supported: no metric ends a run"},
    {"grpo.stop_at_validation_threshold", "null", "not supported: no metric ends a run"},
    {"grpo.batch_multiplier", "1"},
    {"grpo.seq_logprob_error_threshold", "null"},
    {"grpo.invalid_tool_call_advantage", "null", not_built},
    {"grpo.malformed_thinking_advantage", "null", not_built},
    {"grpo.advantage_clip_low", "null"},
    {"grpo.advantage_clip_high", "null"},
    {"grpo.reward_shaping.stop_properly_penalty_coef", "null"},
    {"grpo.adv_estimator.minus_baseline", "true", "reinforce_plus_plus subtracts the mean of a group's rewards"},
    {"grpo.adv_estimator.reward_weights", "null", "not supported: a reward is one number"},
    {"grpo.async_grpo.in_flight_weight_updates", "false", "weights change between the rounds of rollouts only"},
    {"grpo.async_grpo.recompute_kv_cache_after_weight_updates", "true", "keys and values always follow the weights"},
    {"grpo.async_grpo.max_generation_failures", "", "a failed answer is excluded and does not end the run"},

    {"reward_penalties", "", not_built},
    {"reward_penalties.penalize_duplicated_reasoning", "false", not_built},
    {"reward_penalties.penalize_empty_final_answer", "false", not_built},
    {"reward_penalties.penalize_unwanted_tokens", "false", not_built},
    {"reward_penalties.penalize_malformed_think_tag", "false", not_built},
    {"reward_penalties.token_ids", "null", not_built},

    {"loss_fn.kl_input_clamp_value", "20", "the value is 20 in nibble"},
    {"loss_fn.kl_output_clamp_value", "10", "the value is 10 in nibble"},
    {"loss_fn.use_kl_in_reward", "false"},
    {"loss_fn.positive_example_nll_weight", "0", not_built},
    {"loss_fn.ratio_clip_c", "null"},
    {"loss_fn.truncated_importance_sampling_type", "null"},
    {"loss_fn.truncated_importance_sampling_ratio", "null"},
    {"loss_fn.truncated_importance_sampling_ratio_min", "null"},

    {"checkpointing", "", not_built},
    {"checkpointing.enabled", "true"},
    {"checkpointing.metric_name", "null", newest},
    {"checkpointing.higher_is_better", "", newest},
    {"checkpointing.checkpoint_must_save_by", "null"},
    {"checkpointing.model_save_format", "safetensors", "models are written as safetensors"},
    {"checkpointing.save_optimizer", "true", "a checkpoint always has the optimizer's states"},

    {"policy.tokenizer.name", "=policy.model_name", "the tokenizer is the model's"},
    {"policy.tokenizer.chat_template", "default", "the chat template is the model's; data.chat: false uses none"},
    {"policy.tokenizer.chat_template_kwargs", "null | {}", not_built},
    {"policy.hf_config_overrides", "null | {}", "not supported: the model's folder defines the model"},
    {"policy.draft", "null | {}", not_built},
    {"policy.optimizer", "null"},
    {"policy.optimizer.name", "torch.optim.AdamW | AdamW", "nibble uses AdamW"},
    {"policy.optimizer.kwargs", "", "nibble's AdamW has no such option"},
    {"policy.optimizer.kwargs.amsgrad", "false", "nibble's AdamW has no such option"},
    {"policy.scheduler", "null", rate},
    {"policy.quant_calib_data", "", "scales of inputs come from the run's own first prompts"},
    {"policy.quant_calib_size", "", "scales of inputs come from the run's own first prompts"},
    {"policy.quant_batch_size", "", "scales of inputs come from the run's own first prompts"},
    {"policy.quant_sequence_length", "", "scales of inputs come from the run's own first prompts"},
    {"policy.quant_cfg", "null"},
    {"policy.generation.quant_cfg", "null"},
    {"policy.generation.real_quant", "false"},
    {"policy.dtensor_cfg.lora_cfg", "null | {}", all_learn},

    {"policy.megatron_cfg", "", "a setting of Megatron"},
    {"policy.megatron_cfg.enabled", "true | false"},
    {"policy.megatron_cfg.model_overrides", "null | {}", "not supported: the model's folder defines the model"},
    {"policy.megatron_cfg.peft", "null | {}", all_learn},
    {"policy.megatron_cfg.fp8_cfg.fp8", "", "gradients are also E4M3"},
    {"policy.megatron_cfg.fp8_cfg.fp8_param", "false", "weights are updated in FP32 and cast once a step"},
    {"policy.megatron_cfg.freeze_moe_router", "false", "nibble also trains routers"},
    {"policy.megatron_cfg.moe_router_load_balancing_type", "none",
     "not supported: the load of experts is not balanced"},
    {"policy.megatron_cfg.moe_router_bias_update_rate", "0", "not supported: the load of experts is not balanced"},
    {"policy.megatron_cfg.mtp_num_layers", "0", "not supported: layers for multi-token prediction are not trained"},
    {"policy.megatron_cfg.mtp_loss_scaling_factor", "0",
     "not supported: layers for multi-token prediction are not trained"},
    {"policy.megatron_cfg.optimizer.optimizer", "adam", "nibble uses AdamW"},
    {"policy.megatron_cfg.optimizer.bf16", "true", masters},
    {"policy.megatron_cfg.optimizer.fp16", "false", masters},
    {"policy.megatron_cfg.optimizer.params_dtype", "float32", masters},
    {"policy.megatron_cfg.optimizer.min_lr", "=policy.megatron_cfg.optimizer.lr", rate},
    {"policy.megatron_cfg.scheduler", "", rate},
    {"policy.megatron_cfg.scheduler.lr_decay_style", "constant", rate},
    {"policy.megatron_cfg.scheduler.lr_warmup_init", "0", rate},
    {"policy.megatron_cfg.scheduler.start_weight_decay", "=policy.megatron_cfg.optimizer.weight_decay",
     "the weight decay is constant"},
    {"policy.megatron_cfg.scheduler.end_weight_decay", "=policy.megatron_cfg.optimizer.weight_decay",
     "the weight decay is constant"},
    {"policy.megatron_cfg.scheduler.weight_decay_incr_style", "constant", "the weight decay is constant"},
    {"policy.megatron_cfg.env_vars", "null | {}", "a variable of NeMo RL's processes"},

    {"policy.generation.top_k", "null"},
    {"policy.generation.stop_token_ids", "null"},
    {"policy.generation.stop_strings", "null"},
    {"policy.generation.val_temperature", "null"},
    {"policy.generation.val_top_p", "null"},
    {"policy.generation.val_top_k", "=policy.generation.top_k", "not supported: validation uses the top_k of training"},
    {"policy.generation.vllm_cfg.precision", "", "only fp8, bfloat16 and the precision of the updates are supported"},
    {"policy.generation.vllm_cfg.kv_cache_dtype", "auto | bfloat16", "only auto, fp8 and fp8_e4m3 are supported"},
    {"policy.generation.vllm_cfg.is_mx", "false", "only with precision: fp8"},
    {"policy.generation.vllm_cfg.quantization_ignored_layer_kws", "null | []",
     "not supported: layers are selected by number only"},
    {"policy.generation.vllm_cfg.pow2_weight_scaling_factors", "false", "nibble has one switch for both scales"},
    {"policy.generation.vllm_cfg.pow2_activation_scaling_factors", "false", "nibble has one switch for both scales"},
    {"policy.generation.vllm_cfg.num_first_layers_in_bf16", "0"},
    {"policy.generation.vllm_cfg.num_last_layers_in_bf16", "0"},
    {"policy.generation.vllm_cfg.logprobs_mode", "processed_logprobs",
     "log-probabilities are those of the sampling distribution"},

    {"data", "",
     "only JSON Lines files (.jsonl) are read, with the same keys for both; otherwise data.task: sum is a stand-in "
     "(docs/topics/rl.md)"},
    {"data.validation", "null"},
    {"data.shuffle", "true", "every epoch has a new order"},
    {"data.use_multiple_dataloader", "false", not_built},
    {"data.max_input_seq_length", "", "a prompt that leaves no room for an answer is an error"},
    {"data.default.prompt_file", "null", "data.prompt is the text around the question"},
    {"data.default.system_prompt_file", "null", "data.prompt is the text around the question"},
    {"env", "", "the task's rule judges answers, or the program in env.command"},
    {"on_policy_distillation", "null", not_built},
};

// Keys that decide how and where NeMo RL executes.
constexpr std::string_view elsewhere[] = {
    "cluster",
    "logger",
    "data_plane",
    "data.num_workers",
    "checkpointing.save_consolidated",
    "grpo.val_batch_size",
    "grpo.calculate_advantages_on_gpu",
    "grpo.deduplicate_multimodal_data",
    "grpo.debug_payload_metrics",
    "policy.dtensor_cfg",
    "policy.tokenizer.use_fastokens",
    "policy.optimizer.kwargs.foreach",
    "policy.optimizer.kwargs.fused",
    "policy.train_micro_batch_size",
    "policy.generation_batch_size",
    "policy.logprob_batch_size",
    "policy.logprob_chunk_size",
    "policy.offload_optimizer_for_logprob",
    "policy.dynamic_batching",
    "policy.sequence_packing",
    "policy.make_sequence_length_divisible_by",
    "policy.disable_modelopt_layer_spec",
    "policy.generation.backend",
    "policy.generation.colocated",
    "policy.generation.vllm_kwargs",
    "policy.generation.port_range_low",
    "policy.generation.port_range_high",
    "policy.generation.refit_transport",
    "policy.generation.refit_cfg",
    "policy.generation.real_quant_export_cpu_offload",
    "policy.generation.mcore_generation_config",
    "policy.generation.vllm_cfg.async_engine",
    "policy.generation.vllm_cfg.tensor_parallel_size",
    "policy.generation.vllm_cfg.pipeline_parallel_size",
    "policy.generation.vllm_cfg.expert_parallel_size",
    "policy.generation.vllm_cfg.gpu_memory_utilization",
    "policy.generation.vllm_cfg.max_model_len",
    "policy.generation.vllm_cfg.enforce_eager",
    "policy.generation.vllm_cfg.use_tqdm",
    "policy.generation.vllm_cfg.use_deep_gemm",
    "policy.generation.vllm_cfg.enable_vllm_metrics_logger",
    "policy.generation.vllm_cfg.vllm_metrics_logger_interval",
    "policy.generation.vllm_cfg.http_refit_api_key_env_var",
    "policy.generation.vllm_cfg.http_refit_server_port",
    "policy.generation.vllm_cfg.zmq_refit_server_port",
    "policy.generation.vllm_cfg.reset_encoder_cache_after_weight_update",
    "policy.megatron_cfg.checkpoint",
    "policy.megatron_cfg.use_fused_linear_logprobs",
    "policy.megatron_cfg.fused_linear_logprobs_chunk_size",
    "policy.megatron_cfg.force_reconvert_from_hf",
    "policy.megatron_cfg.empty_unused_memory_level",
    "policy.megatron_cfg.activation_checkpointing",
    "policy.megatron_cfg.cuda_graph_impl",
    "policy.megatron_cfg.cuda_graph_modules",
    "policy.megatron_cfg.cuda_graph_warmup_steps",
    "policy.megatron_cfg.fine_grained_activation_offloading",
    "policy.megatron_cfg.offload_modules",
    "policy.megatron_cfg.recompute_granularity",
    "policy.megatron_cfg.recompute_modules",
    "policy.megatron_cfg.tensor_model_parallel_size",
    "policy.megatron_cfg.expert_tensor_parallel_size",
    "policy.megatron_cfg.expert_model_parallel_size",
    "policy.megatron_cfg.pipeline_model_parallel_size",
    "policy.megatron_cfg.num_layers_in_first_pipeline_stage",
    "policy.megatron_cfg.num_layers_in_last_pipeline_stage",
    "policy.megatron_cfg.context_parallel_size",
    "policy.megatron_cfg.pipeline_dtype",
    "policy.megatron_cfg.sequence_parallel",
    "policy.megatron_cfg.moe_permute_fusion",
    "policy.megatron_cfg.apply_rope_fusion",
    "policy.megatron_cfg.bias_activation_fusion",
    "policy.megatron_cfg.defer_fp32_logits",
    "policy.megatron_cfg.moe_per_layer_logging",
    "policy.megatron_cfg.moe_enable_deepep",
    "policy.megatron_cfg.moe_token_dispatcher_type",
    "policy.megatron_cfg.moe_shared_expert_overlap",
    "policy.megatron_cfg.use_gloo_process_groups",
    "policy.megatron_cfg.gradient_accumulation_fusion",
    "policy.megatron_cfg.use_fused_weighted_squared_relu",
    "policy.megatron_cfg.distributed_data_parallel_config",
    "policy.megatron_cfg.optimizer.use_distributed_optimizer",
    "policy.megatron_cfg.optimizer.use_precision_aware_optimizer",
    "policy.megatron_cfg.optimizer.optimizer_cpu_offload",
    "policy.megatron_cfg.optimizer.optimizer_offload_fraction",
    "policy.megatron_cfg.optimizer.overlap_cpu_optimizer_d2h_h2d",
};

}  // namespace

std::string nemo_quant_precision(std::string_view quant_cfg) {
    struct Known {
        std::string_view name, precision;
    };
    // Recipes for experts, for MLPs, or for the supported paths of a Nemotron leave attention in BF16.
    constexpr std::string_view w4a4 = "{recipe: nvfp4_w4a4}", w4a4_mlp = "{recipe: nvfp4_w4a4, scope: mlp}",
                               w4a16 = "{recipe: nvfp4_w4a16}", w4a16_mlp = "{recipe: nvfp4_w4a16, scope: mlp}";
    constexpr Known recipes[] = {{"nvfp4_default", w4a4},
                                 {"nvfp4", w4a4},
                                 {"nvfp4_w4a4", w4a4},
                                 {"nvfp4_mlp_only", w4a4_mlp},
                                 {"nvfp4_experts", w4a4_mlp},
                                 {"nvfp4_experts_only", w4a4_mlp},
                                 {"nano3_nvfp4_default", w4a4_mlp},
                                 {"w4a16_nvfp4", w4a16},
                                 {"nvfp4_a16", w4a16},
                                 {"nvfp4_w4a16", w4a16},
                                 {"nvfp4_weight_only", w4a16},
                                 {"nvfp4_weightonly", w4a16},
                                 {"nvfp4_mlp_weight_only", w4a16_mlp},
                                 {"nvfp4_a16_mlp_only", w4a16_mlp},
                                 {"nvfp4_a16_experts", w4a16_mlp},
                                 {"nano3_nvfp4_weightonly", w4a16_mlp}};
    std::string name(quant_cfg.substr(quant_cfg.rfind('/') + 1));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    for (const std::string_view ending : {".yaml", ".yml", "_cfg"})
        if (name.ends_with(ending)) name.erase(name.size() - ending.size());
    for (const Known& known : recipes)
        if (known.name == name) return std::string(known.precision);
    return {};
}

bool is_under(std::string_view key, std::string_view group) {
    return key == group || (key.starts_with(group) && key[group.size()] == '.');
}

std::optional<NemoKey> find_nemo_key(std::string_view key) {
    std::optional<NemoKey> best;
    const auto offer = [&](const NemoKey& entry) {
        // the entry has no message for a group
        if (key != entry.key && entry.reason.empty() && !entry.elsewhere) return;
        if (is_under(key, entry.key) && (!best || entry.key.size() > best->key.size())) best = entry;
    };
    for (const NemoKey& entry : known) offer(entry);
    for (const std::string_view name : elsewhere) offer({.key = name, .elsewhere = true});
    return best;
}

}  // namespace nibble
