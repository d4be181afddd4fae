// The attention provider "naive": loops over every query and key in double precision, with every mask and any head
// dims; the oracle of tests. The mask follows chassis/op.h literally.
#include <algorithm>
#include <cmath>

#include "chassis/bf16.hpp"
#include "chassis/cost.hpp"
#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"
#include "chassis/task.hpp"

namespace {

using namespace chassis;
using Values = std::vector<double>;

Values read(const BorrowedTensor& tensor) {
  if (!tensor.is_contiguous()) throw Failure(CHASSIS_INTERNAL, "attention got a tensor that is not contiguous");
  Values values(static_cast<size_t>(tensor.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype() == CHASSIS_DTYPE_F32) {
      values[i] = tensor.data<float>()[i];
    } else if (tensor.dtype() == CHASSIS_DTYPE_F64) {
      values[i] = tensor.data<double>()[i];
    } else {
      values[i] = from_bf16(tensor.data<uint16_t>()[i]);
    }
  }
  return values;
}

void write(const BorrowedTensor& tensor, const Values& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype() == CHASSIS_DTYPE_F32) {
      tensor.data<float>()[i] = static_cast<float>(values[i]);
    } else if (tensor.dtype() == CHASSIS_DTYPE_F64) {
      tensor.data<double>()[i] = values[i];
    } else {
      tensor.data<uint16_t>()[i] = to_bf16(static_cast<float>(values[i]));
    }
  }
}

struct Mask {
  explicit Mask(const OpView& op)
      : causal(op.attr_int("causal", 0) != 0),
        window(op.attr_int("window", 0)),
        chunk(op.attr_int("chunk", 0)),
        has_key_part(op.has_attr("key_part")) {}

  // True if the query at position t of row b sees the key at position s.
  bool sees(int64_t b, int64_t t, int64_t s) const {
    if (t >= num_positions || s >= num_positions) return false;  // padding
    const bool in_prefix = prefix_lens && s < prefix_lens[b];
    if (causal && s > t && !in_prefix) return false;
    if (window > 0 && t - s >= window) return false;
    if (documents) {
      const int32_t of_query = documents[b * num_positions + t], of_key = documents[b * num_positions + s];
      if (of_query != of_key || of_query < 0) return false;
    }
    if (chunk == 0) return true;
    const int64_t first = document_begins.empty() ? 0 : document_begins[static_cast<size_t>(b * num_positions + t)];
    return (s - first) / chunk == (t - first) / chunk;
  }

  // Sets document_begins from documents of `rows` rows.
  void find_documents(int64_t rows) {
    document_begins.resize(static_cast<size_t>(rows * num_positions));
    for (int64_t b = 0; b < rows; ++b) {
      const int32_t* const ids = documents + b * num_positions;
      for (int64_t t = 0; t < num_positions; ++t)
        document_begins[static_cast<size_t>(b * num_positions + t)] = std::find(ids, ids + t, ids[t]) - ids;
    }
  }

  bool causal;
  int64_t window, chunk;
  bool has_key_part;
  const int32_t* documents = nullptr;
  const int32_t* prefix_lens = nullptr;
  std::vector<int64_t> document_begins = {};  // of the document at each position, if chunks are counted from there
  int64_t num_positions = 0, key_offset = 0;
};

class Attention : public Kernel {
 public:
  explicit Attention(const OpView& op)
      : mask_(op), scale_(op.attr_float("scale")), softcap_(op.attr_float("softcap", 0)) {}

