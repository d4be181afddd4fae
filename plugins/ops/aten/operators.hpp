// The ATen operators that this plugin calls, with the schemas for its manifest.
#pragma once

#include "chassis/dispatch.hpp"

// clang-format off
#define ATEN_OPERATORS(X)  \
  X(amax, "aten::amax", "(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor")  \
  X(arange_out, "aten::arange.out", "(Scalar end, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(div_, "aten::div_.Tensor", "(Tensor(a!) self, Tensor other) -> Tensor(a!)")  \
  X(floor_divide, "aten::floor_divide.Scalar", "(Tensor self, Scalar other) -> Tensor")  \
  X(ge_scalar, "aten::ge.Scalar", "(Tensor self, Scalar other) -> Tensor")  \
  X(where, "aten::where.self", "(Tensor condition, Tensor self, Tensor other) -> Tensor")  \
  X(add_, "aten::add_.Tensor", "(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")  \
  X(add_out, "aten::add.out", "(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)")  \
  X(add_scalar_, "aten::add_.Scalar", "(Tensor(a!) self, Scalar other, Scalar alpha=1) -> Tensor(a!)")  \
  X(addcmul_, "aten::addcmul_", "(Tensor(a!) self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor(a!)")  \
  X(addmm_, "aten::addmm_",  \
    "(Tensor(a!) self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor(a!)")  \
  X(addmm_out, "aten::addmm.out",  \
    "(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> "  \
    "Tensor(a!)")  \
  X(clamp_out, "aten::clamp.out",  \
    "(Tensor self, Scalar? min=None, Scalar? max=None, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(copy_, "aten::copy_", "(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)")  \
  X(cos, "aten::cos", "(Tensor self) -> Tensor")  \
  X(div_scalar_, "aten::div_.Scalar", "(Tensor(a!) self, Scalar other) -> Tensor(a!)")  \
  X(embedding_dense_backward, "aten::embedding_dense_backward",  \
    "(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool "  \
    "scale_grad_by_freq) -> Tensor")  \
  X(eq_scalar, "aten::eq.Scalar", "(Tensor self, Scalar other) -> Tensor")  \
  X(exp_, "aten::exp_", "(Tensor(a!) self) -> Tensor(a!)")  \
  X(expand, "aten::expand", "(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)")  \
  X(fill_, "aten::fill_.Scalar", "(Tensor(a!) self, Scalar value) -> Tensor(a!)")  \
  X(floor_, "aten::floor_", "(Tensor(a!) self) -> Tensor(a!)")  \
  X(gather, "aten::gather", "(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor")  \
  X(gelu_backward_out, "aten::gelu_backward.grad_input",  \
    "(Tensor grad_output, Tensor self, *, str approximate=\"none\", Tensor(a!) grad_input) -> Tensor(a!)")  \
  X(gelu_out, "aten::gelu.out", "(Tensor self, *, str approximate=\"none\", Tensor(a!) out) -> Tensor(a!)")  \
  X(gt_scalar, "aten::gt.Scalar", "(Tensor self, Scalar other) -> Tensor")  \
  X(index_select, "aten::index_select", "(Tensor self, int dim, Tensor index) -> Tensor")  \
  X(index_select_out, "aten::index_select.out",  \
    "(Tensor self, int dim, Tensor index, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(log_softmax_out, "aten::_log_softmax.out",  \
    "(Tensor self, int dim, bool half_to_float, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(log1p_, "aten::log1p_", "(Tensor(a!) self) -> Tensor(a!)")  \
  X(logsumexp, "aten::logsumexp", "(Tensor self, int[1] dim, bool keepdim=False) -> Tensor")  \
  X(lt_scalar, "aten::lt.Scalar", "(Tensor self, Scalar other) -> Tensor")  \
  X(masked_fill_, "aten::masked_fill_.Scalar", "(Tensor(a!) self, Tensor mask, Scalar value) -> Tensor(a!)")  \
  X(mm, "aten::mm", "(Tensor self, Tensor mat2) -> Tensor")  \
  X(mm_dtype, "aten::mm.dtype", "(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor")  \
  X(mm_dtype_out, "aten::mm.dtype_out",  \
    "(Tensor self, Tensor mat2, ScalarType out_dtype, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(mm_out, "aten::mm.out", "(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(mul, "aten::mul.Tensor", "(Tensor self, Tensor other) -> Tensor")  \
  X(mul_, "aten::mul_.Tensor", "(Tensor(a!) self, Tensor other) -> Tensor(a!)")  \
  X(mul_out, "aten::mul.out", "(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(mul_scalar_, "aten::mul_.Scalar", "(Tensor(a!) self, Scalar other) -> Tensor(a!)")  \
  X(narrow, "aten::narrow", "(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)")  \
  X(nan_to_num, "aten::nan_to_num",  \
    "(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor")  \
  X(native_layer_norm, "aten::native_layer_norm",  \
    "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, "  \
    "Tensor, Tensor)")  \
  X(native_layer_norm_backward, "aten::native_layer_norm_backward",  \
    "(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, "  \
    "Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)")  \
  X(relu_out, "aten::relu.out", "(Tensor self, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(rsqrt, "aten::rsqrt", "(Tensor self) -> Tensor")  \
  X(scatter_, "aten::scatter_.src", "(Tensor(a!) self, int dim, Tensor index, Tensor src) -> Tensor(a!)")  \
  X(scatter_add_, "aten::scatter_add_", "(Tensor(a!) self, int dim, Tensor index, Tensor src) -> Tensor(a!)")  \
  X(select, "aten::select.int", "(Tensor(a) self, int dim, SymInt index) -> Tensor(a)")  \
  X(sigmoid, "aten::sigmoid", "(Tensor self) -> Tensor")  \
  X(sigmoid_, "aten::sigmoid_", "(Tensor(a!) self) -> Tensor(a!)")  \
  X(silu_backward_out, "aten::silu_backward.grad_input",  \
    "(Tensor grad_output, Tensor self, *, Tensor(a!) grad_input) -> Tensor(a!)")  \
  X(silu_out, "aten::silu.out", "(Tensor self, *, Tensor(a!) out) -> Tensor(a!)")  \
  X(sin, "aten::sin", "(Tensor self) -> Tensor")  \
  X(softmax, "aten::_softmax", "(Tensor self, int dim, bool half_to_float) -> Tensor")  \
  X(sort_stable, "aten::sort.stable",  \
    "(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)")  \
  X(sub_, "aten::sub_.Tensor", "(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")  \
  X(sum, "aten::sum", "(Tensor self, *, ScalarType? dtype=None) -> Tensor")  \
  X(sum_dims, "aten::sum.dim_IntList",  \
    "(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor")  \
  X(t, "aten::t", "(Tensor(a) self) -> Tensor(a)")  \
  X(tanh_, "aten::tanh_", "(Tensor(a!) self) -> Tensor(a!)")  \
  X(tanh_backward_out, "aten::tanh_backward.grad_input",  \
    "(Tensor grad_output, Tensor output, *, Tensor(a!) grad_input) -> Tensor(a!)")  \
  X(threshold_backward_out, "aten::threshold_backward.grad_input",  \
    "(Tensor grad_output, Tensor self, Scalar threshold, *, Tensor(a!) grad_input) -> Tensor(a!)")  \
  X(to_dtype, "aten::to.dtype",  \
    "(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? "  \
    "memory_format=None) -> Tensor(a)")  \
  X(vector_norm, "aten::linalg_vector_norm",  \
    "(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> "  \
    "Tensor")  \
  X(view, "aten::view", "(Tensor(a) self, SymInt[] size) -> Tensor(a)")  \
  X(zero_, "aten::zero_", "(Tensor(a!) self) -> Tensor(a!)")
// clang-format on

namespace aten {

using namespace chassis;

struct Operators {
#define ATEN_MEMBER(member, name, schema) Operator member;
  ATEN_OPERATORS(ATEN_MEMBER)
#undef ATEN_MEMBER
  const Host& host;

#define ATEN_FIND(member, name, schema) member = Operator(host, name);
  explicit Operators(const Host& host) : host(host) { ATEN_OPERATORS(ATEN_FIND) }
#undef ATEN_FIND
};

// One line of the manifest.
#define ATEN_LINE(member, name, schema) "op=" name schema "\n"

}  // namespace aten
