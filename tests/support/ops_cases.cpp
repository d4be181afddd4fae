// The cases: nodes, tensors and reference results. ops_check.cpp runs them.
#include "tests/support/ops_cases.hpp"

#include <ATen/ATen.h>

#include "host/service/philox.hpp"

namespace chassis::test {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor random(std::vector<int64_t> sizes, double scale = 1.0) {
  return at::randn(sizes, at::TensorOptions(kDouble)) * scale;
}
at::Tensor ints(std::vector<int32_t> values, std::vector<int64_t> sizes) {
  return at::tensor(at::ArrayRef<int32_t>(values), at::TensorOptions(kInt)).view(sizes);
}

// One op with its operands in the order inputs, params, output. A wide output is fp32 if inputs have fewer bits.
std::function<NodeSpec(c10::ScalarType)> single(std::string id, Tensors inputs, Tensors params,
                                                std::vector<int64_t> output, Attrs attrs = {}, bool is_wide = false) {
  return [=](c10::ScalarType dtype) {
    NodeSpec node;
    const auto add = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return -1;
      const bool is_float = tensor.scalar_type() == kDouble;
      return node.operand(tensor.sizes().vec(), is_float ? dtype : kInt, is_float);
    };
    for (const at::Tensor& tensor : inputs) node.inputs.push_back(add(tensor));
    for (const at::Tensor& tensor : params) node.params.push_back(add(tensor));
    const auto wide = dtype == kDouble ? kDouble : at::kFloat;
    node.outputs.push_back(node.operand(output, is_wide ? wide : dtype, true));
    node.ops.push_back({id, node.inputs, node.params, node.outputs, attrs});
    return node;
  };
}

OpsCase make(std::string name, std::string id, Tensors inputs, Tensors params, std::vector<int64_t> output, Attrs attrs,
             std::function<at::Tensor(const Tensors&, const Tensors&)> expected, bool is_wide = false) {
  return {std::move(name), single(std::move(id), inputs, params, std::move(output), std::move(attrs), is_wide), inputs,
          params, std::move(expected)};
}

at::Tensor apply_function(const std::string& name, const at::Tensor& x) {
  if (name == "silu") return at::silu(x);
  if (name == "relu") return at::relu(x);
  return at::gelu(x, name == "gelu_tanh" ? "tanh" : "none");
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps) * weight;
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  return at::nll_loss(at::log_softmax(logits.reshape({-1, logits.size(-1)}), -1), labels.reshape({-1}).to(at::kLong),
                      {}, at::Reduction::Sum, -100);
}

at::Tensor token_logp(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor counts = labels != -100;
  return at::gather(at::log_softmax(logits, -1), -1, (labels.to(at::kLong) * counts).unsqueeze(-1)).squeeze(-1) *
         counts;
}

void add_linear(std::vector<OpsCase>& cases) {
  cases.push_back(make("linear", "linear", {random({2, 5, 12})}, {random({7, 12}, 0.3)}, {2, 5, 7}, {},
                       [](const Tensors& x, const Tensors& p) { return at::linear(x[0], p[0]); }));
  cases.push_back(make("linear with a bias over divided dims", "linear", {random({2, 3, 2, 6})},
                       {random({20, 12}, 0.3), random({20})}, {2, 3, 4, 5}, {}, [](const Tensors& x, const Tensors& p) {
                         return at::linear(x[0].reshape({2, 3, 12}), p[0], p[1]).view({2, 3, 4, 5});
                       }));
}

OpsCase offset_norm_case(std::vector<int64_t> sizes) {
  const int64_t n = sizes.back();
  return make("rms_norm with an offset, of " + std::to_string(sizes.size()) + " dims", "rms_norm", {random(sizes, 2.0)},
              {random({n})}, sizes, {{"eps", 1e-5}, {"offset", 1.0}},
              [](const Tensors& x, const Tensors& p) { return rms_norm(x[0], 1 + p[0], 1e-5); });
}

OpsCase rms_norm_case(int64_t rows, int64_t n) {
  return make("rms_norm of " + std::to_string(n), "rms_norm", {random({3, rows, n}, 2.0)}, {random({n})}, {3, rows, n},
              {{"eps", 1e-5}}, [](const Tensors& x, const Tensors& p) { return rms_norm(x[0], p[0], 1e-5); });
}

void add_norms(std::vector<OpsCase>& cases) {
  for (int64_t n : {8, 24, 37}) cases.push_back(rms_norm_case(5, n));
  cases.push_back(offset_norm_case({3, 5, 37}));
  cases.push_back(offset_norm_case({2, 3, 4, 10}));
  cases.push_back(make("rms_norm of every head", "rms_norm", {random({2, 3, 4, 10})}, {random({10})}, {2, 3, 4, 10},
                       {{"eps", 1e-6}}, [](const Tensors& x, const Tensors& p) { return rms_norm(x[0], p[0], 1e-6); }));
  for (bool bias : {true, false})
    cases.push_back(
        make(bias ? "layer_norm" : "layer_norm without a bias", "layer_norm", {random({3, 5, 24}) + 0.5},
             {random({24}), bias ? random({24}) : at::Tensor()}, {3, 5, 24}, {{"eps", 1e-5}},
             [](const Tensors& x, const Tensors& p) { return at::layer_norm(x[0], {24}, p[0], p[1], 1e-5); }));
}

void add_rope(std::vector<OpsCase>& cases, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  std::vector<double> inv_freq = {1.0};
  while (static_cast<int64_t>(inv_freq.size()) < half) inv_freq.push_back(inv_freq.back() * 0.31);
  for (bool interleaved : {false, true})
    for (double factor : {1.0, 1.25})
      cases.push_back(make(
          "rope of " + std::to_string(head_dim) + (interleaved ? " interleaved" : "") + (factor != 1 ? " scaled" : ""),
          "rope", {random({2, 3, 5, head_dim}), ints({0, 1, 2, 100, 3, 4}, {2, 3})}, {}, {2, 3, 5, head_dim},
          {{"inv_freq", inv_freq}, {"factor", factor}, {"interleaved", int64_t{interleaved}}},
          [=](const Tensors& x, const Tensors&) {
            const at::Tensor freq =
                at::tensor(at::ArrayRef<double>(inv_freq), at::TensorOptions(kDouble)).to(at::kFloat);
            const at::Tensor angle = (x[1].to(at::kFloat).view({2, 3, 1, 1}) * freq).to(kDouble);
            const at::Tensor c = angle.cos() * factor, s = angle.sin() * factor;
            if (interleaved) {
              const at::Tensor pairs = x[0].view({2, 3, 5, half, 2});
              const at::Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
              return at::stack({a * c - b * s, b * c + a * s}, -1).view({2, 3, 5, head_dim});
            }
            const at::Tensor a = x[0].narrow(-1, 0, half), b = x[0].narrow(-1, half, half);
            return at::cat({a * c - b * s, b * c + a * s}, -1);
          }));
}