  void forward(Call& call) override {
    const Shape shape(call);
    const Mask mask = mask_of(call, shape);
    const Values q = read(call.input(0)), k = read(call.input(1)), v = read(call.input(2));
    Values out(static_cast<size_t>(shape.batch * shape.time * shape.heads * shape.v_dim));
    Tensor log_sums;
    if (mask.has_key_part)
      log_sums = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {shape.batch, shape.heads, shape.time});
    for_heads(call, shape, [&](int64_t b, int64_t h) {
      for (int64_t t = 0; t < shape.time; ++t) {
        double log_sum = 0;
        const Values weights = attend(mask, shape, q, k, b, t, h, nullptr, &log_sum);
        if (mask.has_key_part) log_sums.data<float>()[shape.log_sum(b, t, h)] = static_cast<float>(log_sum);
        for (int64_t s = 0; s < shape.keys; ++s)
          for (int64_t i = 0; i < shape.v_dim; ++i)
            out[shape.out(b, t, h) + i] += weights[s] * v[shape.value(b, s, h) + i];
      }
    });
    write(call.make_output(0, call.input(0).dtype(),
                           std::vector<int64_t>{shape.batch, shape.time, shape.heads, shape.v_dim}),
          out);
    if (mask.has_key_part) call.save(0, std::move(log_sums));
  }

  // dS = P · (dP - Σ P·dP), dP = dO · vᵀ.
  void backward_inputs(Call& call) override {
    const BorrowedTensor grad = call.grad_output(0);
    if (!grad) return;
    const Shape shape(call);
    const Mask mask = mask_of(call, shape);
    const Values q = read(call.input(0)), k = read(call.input(1)), v = read(call.input(2)), dout = read(grad);
    Values dq(q.size()), dk(k.size()), dv(v.size());
    const Values out = mask.has_key_part ? read(call.output(0)) : Values();
    const float* const log_sums = mask.has_key_part ? call.saved(0).data<float>() : nullptr;
    // Query heads that share keys add to the same gradients, so one thread computes all of them.
    parallel_for(call.host(), shape.batch * shape.kv_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t g = 0; g < shape.heads / shape.kv_heads; ++g) {
          const int64_t h = i % shape.kv_heads * (shape.heads / shape.kv_heads) + g;
          backward_head(mask, shape, q, k, v, out, log_sums, dout, dq, dk, dv, i / shape.kv_heads, h);
        }
    });
    store_grad_input(call, 0, dq);
    store_grad_input(call, 1, dk);
    store_grad_input(call, 2, dv);
  }

 private:
  struct Shape {
    explicit Shape(Call& call)
        : batch(call.input(0).size(0)),
          time(call.input(0).size(1)),
          heads(call.input(0).size(2)),
          qk_dim(call.input(0).size(3)),
          keys(call.input(1).size(1)),
          kv_heads(call.input(1).size(2)),
          v_dim(call.input(2).size(3)),
          offset(call.query_offset()) {}
    int64_t query(int64_t b, int64_t t, int64_t h) const { return ((b * time + t) * heads + h) * qk_dim; }
    int64_t out(int64_t b, int64_t t, int64_t h) const { return ((b * time + t) * heads + h) * v_dim; }
    int64_t key(int64_t b, int64_t s, int64_t h) const { return ((b * keys + s) * kv_heads + kv(h)) * qk_dim; }
    int64_t value(int64_t b, int64_t s, int64_t h) const { return ((b * keys + s) * kv_heads + kv(h)) * v_dim; }
    int64_t log_sum(int64_t b, int64_t t, int64_t h) const { return (b * heads + h) * time + t; }
    int64_t kv(int64_t h) const { return h / (heads / kv_heads); }
    int64_t batch, time, heads, qk_dim, keys, kv_heads, v_dim, offset;
  };

  Mask mask_of(Call& call, const Shape& shape) const {
    Mask mask = mask_;
    mask.num_positions = mask.has_key_part ? call.num_positions() : shape.keys;
    mask.key_offset = mask.has_key_part ? call.key_offset() : 0;
    if (const BorrowedTensor documents = call.input(3)) {
      if (documents.size(1) != mask.num_positions)
        throw Failure(CHASSIS_INVALID_ARGUMENT, "document_ids has ", documents.size(1), " positions, expected ",
                      mask.num_positions, ", one per key");
      mask.documents = documents.data<int32_t>();
      if (mask.chunk > 0) mask.find_documents(documents.size(0));
    }
    if (const BorrowedTensor prefixes = call.input(4)) mask.prefix_lens = prefixes.data<int32_t>();
    return mask;
  }

  template <typename Body>
  static void for_heads(Call& call, const Shape& shape, Body&& body) {
    parallel_for(call.host(), shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i / shape.heads, i % shape.heads);
    });
  }

  // The softmax weights of one query over all keys; all zero if it sees none. `slopes` receives the derivatives of the
  // capped scores, `log_sum` the log of the sum of their exponentials. With `given`, weights are divided by that sum.
  Values attend(const Mask& mask, const Shape& shape, const Values& q, const Values& k, int64_t b, int64_t t, int64_t h,
                Values* slopes = nullptr, double* log_sum = nullptr, const float* given = nullptr) const {
    Values weights(static_cast<size_t>(shape.keys));
    if (slopes) slopes->assign(weights.size(), 1);
    double largest = -INFINITY, sum = 0;
    for (int64_t s = 0; s < shape.keys; ++s) {
      weights[s] = -INFINITY;
      if (!mask.sees(b, t + shape.offset, s + mask.key_offset)) continue;
      double dot = 0;
      for (int64_t i = 0; i < shape.qk_dim; ++i) dot += q[shape.query(b, t, h) + i] * k[shape.key(b, s, h) + i];
      weights[s] = dot * scale_;
      if (softcap_ > 0) {
        const double capped = std::tanh(weights[s] / softcap_);
        weights[s] = softcap_ * capped;
        if (slopes) (*slopes)[s] = 1 - capped * capped;
      }
      largest = std::max(largest, weights[s]);
    }
    if (given) {
      for (double& weight : weights) weight = weight == -INFINITY ? 0 : std::exp(weight - *given);
      return weights;
    }
    for (double& weight : weights) {
      weight = weight == -INFINITY ? 0 : std::exp(weight - largest);
      sum += weight;
    }
    if (sum > 0)
      for (double& weight : weights) weight /= sum;
    if (log_sum) *log_sum = sum > 0 ? largest + std::log(sum) : -INFINITY;
    return weights;
  }

  // If `log_sums` is given, it and `out` are those of more keys than the ones here.
  void backward_head(const Mask& mask, const Shape& shape, const Values& q, const Values& k, const Values& v,
                     const Values& out, const float* log_sums, const Values& dout, Values& dq, Values& dk, Values& dv,
                     int64_t b, int64_t h) const {
    for (int64_t t = 0; t < shape.time; ++t) {
      Values slopes;
      const float* const given = log_sums ? log_sums + shape.log_sum(b, t, h) : nullptr;
      const Values weights = attend(mask, shape, q, k, b, t, h, &slopes, nullptr, given);
      Values dweights(weights.size());
      double mean = 0;
      for (int64_t s = 0; s < shape.keys; ++s) {
        for (int64_t i = 0; i < shape.v_dim; ++i) {
          dweights[s] += dout[shape.out(b, t, h) + i] * v[shape.value(b, s, h) + i];
          dv[shape.value(b, s, h) + i] += weights[s] * dout[shape.out(b, t, h) + i];
        }
        mean += weights[s] * dweights[s];
      }
      if (log_sums) {
        mean = 0;
        for (int64_t i = 0; i < shape.v_dim; ++i) mean += out[shape.out(b, t, h) + i] * dout[shape.out(b, t, h) + i];
      }
      for (int64_t s = 0; s < shape.keys; ++s) {
        const double dscore = weights[s] * (dweights[s] - mean) * slopes[s] * scale_;
        for (int64_t i = 0; i < shape.qk_dim; ++i) {
          dq[shape.query(b, t, h) + i] += dscore * k[shape.key(b, s, h) + i];
          dk[shape.key(b, s, h) + i] += dscore * q[shape.query(b, t, h) + i];
        }
      }
    }
  }

  static void store_grad_input(Call& call, uint32_t i, const Values& values) {
    if (!call.wants_grad_input(i)) return;
    const BorrowedTensor input = call.input(i);
    call.set_grad_input(i, Tensor::create_like(call.host(), input));
    write(call.grad_input(i), values);
  }

  Mask mask_;
  double scale_, softcap_;
};

