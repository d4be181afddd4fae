// The bytes of each formula's temporaries, without outputs and gradients; the tables of the sources name them.
#pragma once

#include "kernels.hpp"

namespace aten {

void head_workspace(const Host& host, const NodeView& node, Infer& out);  // linear with a loss
void partial_cross_entropy_workspace(const Host& host, const NodeView& node, Infer& out);
void cross_entropy_workspace(const Host& host, const NodeView& node, Infer& out);
void token_logp_workspace(const Host& host, const NodeView& node, Infer& out);  // with a head
void topk_logp_workspace(const Host& host, const NodeView& node, Infer& out);   // with a head or without
void score_workspace(const Host& host, const NodeView& node, Infer& out);
void channel_scale_workspace(const Host& host, const NodeView& node, Infer& out);
void concat_workspace(const Host& host, const NodeView& node, Infer& out);
void top_experts_workspace(const Host& host, const NodeView& node, Infer& out);
void expert_weights_workspace(const Host& host, const NodeView& node, Infer& out);
void router_stats_workspace(const Host& host, const NodeView& node, Infer& out);
void load_balance_workspace(const Host& host, const NodeView& node, Infer& out);
void gate_tokens_workspace(const Host& host, const NodeView& node, Infer& out);
void dispatch_workspace(const Host& host, const NodeView& node, Infer& out);
void combine_workspace(const Host& host, const NodeView& node, Infer& out);
void grouped_linear_workspace(const Host& host, const NodeView& node, Infer& out);
void clip_workspace(const Host& host, const NodeView& node, Infer& out);
void position_scale_workspace(const Host& host, const NodeView& node, Infer& out);
void softcap_workspace(const Host& host, const NodeView& node, Infer& out);
void embedding_workspace(const Host& host, const NodeView& node, Infer& out);
void rms_norm_workspace(const Host& host, const NodeView& node, Infer& out);
void layer_norm_workspace(const Host& host, const NodeView& node, Infer& out);
void rope_workspace(const Host& host, const NodeView& node, Infer& out);
void linear_workspace(const Host& host, const NodeView& node, Infer& out);
void linear_group_workspace(const Host& host, const NodeView& node, Infer& out);
void linear_add_workspace(const Host& host, const NodeView& node, Infer& out);

bool any_param_needs_grad(const NodeView& node);
// Columns of logits that a head of log-probabilities in a half type computes at once, with sums in fp32. 0 if nothing
// here can, and logits are rounded like the output of a linear.
int64_t wide_columns(const Host& host, const NodeView& node);

}  // namespace aten