// The first `rotary_dim` dims of every head, with long frequencies from position `long_from` on.
OpsCase partial_rope(int64_t head_dim, int64_t rotary_dim, bool interleaved, int64_t long_from) {
  const int64_t half = rotary_dim / 2;
  std::vector<double> short_freq = {1.0}, long_freq = {0.5};
  for (auto* list : {&short_freq, &long_freq})
    while (static_cast<int64_t>(list->size()) < half) list->push_back(list->back() * 0.31);
  Attrs attrs = {{"inv_freq", short_freq}, {"factor", 1.25}, {"interleaved", int64_t{interleaved}}};
  if (rotary_dim != head_dim) attrs["rotary_dim"] = rotary_dim;
  if (long_from > 0) attrs["long_inv_freq"] = long_freq, attrs["long_from"] = long_from;
  const std::vector<double> inv_freq = long_from > 0 && long_from <= 100 ? long_freq : short_freq;
  return make("rope of " + std::to_string(rotary_dim) + " of " + std::to_string(head_dim) + " dims" +
                  (interleaved ? " interleaved" : "") + ", long from " + std::to_string(long_from),
              "rope", {random({2, 3, 5, head_dim}), ints({0, 1, 2, 100, 3, 4}, {2, 3})}, {}, {2, 3, 5, head_dim}, attrs,
              [=](const Tensors& x, const Tensors&) {
                const at::Tensor freq =
                    at::tensor(at::ArrayRef<double>(inv_freq), at::TensorOptions(kDouble)).to(at::kFloat);
                const at::Tensor angle = (x[1].to(at::kFloat).view({2, 3, 1, 1}) * freq).to(kDouble);
                const at::Tensor c = angle.cos() * 1.25, s = angle.sin() * 1.25;
                const at::Tensor rotated = x[0].narrow(-1, 0, rotary_dim),
                                 rest = x[0].narrow(-1, rotary_dim, head_dim - rotary_dim);
                if (interleaved) {
                  const at::Tensor pairs = rotated.reshape({2, 3, 5, half, 2});
                  const at::Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
                  const at::Tensor turned = at::stack({a * c - b * s, b * c + a * s}, -1);
                  return at::cat({turned.view({2, 3, 5, rotary_dim}), rest}, -1);
                }
                const at::Tensor a = rotated.narrow(-1, 0, half), b = rotated.narrow(-1, half, half);
                return at::cat({a * c - b * s, b * c + a * s, rest}, -1);
              });
}

void add_elementwise(std::vector<OpsCase>& cases) {
  for (const std::string function : {"silu", "gelu", "gelu_tanh", "relu"}) {
    cases.push_back(make("activation " + function, "activation", {random({2, 5, 9}, 2.0)}, {}, {2, 5, 9},
                         {{"function", function}},
                         [=](const Tensors& x, const Tensors&) { return apply_function(function, x[0]); }));
    cases.push_back(make("gated_activation " + function, "gated_activation",
                         {random({2, 5, 37}, 2.0), random({2, 5, 37})}, {}, {2, 5, 37}, {{"function", function}},
                         [=](const Tensors& x, const Tensors&) { return apply_function(function, x[0]) * x[1]; }));
  }
  cases.push_back(make("add", "add", {random({2, 5, 8}), random({2, 5, 8})}, {}, {2, 5, 8}, {},
                       [](const Tensors& x, const Tensors&) { return x[0] + x[1]; }));
  cases.push_back(make("mul", "mul", {random({2, 5, 8}), random({2, 5, 8})}, {}, {2, 5, 8}, {},
                       [](const Tensors& x, const Tensors&) { return x[0] * x[1]; }));
  // A factor that float32 and bfloat16 represent exactly; fp32 has its own test.
  cases.push_back(make("scale", "scale", {random({2, 5, 8})}, {}, {2, 5, 8}, {{"factor", 5.5}},
                       [](const Tensors& x, const Tensors&) { return x[0] * 5.5; }));
  cases.push_back(make("softcap", "softcap", {random({2, 5, 37}, 30.0)}, {}, {2, 5, 37}, {{"cap", 20.0}},
                       [](const Tensors& x, const Tensors&) { return at::tanh(x[0] / 20.0) * 20.0; }));
  cases.push_back(make("clip", "clip", {random({2, 5, 37})}, {}, {2, 5, 37}, {{"limit", 0.75}},
                       [](const Tensors& x, const Tensors&) { return at::clamp(x[0], -0.75, 0.75); }));
  const at::Tensor positions = ints({0, 3, 4, 100, 11, 7}, {2, 3});
  for (const double attn_scale : {0.1, 0.6})
    cases.push_back(make("position_scale by " + std::to_string(attn_scale), "position_scale",
                         {random({2, 3, 5, 10}), positions}, {}, {2, 3, 5, 10},
                         {{"floor_scale", 4.0}, {"attn_scale", attn_scale}}, [=](const Tensors& x, const Tensors&) {
                           const at::Tensor steps = at::floor((positions.to(kDouble) + 1) / 4);
                           return x[0] * (1 + attn_scale * at::log1p(steps)).view({2, 3, 1, 1});
                         }));
  for (const double eps : {1e-5, 0.3})
    cases.push_back(make("rms_norm without a weight, eps " + std::to_string(eps), "rms_norm", {random({2, 3, 5, 10})},
                         {}, {2, 3, 5, 10}, {{"eps", eps}, {"plain", int64_t{1}}},
                         [=](const Tensors& x, const Tensors&) {
                           return rms_norm(x[0], at::ones({10}, at::TensorOptions(kDouble)), eps);
                         }));
  cases.push_back(
      make("reshape", "reshape", {random({2, 5, 8})}, {}, {2, 5, 4, 2}, {}, [](const Tensors& x, const Tensors&) {
        return x[0].view({2, 5, 4, 2});
      }));
}

void add_dropout_and_channels(std::vector<OpsCase>& cases) {
  for (double p : {0.0, 0.3, 0.9}) {
    const at::Tensor mask = dropout_mask(2, 3, 5 * 61, p).view({2, 3, 5, 61}) / (1 - p);
    cases.push_back(make("dropout of " + std::to_string(p), "dropout", {random({2, 3, 5, 61})}, {}, {2, 3, 5, 61},
                         {{"p", p}}, [=](const Tensors& x, const Tensors&) { return x[0] * mask; }));
  }
  {
    const at::Tensor mask = dropout_mask(2, 9, 61, 0.3).narrow(1, 6, 3) / 0.7;
    cases.push_back(make("dropout of positions from 6 on", "dropout", {random({2, 3, 61})}, {}, {2, 3, 61},
                         {{"p", 0.3}, {"query_part", int64_t{2}}},
                         [=](const Tensors& x, const Tensors&) { return x[0] * mask; }));
    cases.back().query_offset = 6;
  }
  for (int64_t first : {5, 256}) {  // the first element's place among those of a position
    const at::Tensor mask = dropout_mask(2, 3, first + 305, 0.3).narrow(2, first, 305).view({2, 3, 5, 61}) / 0.7;
    cases.push_back(make("dropout from element " + std::to_string(first), "dropout", {random({2, 3, 5, 61})}, {},
                         {2, 3, 5, 61}, {{"p", 0.3}, {"first", first}},
                         [=](const Tensors& x, const Tensors&) { return x[0] * mask; }));
  }
  cases.push_back(make("channel_scale", "channel_scale", {random({2, 3, 37})}, {random({37})}, {2, 3, 37}, {},
                       [](const Tensors& x, const Tensors& p) { return x[0] * p[0]; }));
  cases.push_back(make("channel_scale of two dims", "channel_scale", {random({2, 3, 4, 5})}, {random({20})},
                       {2, 3, 4, 5}, {}, [](const Tensors& x, const Tensors& p) {
                         return x[0] * p[0].view({4, 5});
                       }));
  cases.push_back(make("channel_scale of every head", "channel_scale", {random({2, 3, 4, 5})}, {random({5})},
                       {2, 3, 4, 5}, {}, [](const Tensors& x, const Tensors& p) { return x[0] * p[0]; }));
}

