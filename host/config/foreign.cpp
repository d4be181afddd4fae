// Collected from the documentation of Axolotl, LLaMA-Factory (LF), HF Trainer, TRL, DeepSpeed, torchtitan, torchtune,
// ColossalAI and Megatron-LM. A test checks that our keys in the answers exist.
#include "host/config/foreign.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "host/base/device_types.hpp"
#include "host/base/mesh_axes.hpp"

namespace chassis {
namespace {

constexpr std::string_view kAxolotl = "Axolotl", kLf = "LLaMA-Factory", kHf = "HF Trainer", kDs = "DeepSpeed",
                           kTitan = "torchtitan", kTune = "torchtune", kColossal = "ColossalAI", kTrl = "TRL",
                           kMegatron = "Megatron-LM", kOthers = "other trainers";

constexpr std::string_view
    kUseQuant = "use [quant] with plugin = \"bnb4\" and an [adapter]",
    kUseQuantType = "use type in [quant] with plugin = \"bnb4\": \"nf4\" or \"fp4\"",
    kUseDoubleQuant = "use double_quant in [quant] with plugin = \"bnb4\"",
    kNoInt8 = "8-bit weights (LLM int8) are not available; [quant] with plugin = \"bnb4\" stores 4 bits",
    kUseLora = "use [adapter] with plugin = \"lora\"", kUseRank = "use rank in [adapter] with plugin = \"lora\"",
    kUseAlpha = "use alpha in [adapter] with plugin = \"lora\"",
    kUseDropout = "use dropout in [adapter] with plugin = \"lora\"",
    kUseTargets =
        "use targets in [adapter] with plugin = \"lora\": ends of names such as \"q_proj\", "
        "or \"all-linear\", the default",
    kUseSaved = "use modules_to_save in [adapter] with plugin = \"lora\"",
    kUseRslora = "use use_rslora in [adapter] with plugin = \"lora\"",
    kUseLoraPlus = "use lora_plus_ratio in [adapter] with plugin = \"lora\"",
    kUseInit =
        "use init = \"kaiming\" or \"gaussian\" in [adapter] with plugin = \"lora\"; no other "
        "is available",
    kNoDora = "DoRA is not available in this version; remove it",
    kUseFormat =
        "use format: chat_template is \"messages\" or \"sharegpt\", completion is "
        "\"text\", input_output is \"segments\"";
constexpr std::string_view kPeft = "PEFT";
constexpr std::string_view
    kUseSchedule = "use [[parallel]] with plugin = \"pipeline\" and schedule",
    kUseChunks =
        "use [[parallel]] with plugin = \"pipeline\", schedule = \"interleaved\" and chunks, the stages of a rank",
    kUseLayers = "use [[parallel]] with plugin = \"pipeline\" and layers_per_stage",
    kStagesByCost = "stages are divided by cost, embedding and head included; remove it",
    kUseContextMode =
        "use [[parallel]] with plugin = \"context\" and mode: \"ring\" (p2p), \"all_to_all\" (Ulysses) or \"gather\"",
    kUseSequence = "use [[parallel]] with plugin = \"tensor\" and sequence_parallel = true";

template <const std::string_view& kFirst, const std::string_view& kSecond>
struct Joined {
  static constexpr auto kChars = [] {
    std::array<char, kFirst.size() + kSecond.size()> chars{};
    std::copy(kSecond.begin(), kSecond.end(), std::copy(kFirst.begin(), kFirst.end(), chars.begin()));
    return chars;
  }();
  static constexpr std::string_view kText{kChars.data(), kChars.size()};
};
constexpr std::string_view kUseMesh = "use mesh.", kUseFsdp2 = "use [[parallel]] with plugin = \"fsdp2\" and mesh.";
template <const std::string_view& kAxis>
constexpr std::string_view kUse = Joined<kUseMesh, kAxis>::kText;

constexpr ForeignKey kKeys[] = {
    // model
    {"base_model", kAxolotl, "use model.path, an HF model directory"},
    {"model_name_or_path", kLf, "use model.path, an HF model directory"},
    {"base_model_config", kAxolotl, "model.path holds config.json too; without a path use model.config"},
    {"model_type", kAxolotl, "config.json in model.path names the architecture; or use model.plugin"},
    {"tokenizer_type", kAxolotl, "use tokenizer.plugin"},
    {"trust_remote_code", kHf, "no code of a model directory is ever run; remove it"},
    {"hf_assets_path", kTitan, "use model.path"},
    {"flavor", kTitan, "sizes come from config.json in model.path, or from model.config"},
    {"low_cpu_mem_usage", kHf, "each rank reads only the bytes that it owns; remove it"},
    {"device_map", kHf, "use run.device, and [mesh] to divide a model"},
    {"resize_vocab", kLf, "the vocabulary is never resized silently; prepare the model directory instead"},
    {"resize_token_embeddings_to_32x", kAxolotl, "padding of the vocabulary is a run-time detail here; remove it"},
    // task and trained parameters
    {".stage", kLf, "use train.task: pt is \"pretrain\", sft is \"sft\"; rm is not available in this version"},
    {"finetuning_type", kLf, "full: nothing to set; freeze: freeze.patterns; lora: [adapter] with plugin = \"lora\""},
    {"reward_model", kAxolotl, "reward models are not available in this version"},
    {"rl", kAxolotl, "reinforcement learning and preference losses are not available"},
    {"unfrozen_parameters", kAxolotl, "use freeze.train_only"},
    {"freeze_trainable_layers", kLf, "use freeze.train_only with a regular expression on the layers' names"},
    {"freeze_vision_tower", kLf, "use freeze.patterns with a regular expression on the parameters' names"},
    {"freeze_multi_modal_projector", kLf, "use freeze.patterns with a regular expression on the parameters' names"},
    {"freeze_language_model", kLf, "use freeze.patterns with a regular expression on the parameters' names"},
    {"freeze_mm_modules", kAxolotl, "use freeze.patterns with a regular expression on the parameters' names"},
    {"adapter_type", kHf, kUseLora},
    {"lora_r", kAxolotl, kUseRank},
    {"lora_rank", kLf, kUseRank},
    {"lora_alpha", kAxolotl, kUseAlpha},
    {"lora_dropout", kAxolotl, kUseDropout},
    {"lora_target", kLf, kUseTargets},
    {"lora_target_modules", kAxolotl, kUseTargets},
    {"lora_target_linear", kAxolotl, "use [adapter] with plugin = \"lora\", whose targets are all linears by default"},
    {"lora_modules_to_save", kAxolotl, kUseSaved},
    {"additional_target", kLf, kUseSaved},
    {"lora_model_dir", kAxolotl, "use adapter.path, a directory in PEFT's format"},
    {"adapter_name_or_path", kLf, "use adapter.path, a directory in PEFT's format"},
    {"lora_fan_in_fan_out", kAxolotl, "the model's family says how its files hold weights; remove it"},
    {"peft_use_rslora", kAxolotl, kUseRslora},
    {"use_rslora", kLf, kUseRslora},
    {"peft_use_dora", kAxolotl, kNoDora},
    {"use_dora", kLf, kNoDora},
    {"pissa_init", kLf, kUseInit},
    {"pissa_iter", kLf, kUseInit},
    {"pissa_convert", kLf, kUseInit},
    {"init_lora_weights", kPeft, kUseInit},
    {"peft_init_lora_weights", kAxolotl, kUseInit},
    {"loraplus_lr_ratio", kLf, kUseLoraPlus},
    {"loraplus_lr_embedding", kLf, "embeddings get no branches; modules_to_save in [adapter] trains them in full"},
    {"peft_layers_to_transform", kAxolotl, "use layers in [adapter] with plugin = \"lora\": \"0:16\""},
    {"use_peft", kTrl, kUseLora},
    {".lora", kOthers, kUseLora},
    {".qlora", kOthers, kUseQuant},
    {".peft", kOthers, kUseLora},
    {".peft_config", kTrl, kUseLora},
    {".adapters", kOthers, "use [adapter]; a run has one"},
    // inside [adapter], by PEFT's names
    {"adapter.r", kPeft, "use rank"},
    {"adapter.lora_r", kAxolotl, "use rank"},
    {"adapter.lora_alpha", kPeft, "use alpha"},
    {"adapter.lora_dropout", kPeft, "use dropout"},
    {"adapter.target_modules", kPeft, "use targets"},
    {"adapter.lora_target_modules", kAxolotl, "use targets"},
    {"adapter.exclude_modules", kPeft, "use exclude"},
    {"adapter.lora_modules_to_save", kAxolotl, "use modules_to_save"},
    {"adapter.layers_to_transform", kPeft, "use layers: \"0:16\""},
    {"adapter.init_lora_weights", kPeft, "use init = \"kaiming\" or \"gaussian\"; no other is available"},
    {"adapter.loraplus_lr_ratio", kLf, "use lora_plus_ratio"},
    {"adapter.task_type", kPeft, "models are causal language models; remove it"},
    {"adapter.peft_type", kPeft, "use plugin, such as plugin = \"lora\""},
    {"adapter.type", kOthers, "use plugin, such as plugin = \"lora\""},
    {"adapter.fan_in_fan_out", kPeft, "the model's family says how its files hold weights; remove it"},
    {".beta", kTrl, "preference losses are not available in this version"},
    {".loss_type", kTrl, "preference losses are not available in this version"},
    {".quantization", kOthers, kUseQuant},
    {".quantization_config", kHf, kUseQuant},
    {"neftune_noise_alpha", kHf, "noise on embeddings is not available in this version; remove it"},
    {"load_in_4bit", kAxolotl, kUseQuant},
    {"load_in_8bit", kAxolotl, kNoInt8},
    {"quantization_bit", kLf, kUseQuant},
    {"quantization_method", kLf, kUseQuant},
    {"double_quantization", kLf, kUseDoubleQuant},
    {"bnb_4bit_quant_type", kHf, kUseQuantType},
    {"bnb_4bit_use_double_quant", kHf, kUseDoubleQuant},
    {"bnb_4bit_compute_dtype", kHf, "use precision.compute, for all products"},
    {"llm_int8_skip_modules", kHf, "use skip in [quant] with plugin = \"bnb4\""},
    // inside [quant], by bitsandbytes' names
    {"quant.quant_type", kHf, "use type"},
    {"quant.bnb_4bit_quant_type", kHf, "use type"},
    {"quant.blocksize", kHf, "use block_size"},
    {"quant.use_double_quant", kHf, "use double_quant"},
    {"quant.bnb_4bit_use_double_quant", kHf, "use double_quant"},
    {"quant.bnb_4bit_compute_dtype", kHf, "use precision.compute, for all products"},
    {"quant.compute_dtype", kHf, "use precision.compute, for all products"},
    {"optimizer.block_size", kOthers, "adamw8bit has blocks of 256 elements; remove it"},
    {"quant.compute", kOthers, "use precision.compute, for all products"},
    {"quant.llm_int8_skip_modules", kHf, "use skip"},
    // data
    {"datasets", kAxolotl, "use [[data.train]] with path and format"},
    {"dataset", kLf, "use [[data.train]] with path and format"},
    {"dataset_dir", kLf, "use [[data.train]] with path and format"},
    {"dataset_path", kTitan, "use [[data.train]] with path and format"},
    {"pretraining_dataset", kAxolotl, "use [[data.train]] and train.task = \"pretrain\""},
    {"test_datasets", kAxolotl, "use [[data.eval]]"},
    {"eval_dataset", kLf, "use [[data.eval]]"},
    {"val_set_size", kAxolotl, "use data.eval_fraction, or [[data.eval]] with a file of its own"},
    {"val_size", kLf, "use data.eval_fraction, or [[data.eval]] with a file of its own"},
    {"dataset_prepared_path", kAxolotl, "use data.cache_dir; entries are found by content, so they are never stale"},
    {"tokenized_path", kLf, "use data.cache_dir; entries are found by content, so they are never stale"},
    {"overwrite_cache", kLf, "the cache is keyed by content, so it is never stale; remove it"},
    {"mix_strategy", kLf, "use weight in each [[data.train]]"},
    {"interleave_probs", kLf, "use weight in each [[data.train]]"},
    {"max_samples", kLf, "use run.max_steps, or a smaller file"},
    {"shuffle_merged_datasets", kAxolotl, "use data.shuffle"},
    {"streaming", kHf, "data is always read in pieces; remove it"},
    {"preprocessing_num_workers", kLf, "use run.threads"},
    {"dataset_processes", kAxolotl, "use run.threads"},
    {"dataloader_num_workers", kHf, "use data.prefetch"},
    {"cutoff_len", kLf, "use train.seq_len, and data.overflow for longer documents"},
    {"sequence_len", kAxolotl, "use train.seq_len"},
    {"sequence_length", kColossal, "use train.seq_len"},
    {"max_seq_len", kTune, "use train.seq_len"},
    {"max_seq_length", kTrl, "use train.seq_len"},
    {"max_length", kTrl, "use train.seq_len"},
    {"block_size", kHf, "use train.seq_len"},
    {"excess_length_strategy", kAxolotl, "use data.overflow"},
    {"sample_packing", kAxolotl, "use data.packing = \"best_fit\", \"concat_split\" or \"none\""},
    {"neat_packing", kLf, "use data.packing = \"best_fit\"; documents never attend to each other"},
    {"packing_strategy", kTrl, "use data.packing: bfd is \"best_fit\", wrapped is \"concat_split\""},
    {"padding_free", kTrl, "use data.packing; documents never attend to each other"},
    {"pad_to_sequence_len", kAxolotl,
     "use data.packing; with \"none\", data.pad_to_seq_len pads rows to train.seq_len"},
    {"group_by_length", kHf, "use data.packing = \"best_fit\", which leaves little padding"},
    {"packed", kTune, "use data.packing"},
    {"chat_template", kAxolotl, "use data.template; tokenizer_default is \"auto\""},
    {"chat_template_jinja", kAxolotl, "use data.template with the path of a Jinja file"},
    {"chat_template_path", kTrl, "use data.template with the path of a Jinja file"},
    {"template", kLf, "use data.template: a built-in template, \"auto\" for the tokenizer's own, or a file"},
    {"default_system_message", kAxolotl, "use data.default_system"},
    {"enable_thinking", kLf, "use data.template_variables = { enable_thinking = … }, and data.reasoning"},
    {"preserve_thinking", kLf, "use data.reasoning = \"keep\""},
    {"train_on_inputs", kAxolotl, "use data.train_on_prompt"},
    {"train_on_input", kTune, "use data.train_on_prompt"},
    {"train_on_prompt", kLf, "use data.train_on_prompt"},
    {"mask_history", kLf, "use data.last_turn_only"},
    {"train_on_eos", kAxolotl, "the token that ends a trained turn is always trained; remove it"},
    {"train_on_eot", kAxolotl, "the token that ends a trained turn is always trained; remove it"},
    {"assistant_only_loss", kTrl, "use data.roles_to_train; only the assistant is trained by default"},
    {"completion_only_loss", kTrl, "use data.train_on_prompt; only completions are trained by default"},
    {"data.train.type", kAxolotl, kUseFormat},
    {"data.eval.type", kAxolotl, kUseFormat},
    {"field_messages", kAxolotl, "use columns in each [[data.train]]: { messages = \"…\" }"},
    {"message_property_mappings", kAxolotl, "use tags in each [[data.train]]: { role = \"…\", content = \"…\" }"},
    {"train_on_split", kAxolotl, "use [[data.train]] with the file of that split"},
    {"data.train.split", kHf, "data is read from files: use path with the file of that split"},
    {"data.eval.split", kHf, "data is read from files: use path with the file of that split"},
    {"data.train.subset", kLf, "data is read from files: use path with the file of that subset"},
    {"data.eval.subset", kLf, "data is read from files: use path with the file of that subset"},
    {"special_tokens", kAxolotl, "special tokens come from the tokenizer's files, and padding needs none; remove it"},
    // steps and batches
    {"training.steps", kTitan, "use run.max_steps"},
    {"max_train_steps", kHf, "use run.max_steps"},
    {"max_steps_per_epoch", kTune, "use run.max_steps"},
    {"num_epochs", kAxolotl, "use run.epochs"},
    {"num_train_epochs", kHf, "use run.epochs"},
    {"per_device_train_batch_size", kHf, "use train.micro_batch_size"},
    {"per_device_eval_batch_size", kHf, "evaluation uses train.micro_batch_size"},
    {"eval_batch_size", kAxolotl, "evaluation uses train.micro_batch_size"},
    {"train_micro_batch_size_per_gpu", kDs, "use train.micro_batch_size"},
    {"train_batch_size", kDs, "use train.global_batch_size"},
    {"local_batch_size", kTitan, "use train.micro_batch_size"},
    {"batch_size", kTune, "use train.micro_batch_size and train.global_batch_size"},
    {"gradient_accumulation_steps", kHf,
     "accumulation is derived: train.global_batch_size = train.micro_batch_size × ranks × accumulation"},
    {"accumulation_steps", kColossal,
     "accumulation is derived: train.global_batch_size = train.micro_batch_size × ranks × accumulation"},
    {"auto_find_batch_size", kHf, "batch sizes are never changed silently; set train.micro_batch_size"},
    {"do_train", kLf, "use `chassis train`; remove it"},
    {"do_eval", kHf, "use [[data.eval]] and eval.every_steps"},
    // optimizer and schedule
    {"learning_rate", kHf, "use optimizer.lr"},
    {"schedule.type", kOthers, "use schedule.name"},
    {"scheduler.type", kDs, "use schedule.name"},
    {"optimizer.type", kDs, "use optimizer.plugin"},
    {"optimizer.name", kTitan, "use optimizer.plugin"},
    {"optim", kHf, "use optimizer.plugin: \"adamw\", \"adamw8bit\", \"lion\", \"muon\" or \"sgd\""},
    {"optim_target_modules", kHf, "not available; freeze.train_only chooses what is trained"},
    {"optim_args", kHf, "options of the optimizer go into [optimizer]"},
    {"adam_beta1", kHf, "use betas in [optimizer]"},
    {"adam_beta2", kHf, "use betas in [optimizer]"},
    {"adam_epsilon", kHf, "use eps in [optimizer]"},
    {"max_norm", kTitan, "use optimizer.max_grad_norm"},
    {"gradient_clipping", kDs, "use optimizer.max_grad_norm"},
    {"grad_clip", kColossal, "use optimizer.max_grad_norm"},
    {"clip_grad_norm", kTune, "use optimizer.max_grad_norm"},
    {"lr_scheduler", kAxolotl, "use schedule.name"},
    {"lr_scheduler_type", kHf, "use schedule.name"},
    {"lr_scheduler_kwargs", kHf, "use schedule.min_lr_ratio and schedule.decay_steps"},
    {"warmup_ratio", kHf, "use schedule.warmup_steps, a number of steps"},
    {"num_warmup_steps", kTune, "use schedule.warmup_steps"},
    {"cosine_min_lr_ratio", kAxolotl, "use schedule.min_lr_ratio"},
    {"min_lr_factor", kTitan, "use schedule.min_lr_ratio"},
    {"decay_ratio", kTitan, "use schedule.decay_steps, a number of steps"},
    {"decay_type", kTitan, "use schedule.name"},
    // precision, memory, kernels
    {"bf16", kHf, "use precision.compute = \"bf16\""},
    {"fp16", kHf, "not available; use precision.compute = \"bf16\""},
    {"fp32", kAxolotl, "use precision.compute = \"fp32\""},
    {"fp8", kAxolotl, "not available; precision.compute takes fp32 and bf16"},
    {"tf32", kHf, "not available; use precision.compute = \"bf16\" for speed"},
    {"pure_bf16", kLf, "master weights are always fp32; use precision.compute = \"bf16\""},
    {"bfloat16", kAxolotl, "master weights are always fp32; use precision.compute = \"bf16\""},
    {"float16", kAxolotl, "not available; master weights are always fp32; use precision.compute = \"bf16\""},
    {"dtype", kTune, "use precision.compute for training and export.dtype for what is written"},
    {"torch_dtype", kHf, "use precision.compute for training and export.dtype for what is written"},
    {"mixed_precision", kColossal, "use precision.compute"},
    {"mixed_precision_param", kTitan, "use precision.compute"},
    {"mixed_precision_reduce", kTitan, "use precision.reduce"},
    {"gradient_checkpointing", kHf, "use recompute.mode = \"full\", \"selective\", \"none\" or \"auto\""},
    {"gradient_checkpointing_kwargs", kHf,
     "use recompute.mode = \"full\" or \"selective\"; there is only one implementation"},
    {"disable_gradient_checkpointing", kLf, "use recompute.mode = \"none\""},
    {"enable_activation_checkpointing", kTune, "use recompute.mode"},
    {"ac_mode", kTune, "use recompute.mode = \"selective\" or \"full\""},
    {"ac_option", kTune, "use recompute.blocks, the number of layers"},
    {"activation_checkpoint.mode", kTitan, "use recompute.mode = \"selective\", \"full\", \"none\" or \"auto\""},
    {"selective_ac_option", kTitan,
     "use recompute.mode = \"selective\", which keeps products and attention; recompute.blocks for some layers only"},
    {"recompute_granularity", kOthers, "use recompute.mode = \"selective\" or \"full\""},
    {"recompute_num_layers", kOthers, "use recompute.blocks"},
    {"activation_checkpointing", kDs, "use recompute.mode"},
    {"enable_gradient_checkpointing", kColossal, "use recompute.mode"},
    {"grad_checkpoint", kColossal, "use recompute.mode"},
    {"activation_offloading", kAxolotl, "not available; use recompute.mode"},
    {"flash_attn", kLf, "use attention.plugin"},
    {"flash_attention", kAxolotl, "use attention.plugin"},
    {"sdp_attention", kAxolotl, "use attention.plugin"},
    {"attn_implementation", kHf, "use attention.plugin"},
    {"enable_flash_attention", kColossal, "use attention.plugin"},
    {"use_liger_kernel", kHf, "use kernels.plugins"},
    {"enable_liger_kernel", kLf, "use kernels.plugins"},
    {"chunked_cross_entropy", kAxolotl, "logits are never stored in full; remove it"},
    {"torch_compile", kHf, "not available; operations are fused by kernels.plugins"},
    {"compile", kTitan, "not available; operations are fused by kernels.plugins"},
    // parallelism
    {"deepspeed", kHf, "use [[parallel]] and [mesh]"},
    {"zero_optimization.stage", kDs, "use [[parallel]] with plugin = \"zero\" and stage, sizes in [mesh]"},
    {"zero_optimization.offload_optimizer", kDs, "an option of the plugin in [[parallel]]"},
    {"zero_optimization.offload_param", kDs, "an option of the plugin in [[parallel]]"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kDs,
     "saving streams and never gathers the model; use [export]"},
    {"zero_optimization", kDs, "use [[parallel]] with plugin = \"zero\", sizes in [mesh]"},
    {"zero_stage", kColossal, "use [[parallel]] with plugin = \"zero\" and stage, sizes in [mesh]"},
    {"fsdp", kHf, Joined<kUseFsdp2, kShardAxis>::kText},
    {"fsdp_config", kHf, Joined<kUseFsdp2, kShardAxis>::kText},
    {"fsdp_version", kAxolotl, "use [[parallel]] with plugin = \"fsdp2\""},
    {"dp_shard_size", kAxolotl, kUse<kShardAxis>},
    {"dp_replicate_size", kAxolotl, kUse<kReplicaAxis>},
    {"data_parallel_shard_degree", kTitan, kUse<kShardAxis>},
    {"data_parallel_replicate_degree", kTitan, kUse<kReplicaAxis>},
    {"tensor_parallel_size", kAxolotl, kUse<kTensorAxis>},
    {"tensor_parallel_degree", kTitan, kUse<kTensorAxis>},
    {"tensor_model_parallel_size", kMegatron, kUse<kTensorAxis>},
    {"tensor_parallel_dim", kTune, kUse<kTensorAxis>},
    {"autotp_size", kDs, kUse<kTensorAxis>},
    {"data_parallel_shard_dim", kTune, kUse<kShardAxis>},
    {"data_parallel_replicate_dim", kTune, kUse<kReplicaAxis>},
    {"tp_size", kColossal, kUse<kTensorAxis>},
    {"sequence_parallel", kMegatron, kUseSequence},
    {"enable_sequence_parallelism", kColossal, kUseSequence},
    {"sequence_parallelism_mode", kColossal,
     "use [[parallel]] with plugin = \"tensor\" and sequence_parallel = true (split_gather, ring), or plugin = "
     "\"context\" and mode (all_to_all, ring_attn)"},
    {"pipeline_model_parallel_size", kMegatron, kUse<kStageAxis>},
    {"num_layers_per_virtual_pipeline_stage", kMegatron, kUseChunks},
    {"num_virtual_stages_per_pipeline_rank", kMegatron, kUseChunks},
    {"virtual_pipeline_model_parallel_size", kMegatron, kUseChunks},
    {"microbatch_group_size_per_virtual_pipeline_stage", kMegatron,
     "use [[parallel]] with plugin = \"pipeline\", schedule = \"interleaved\" and group_size"},
    {"decoder_first_pipeline_num_layers", kMegatron, kUseLayers},
    {"decoder_last_pipeline_num_layers", kMegatron, kUseLayers},
    {"pipeline_model_parallel_layout", kMegatron, kUseLayers},
    {"account_for_embedding_in_pipeline_split", kMegatron, kStagesByCost},
    {"account_for_loss_in_pipeline_split", kMegatron, kStagesByCost},
    {"overlap_p2p_communication", kMegatron, "stages send without waiting; remove it"},
    {"pipeline_parallel_layers_per_stage", kTitan, kUseLayers},
    {"pipeline_parallel_split_points", kTitan, kUseLayers},
    {"module_fqns_per_model_part", kTitan, kUseLayers},
    {"pipeline_parallel_microbatch_size", kTitan, "use train.micro_batch_size"},
    {"pp_size", kColossal, kUse<kStageAxis>},
    {"sp_size", kColossal, kUse<kContextAxis>},
    {"pipeline_parallel_degree", kTitan, kUse<kStageAxis>},
    {"pipeline_parallel_schedule", kTitan, kUseSchedule},
    {"pipeline_parallel_schedule_csv", kTitan,
     "use [[parallel]] with plugin = \"pipeline\", schedule = \"csv\" and csv"},
    {"pp_style", kColossal, kUseSchedule},
    {"num_model_chunks", kColossal, kUseChunks},
    {"num_layers_per_stage", kColossal, kUseLayers},
    {"num_microbatches", kColossal, "use train.micro_batch_size and train.global_batch_size; their number follows"},
    {"context_parallel_size", kAxolotl, kUse<kContextAxis>},
    {"context_parallel_degree", kTitan, kUse<kContextAxis>},
    {"context_parallel_dim", kTune, kUse<kContextAxis>},
    {"context_parallel_rotate_method", kTitan, kUseContextMode},
    {"cp_comm_type", kMegatron, kUseContextMode},
    {"ring_attn_func", kAxolotl, kUseContextMode},
    {"heads_k_stride", kAxolotl, "not available; mode = \"ring\" passes all heads of keys and values at once"},
    {"sequence_parallel_degree", kAxolotl, kUse<kContextAxis>},
    {"sequence_parallel_size", kLf, kUse<kContextAxis>},
    {"expert_parallel_size", kAxolotl, kUse<kExpertAxis>},
    {"expert_model_parallel_size", kMegatron, kUse<kExpertAxis>},
    {"expert_parallel_degree", kTitan, kUse<kExpertAxis>},
    {"ddp_timeout", kHf, "data is prepared before ranks wait for each other; remove it"},
    {"ddp_backend", kHf, "use comm.plugin"},
    {"local_rank", kHf, "ranks come from the launcher; remove it"},
    // saving, evaluation, logs
    {"output_dir", kHf, "use run.output_dir"},
    {"dump_folder", kTitan, "use run.output_dir"},
    {"overwrite_output_dir", kHf, "use another run.output_dir, or run.resume = \"never\" in an empty one"},
    {"save_steps", kHf, "use checkpoint.every_steps"},
    {"save_interval", kColossal, "use checkpoint.every_steps"},
    {"saves_per_epoch", kAxolotl, "use checkpoint.every_steps or checkpoint.every_minutes"},
    {"save_strategy", kHf, "use checkpoint.every_steps or checkpoint.every_minutes"},
    {"save_total_limit", kHf, "use checkpoint.keep_last"},
    {"keep_latest_k", kTitan, "use checkpoint.keep_last"},
    {"save_first_step", kAxolotl, "use checkpoint.self_test; every run checks before step 1 that it can save"},
    {"enable_first_step_checkpoint", kTitan,
     "use checkpoint.self_test; every run checks before step 1 that it can save"},
    {"save_only_model", kHf, "checkpoints can always be resumed; for the model alone use export.when"},
    {"save_safetensors", kHf, "use export.plugin"},
    {"async_mode", kTitan, "use checkpoint.async"},
    {"export_dtype", kTitan, "use export.dtype"},
    {"last_save_in_hf", kTitan, "use export.when = \"last\""},
    {"export_dir", kLf, "exports go to final/ in run.output_dir; choose export.when"},
    {"resume_from_checkpoint", kHf, "use run.resume"},
    {"auto_resume_from_checkpoints", kAxolotl, "use run.resume = \"auto\""},
    {"eval_steps", kHf, "use eval.every_steps"},
    {"eval_strategy", kHf, "use eval.every_steps"},
    {"evaluation_strategy", kHf, "use eval.every_steps"},
    {"evals_per_epoch", kAxolotl, "use eval.every_steps"},
    {"run_val_every_n_steps", kTune, "use eval.every_steps"},
    {"load_best_model_at_end", kHf, "use eval.keep_best, the name of an evaluation set; its best checkpoint is kept"},
    {"metric_for_best_model", kHf, "use eval.keep_best, the name of an evaluation set: its loss decides, or its score"},
    {"greater_is_better", kHf, "eval.keep_best keeps the lowest loss, or the highest score; remove it"},
    {"early_stopping_threshold", kHf, "every improvement counts; remove it, and use eval.patience"},
    {"early_stopping_patience", kAxolotl, "use eval.patience, with eval.keep_best and eval.every_steps"},
    {"early_stopping_steps", kLf, "use eval.patience, with eval.keep_best and eval.every_steps"},
    {"logging_steps", kHf, "use log.every_steps"},
    {"log_freq", kTitan, "use log.every_steps"},
    {"log_every_n_steps", kTune, "use log.every_steps"},
    {"logging_dir", kHf, "metrics go to run.output_dir"},
    {"report_to", kHf, "use log.sinks = [\"console\", \"jsonl\", \"tensorboard\"]"},
    {"use_wandb", kHf, "not available; metrics are in metrics.jsonl in run.output_dir"},
    {"wandb_project", kAxolotl, "not available; metrics are in metrics.jsonl in run.output_dir"},
    {"wandb_config", kColossal, "not available; metrics are in metrics.jsonl in run.output_dir"},
    {"run_name", kHf, "use run.name"},
    {"push_to_hub", kHf, "nothing is uploaded: `hf upload` sends final/ of run.output_dir"},
    {"hub_model_id", kHf, "nothing is uploaded: `hf upload` sends final/ of run.output_dir"},
    {"hub_strategy", kHf, "nothing is uploaded: `hf upload` sends final/ of run.output_dir"},
    {"plot_loss", kLf, "losses are in metrics.jsonl in run.output_dir"},
    {"data_seed", kHf, "use run.seed"},
    {"use_cpu", kHf, "use run.device = \"cpu\""},
    {"no_cuda", kHf, "use run.device = \"cpu\""},
    {"loss_watchdog_threshold", kAxolotl, "use train.nonfinite for losses that are not finite"},
};

std::string_view last_parts(std::string_view key, int num_parts) {
  size_t at = key.size();
  for (int i = 0; i < num_parts; ++i) {
    if (at == 0) return key;
    at = key.rfind('.', at - 1);
    if (at == std::string_view::npos) return key;
  }
  return key.substr(at + 1);
}

}  // namespace

std::span<const ForeignKey> foreign_keys() { return kKeys; }

const ForeignKey* find_foreign_key(std::string_view dotted_key) {
  for (const std::string_view wanted : {dotted_key, last_parts(dotted_key, 2), last_parts(dotted_key, 1)}) {
    for (const ForeignKey& known : kKeys) {
      const bool top_level_only = known.key.starts_with('.');
      if (top_level_only ? known.key.substr(1) == dotted_key : known.key == wanted) return &known;
    }
  }
  return nullptr;
}

std::string_view foreign_choice(std::string_view word) {
  constexpr std::pair<std::string_view, std::string_view> kChoices[] = {
      {"float32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
  for (const DeviceSpec& device : device_specs())
    if (!device.foreign_name.empty() && word == device.foreign_name) return device.name;
  const auto* found = std::ranges::find(kChoices, word, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kChoices) ? "" : found->second;
}

std::string_view foreign_optimizer(std::string_view word) {
  constexpr std::pair<std::string_view, std::string_view> kOptimizers[] = {{"adam", "adamw"},
                                                                           {"Adam", "adamw"},
                                                                           {"AdamW", "adamw"},
                                                                           {"adamw_apex_fused", "adamw"},
                                                                           {"adamw_hf", "adamw"},
                                                                           {"adamw_torch", "adamw"},
                                                                           {"adamw_torch_fused", "adamw"},
                                                                           {"fused_adamw", "adamw"},
                                                                           {"paged_adamw", "adamw"},
                                                                           {"paged_adamw_32bit", "adamw"},
                                                                           {"Adam8bit", "adamw8bit"},
                                                                           {"AdamW8bit", "adamw8bit"},
                                                                           {"PagedAdamW8bit", "adamw8bit"},
                                                                           {"adam8bit", "adamw8bit"},
                                                                           {"adamw_8bit", "adamw8bit"},
                                                                           {"adamw_bnb_8bit", "adamw8bit"},
                                                                           {"adamw_torch_8bit", "adamw8bit"},
                                                                           {"ao_adamw_8bit", "adamw8bit"},
                                                                           {"paged_adamw_8bit", "adamw8bit"},
                                                                           {"Lion", "lion"},
                                                                           {"lion_32bit", "lion"},
                                                                           {"lion_8bit", "lion"},
                                                                           {"lion_pytorch", "lion"},
                                                                           {"paged_lion_32bit", "lion"},
                                                                           {"paged_lion_8bit", "lion"},
                                                                           {"Muon", "muon"},
                                                                           {"muon_adamw", "muon"},
                                                                           {"SGD", "sgd"}};
  const auto* found = std::ranges::find(kOptimizers, word, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kOptimizers) ? "" : found->second;
}

std::string_view foreign_method(std::string_view dotted_key, std::string_view word) {
  constexpr std::string_view kPreference[] = {"dpo", "orpo", "kto", "ipo", "simpo", "rm"};
  constexpr std::string_view kRewards[] = {"ppo", "grpo", "rloo", "rlhf", "rl"};
  if (dotted_key == "adapter") return word == "qlora" ? kUseQuant : "";
  if (dotted_key != "train.task") return "";
  if (std::ranges::count(kPreference, word) > 0)
    return "preference losses are not available in this version; \"sft\" trains the better answers";
  if (std::ranges::count(kRewards, word) > 0) return "reinforcement learning is not available in this version";
  if (word == "pt") return "use \"pretrain\"";
  if (word == "qlora") return kUseQuant;
  return word == "lora" ? kUseLora : "";
}

bool is_foreign_table(std::string_view prefix) {
  return std::any_of(std::begin(kKeys), std::end(kKeys), [&](const ForeignKey& known) {
    return known.key.size() > prefix.size() && known.key.starts_with(prefix) && known.key[prefix.size()] == '.';
  });
}

}  // namespace chassis
