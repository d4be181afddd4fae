/* The vocabulary of the recorded program: dims, attributes, ops. Model plugins write it, ops plugins read it.
 *
 * A value is a contiguous row-major tensor described by an ordered list of *named dims*: a query is [B, T, heads,
 * head_dim], whatever strategy divides `heads`. Adjacent dims need no reshape to be read as one: a linear that takes
 * (heads, head_dim) reads their product. A parameter's axis is a product of dims in the same way.
 *
 * Vocabulary. x is [B, T, …]. Parameters are slots. Optional operands are left out at the end. An attribute with "?" is
 * recorded only where it changes the result. A provider must refuse an op with an attribute that it does not know.
 * In a program in f64, which only `plugins check` computes, f32 means f64.
 *   op              inputs                  parameters        attributes                        outputs
 *   embedding       ids [B,T] i32           weight[V,H]       first i?                          [B,T,H]
 *                   first: the rows belong to the ids from first on; other ids give zeros, and no gradient
 *   linear          x [B,T,in…]             weight[out,in],                                     [B,T,out…]
 *                                           bias[out]?
 *   rms_norm        x [B,T,…,n]             weight[n]?        eps f, offset f?, plain i?        as x
 *                   y = x / sqrt(mean(x²)+eps) in fp32, cast, × weight (Zhang & Sennrich 2019, as in HF Llama).
 *                   offset: × (offset + weight) in fp32, then cast (HF Gemma). plain: there is no weight (HF Llama 4)
 *   layer_norm      x [B,T,…,n]             weight[n],        eps f                             as x
 *                                           bias[n]?
 *   rope            x [B,T,h,head_dim],     (none)            inv_freq floats (rotary_dim/2),   as x
 *                   positions [B,T] i32                       factor f (on cos and sin),
 *                                                             interleaved i (0: rotate-half),
 *                                                             rotary_dim i?, long_inv_freq floats?, long_from i?
 *                   RoFormer (Su et al. 2021); angles and products in fp32. rotary_dim (head_dim): how many leading
 *                   dims of a head are rotated; the others are copied. long_inv_freq replaces inv_freq in a call whose
 *                   largest position is at least long_from (LongRoPE, Ding et al. 2024, as in HF Phi-3).
 *   attention       q [B,T,h,Dqk],          (none)            scale f, causal i, window i,      [B,T,h,Dv]
 *                   k [B,S,hkv,Dqk],                          chunk i, document i, prefix i,
 *                   v [B,S,hkv,Dv],                           softcap f?, query_part i?,
 *                   document_ids [B,S] i32?,                  key_part i?
 *                   prefix_lens [B] i32?
 *                   Query head i reads key head i / (h/hkv). Query t (counted from query_offset) sees key s iff all
 *                   conditions that are set hold: causal: s <= t; window w > 0: t - s < w; chunk c > 0: s/c == t/c in
 *                   positions of the row, or with document in positions of the document, counted from the first one
 *                   with its id; document: equal ids (-1 is padding; its rows are zero);
 *                   prefix: causal is lifted for s < prefix_lens[b]. document_ids is input 3, prefix_lens input 4.
 *                   softcap c: c·tanh(s/c) of the scaled scores s, before the mask (HF Gemma 2).
 *                   query_part: queries are only some of the S positions, from call.query_offset on, also
 *                   in backward; those from S on are padding, whose rows are finite and have no gradient. S is that of
 *                   a call: under a causal mask the host may leave out keys (and ids) after the last query
 *                   key_part: k and v are only some of the positions of the row too, from call.key_offset
 *                   on, and queries begin at call.query_offset (without query_part); the row, and document_ids, have
 *                   call.num_positions, and positions after those are padding. Saved 0 is log_sum f32 [B,h,T], in
 *                   every forward: the log of the sum of exponentials of a query's scores over these keys, -inf where
 *                   it sees none of them, and its output is then 0. In backward, output 0 and log_sum are those of all
 *                   keys of the row, with log_sum = +inf where a query sees none, and the gradients are the parts due
 *                   to these keys. The host merges the parts (Liu et al. 2023, "Ring Attention with Blockwise
 *                   Transformers"). infer sets LOG_SUM, saves log_sum and keeps output 0; COMPOSED cannot serve it.
 *                   Calls have CHASSIS_CALL_TRAINING in evaluation too, and T and S are those of a call, not of the
 *                   node
 *   activation      x                       (none)            function s: silu, gelu, gelu_tanh, as x
 *                                                             relu
 *   gated_activation gate, up               (none)            function s                        as gate: f(gate)·up
 *   add, mul        a, b (same dims)        (none)                                              as a
 *   scale           x                       (none)            factor f                          as x
 *                   y = x · factor, with factor rounded to the dtype of x (HF Gemma)
 *   softcap         x                       (none)            cap f                             as x: cap·tanh(x/cap)
 *   clip            x                       (none)            limit f                           as x
 *                   y = min(max(x, -limit), limit), with limit rounded to the dtype of x; the gradient passes where
 *                   |x| <= limit
 *   position_scale  x [B,T,…],              (none)            floor_scale f, attn_scale f       as x
 *                   positions [B,T] i32
 *                   y = x · (1 + attn_scale · ln(1 + floor((position + 1) / floor_scale))) in fp32, rounded once (HF
 *                   Llama 4)
 *   channel_scale   x [B,T,…,c…]            weight[c]         (none)                            as x
 *                   y = x · weight along the last dims, whose product is c; in fp32, rounded once ((IA)³, Liu et al.
 *                   2022)
 *   dropout         x [B,T,…]               (none)            p f in [0, 1), first i?,          as x
 *                                                             query_part i?
 *                   y = x / (1 - p) where kept, else 0 (Srivastava et al. 2014). Element (b, t, j), j counting the
 *                   elements of a position from `first` (0) on, is kept iff word j % 4 of Philox4x32-10 with the
 *                   key call.random_key and the counter words (j / 4, t, low and high half of first_row + b) is at
 *                   least p · 2^32. The host leaves the op out where nothing is trained. query_part: t counts from
 *                   call.query_offset on.
 *   reshape         x                       (none)                                              the output's dims
 *   slice           x [B,T,…,n]             (none)            first i                           [B,T,…,m]
 *                   The m elements of the last dim from `first` on
 *   concat          a [B,T,h,n],            (none)            (none)                            [B,T,h,n+m]
 *                   b [B,T,h or 1,m]
 *                   Joined along the last dim; a single head of b is joined to every head of a (the rotated part of a
 *                   key in DeepSeek-V2)
 *   cross_entropy   logits [B,T,V],         (none)            ignore_index i (-100)             loss [] f32: the SUM
 *                   labels [B,T] i32                                                            over labels != ignore
 *   partial_cross_entropy logits [B,T,V],   (none)            ignore_index i (-100), first i,   log_sum [B,T] f32,
 *                   labels [B,T] i32                          count i                           target [B,T] f32
 *                   For a part of a vocabulary: the first `count` columns are the classes from `first` on, the others
 *                   are padding. log_sum = log sum exp over the count columns (-inf if count is 0); target = the
 *                   label's logit, or 0 if this part lacks it or it is ignored
 *   total_cross_entropy log_sum [B,T] f32,  (none)            ignore_index i (-100)             loss [] f32: the SUM
 *                   target [B,T] f32,                                                           of log_sum - target
 *                   labels [B,T] i32                                                            over labels != ignore
 *   token_logp      logits [B,T,V],         (none)            ignore_index i (-100)             [B,T] f32
 *                   labels [B,T] i32
 *                   The log-probability of the label, logits[label] - log sum exp, in fp32; 0 where it is ignored. A
 *                   provider that also computes the linear before it should not round the logits
 *   total_token_logp log_sum [B,T] f32,     (none)            ignore_index i (-100)             [B,T] f32
 *                   target [B,T] f32,
 *                   labels [B,T] i32
 *                   target - log_sum; 0 where the label is ignored
 *   topk_logp       logits [B,T,V],         (none)            ignore_index i (-100),            [B,T] f32,
 *                   labels [B,T] i32,                         temperature f                     [B,T,K] f32
 *                   ids [B,T,K] i32
 *                   First, token_logp. Second, logits[id] / temperature - log sum exp(logits / temperature) in fp32; 0
 *                   where the id is negative or the label is ignored
 *   partial_topk_logp logits [B,T,V],       (none)            ignore_index i (-100),            log_sum [B,T] f32,
 *                   labels [B,T] i32,                         temperature f, first i, count i   target [B,T] f32,
 *                   ids [B,T,K] i32                                                             log_sum [B,T] f32,
 *                                                                                               targets [B,T,K] f32
 *                   First two, partial_cross_entropy; then the same of logits / temperature and ids, of which negative
 *                   ones are ignored
 *   total_topk_logp log_sum [B,T] f32,      (none)            ignore_index i (-100)             [B,T] f32,
 *                   target [B,T] f32,                                                           [B,T,K] f32
 *                   log_sum [B,T] f32, targets [B,T,K] f32, labels [B,T] i32, ids [B,T,K] i32
 *                   As topk_logp: target - log_sum, and targets - log_sum; 0 as there
 *   score           x [B,T,H]               weight[L,H]                                         [B,T,L] f32
 *                   y = x · weightᵀ, summed in fp32 and not rounded to the dtype of x
 *   top_experts     logits [B,T,E] f32,     (none)            groups i?, top_groups i?,         [B,T,k] i32
 *                   document_ids [B,T] i32?                   aux_weight f?, balance s?
 *                   The k experts with the largest logits, in ascending order; of equal logits the lower expert wins.
 *                   With groups, which divide E evenly, only experts of the top_groups groups whose largest logits are
 *                   the largest (DeepSeek-AI 2024, "DeepSeek-V2"). -1 for all k where document_ids is -1. It has no
 *                   gradient, and backward never chooses again: its output is kept.
 *                   aux_weight, balance: those of load_balance by default. The host takes them away, so providers
 *                   do not see them
 *   expert_weights  logits [B,T,E] f32,     (none)            score s, normalize i?,            [B,T,k] f32
 *                   experts [B,T,k] i32                       factor f?
 *                   score softmax: exp(logit) / Σ exp over all E; chosen_softmax: over the chosen ones; sigmoid.
 *                   normalize: divided by their sum over k. Then × factor. 0 where the expert is -1
 *   router_stats    logits [B,T,E] f32,     (none)            (none)                            [B,2E+1] f32,
 *                   experts [B,T,k] i32                                                         [B] f32
 *                   For each row, sums over its tokens that have experts: how many chose each of the E experts; the E
 *                   softmaxes of their logits; the squares of log Σ exp of their logits. Second, their largest logit,
 *                   -inf if there are none, which has no gradient. Nor have the counts
 *   load_balance    stats [B,2E+1] f32,     (none)            chosen i, aux_weight f,           loss [] f32
 *                   labels [B,T] i32                          z_weight f, balance s,
 *                                                             ignore_index i (-100)
 *                   With C, P and Z of router_stats or of a sum of it, n = ΣC/chosen tokens, and N labels other than
 *                   ignore_index: N · (aux_weight · aux + z_weight · ΣZ/n). balance layers: aux = E · Σ C·P / n², of
 *                   the sums over rows (Fedus et al. 2022, as in HF Mixtral). batch: that divided by chosen. sequence:
 *                   the mean of the latter over the rows that have tokens (DeepSeek-AI 2024). 0 without tokens
 *   dispatch        x [B,T,H…],             (none)            (none)                            [B,T,k,H…]
 *                   experts [B,T,k] i32,
 *                   weights [B,T,k] f32?
 *                   A row for each chosen expert of each token: the B·T·k rows, of which the dims keep the count, are
 *                   those of expert 0 in the order of tokens, then those of expert 1, …; zeros at the end for experts
 *                   of -1. weights: the row is x times its weight, rounded once (HF Llama 4)
 *   grouped_linear  rows [B,T,k,in…],       weight[E,out,in], (none)                            [B,T,k,out…]
 *                   experts [B,T,k] i32     bias[E,out]?
 *                   Rows as dispatch gives them; y = row · weight[e]ᵀ + bias[e] for the rows of expert e
 *   combine         rows [B,T,k,H…],        (none)            (none)                            [B,T,H…]
 *                   experts [B,T,k] i32,
 *                   weights [B,T,k] f32?
 *                   y = Σ over the experts of a token, in ascending order, of weight · row (of row without weights), in
 *                   fp32, rounded once. A token whose experts are all -1 has zeros
 *   gate_tokens     x [B,T,H…],             (none)            (none)                            as x
 *                   scores [B,T,1] f32
 *                   y = sigmoid(score) · x in fp32, rounded once
 * A plugin's own op is "domain/name"; the model declares the dims of its output, its dtype, and which dims it mixes
 * (chassis_op_desc_t).
 * The host adds attribute storage s, which names the scheme, to an op whose first parameter is quantized, and first i
 * to an embedding whose vocabulary a mesh axis divides: a provider that does not know these attributes must refuse the
 * op. Then it also replaces cross_entropy by partial_cross_entropy, collectives and total_cross_entropy, and token_logp
 * and topk_logp likewise, with total_token_logp and total_topk_logp at the end.
 *
 * A fused node is a run of ops that one provider computes as one, such as "linear+cross_entropy" or "add+rms_norm". */
#ifndef CHASSIS_OP_H
#define CHASSIS_OP_H

#include "chassis/abi.h"
#include "chassis/tensor.h"

#define CHASSIS_ATTR_INT 1u
#define CHASSIS_ATTR_FLOAT 2u
#define CHASSIS_ATTR_STRING 3u
#define CHASSIS_ATTR_INT_LIST 4u
#define CHASSIS_ATTR_FLOAT_LIST 5u

typedef struct chassis_attr {
  chassis_str_t name;
  uint32_t tag; /* CHASSIS_ATTR_… */
  uint32_t reserved0;
  union {
    int64_t i;
    double f;
    struct {
      const void* ptr; /* UTF-8 bytes, const int64_t* or const double* */
      uint64_t len;
    } list;
  } value;
} chassis_attr_t;

#define CHASSIS_ABSENT 0xffffffffu /* an optional operand that is left out */

#endif