OpsCase embedding_case(int64_t vocab, int64_t columns) {
  return make("embedding", "embedding", {ints({0, 3, 3, 6, 1, 3}, {2, 3})}, {random({vocab, columns})}, {2, 3, columns},
              {}, [](const Tensors& x, const Tensors& p) { return at::embedding(p[0], x[0].to(at::kLong)); });
}

// Rows [first, first + rows) of a table; ids of other rows give zeros.
OpsCase embedding_part(int64_t first, int64_t rows) {
  return make("embedding of a part from " + std::to_string(first), "embedding", {ints({0, 3, 3, 6, 1, 5}, {2, 3})},
              {random({rows, 8})}, {2, 3, 8}, {{"first", first}}, [=](const Tensors& x, const Tensors& p) {
                const at::Tensor row = x[0].to(at::kLong) - first, here = (row >= 0).logical_and(row < rows);
                return at::embedding(p[0], row * here) * here.unsqueeze(-1);
              });
}

// The first `count` columns of logits, which are the classes from `first` on; both results, stacked.
at::Tensor partial_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, int64_t first, int64_t count) {
  const at::Tensor column = labels.to(at::kLong) - first;
  const at::Tensor here = (column >= 0).logical_and(column < count).logical_and(labels != -100);
  const at::Tensor target = at::gather(logits, 2, (column * here).unsqueeze(-1)).squeeze(-1) * here;
  return at::stack({at::logsumexp(logits.narrow(2, 0, count), 2), target});
}

// Classes 4 to 8 of 11, in 5 columns, with one more column of padding.
OpsCase partial_cross_entropy_case(bool with_head, double cap = 0) {
  constexpr int64_t kFirst = 4, kCount = 5, kColumns = 6, kHidden = 12;
  OpsCase out;
  out.name = std::string(with_head ? "linear+" : "") + (cap > 0 ? "softcap+" : "") + "partial_cross_entropy";
  out.inputs = {random({2, 3, with_head ? kHidden : kColumns}), ints({4, -100, 10, 8, 0, 9}, {2, 3})};
  if (with_head) out.params = {random({kColumns, kHidden}, 0.5)};
  out.node = [=](c10::ScalarType dtype) {
    NodeSpec node;
    const c10::ScalarType wide = dtype == kDouble ? kDouble : at::kFloat;
    const int in = node.operand({2, 3, with_head ? kHidden : kColumns}, dtype, true);
    const int label = node.operand({2, 3}, kInt, false);
    int logits = in;
    node.inputs = {in, label};
    if (with_head) {
      logits = node.operand({2, 3, kColumns}, dtype, true);
      node.params = {node.operand({kColumns, kHidden}, dtype, true)};
      node.ops = {{"linear", {in}, node.params, {logits}, {}}};
    }
    if (cap > 0) {
      const int capped = node.operand({2, 3, kColumns}, dtype, true);
      node.ops.push_back({"softcap", {logits}, {}, {capped}, {{"cap", cap}}});
      logits = capped;
    }
    node.outputs = {node.operand({2, 3}, wide, true), node.operand({2, 3}, wide, true)};
    node.ops.push_back({"partial_cross_entropy",
                        {logits, label},
                        {},
                        node.outputs,
                        {{"ignore_index", int64_t{-100}}, {"first", kFirst}, {"count", kCount}}});
    return node;
  };
  out.expected = [=](const Tensors& x, const Tensors& p) {
    const at::Tensor logits = with_head ? at::linear(x[0], p[0]) : x[0];
    return partial_cross_entropy(cap > 0 ? at::tanh(logits / cap) * cap : logits, x[1], kFirst, kCount);
  };
  return out;
}

// The log-sum and the target of labels, then those of ids at a temperature; classes as in partial_cross_entropy().
std::array<at::Tensor, 4> top_sums(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& ids,
                                   double temperature, int64_t first, int64_t count) {
  const at::Tensor of_labels = partial_cross_entropy(logits, labels, first, count), scaled = logits / temperature;
  const at::Tensor column = ids.to(at::kLong) - first;
  const at::Tensor here = (column >= 0).logical_and(column < count).logical_and(ids >= 0);
  return {of_labels[0], of_labels[1], at::logsumexp(scaled.narrow(2, 0, count), 2),
          at::gather(scaled, 2, column * here) * here};
}
at::Tensor top_logps(const std::array<at::Tensor, 4>& sums, const at::Tensor& labels, const at::Tensor& ids) {
  const at::Tensor counts = labels != -100;
  const at::Tensor top = (sums[3] - sums[2].unsqueeze(-1)) * (ids >= 0) * counts.unsqueeze(-1);
  return at::cat({((sums[1] - sums[0]) * counts).reshape({-1}), top.reshape({-1})});
}

struct TopCase {
  std::string name;
  double temperature = 1;
  bool has_head = true, is_part = false;
  double cap = 0;
  bool trains_weight = true;
  int64_t rows = 5, vocab = 11;
};

