"""Tiny models of every family with random weights, as transformers saves them."""

import copy
import json

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.utils import logging

logging.disable_progress_bar()

LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
LINEAR = dict(rope_type="linear", rope_theta=5000.0, factor=4.0)


LONG = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.0, 2.5, 4.0, 9.0],
            original_max_position_embeddings=64, partial_rotary_factor=0.4)
LOCAL = dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=20000.0),
             sliding_attention=dict(rope_type="default", rope_theta=1000.0))

YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32, beta_fast=32, beta_slow=1,
            mscale=0.707, mscale_all_dim=0.707)

# As in Llama 4 Scout, whose two factors are equal.
EQUAL = dict(rope_type="llama3", rope_theta=10000.0, factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
             original_max_position_embeddings=64)

# The defaults of a family's tiny models. transformers gives the row of pad_token_id no gradient, so there is none.
FAMILIES = {
    "llama": {}, "mistral": dict(sliding_window=None), "qwen2": {}, "qwen3": dict(head_dim=20),
    "gemma2": dict(head_dim=20, query_pre_attn_scalar=24, sliding_window=13, final_logit_softcapping=5.0,
                   attn_logit_softcapping=3.0, pad_token_id=None),
    "gemma3_text": dict(head_dim=20, query_pre_attn_scalar=24, sliding_window=13, sliding_window_pattern=2, pad_token_id=None),
    "deepseek_v2": dict(num_key_value_heads=4, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                        n_shared_experts=2, kv_lora_rank=20, q_lora_rank=28, qk_nope_head_dim=12, qk_rope_head_dim=8,
                        v_head_dim=16, first_k_dense_replace=1),
    "llama4_text": dict(num_hidden_layers=4, head_dim=16, intermediate_size=40, intermediate_size_mlp=72, num_local_experts=5,
                        num_experts_per_tok=1, no_rope_layer_interval=2, attention_chunk_size=16, pad_token_id=None),
    "mixtral": dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=None),
    "olmoe": dict(intermediate_size=40, num_experts=6, num_experts_per_tok=3, pad_token_id=None),
    "qwen2_moe": dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40, shared_expert_intermediate_size=56,
                      pad_token_id=None),
    "qwen3_moe": dict(head_dim=20, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48, pad_token_id=None),
    "phi3": dict(pad_token_id=None), "olmo2": dict(pad_token_id=None), "gpt2": dict(n_positions=256, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
}


def make(seed=0, rope=None, family="llama", head=AutoModelForCausalLM, **changes):
    """Weights are large enough that every part of the model affects the logits; norms and biases are random too."""
    keys = dict(vocab_size=131, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.1, rms_norm_eps=1e-5,
                attn_implementation="eager", bos_token_id=1, eos_token_id=2)
    keys.update(FAMILIES[family])
    keys.update(changes)
    config = AutoConfig.for_model(family, **keys, **({"rope_parameters": copy.deepcopy(rope)} if rope else {}))
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    if "experts_per_tok" in str(config):
        config._experts_implementation = "eager"  # transformers' grouped products have no float64
    model = head.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                noise = torch.randn(parameter.shape, generator=generator)
                gain = name.endswith("weight") and not family.startswith("gemma")
                parameter.copy_(1 + 0.3 * noise if gain else 0.2 * noise)
    return model


def tensors(model, folder):
    """The model's tensors as its files hold them: transformers joins experts in memory."""
    model.save_pretrained(folder)
    return {key: value for file in folder.glob("*.safetensors") for key, value in load_file(file).items()}


def kind_of(rope):
    return rope.get("rope_type", "default")


def nest(folder):
    """Makes the files those of a model of text and images, whose tower is one tensor here."""
    for file in folder.glob("*.safetensors"):
        tensors = {"language_model." + key: value for key, value in load_file(file).items()}
        save_file({**tensors, "vision_model.class_embedding": torch.ones(3)}, file, metadata={"format": "pt"})
    path = folder / "config.json"
    text = json.loads(path.read_text())
    text.pop("architectures")
    path.write_text(json.dumps({"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
                                "text_config": text, "vision_config": {"model_type": "llama4_vision_model"}}))


