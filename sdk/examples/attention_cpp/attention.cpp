// Attention from ATen operators called by name: it does not depend on LibTorch, and LibTorch differentiates it.
// B rows, T queries, S keys, K key heads with G query heads each, D head_dim.
#include <vector>

#include "chassis/dispatch.hpp"
#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

using Ints = std::vector<int64_t>;

class AttentionKernel final : public Kernel {
 public:
  AttentionKernel(const Host& host, const OpView& op)
      : host_(host), scale_(op.attr_float("scale")), causal_(op.attr_int("causal", 0) != 0) {}

  void forward(Call& call) override {
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2), ids = call.input(3);
    const int64_t B = q.size(0), T = q.size(1), N = q.size(2), D = q.size(3), S = k.size(1), K = k.size(2);
    const Tensor q_BKGTD = permute(reshape(q, Ints{B, T, K, N / K, D}), Ints{0, 2, 3, 1, 4});
    const Tensor k_BKGDS = permute(reshape(k, Ints{B, S, K, 1, D}), Ints{0, 2, 3, 4, 1});
    const Tensor v_BKGSD = permute(reshape(v, Ints{B, S, K, 1, v.size(3)}), Ints{0, 2, 3, 1, 4});
    Tensor p_BKGTS = mul(matmul(q_BKGTD, k_BKGDS), scale_);
    if (causal_) {
      const Tensor all = ones_like(p_BKGTS, DtypeArg{CHASSIS_DTYPE_BOOL});
      p_BKGTS = masked_fill(p_BKGTS, triu(all, call.query_offset() + 1), kHidden);
    }
    if (ids) {
      const Tensor mine = reshape(ids, Ints{B, 1, 1, T, 1}), theirs = reshape(ids, Ints{B, 1, 1, 1, S});
      p_BKGTS = masked_fill(p_BKGTS, ne(mine, theirs), kHidden);
    }
    Tensor y_BKGTD = matmul(softmax(p_BKGTS, -1), v_BKGSD);
    if (ids) y_BKGTD = masked_fill(y_BKGTD, lt(reshape(ids, Ints{B, 1, 1, T, 1}), 0), 0.0);
    const Tensor y_BTKGD = permute(y_BKGTD, Ints{0, 3, 1, 2, 4});
    call.set_output(0, contiguous(reshape(y_BTKGD, Ints{B, T, N, v.size(3)})));
  }

 private:
  static constexpr double kHidden = -1e30;
  const Host& host_;
  const Operator reshape{host_, "aten::reshape"}, permute{host_, "aten::permute"}, matmul{host_, "aten::matmul"},
      mul{host_, "aten::mul.Scalar"}, ones_like{host_, "aten::ones_like"}, triu{host_, "aten::triu"},
      ne{host_, "aten::ne.Tensor"}, lt{host_, "aten::lt.Scalar"}, masked_fill{host_, "aten::masked_fill.Scalar"},
      softmax{host_, "aten::softmax.int"}, contiguous{host_, "aten::contiguous"};
  const double scale_;
  const bool causal_;
};

class Attention final : public Ops {
 public:
  static constexpr std::string_view kDoc = "attention from ATen operators in float32, masks causal and document";
  static constexpr std::string_view kPatterns[] = {"attention"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"scale", "causal", "window", "chunk", "document", "prefix"});
    if (node.input(0).dtype() != CHASSIS_DTYPE_F32)
      refuse("computes in float32, not ", dtype_name(node.input(0).dtype()));
    for (const char* mask : {"window", "chunk", "prefix"}) {
      if (node.op(0).attr_int(mask, 0) != 0) refuse("has no mask '", mask, "'");
    }
    return 0;
  }
  void infer(const NodeView& node, Infer& out) override {
    const OperandView q = node.input(0), k = node.input(1);
    const auto scores_bytes = static_cast<uint64_t>(q.size(0) * q.size(1) * q.size(2) * k.size(1) * 4);
    out.flags(CHASSIS_KERNEL_COMPOSED).workspace(3 * scores_bytes, 5 * scores_bytes);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return std::make_unique<AttentionKernel>(host(), node.op(0));
  }
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.dispatch/1\n"
    "requires=chassis.tensor/1\n"
    "op=aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)\n"
    "op=aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)\n"
    "op=aten::matmul(Tensor self, Tensor other) -> Tensor\n"
    "op=aten::mul.Scalar(Tensor self, Scalar other) -> Tensor\n"
    "op=aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
    "bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor\n"
    "op=aten::triu(Tensor self, SymInt diagonal=0) -> Tensor\n"
    "op=aten::ne.Tensor(Tensor self, Tensor other) -> Tensor\n"
    "op=aten::lt.Scalar(Tensor self, Scalar other) -> Tensor\n"
    "op=aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor\n"
    "op=aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor\n"
    "op=aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=0) -> Tensor(a)\n"
    "swappable=1\n",
    Attention)