// Two labels are ignored, and some ids are absent. A part has classes 4 on, and its last column is padding.
OpsCase top_logp_case(const TopCase& c) {
  constexpr int64_t kHidden = 12, kIds = 3, kFirst = 4;
  const int64_t count = c.is_part ? c.vocab - 6 : c.vocab, columns = c.is_part ? count + 1 : count;
  at::Tensor labels = at::randint(c.vocab, {2, c.rows}, at::TensorOptions(kInt));
  labels.view({-1})[1] = -100;
  labels.view({-1})[2 * c.rows - 1] = -100;
  at::Tensor ids = at::randint(c.vocab, {2, c.rows, kIds}, at::TensorOptions(kInt));
  for (const int64_t absent : {0, 7, 8, 12}) ids.view({-1})[absent] = absent == 7 ? -100 : -1;
  const int64_t in_size = c.has_head ? kHidden : columns;
  const std::string id = c.is_part ? "partial_topk_logp" : "topk_logp";
  OpsCase out;
  out.name = std::string(c.has_head ? "linear+" : "") + (c.cap > 0 ? "softcap+" : "") + id + c.name;
  out.inputs = {random({2, c.rows, in_size}), labels, ids};
  if (c.has_head) out.params = {random({columns, kHidden}, 0.3)};
  out.node = [=](c10::ScalarType dtype) {
    NodeSpec node;
    const c10::ScalarType wide = dtype == kDouble ? kDouble : at::kFloat;
    const int in = node.operand({2, c.rows, in_size}, dtype, true), label = node.operand({2, c.rows}, kInt, false);
    node.inputs = {in, label, node.operand({2, c.rows, kIds}, kInt, false)};
    int logits = in;
    if (c.has_head) {
      logits = node.operand({2, c.rows, columns}, dtype, true);
      node.params = {node.operand({columns, kHidden}, dtype, c.trains_weight)};
      node.ops = {{"linear", {in}, node.params, {logits}, {}}};
    }
    if (c.cap > 0) {
      const int capped = node.operand({2, c.rows, columns}, dtype, true);
      node.ops.push_back({"softcap", {logits}, {}, {capped}, {{"cap", c.cap}}});
      logits = capped;
    }
    for (int i = 0; i < (c.is_part ? 3 : 1); ++i) node.outputs.push_back(node.operand({2, c.rows}, wide, true));
    node.outputs.push_back(node.operand({2, c.rows, kIds}, wide, true));
    Attrs attrs = {{"ignore_index", int64_t{-100}}, {"temperature", c.temperature}};
    if (c.is_part) {
      attrs["first"] = kFirst;
      attrs["count"] = count;
    }
    node.ops.push_back({id, {logits, label, node.inputs[2]}, {}, node.outputs, attrs});
    return node;
  };
  out.expected = [=](const Tensors& x, const Tensors& p) {
    at::Tensor logits = c.has_head ? at::linear(x[0], p[0]) : x[0];
    if (c.cap > 0) logits = at::tanh(logits / c.cap) * c.cap;
    const auto sums = top_sums(logits, x[1], x[2], c.temperature, c.is_part ? kFirst : 0, count);
    if (!c.is_part) return top_logps(sums, x[1], x[2]);
    Tensors flat;
    for (const at::Tensor& sum : sums) flat.push_back(sum.reshape({-1}));
    return at::cat(flat);
  };
  return out;
}

OpsCase total_topk_logp_case() {
  OpsCase out;
  out.name = "total_topk_logp";
  out.inputs = {random({2, 3}),
                random({2, 3}),
                random({2, 3}),
                random({2, 3, 2}),
                ints({0, -100, 10, 4, 4, -100}, {2, 3}),
                ints({1, 2, 3, 4, 5, -1, 7, 8, -1, -1, 3, 2}, {2, 3, 2})};
  out.node = [](c10::ScalarType dtype) {
    NodeSpec node;
    const c10::ScalarType wide = dtype == kDouble ? kDouble : at::kFloat;
    for (int i = 0; i < 3; ++i) node.inputs.push_back(node.operand({2, 3}, dtype, true));
    node.inputs.push_back(node.operand({2, 3, 2}, dtype, true));
    node.inputs.push_back(node.operand({2, 3}, kInt, false));
    node.inputs.push_back(node.operand({2, 3, 2}, kInt, false));
    node.outputs = {node.operand({2, 3}, wide, true), node.operand({2, 3, 2}, wide, true)};
    node.ops = {{"total_topk_logp", node.inputs, {}, node.outputs, {{"ignore_index", int64_t{-100}}}}};
    return node;
  };
  out.expected = [](const Tensors& x, const Tensors&) { return top_logps({x[0], x[1], x[2], x[3]}, x[4], x[5]); };
  return out;
}

OpsCase score_case(int64_t batch, int64_t time, int64_t hidden, int64_t labels) {
  return make(
      "score of " + std::to_string(labels), "score", {random({batch, time, hidden})}, {random({labels, hidden})},
      {batch, time, labels}, {}, [](const Tensors& x, const Tensors& p) { return at::linear(x[0], p[0]); }, true);
}

// Six experts, two for each of six tokens; expert 3 has none, and token 4 has no expert.
constexpr int64_t kExperts = 6, kChosen = 2, kTokens = 6;
at::Tensor chosen_experts() { return ints({0, 2, 1, 4, 0, 5, 2, 4, -1, -1, 4, 5}, {2, 3, kChosen}); }

// The pairs of a token and an expert, in the order of the rows of experts.
std::vector<int64_t> pairs_by_expert() {
  const at::Tensor experts = chosen_experts().reshape({-1});
  std::vector<int64_t> pairs;
  for (int64_t e = 0; e < kExperts; ++e)
    for (int64_t p = 0; p < experts.numel(); ++p)
      if (experts[p].item<int32_t>() == e) pairs.push_back(p);
  return pairs;
}

at::Tensor dispatched(const at::Tensor& x, const at::Tensor& weights) {
  const at::Tensor tokens = x.reshape({kTokens, x.size(-1)});
  Tensors rows;
  for (const int64_t pair : pairs_by_expert())
    rows.push_back(weights.defined() ? tokens[pair / kChosen] * weights.reshape({-1})[pair] : tokens[pair / kChosen]);
  while (static_cast<int64_t>(rows.size()) < kTokens * kChosen) rows.push_back(at::zeros_like(rows[0]));
  return at::stack(rows).view({2, 3, kChosen, x.size(-1)});
}

at::Tensor grouped(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor rows = x.reshape({kTokens * kChosen, x.size(-1)}), experts = chosen_experts().reshape({-1});
  Tensors out;
  for (const int64_t pair : pairs_by_expert()) {
    const auto e = experts[pair].item<int32_t>();
    const at::Tensor y = at::mv(weight[e], rows[static_cast<int64_t>(out.size())]);
    out.push_back(bias.defined() ? y + bias[e] : y);
  }
  while (static_cast<int64_t>(out.size()) < kTokens * kChosen) out.push_back(at::zeros_like(out[0]));
  return at::stack(out).view({2, 3, kChosen, weight.size(1)});
}

at::Tensor combined(const at::Tensor& x, const at::Tensor& weights) {
  const at::Tensor rows = x.reshape({kTokens * kChosen, x.size(-1)});
  Tensors sums(kTokens, at::zeros({x.size(-1)}, at::TensorOptions(kDouble)));
  const std::vector<int64_t> pairs = pairs_by_expert();
  for (size_t r = 0; r < pairs.size(); ++r) {
    const at::Tensor row = rows[static_cast<int64_t>(r)];
    at::Tensor& sum = sums[static_cast<size_t>(pairs[r] / kChosen)];
    sum = sum + (weights.defined() ? row * weights.reshape({-1})[pairs[r]] : row);
  }
  return at::stack(sums).view({2, 3, x.size(-1)});
}

at::Tensor expert_weights(const at::Tensor& logits, const std::string& score, bool normalize, double factor) {
  const at::Tensor experts = chosen_experts().to(at::kLong), here = experts >= 0, index = experts * here;
  const at::Tensor of_chosen = at::gather(logits, -1, index);
  at::Tensor scores = score == "sigmoid" ? at::sigmoid(of_chosen)
                      : score == "softmax"
                          ? at::gather(at::softmax(logits, -1), -1, index)
                          : at::softmax(at::where(here, of_chosen, at::full_like(of_chosen, -1e30)), -1);
  scores = scores * here;
  if (normalize)
    scores = scores / at::where(here.any(-1, true), scores.sum(-1, true), at::ones_like(scores.sum(-1, true)));
  return scores * factor;
}