class Naive : public Ops {
 public:
  static constexpr std::string_view kDoc =
      "every mask by naive loops in double precision on the CPU; the oracle of tests";
  static constexpr std::string_view kPatterns[] = {"attention"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than(
        {"scale", "causal", "window", "chunk", "document", "prefix", "softcap", "query_part", "key_part"});
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs only on the CPU");
    const uint32_t dtype = node.input(0).dtype();
    if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_F64 && dtype != CHASSIS_DTYPE_BF16)
      refuse("computes in float32, float64 and bfloat16, not ", dtype_name(dtype));
    if (node.op(0).has_attr("key_part") && dtype == CHASSIS_DTYPE_F64)
      refuse("returns log sums (key_part) in f32, so not for f64");
    const OperandView q = node.input(0), k = node.input(1);
    constexpr double kFlopsPerNs = 0.5;
    return attention_cost_ns(host(), node, static_cast<double>(q.size(1) * k.size(1)), q.size(0) * q.size(2),
                             kFlopsPerNs);
  }

  void infer(const NodeView& node, Infer& out) override {
    const bool has_key_part = node.op(0).has_attr("key_part");
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | (has_key_part ? CHASSIS_KERNEL_LOG_SUM : 0u));
    const OperandView q = node.input(0);
    if (has_key_part) out.saves(CHASSIS_DTYPE_F32, {q.size(0), q.size(2), q.size(1)}).keeps_output(0);
    if (!node.training()) return;
    for (int i = 0; i < node.num_inputs(); ++i)
      if (node.has_input(i)) out.keeps_input(static_cast<uint32_t>(i));
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return std::make_unique<Attention>(node.op(0));
  }
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nrequires=chassis.task/1\noracle=1\nswappable=1\nlicense=Apache-2.0\n", Naive)
