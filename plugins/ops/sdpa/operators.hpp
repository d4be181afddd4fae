// The ATen operators that this plugin calls, with the schemas for its manifest.
#pragma once

#include "chassis/dispatch.hpp"

// clang-format off
#define SDPA_OPERATORS(X)  \
  X(add_, "aten::add_.Tensor", "(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")  \
  X(clone, "aten::clone", "(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor")  \
  X(contiguous, "aten::contiguous", "(Tensor(a) self, *, MemoryFormat memory_format=0) -> Tensor(a)")  \
  X(copy_, "aten::copy_", "(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)")  \
  X(efficient, "aten::_scaled_dot_product_efficient_attention",  \
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float "  \
    "dropout_p=0., bool is_causal=False, *, float? scale=None) -> (Tensor output, Tensor log_sumexp, "  \
    "Tensor philox_seed, Tensor philox_offset)")  \
  X(efficient_backward, "aten::_scaled_dot_product_efficient_attention_backward",  \
    "(Tensor grad_out_, Tensor query, Tensor key, Tensor value, Tensor attn_bias, Tensor out, Tensor "  \
    "logsumexp, Tensor philox_seed, Tensor philox_offset, float dropout_p, bool[4] grad_input_mask, bool "  \
    "is_causal=False, *, float? scale=None) -> (Tensor, Tensor, Tensor, Tensor)")  \
  X(eq, "aten::eq.Tensor", "(Tensor self, Tensor other) -> Tensor")  \
  X(eq_scalar, "aten::eq.Scalar", "(Tensor self, Scalar other) -> Tensor")  \
  X(exp_, "aten::exp_", "(Tensor(a!) self) -> Tensor(a!)")  \
  X(expand, "aten::expand", "(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)")  \
  X(fill_, "aten::fill_.Scalar", "(Tensor(a!) self, Scalar value) -> Tensor(a!)")  \
  X(flash, "aten::_flash_attention_forward",  \
    "(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, SymInt max_q, SymInt "  \
    "max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None, SymInt? "  \
    "window_size_left=None, SymInt? window_size_right=None, Tensor? seqused_k=None, Tensor? "  \
    "alibi_slopes=None) -> (Tensor output, Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, "  \
    "Tensor debug_attn_mask)")  \
  X(flash_backward, "aten::_flash_attention_backward",  \
    "(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor "  \
    "cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, Tensor "  \
    "rng_state, Tensor unused, *, float? scale=None, SymInt? window_size_left=None, SymInt? "  \
    "window_size_right=None) -> (Tensor, Tensor, Tensor)")  \
  X(flash_cpu, "aten::_scaled_dot_product_flash_attention_for_cpu",  \
    "(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? "  \
    "attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)")  \
  X(flash_cpu_backward, "aten::_scaled_dot_product_flash_attention_for_cpu_backward",  \
    "(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float "  \
    "dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, "  \
    "Tensor grad_key, Tensor grad_value)")  \
  X(logical_and, "aten::logical_and", "(Tensor self, Tensor other) -> Tensor")  \
  X(logical_and_, "aten::logical_and_", "(Tensor(a!) self, Tensor other) -> Tensor(a!)")  \
  X(logical_not, "aten::logical_not", "(Tensor self) -> Tensor")  \
  X(logical_or, "aten::logical_or", "(Tensor self, Tensor other) -> Tensor")  \
  X(logical_or_, "aten::logical_or_", "(Tensor(a!) self, Tensor other) -> Tensor(a!)")  \
  X(logsumexp, "aten::logsumexp", "(Tensor self, int[1] dim, bool keepdim=False) -> Tensor")  \
  X(lt, "aten::lt.Tensor", "(Tensor self, Tensor other) -> Tensor")  \
  X(lt_scalar, "aten::lt.Scalar", "(Tensor self, Scalar other) -> Tensor")  \
  X(masked_fill, "aten::masked_fill.Scalar", "(Tensor self, Tensor mask, Scalar value) -> Tensor")  \
  X(masked_fill_, "aten::masked_fill_.Scalar", "(Tensor(a!) self, Tensor mask, Scalar value) -> Tensor(a!)")  \
  X(matmul, "aten::matmul", "(Tensor self, Tensor other) -> Tensor")  \
  X(mul_, "aten::mul_.Tensor", "(Tensor(a!) self, Tensor other) -> Tensor(a!)")  \
  X(mul_scalar_, "aten::mul_.Scalar", "(Tensor(a!) self, Scalar other) -> Tensor(a!)")  \
  X(narrow, "aten::narrow", "(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)")  \
  X(reshape, "aten::reshape", "(Tensor(a) self, SymInt[] shape) -> Tensor(a)")  \
  X(sub_, "aten::sub_.Tensor", "(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")  \
  X(sum_dims, "aten::sum.dim_IntList",  \
    "(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor")  \
  X(transpose, "aten::transpose.int", "(Tensor(a) self, int dim0, int dim1) -> Tensor(a)")  \
  X(view, "aten::view", "(Tensor(a) self, SymInt[] size) -> Tensor(a)")  \
  X(zero_, "aten::zero_", "(Tensor(a!) self) -> Tensor(a!)")
// clang-format on

namespace sdpa {

using namespace chassis;

struct Operators {
#define SDPA_MEMBER(member, name, schema) Operator member;
  SDPA_OPERATORS(SDPA_MEMBER)
#undef SDPA_MEMBER

#define SDPA_FIND(member, name, schema) member = Operator(host, name);
  explicit Operators(const Host& host) { SDPA_OPERATORS(SDPA_FIND) }
#undef SDPA_FIND
};

// One line of the manifest.
#define SDPA_LINE(member, name, schema) "op=" name schema "\n"

}  // namespace sdpa