// The sums of router_stats, and the largest logit of each row, which has no gradient.
at::Tensor router_stats(const at::Tensor& logits) {
  const at::Tensor experts = chosen_experts().to(at::kLong), has_experts = experts.select(2, 0) >= 0;
  const at::Tensor chosen = at::one_hot(experts * (experts >= 0), kExperts) * (experts >= 0).unsqueeze(-1);
  const at::Tensor log_sums = at::logsumexp(logits, {2}) * has_experts;
  const at::Tensor sums =
      at::cat({chosen.sum(at::IntArrayRef{1, 2}).to(kDouble),
               (at::softmax(logits, -1) * has_experts.unsqueeze(-1)).sum(1), log_sums.square().sum(1, true)},
              1);
  const at::Tensor largest =
      at::amax(logits.masked_fill(has_experts.logical_not().unsqueeze(-1), -1e30), at::IntArrayRef{1, 2});
  return at::cat({sums.reshape({-1}), largest.detach()});
}

OpsCase router_stats_case() {
  OpsCase out;
  out.name = "router_stats";
  out.inputs = {random({2, 3, kExperts}), chosen_experts()};
  out.node = [](c10::ScalarType dtype) {
    NodeSpec node;
    node.inputs = {node.operand({2, 3, kExperts}, dtype, true), node.operand({2, 3, kChosen}, kInt, false)};
    node.outputs = {node.operand({2, 2 * kExperts + 1}, dtype, true), node.operand({2}, dtype, true)};
    node.ops.push_back({"router_stats", node.inputs, {}, node.outputs, {}});
    return node;
  };
  out.expected = [](const Tensors& x, const Tensors&) { return router_stats(x[0]); };
  out.is_wide = true;
  return out;
}

// Four of six labels count.
at::Tensor load_balance(const at::Tensor& stats, const std::string& form, double aux_weight, double z_weight) {
  const at::Tensor rows = form == "sequence" ? stats : stats.sum(at::IntArrayRef{0}, true);
  const at::Tensor counts = rows.narrow(1, 0, kExperts).detach(), p = rows.narrow(1, kExperts, kExperts);
  const at::Tensor tokens = counts.sum(at::IntArrayRef{1}) / kChosen, has_tokens = tokens > 0;
  const at::Tensor of_rows = (counts * p).sum(at::IntArrayRef{1}) / at::where(has_tokens, tokens, 1.0).square();
  const at::Tensor aux = kExperts * of_rows.sum() / has_tokens.sum();
  const at::Tensor squares = stats.select(1, 2 * kExperts).sum() / tokens.sum();
  return 4 * (aux_weight * aux / (form == "layers" ? 1 : kChosen) + z_weight * squares);
}

void add_load_balances(std::vector<OpsCase>& cases) {
  at::Tensor stats = at::rand({3, 2 * kExperts + 1}, at::TensorOptions(kDouble)) + 0.5;
  stats.select(0, 1).zero_();  // a row without tokens
  const at::Tensor labels = ints({3, -100, 5, 0, -100, 1}, {3, 2});
  for (const std::string form : {"layers", "batch", "sequence"}) {
    cases.push_back(make(
        "load_balance, " + form, "load_balance", {stats, labels}, {}, {},
        {{"chosen", kChosen},
         {"aux_weight", 0.7},
         {"z_weight", 0.3},
         {"balance", form},
         {"ignore_index", int64_t{-100}}},
        [=](const Tensors& x, const Tensors&) { return load_balance(x[0], form, 0.7, 0.3); }, true));
    cases.back().is_wide = true;
  }
}

void add_joins(std::vector<OpsCase>& cases) {
  for (const int64_t first : {0, 5})
    cases.push_back(make("slice from " + std::to_string(first), "slice", {random({2, 3, 4, 9})}, {}, {2, 3, 4, 4},
                         {{"first", first}},
                         [=](const Tensors& x, const Tensors&) { return x[0].narrow(-1, first, 4); }));
  for (const int64_t heads : {4, 1})
    cases.push_back(make("concat with " + std::to_string(heads) + " heads", "concat",
                         {random({2, 3, 4, 5}), random({2, 3, heads, 3})}, {}, {2, 3, 4, 8}, {},
                         [](const Tensors& x, const Tensors&) {
                           return at::cat({x[0], x[1].expand({2, 3, 4, 3})}, -1);
                         }));
}

void add_lookups_and_results(std::vector<OpsCase>& cases) {
  cases.push_back(embedding_case(7, 8));
  for (int64_t first : {0, 2, 4}) cases.push_back(embedding_part(first, 3));
  cases.push_back(partial_cross_entropy_case(false));
  cases.push_back(make(
      "total_cross_entropy", "total_cross_entropy",
      {random({2, 3}), random({2, 3}), ints({0, -100, 10, 4, 4, -100}, {2, 3})}, {}, {},
      {{"ignore_index", int64_t{-100}}},
      [](const Tensors& x, const Tensors&) { return ((x[0] - x[1]) * (x[2] != -100)).sum(); }, true));
  cases.push_back(make(
      "cross_entropy", "cross_entropy", {random({2, 3, 11}, 3.0), ints({0, -100, 10, 4, 4, -100}, {2, 3})}, {}, {},
      {{"ignore_index", int64_t{-100}}}, [](const Tensors& x, const Tensors&) { return cross_entropy(x[0], x[1]); },
      true));
  cases.push_back(make(
      "token_logp", "token_logp", {random({2, 3, 11}, 3.0), ints({0, -100, 10, 4, 4, -100}, {2, 3})}, {}, {2, 3},
      {{"ignore_index", int64_t{-100}}}, [](const Tensors& x, const Tensors&) { return token_logp(x[0], x[1]); },
      true));
  cases.push_back(make(
      "total_token_logp", "total_token_logp", {random({2, 3}), random({2, 3}), ints({0, -100, 10, 4, 4, -100}, {2, 3})},
      {}, {2, 3}, {{"ignore_index", int64_t{-100}}},
      [](const Tensors& x, const Tensors&) { return (x[1] - x[0]) * (x[2] != -100); }, true));
  for (const double temperature : {1.0, 1.7})
    for (const bool is_part : {false, true})
      cases.push_back(top_logp_case({" at " + std::to_string(temperature), temperature, false, is_part}));
  cases.push_back(total_topk_logp_case());
  for (const int64_t labels : {1, 3}) cases.push_back(score_case(3, 5, 8, labels));
}

// add+rms_norm also outputs the sum: the outputs of the pattern are sum and norm.
OpsCase add_rms_norm(int64_t n) {
  const at::Tensor a = random({2, 3, n}), b = random({2, 3, n}), weight = random({n});
  OpsCase out;
  out.name = "add+rms_norm of " + std::to_string(n);
  out.inputs = {a, b};
  out.params = {weight};
  out.node = [n](c10::ScalarType dtype) {
    NodeSpec node;
    const int first = node.operand({2, 3, n}, dtype, true), second = node.operand({2, 3, n}, dtype, true);
    const int gain = node.operand({n}, dtype, true);
    const int sum = node.operand({2, 3, n}, dtype, true), norm = node.operand({2, 3, n}, dtype, true);
    node.inputs = {first, second};
    node.params = {gain};
    node.outputs = {sum, norm};
    node.ops = {{"add", {first, second}, {}, {sum}, {}}, {"rms_norm", {sum}, {gain}, {norm}, {{"eps", 1e-5}}}};
    return node;
  };
  // Both outputs stacked in one tensor; check_case separates them.
  out.expected = [](const Tensors& x, const Tensors& p) {
    const at::Tensor sum = x[0] + x[1];
    return at::stack({sum, rms_norm(sum, p[0], 1e-5)});
  };
  return out;
}