def save(model, folder, old_spelling=False, nested=False, **options):
    """`old_spelling` writes config.json as transformers 4 does."""
    model.save_pretrained(folder, **options)
    if old_spelling:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config.pop("layer_types", None)
        if "full_attention" in rope:
            config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            rope = rope["full_attention"]
        config["rope_theta"] = rope.pop("rope_theta")
        for key in ("partial_rotary_factor", "original_max_position_embeddings"):
            if kind_of(rope) == "longrope" and key in rope:
                config[key] = rope.pop(key)
        kind = rope.pop("rope_type")
        # Gemma 3's files never had the older "type", which transformers 5 ignores there.
        key = "type" if kind == "linear" and "rope_local_base_freq" not in config else "rope_type"
        config["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
        config["torch_dtype"] = config.pop("dtype", "float32")
        if config.get("attn_temperature_tuning") is True:
            config["attn_temperature_tuning"] = 4
        path.write_text(json.dumps(config, indent=2))
    if nested:
        nest(folder)
    return folder


# Name → (changes of the configuration, how it is saved). transformers also refuses an odd head_dim; 10, 20
# and 36 are neither powers of two nor multiples of 8.
SHARDED = dict(max_shard_size="60KB")
JOINED = dict(save_original_format=False)   # experts of a layer as transformers 5 has them in memory
CASES = {
    "mha": (dict(num_key_value_heads=4), {}),
    "gqa": (dict(num_attention_heads=8, num_key_value_heads=2), {}),
    "mqa": (dict(num_key_value_heads=1), {}),
    "tied": (dict(tie_word_embeddings=True), {}),
    "attention_bias": (dict(attention_bias=True), {}),
    "mlp_bias": (dict(mlp_bias=True), {}),
    "head_dim_10": (dict(head_dim=10, hidden_size=48, num_attention_heads=6, num_key_value_heads=3), {}),
    "head_dim_20": (dict(head_dim=20), {}),
    "head_dim_36": (dict(head_dim=36, hidden_size=45, intermediate_size=77, num_attention_heads=5, num_key_value_heads=1), {}),
    "head_dim_wide": (dict(head_dim=40, num_attention_heads=3, num_key_value_heads=1, hidden_size=72), {}),
    "rope_theta": (dict(rope=dict(rope_type="default", rope_theta=500000.0)), {}),
    "rope_linear": (dict(rope=LINEAR), {}),
    "rope_llama3": (dict(rope=LLAMA3), {}),
    "rope_default_v4": (dict(rope=dict(rope_type="default", rope_theta=1000.0)), dict(old_spelling=True)),
    "rope_linear_v4": (dict(rope=LINEAR), dict(old_spelling=True)),
    "rope_llama3_v4": (dict(rope=LLAMA3), dict(old_spelling=True)),
    "gelu": (dict(hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-6), {}),
    "sharded": (dict(), SHARDED),
    "sharded_tied": (dict(tie_word_embeddings=True), SHARDED),
    "everything": (dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=20, rope=LLAMA3,
                        hidden_size=72, num_attention_heads=6, num_hidden_layers=5), SHARDED),
    "mistral": (dict(family="mistral"), {}),
    "mistral_window": (dict(family="mistral", sliding_window=17, num_key_value_heads=1), {}),
    "mistral_head_dim": (dict(family="mistral", head_dim=36, sliding_window=200, num_attention_heads=5, num_key_value_heads=5),
                         SHARDED),
    "mistral_v4": (dict(family="mistral", sliding_window=5, tie_word_embeddings=True), dict(old_spelling=True)),
    "qwen2": (dict(family="qwen2"), {}),
    "qwen2_tied": (dict(family="qwen2", tie_word_embeddings=True, num_key_value_heads=1), SHARDED),
    "qwen2_unused_window": (dict(family="qwen2", use_sliding_window=False, sliding_window=5), {}),
    "qwen2_window": (dict(family="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=2, num_key_value_heads=4,
                          hidden_size=40, num_attention_heads=4), {}),
    "qwen2_window_v4": (dict(family="qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1),
                        dict(old_spelling=True)),
    "deepseek_v2": (dict(family="deepseek_v2"), {}),
    "deepseek_v2_lite": (dict(family="deepseek_v2", q_lora_rank=None, rope=YARN, first_k_dense_replace=0), SHARDED),
    "deepseek_v2_groups": (dict(family="deepseek_v2", topk_method="group_limited_greedy", n_group=3, topk_group=2,
                                routed_scaling_factor=16.0, attention_bias=True), {}),
    "deepseek_v2_v4": (dict(family="deepseek_v2", rope=YARN), dict(old_spelling=True)),
    "llama4": (dict(family="llama4_text"), {}),
    "llama4_temperature": (dict(family="llama4_text", floor_scale=4, attn_scale=0.4, interleave_moe_layer_step=2,
                                num_experts_per_tok=2, attention_chunk_size=7), SHARDED),
    "llama4_layers": (dict(family="llama4_text", moe_layers=[0, 3], no_rope_layers=[0, 1, 1, 0], use_qk_norm=False, attention_bias=True,
                           tie_word_embeddings=True, attn_temperature_tuning=False), {}),
    "llama4_dense": (dict(family="llama4_text", moe_layers=[], head_dim=20), {}),
    "llama4_rope": (dict(family="llama4_text", rope=EQUAL, layer_types=["full_attention"] * 4), {}),
    "llama4_v4": (dict(family="llama4_text", rope=LLAMA3, floor_scale=4), dict(old_spelling=True)),
    "llama4_nested_v4": (dict(family="llama4_text", rope=EQUAL, interleave_moe_layer_step=2), dict(old_spelling=True, nested=True)),
    "olmoe": (dict(family="olmoe"), {}),
    "olmoe_clip": (dict(family="olmoe", clip_qkv=0.7, norm_topk_prob=True, num_key_value_heads=1, attention_bias=True), SHARDED),
    "olmoe_v4": (dict(family="olmoe", rope=LINEAR, tie_word_embeddings=True, num_key_value_heads=4), dict(old_spelling=True)),
    "mixtral": (dict(family="mixtral"), {}),
    "mixtral_one": (dict(family="mixtral", num_local_experts=4, num_experts_per_tok=1, sliding_window=17), SHARDED),
    "mixtral_tied": (dict(family="mixtral", tie_word_embeddings=True, head_dim=20), {}),
    "qwen2_moe": (dict(family="qwen2_moe"), {}),
    "qwen2_moe_dense_layers": (dict(family="qwen2_moe", mlp_only_layers=[1], norm_topk_prob=True), SHARDED),
    "qwen2_moe_window": (dict(family="qwen2_moe", use_sliding_window=True, sliding_window=9, max_window_layers=2), {}),
    "qwen3_moe": (dict(family="qwen3_moe"), {}),
    "qwen3_moe_norm": (dict(family="qwen3_moe", norm_topk_prob=True, decoder_sparse_step=2), {}),
    "qwen3_moe_window": (dict(family="qwen3_moe", use_sliding_window=True, sliding_window=9, attention_bias=True), SHARDED),
    "qwen3": (dict(family="qwen3"), {}),
    "qwen3_tied": (dict(family="qwen3", tie_word_embeddings=True, head_dim=10, num_key_value_heads=1), SHARDED),
    "qwen3_biases": (dict(family="qwen3", attention_bias=True, head_dim=36, hidden_size=45, num_attention_heads=5,
                          num_key_value_heads=5), {}),
    "qwen3_window_v4": (dict(family="qwen3", use_sliding_window=True, sliding_window=9, max_window_layers=1),
                        dict(old_spelling=True)),
    "gemma2": (dict(family="gemma2"), {}),
    "gemma2_untied": (dict(family="gemma2", tie_word_embeddings=False, num_key_value_heads=1, attention_bias=True), SHARDED),
    "gemma2_uncapped_v4": (dict(family="gemma2", final_logit_softcapping=None, attn_logit_softcapping=None, head_dim=10),
                           dict(old_spelling=True)),
    "gemma2_all_full": (dict(family="gemma2", layer_types=["full_attention"] * 3, num_key_value_heads=4), {}),
    "gemma3": (dict(family="gemma3_text"), {}),
    "gemma3_ropes": (dict(family="gemma3_text", rope=LOCAL, num_key_value_heads=1, final_logit_softcapping=4.0), SHARDED),
    "gemma3_ropes_v4": (dict(family="gemma3_text", rope=LOCAL, tie_word_embeddings=False, attention_bias=True),
                        dict(old_spelling=True)),
    "phi3": (dict(family="phi3"), {}),
    "phi3_partial": (dict(family="phi3", rope=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75),
                          num_key_value_heads=1, tie_word_embeddings=True), SHARDED),
    "phi3_long": (dict(family="phi3", rope=LONG, hidden_size=80, sliding_window=19, original_max_position_embeddings=64), {}),
    "phi3_long_short": (dict(family="phi3", rope={**LONG, "original_max_position_embeddings": 128}, hidden_size=80,
                             original_max_position_embeddings=128), {}),
    "phi3_long_v4": (dict(family="phi3", rope=LONG, hidden_size=80, original_max_position_embeddings=64),
                     dict(old_spelling=True)),
    "gpt2": (dict(family="gpt2"), {}),
    "gpt2_odd": (dict(family="gpt2", hidden_size=35, num_attention_heads=5, n_inner=77, tie_word_embeddings=False), SHARDED),
    "gpt2_relu": (dict(family="gpt2", activation_function="relu", scale_attn_weights=False, num_attention_heads=1), {}),
    **{f"{family}_joined": (dict(family=family), JOINED)
       for family in ("deepseek_v2", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")},
}

# Models with a sequence-classification head, which are loaded and exported. With 2 labels, transformers writes no
# id2label. Their padding is the last id of the vocabulary.
CLASSIFIERS = {
    "llama": dict(num_labels=1), "mistral": dict(family="mistral", sliding_window=17, num_labels=3),
    "qwen2": dict(family="qwen2", tie_word_embeddings=True, num_labels=1), "qwen3": dict(family="qwen3"),
    "gemma2": dict(family="gemma2", num_labels=4), "gemma3": dict(family="gemma3_text", num_labels=1),
    "phi3": dict(family="phi3", num_labels=5), "gpt2": dict(family="gpt2", num_labels=1),
}
CLASSIFIERS = {name: dict(head=AutoModelForSequenceClassification, **changes) for name, changes in CLASSIFIERS.items()}

# The family of sdk/examples/model_cpp.
EXAMPLES = {
    "olmo2": dict(family="olmo2"), "olmo2_tied": dict(family="olmo2", tie_word_embeddings=True, num_key_value_heads=1),
    "olmo2_wide": dict(family="olmo2", hidden_size=72, num_attention_heads=6, num_key_value_heads=6, rms_norm_eps=1e-6),
}
