"""Percent of light, for tools/bench and tools/gpu-check: the least time in which a machine could do a step, as a share
of the time that the step took.

The least time is that of the FLOPs at the speed of the machine's best product of the dtype, or that of the bytes at the
speed of its copy, whichever is longer; both speeds are measured in the same run. FLOPs and bytes are those that the
method needs, so that no program reaches 100 %. Nothing is counted twice: no recomputation, no activations.
"""


def linear_shapes(model: dict) -> list:
    """(in, out) of the linears of a layer that every token passes: seven in a Llama; with experts, those of attention
    and the router."""
    hidden, experts = model["hidden_size"], num_experts(model)
    kv = hidden // model["num_attention_heads"] * model["num_key_value_heads"]
    attention = [(hidden, hidden), (hidden, kv), (hidden, kv), (hidden, hidden)]
    return attention + ([(hidden, experts)] if experts else mlp_shapes(hidden, model["intermediate_size"]))


def mlp_shapes(hidden: int, inner: int) -> list:
    return [(hidden, inner), (hidden, inner), (inner, hidden)]


def num_experts(model: dict) -> int:
    """Of a layer; 0: the layers have none."""
    return model.get("num_experts", model.get("num_local_experts", 0))


def expert_elements(model: dict) -> int:
    """Of the linears of one expert; 0 without experts."""
    width = model.get("moe_intermediate_size", model["intermediate_size"])
    return sum(n * m for n, m in mlp_shapes(model["hidden_size"], width)) if num_experts(model) else 0


def weights(model: dict) -> dict:
    """Elements of the linears of all layers, of the head, and of a table of embeddings apart from it. Norms are left
    out."""
    head = model["hidden_size"] * model["vocab_size"]
    layer = sum(n * m for n, m in linear_shapes(model)) + num_experts(model) * expert_elements(model)
    return dict(linears=model["num_hidden_layers"] * layer, head=head,
                embeddings=0 if model["tie_word_embeddings"] else head)


def idle_elements(model: dict) -> int:
    """Elements of the linears that a token does not pass: those of the experts that are not chosen for it."""
    if not num_experts(model):
        return 0
    return model["num_hidden_layers"] * (num_experts(model) - model["num_experts_per_tok"]) * expert_elements(model)


def adapter_elements(model: dict, rank: int) -> int:
    """LoRA on the linears of the layers, without experts."""
    return model["num_hidden_layers"] * sum(rank * (n + m) for n, m in linear_shapes(model))


def flops_per_token(model: dict, seq_len: int, rank: int = 0) -> float:
    """Forward and backward: products with weights, and causal attention. With a rank, LoRA trains only its own weights,
    and the products that give the gradients of the others are not needed."""
    all_weights = weights(model)
    attention = 6.0 * seq_len * model["hidden_size"] * model["num_hidden_layers"]
    frozen = 4.0 if rank else 6.0
    passed = all_weights["linears"] - idle_elements(model) + all_weights["head"]
    return frozen * passed + 6.0 * adapter_elements(model, rank) + attention


def bytes_per_step(model: dict, weight_bytes: float, rank: int = 0, linear_bytes: float = 0.0) -> float:
    """Bytes that a step of AdamW needs to read and write. Forward and backward each read the weights in the dtype of
    products (`linear_bytes`: those of the linears, if they are stored otherwise). A trained element has an fp32 value,
    two fp32 averages and an fp32 gradient, each read and written once."""
    all_weights = weights(model)
    read = 2 * (all_weights["linears"] * (linear_bytes or weight_bytes) + all_weights["head"] * weight_bytes)
    trained = adapter_elements(model, rank) if rank else sum(all_weights.values())
    return read + trained * 32.0


def preference_flops(model: dict, tokens: int, length: int, answers: int, rank: int = 0) -> float:
    """A step on sequences of `length` tokens, `tokens` in all, with the forward of a frozen reference. Only tokens of
    answers need the head."""
    all_weights = weights(model)
    trained, head = (4.0 if rank else 6.0), all_weights["head"]
    attention = 6.0 * length * model["hidden_size"] * model["num_hidden_layers"]
    reference = 2.0 * all_weights["linears"] + attention / 3.0
    return (tokens * (trained * all_weights["linears"] + (6.0 * adapter_elements(model, rank) if rank else 0.0) + attention +
                      reference) + answers * (trained + 2.0) * head)


def preference_bytes(model: dict, weight_bytes: float, rank: int = 0) -> float:
    """bytes_per_step(), and the weights once more for the reference."""
    all_weights = weights(model)
    return bytes_per_step(model, weight_bytes, rank) + (all_weights["linears"] + all_weights["head"]) * weight_bytes


def percent(flops: float, num_bytes: float, seconds: float, product_flops: float, copy_bytes: float) -> float:
    """Of a step that took these seconds, on a machine with these speeds per second."""
    return 100.0 * max(flops / product_flops, num_bytes / copy_bytes) / seconds