struct HeadCase {
  std::string name;
  int64_t rows, hidden, vocab;
  bool bias = false;
  double cap = 0;
  int64_t ignored = 0;
  bool trains_weight = true, trains_x = true;
};

// Two labels are ignored, and of each `ignored` labels the first. `id`: the op after the logits.
OpsCase linear_head(const std::string& id, const HeadCase& c) {
  const at::Tensor x = random({2, c.rows, c.hidden}), weight = random({c.vocab, c.hidden}, 0.3);
  at::Tensor labels = at::randint(c.vocab, {2, c.rows}, at::TensorOptions(kInt));
  labels.view({-1})[1] = -100;
  labels.view({-1})[2 * c.rows - 1] = -100;
  for (int64_t i = 0; c.ignored > 0 && i < 2 * c.rows; i += c.ignored) labels.view({-1})[i] = -100;
  const bool is_loss = id == "cross_entropy";
  OpsCase out;
  out.name = std::string("linear+") + (c.cap > 0 ? "softcap+" : "") + id + c.name;
  out.inputs = {x, labels};
  out.params = {weight};
  if (c.bias) out.params.push_back(random({c.vocab}));
  out.node = [=](c10::ScalarType dtype) {
    NodeSpec node;
    const int in = node.operand({2, c.rows, c.hidden}, dtype, c.trains_x);
    const int label = node.operand({2, c.rows}, kInt, false);
    const int logits = node.operand({2, c.rows, c.vocab}, dtype, true);
    const int result = node.operand(is_loss ? std::vector<int64_t>{} : std::vector<int64_t>{2, c.rows},
                                    dtype == kDouble ? kDouble : at::kFloat, true);
    node.inputs = {in, label};
    node.params = {node.operand({c.vocab, c.hidden}, dtype, c.trains_weight)};
    if (c.bias) node.params.push_back(node.operand({c.vocab}, dtype, true));
    node.outputs = {result};
    node.ops = {{"linear", {in}, node.params, {logits}, {}}};
    int last = logits;
    if (c.cap > 0) {
      last = node.operand({2, c.rows, c.vocab}, dtype, true);
      node.ops.push_back({"softcap", {logits}, {}, {last}, {{"cap", c.cap}}});
    }
    node.ops.push_back({id, {last, label}, {}, {result}, {{"ignore_index", int64_t{-100}}}});
    return node;
  };
  out.expected = [=](const Tensors& x, const Tensors& p) {
    at::Tensor logits = at::linear(x[0], p[0], p.size() > 1 ? p[1] : at::Tensor());
    if (c.cap > 0) logits = at::tanh(logits / c.cap) * c.cap;
    return is_loss ? cross_entropy(logits, x[1]) : token_logp(logits, x[1]);
  };
  return out;
}

// b + factor · x · weightᵀ, the branch of an adapter.
OpsCase linear_add(std::string name, bool scaled, bool product_first) {
  OpsCase out;
  out.name = std::move(name);
  out.inputs = {random({2, 5, 4}), random({2, 5, 37})};
  out.params = {random({37, 4}, 0.5)};
  out.node = [=](c10::ScalarType dtype) {
    NodeSpec node;
    const int x = node.operand({2, 5, 4}, dtype, true), b = node.operand({2, 5, 37}, dtype, true);
    const int weight = node.operand({37, 4}, dtype, true);
    const int product = node.operand({2, 5, 37}, dtype, true), sum = node.operand({2, 5, 37}, dtype, true);
    node.inputs = {x, b};
    node.params = {weight};
    node.outputs = {sum};
    int from = x;
    if (scaled) {
      from = node.operand({2, 5, 4}, dtype, true);
      node.ops.push_back({"scale", {x}, {}, {from}, {{"factor", 0.5}}});
    }
    node.ops.push_back({"linear", {from}, {weight}, {product}, {}});
    const std::vector<int> terms = product_first ? std::vector{product, b} : std::vector{b, product};
    node.ops.push_back({"add", terms, {}, {sum}, {}});
    return node;
  };
  out.expected = [=](const Tensors& x, const Tensors& p) {
    return x[1] + at::linear(x[0], p[0]) * (scaled ? 0.5 : 1.0);
  };
  return out;
}

// Narrow linears of one input.
OpsCase linear_group(std::string name, int count) {
  OpsCase out;
  out.name = std::move(name);
  out.inputs = {random({2, 5, 37})};
  for (int i = 0; i < count; ++i) out.params.push_back(random({3, 37}, 0.5));
  out.node = [=](c10::ScalarType dtype) {
    NodeSpec node;
    node.inputs = {node.operand({2, 5, 37}, dtype, true)};
    for (int i = 0; i < count; ++i) {
      node.params.push_back(node.operand({3, 37}, dtype, true));
      node.outputs.push_back(node.operand({2, 5, 3}, dtype, true));
      node.ops.push_back({"linear", {node.inputs[0]}, {node.params.back()}, {node.outputs.back()}, {}});
    }
    return node;
  };
  out.expected = [](const Tensors& x, const Tensors& p) {
    Tensors all;
    for (const at::Tensor& weight : p) all.push_back(at::linear(x[0], weight));
    return at::stack(all);
  };
  return out;
}

struct Mask {
  std::string name;
  bool causal = false;
  int64_t window = 0, chunk = 0;
  at::Tensor documents = {}, prefixes = {};
};

// [B, T, S], true where query t sees key s, as chassis/op.h defines it.
at::Tensor visible(const Mask& mask, int64_t batch, int64_t time, int64_t keys, int64_t offset) {
  at::Tensor out = at::ones({batch, time, keys}, at::TensorOptions(at::kBool));
  auto seen = out.accessor<bool, 3>();
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < time; ++i)
      for (int64_t s = 0; s < keys; ++s) {
        const int64_t t = i + offset;
        const bool in_prefix = mask.prefixes.defined() && s < mask.prefixes[b].item<int>();
        if (mask.causal && s > t && !in_prefix) seen[b][i][s] = false;
        if (mask.window > 0 && t - s >= mask.window) seen[b][i][s] = false;
        int64_t first = 0;  // of the document; chunks are counted from there
        while (mask.documents.defined() && mask.documents[b][first].item<int>() != mask.documents[b][t].item<int>())
          ++first;
        const auto chunk_of = [&](int64_t at) { return at < first ? -1 : (at - first) / mask.chunk; };
        if (mask.chunk > 0 && chunk_of(s) != chunk_of(t)) seen[b][i][s] = false;
        if (mask.documents.defined()) {
          const int of_query = mask.documents[b][t].item<int>(), of_key = mask.documents[b][s].item<int>();
          if (of_query != of_key || of_query < 0) seen[b][i][s] = false;
        }
      }
  return out;
}

OpsCase attention(const Mask& mask, int64_t batch, int64_t time, int64_t keys, int64_t heads, int64_t kv_heads,
                  int64_t qk_dim, int64_t v_dim, int64_t offset, double softcap = 0, bool is_part = false) {
  const double scale = 0.4;
  OpsCase out;
  out.name = "attention " + mask.name + " " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
             std::to_string(qk_dim) + (v_dim != qk_dim ? "/" + std::to_string(v_dim) : "") + ", " +
             std::to_string(time) + "x" + std::to_string(keys) + (softcap > 0 ? ", softcap" : "");
  out.query_offset = offset;
  out.inputs = {random({batch, time, heads, qk_dim}), random({batch, keys, kv_heads, qk_dim}),
                random({batch, keys, kv_heads, v_dim})};
  if (mask.documents.defined() || mask.prefixes.defined()) out.inputs.push_back(mask.documents);
  if (mask.prefixes.defined()) out.inputs.push_back(mask.prefixes);
  Attrs attrs = {{"scale", scale},
                 {"causal", int64_t{mask.causal}},
                 {"window", mask.window},
                 {"chunk", mask.chunk},
                 {"document", int64_t{mask.documents.defined()}},
                 {"prefix", int64_t{mask.prefixes.defined()}}};
  if (softcap > 0) attrs["softcap"] = softcap;
  if (is_part) attrs["query_part"] = int64_t{1}, out.name += ", a part from " + std::to_string(offset);
  out.node = single("attention", out.inputs, {}, {batch, time, heads, v_dim}, attrs);
  out.expected = [=](const Tensors& x, const Tensors&) {
    const at::Tensor seen = visible(mask, batch, time, keys, offset).unsqueeze(1);
    const at::Tensor q = x[0].transpose(1, 2), k = x[1].transpose(1, 2).repeat_interleave(heads / kv_heads, 1),
                     v = x[2].transpose(1, 2).repeat_interleave(heads / kv_heads, 1);
    at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
    if (softcap > 0) scores = at::tanh(scores / softcap) * softcap;
    const at::Tensor weights = at::softmax(at::where(seen, scores, at::scalar_tensor(-1e30, scores.options())), -1);
    return at::matmul(weights * seen.any(-1, true), v).transpose(1, 2).contiguous();
  };
  return out;
}

// Some queries of a row of 8 positions, and some of its keys.
OpsCase partial_attention(const Mask& mask, int64_t queries, int64_t offset, int64_t keys, int64_t key_offset) {
  constexpr int64_t kPositions = 8, kBatch = 2, kHeads = 4, kKeyHeads = 2, kDim = 8;
  OpsCase out = attention(mask, kBatch, queries, keys, kHeads, kKeyHeads, kDim, kDim, offset);
  out.name += ", keys from " + std::to_string(key_offset) + ", queries from " + std::to_string(offset);
  out.key_offset = key_offset;
  out.num_positions = kPositions;
  out.node = [node = out.node](c10::ScalarType dtype) {
    NodeSpec spec = node(dtype);
    spec.ops[0].attrs["key_part"] = int64_t{1};
    return spec;
  };
  out.expected = [=](const Tensors& x, const Tensors&) {
    const at::Tensor seen = visible(mask, kBatch, queries, kPositions, offset).narrow(2, key_offset, keys).unsqueeze(1);
    const at::Tensor q = x[0].transpose(1, 2), k = x[1].transpose(1, 2).repeat_interleave(kHeads / kKeyHeads, 1),
                     v = x[2].transpose(1, 2).repeat_interleave(kHeads / kKeyHeads, 1);
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * 0.4;
    const at::Tensor weights = at::softmax(at::where(seen, scores, at::scalar_tensor(-1e30, scores.options())), -1);
    return at::matmul(weights * seen.any(-1, true), v).transpose(1, 2).contiguous();
  };
  return out;
}

}  // namespace

at::Tensor dropout_mask(int64_t batch, int64_t time, int64_t elements, double p, int64_t first_row) {
  at::Tensor mask = at::zeros({batch, time, elements}, at::TensorOptions(kDouble));
  auto kept = mask.accessor<double, 3>();
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < time; ++t)
      for (int64_t j = 0; j < elements; ++j) {
        const auto row = static_cast<uint64_t>(first_row + b);
        const auto words = philox4x32({static_cast<uint32_t>(j / 4), static_cast<uint32_t>(t),
                                       static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32)},
                                      {static_cast<uint32_t>(kRandomKey), static_cast<uint32_t>(kRandomKey >> 32)});
        kept[b][t][j] = words[static_cast<size_t>(j % 4)] >= p * 0x1p32;
      }
  return mask;
}

std::vector<OpsCase> vocabulary_cases() {
  at::manual_seed(1);
  std::vector<OpsCase> cases;
  add_linear(cases);
  add_norms(cases);
  for (int64_t head_dim : {8, 10, 36}) add_rope(cases, head_dim);
  for (bool interleaved : {false, true}) cases.push_back(partial_rope(20, 12, interleaved, 0));
  cases.push_back(partial_rope(10, 4, false, 100));
  for (int64_t long_from : {100, 101}) cases.push_back(partial_rope(8, 8, false, long_from));
  add_elementwise(cases);
  add_dropout_and_channels(cases);
  add_lookups_and_results(cases);
  add_joins(cases);
  return cases;
}

std::vector<OpsCase> expert_cases() {
  at::manual_seed(7);
  std::vector<OpsCase> cases;
  const at::Tensor experts = chosen_experts();
  for (const bool weighted : {false, true}) {
    const at::Tensor weights = weighted ? at::rand({2, 3, kChosen}, at::TensorOptions(kDouble)) : at::Tensor();
    const std::string with = weighted ? " with weights" : "";
    cases.push_back(make("dispatch" + with, "dispatch", {random({2, 3, 7}), experts, weights}, {}, {2, 3, kChosen, 7},
                         {}, [](const Tensors& x, const Tensors&) { return dispatched(x[0], x[2]); }));
    cases.push_back(make("combine" + with, "combine", {random({2, 3, kChosen, 7}), experts, weights}, {}, {2, 3, 7}, {},
                         [](const Tensors& x, const Tensors&) { return combined(x[0], x[2]); }));
    for (size_t i = cases.size() - 2; i < cases.size(); ++i) cases[i].is_wide = weighted;
  }
  for (const bool bias : {false, true})
    cases.push_back(make(
        bias ? "grouped_linear with a bias" : "grouped_linear", "grouped_linear", {random({2, 3, kChosen, 7}), experts},
        {random({kExperts, 5, 7}, 0.3), bias ? random({kExperts, 5}) : at::Tensor()}, {2, 3, kChosen, 5}, {},
        [](const Tensors& x, const Tensors& p) { return grouped(x[0], p[0], p[1]); }));
  for (const std::string score : {"softmax", "chosen_softmax", "sigmoid"})
    for (const bool normalize : {false, true}) {
      Attrs attrs = {{"score", score}, {"factor", normalize ? 1.0 : 2.5}};
      if (normalize) attrs["normalize"] = int64_t{1};
      cases.push_back(make(
          "expert_weights by " + score + (normalize ? ", normalized" : ""), "expert_weights",
          {random({2, 3, kExperts}), experts}, {}, {2, 3, kChosen}, attrs,
          [=](const Tensors& x, const Tensors&) {
            return expert_weights(x[0], score, normalize, normalize ? 1.0 : 2.5);
          },
          true));
      cases.back().is_wide = true;
    }
  cases.push_back(router_stats_case());
  add_load_balances(cases);
  cases.push_back(make("gate_tokens", "gate_tokens", {random({2, 3, 7}), random({2, 3, 1})}, {}, {2, 3, 7}, {},
                       [](const Tensors& x, const Tensors&) { return x[0] * at::sigmoid(x[1]); }));
  cases.back().is_wide = true;
  return cases;
}

std::vector<OpsCase> large_cases() {
  at::manual_seed(4);
  std::vector<OpsCase> ropes;
  add_rope(ropes, 150000);
  return {rms_norm_case(1500, 1000), ropes.front(), embedding_case(1200000, 32), score_case(3, 1500, 1000, 2)};
}

std::vector<OpsCase> fused_cases() {
  at::manual_seed(2);
  std::vector<OpsCase> cases = {add_rms_norm(8), add_rms_norm(37)};
  for (const std::string id : {"cross_entropy", "token_logp"})
    for (const HeadCase& head : {HeadCase{"", 5, 12, 11},
                                 {" with a bias", 5, 12, 11, true},
                                 {" of few labels", 15, 12, 11, false, 0, 2},
                                 {" of no label", 5, 12, 11, false, 0, 1},
                                 {" of few labels", 15, 12, 11, false, 2.5, 3},
                                 {"", 5, 12, 11, false, 2.5},
                                 {" with a bias", 5, 12, 11, true, 2.5},
                                 {" in chunks", 40, 4, 70001, false, 1.5},
                                 {" with a frozen weight", 5, 12, 11, false, 0, 0, false},
                                 {" with a frozen weight", 15, 12, 11, false, 2.5, 2, false},
                                 {" of an input without a gradient", 5, 12, 11, false, 0, 0, true, false}})
      cases.push_back(linear_head(id, head));
  cases.push_back(linear_head("cross_entropy", {" in chunks", 40, 4, 70001}));
  for (const bool is_part : {false, true})
    for (const double temperature : {1.0, 0.6}) {
      cases.push_back(top_logp_case({" at " + std::to_string(temperature), temperature, true, is_part}));
      cases.push_back(top_logp_case({"", temperature, true, is_part, 2.5}));
    }
  cases.push_back(top_logp_case({" with a frozen weight", 1.7, true, false, 0, false}));
  cases.push_back(top_logp_case({" in chunks", 1.7, true, false, 0, true, 40, 70001}));
  cases.push_back(partial_cross_entropy_case(true));
  cases.push_back(partial_cross_entropy_case(true, 2.5));
  cases.push_back(linear_add("linear+add", false, true));
  cases.push_back(linear_add("linear+add, the product last", false, false));
  cases.push_back(linear_add("scale+linear+add", true, false));
  cases.push_back(linear_group("linear+linear", 2));
  cases.push_back(linear_group("linear+linear+linear", 3));
  return cases;
}

std::vector<OpsCase> attention_cases() {
  at::manual_seed(3);
  const at::Tensor packed = ints({0, 0, 0, 1, 1, 2, 2, -1, 5, 5, 5, 5, 5, 5, 5, 5}, {2, 8});
  const at::Tensor whole = ints(std::vector<int32_t>(16, 3), {2, 8});
  const at::Tensor padded = ints({0, 0, 0, 0, 0, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, -1}, {2, 8});
  const at::Tensor returning = ints({0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 2, 2}, {2, 8});
  const at::Tensor prefixes = ints({3, 0}, {2});
  const std::vector<Mask> masks = {{"full"},
                                   {"causal", true},
                                   {"window", true, 3},
                                   {"window without causal", false, 3},
                                   {"chunk", true, 0, 3},
                                   {"causal window chunk", true, 2, 4},
                                   {"packed", true, 0, 0, packed},
                                   {"packed, not causal", false, 0, 0, packed},
                                   {"one document a row", true, 0, 0, whole},
                                   {"padded", true, 0, 0, padded},
                                   {"padded, not causal", false, 0, 0, padded},
                                   {"returning documents", true, 0, 0, returning},
                                   {"packed window", true, 2, 0, packed},
                                   {"packed chunks", true, 0, 2, packed},
                                   {"packed chunks, not causal", false, 0, 3, packed},
                                   {"padded chunks in a window", true, 3, 2, padded},
                                   {"chunks of returning documents", true, 0, 3, returning},
                                   {"prefix", true, 0, 0, {}, prefixes},
                                   {"packed prefix", true, 0, 0, packed, prefixes}};
  std::vector<OpsCase> cases;
  for (const Mask& mask : masks) cases.push_back(attention(mask, 2, 8, 8, 4, 2, 8, 8, 0));
  for (const Mask& mask : masks)
    if (!mask.documents.defined() && !mask.prefixes.defined()) {
      cases.push_back(attention(mask, 2, 1, 8, 4, 2, 8, 8, 7));
      cases.push_back(attention(mask, 2, 3, 8, 2, 1, 8, 8, 5));
    }
  for (const Mask& mask : masks)
    for (const int64_t offset : {0, 4})
      if (!mask.name.ends_with("returning documents"))
        cases.push_back(attention(mask, 2, 4, 8, 4, 2, 8, 8, offset, 0, true));
  cases.push_back(attention(masks[1], 1, 70, 70, 3, 3, 24, 24, 0));
  cases.push_back(attention(masks[1], 2, 8, 8, 4, 4, 8, 5, 0));
  for (const Mask& mask : masks) cases.push_back(attention(mask, 2, 8, 8, 4, 2, 10, 10, 0, 1.5));
  cases.push_back(attention(masks[2], 2, 3, 8, 4, 2, 8, 8, 5, 1.5));
  cases.push_back(attention(masks[1], 1, 150, 150, 3, 1, 24, 5, 0, 1.5));
  for (int64_t head_dim : {5, 10, 20, 36}) cases.push_back(attention(masks[1], 2, 19, 19, 4, 2, head_dim, head_dim, 0));
  const at::Tensor long_rows =
      at::cat({at::zeros({1, 40}, at::TensorOptions(kInt)), at::ones({1, 57}, at::TensorOptions(kInt)),
               at::full({1, 3}, -1, at::TensorOptions(kInt))},
              1);
  cases.push_back(attention({"two long documents", true, 0, 0, long_rows}, 1, 100, 100, 4, 2, 16, 16, 0));
  cases.push_back(attention({"long causal", true}, 1, 200, 200, 4, 2, 64, 64, 0));
  // A query that sees one key has no gradient, so most see several; some see none.
  for (const Mask& mask : masks) {
    if (mask.name.ends_with("returning documents")) continue;
    cases.push_back(partial_attention(mask, 4, 3, 6, 0));
    cases.push_back(partial_attention(mask, 4, 4, 4, 4));
    cases.push_back(partial_attention(mask, 3, 2, 5, 1));
  }
  return cases;
}

}  // namespace chassis::test
