// Small programs, one per op or group of ops, and the comparison of their results.
#include "host/conformance/ops_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "host/base/error.hpp"
#include "host/compile/compile.hpp"
#include "host/conformance/case_program.hpp"
#include "host/conformance/growth.hpp"
#include "host/conformance/ops_answers.hpp"
#include "host/conformance/sample_program.hpp"
#include "host/execute/block_run.hpp"
#include "host/execute/kernels.hpp"
#include "host/graph/op_pattern.hpp"
#include "host/graph/op_table.hpp"
#include "host/graph/recording.hpp"
#include "host/service/rng.hpp"

namespace chassis {
namespace {

// Number of rows in a batch; it does not divide evenly into vectors or tiles.
constexpr int64_t kRows = 2;
// Width of rows that are wider than the tiles of most kernels.
constexpr int64_t kWide = 530;

CaseProgram pointwise(const char* id, OpAttrs attrs, bool two_inputs, int64_t width = 37) {
  CaseProgram c(id);
  const DimId n = c.dim("n", width);
  std::vector<ValueId> inputs = {c.input("a", {n})};
  if (two_inputs) inputs.push_back(c.input("b", {n}));
  c.output("y", c.op(id, inputs, {}, std::move(attrs)));
  return c;
}

CaseProgram linear(bool bias, int64_t width = 20) {
  CaseProgram c(bias ? "linear with bias" : "linear");
  const DimId in = c.dim("in", width), heads = c.dim("heads", 3), dim = c.dim("dim", 7);
  std::vector<SlotId> params = {c.slot("weight", {{heads, dim}, {in}})};
  if (bias) params.push_back(c.slot("bias", {{heads, dim}}));
  c.output("y", c.op("linear", {c.input("x", {in})}, params, {}, {heads, dim}));
  return c;
}

constexpr double kSmallEps = 1e-5, kLargeEps = 0.1;

// Two linears of one input, each with a narrow branch in parallel, as adapters record them.
CaseProgram branches(bool scaled) {
  CaseProgram c(scaled ? "linears with scaled branches" : "linears with branches");
  const DimId in = c.dim("in", 20), out = c.dim("out", 21), ranks[] = {c.dim("rank_a", 2), c.dim("rank_b", 3)};
  const ValueId x = c.input("x", {in});
  ValueId narrow[2];
  for (int i = 0; i < 2; ++i)
    narrow[i] = c.op("linear", {x}, {c.slot(i == 0 ? "down_a" : "down_b", {{ranks[i]}, {in}})}, {}, {ranks[i]});
  for (int i = 0; i < 2; ++i) {
    const std::string suffix = i == 0 ? "_a" : "_b";
    const ValueId base = c.op("linear", {x}, {c.slot("weight" + suffix, {{out}, {in}})}, {}, {out});
    const ValueId z = scaled ? c.op("scale", {narrow[i]}, {}, {{"factor", 0.5}}) : narrow[i];
    const ValueId y = c.op("linear", {z}, {c.slot("up" + suffix, {{out}, {ranks[i]}})}, {}, {out});
    c.output("y" + suffix, c.op("add", {base, y}));
  }
  return c;
}

CaseProgram norm(bool residual, double offset = 0, double eps = kSmallEps, int64_t width = 37) {
  CaseProgram c(std::string(residual ? "add+rms_norm" : "rms_norm") + (offset != 0 ? " with an offset" : "") +
                (eps != kSmallEps ? " with a large eps" : ""));
  const DimId n = c.dim("n", width);
  ValueId x = c.input("a", {n});
  if (residual) c.output("sum", x = c.op("add", {x, c.input("b", {n})}));
  OpAttrs attrs = {{"eps", eps}};
  if (offset != 0) attrs.emplace_back("offset", offset);
  c.output("y", c.op("rms_norm", {x}, {c.slot("weight", {{n}})}, std::move(attrs)));
  return c;
}

CaseProgram head_norm() {
  CaseProgram c("rms_norm of every head");
  const DimId heads = c.dim("heads", 3), dim = c.dim("head_dim", 10);
  c.output("y", c.op("rms_norm", {c.input("x", {heads, dim})}, {c.slot("weight", {{dim}})}, {{"eps", 1e-5}}));
  return c;
}

CaseProgram plain_norm(double eps, int64_t width) {
  CaseProgram c(eps != kSmallEps ? "rms_norm without a weight, with a large eps" : "rms_norm without a weight");
  const DimId heads = c.dim("heads", 3), dim = c.dim("head_dim", width);
  return c.output("y", c.op("rms_norm", {c.input("x", {heads, dim})}, {}, {{"eps", eps}, {"plain", int64_t{1}}}));
}

CaseProgram position_scale(double floor_scale, double attn_scale, int64_t width = 10) {
  CaseProgram c("position_scale by " + std::to_string(attn_scale));
  const DimId heads = c.dim("heads", 3), dim = c.dim("head_dim", width);
  return c.output("y", c.op("position_scale", {c.input("x", {heads, dim}), c.field("positions")}, {},
                            {{"floor_scale", floor_scale}, {"attn_scale", attn_scale}}));
}

CaseProgram layer_norm(double eps = kSmallEps, int64_t width = 37) {
  CaseProgram c(eps != kSmallEps ? "layer_norm with a large eps" : "layer_norm");
  const DimId n = c.dim("n", width);
  c.output("y",
           c.op("layer_norm", {c.input("a", {n})}, {c.slot("weight", {{n}}), c.slot("bias", {{n}})}, {{"eps", eps}}));
  return c;
}

CaseProgram rope(const char* name, int64_t head_dim, OpAttrs more = {}, double factor = 1.0, bool interleaved = false) {
  CaseProgram c(name);
  const DimId heads = c.dim("heads", 3), dim = c.dim("head_dim", head_dim);
  OpAttrs attrs = {{"inv_freq", std::vector<double>{1.0, 0.3, 0.1, 0.03, 0.01}},
                   {"factor", factor},
                   {"interleaved", int64_t{interleaved}}};
  attrs.insert(attrs.end(), more.begin(), more.end());
  c.output("y", c.op("rope", {c.input("x", {heads, dim}), c.field("positions")}, {}, std::move(attrs)));
  return c;
}

CaseProgram embedding(int64_t width = 11) {
  CaseProgram c("embedding");
  const DimId vocab = c.dim("vocab", 29), n = c.dim("n", width);
  c.output("y", c.op("embedding", {c.field("input_ids")}, {c.slot("weight", {{vocab}, {n}})}));
  return c;
}

struct Head {
  const char* id = "cross_entropy";  // the op after the logits
  double cap = 0;
  int64_t num_classes = 29;
  bool logits_are_read = false;
  bool frozen = false;
};

CaseProgram head(const Head& h = {}) {
  CaseProgram c(std::string(h.cap != 0 ? "linear+softcap+" : "linear+") + h.id +
                (h.logits_are_read ? ", logits read by another op" : "") + (h.frozen ? ", frozen weight" : ""));
  const DimId vocab = c.dim("vocab", h.num_classes), n = c.dim("n", 11);
  const SlotId weight = h.frozen ? c.frozen_slot("weight", {{vocab}, {n}}) : c.slot("weight", {{vocab}, {n}});
  ValueId logits = c.op("linear", {c.input("x", {n})}, {weight}, {}, {vocab});
  if (h.cap != 0) logits = c.op("softcap", {logits}, {}, {{"cap", h.cap}});
  c.output(h.id == std::string_view("cross_entropy") ? "loss" : "logps",
           c.op(h.id, {logits, c.field("labels")}, {}, {{"ignore_index", int64_t{-100}}}));
  if (h.logits_are_read) c.output("logits", logits);
  return c;
}

// The rows of a table from row 8 on, as one of several ranks holds them.
CaseProgram embedding_part() {
  CaseProgram c("embedding of a part");
  const DimId vocab = c.dim("vocab", 13), n = c.dim("n", 11);
  c.output("y", c.op("embedding", {c.field("input_ids")}, {c.slot("weight", {{vocab}, {n}})}, {{"first", int64_t{8}}}));
  return c;
}

// The classes from class 8 on, and one column of padding.
CaseProgram head_part(double cap) {
  CaseProgram c(cap != 0 ? "linear+softcap+partial_cross_entropy" : "linear+partial_cross_entropy");
  const DimId vocab = c.dim("vocab", 13), n = c.dim("n", 11);
  ValueId logits = c.op("linear", {c.input("x", {n})}, {c.slot("weight", {{vocab}, {n}})}, {}, {vocab});
  if (cap != 0) logits = c.op("softcap", {logits}, {}, {{"cap", cap}});
  c.op("partial_cross_entropy", {logits, c.field("labels")}, {},
       {{"ignore_index", int64_t{-100}}, {"first", int64_t{8}}, {"count", int64_t{12}}});
  const ValueId log_sum = c.result(0), target = c.result(1);
  return c.output("log_sum", log_sum).output("target", target);
}

CaseProgram total(const char* id, const char* result) {
  CaseProgram c(id);
  const ValueId log_sum = c.input("log_sum", {}), target = c.input("target", {});
  return c.output(result, c.op(id, {log_sum, target, c.field("labels")}, {}, {{"ignore_index", int64_t{-100}}}));
}

// The ids of several tokens of each position.
constexpr int64_t kNumTopIds = 3;

CaseProgram top_head(double temperature, double cap = 0, bool frozen = false, int64_t num_classes = 29) {
  CaseProgram c(std::string(cap != 0 ? "linear+softcap+topk_logp" : "linear+topk_logp") +
                fmt::format(" at temperature {:g}", temperature) + (frozen ? ", frozen weight" : ""));
  const DimId vocab = c.dim("vocab", num_classes), n = c.dim("n", 11), k = c.dim("k", kNumTopIds);
  const SlotId weight = frozen ? c.frozen_slot("weight", {{vocab}, {n}}) : c.slot("weight", {{vocab}, {n}});
  ValueId logits = c.op("linear", {c.input("x", {n})}, {weight}, {}, {vocab});
  if (cap != 0) logits = c.op("softcap", {logits}, {}, {{"cap", cap}});
  c.op("topk_logp", {logits, c.field("labels"), c.field("teacher_ids", k)}, {},
       {{"ignore_index", int64_t{-100}}, {"temperature", temperature}});
  const ValueId logps = c.result(0), top_logps = c.result(1);
  return c.output("logps", logps).output("top_logps", top_logps);
}

// The classes from class 8 on, and one column of padding.
CaseProgram top_head_part(double temperature) {
  CaseProgram c(fmt::format("linear+partial_topk_logp at temperature {:g}", temperature));
  const DimId vocab = c.dim("vocab", 13), n = c.dim("n", 11), k = c.dim("k", kNumTopIds);
  const ValueId logits = c.op("linear", {c.input("x", {n})}, {c.slot("weight", {{vocab}, {n}})}, {}, {vocab});
  c.op("partial_topk_logp", {logits, c.field("labels"), c.field("teacher_ids", k)}, {},
       {{"ignore_index", int64_t{-100}}, {"temperature", temperature}, {"first", int64_t{8}}, {"count", int64_t{12}}});
  const char* const names[] = {"log_sum", "target", "top_log_sum", "top_targets"};
  const std::vector<ValueId> results = {c.result(0), c.result(1), c.result(2), c.result(3)};
  for (size_t i = 0; i < results.size(); ++i) c.output(names[i], results[i]);
  return c;
}

CaseProgram top_total() {
  CaseProgram c("total_topk_logp");
  const DimId k = c.dim("k", kNumTopIds);
  std::vector<ValueId> inputs = {c.input("log_sum", {}), c.input("target", {}), c.input("top_log_sum", {}),
                                 c.input("top_targets", {k}), c.field("labels")};
  inputs.push_back(c.field("teacher_ids", k));
  c.op("total_topk_logp", inputs, {}, {{"ignore_index", int64_t{-100}}});
  const ValueId logps = c.result(0), top_logps = c.result(1);
  return c.output("logps", logps).output("top_logps", top_logps);
}

CaseProgram score(int64_t num_labels, int64_t width = 37) {
  CaseProgram c("score of " + std::to_string(num_labels));
  const DimId n = c.dim("n", width), labels = c.dim("labels", num_labels);
  return c.output("scores", c.op("score", {c.input("x", {n})}, {c.slot("weight", {{labels}, {n}})}));
}

// A field with the experts of each token: its name, and the expert of pair `index`, which belongs to token
// index / num_chosen.
struct Routing {
  const char* name;
  int64_t num_experts, num_chosen;
  int32_t (*expert)(int64_t index);
  DimId experts_dim(CaseProgram& c) const { return c.dim("num_experts", num_experts); }
  DimId chosen_dim(CaseProgram& c) const { return c.dim("chosen", num_chosen); }
};

// Expert 3 gets no token, and some tokens have no expert.
int32_t scattered_expert(int64_t index) {
  const int64_t token = index / 2;
  if (token % 7 == 5) return -1;
  return static_cast<int32_t>(index % 2 == 0 ? token % 3 : token % 4 == 0 ? 5 : 4);
}

constexpr Routing kScattered = {"experts", 6, 2, scattered_expert};
constexpr Routing kExtremes[] = {{"a single expert", 1, 1, [](int64_t) { return 0; }},
                                 {"all tokens to one of several experts", 6, 1, [](int64_t) { return 2; }},
                                 {"no token with an expert", 6, 2, [](int64_t) { return -1; }}};

const Routing* find_routing(const std::string& field) {
  if (field == kScattered.name) return &kScattered;
  const auto found = std::ranges::find(kExtremes, field, &Routing::name);
  return found == std::end(kExtremes) ? nullptr : found;
}

std::string suffix_of(const Routing& routing) {
  return &routing == &kScattered ? "" : std::string(", ") + routing.name;
}

CaseProgram top_experts(const char* name, OpAttrs attrs, bool documents, int64_t num_experts = 6,
                        int64_t num_chosen = 2) {
  CaseProgram c(name);
  const DimId n = c.dim("n", 37), experts = c.dim("num_experts", num_experts), chosen = c.dim("chosen", num_chosen);
  std::vector<ValueId> inputs = {c.op("score", {c.input("x", {n})}, {c.frozen_slot("router", {{experts}, {n}})})};
  if (documents) inputs.push_back(c.field("document_ids"));
  return c.output("experts", c.op("top_experts", inputs, {}, std::move(attrs), {chosen}));
}

CaseProgram expert_weights(const char* score, OpAttrs attrs = {}, const Routing& routing = kScattered) {
  CaseProgram c(std::string("expert_weights by ") + score + (attrs.empty() ? "" : ", " + attrs[0].first) +
                suffix_of(routing));
  const DimId n = c.dim("n", 37), experts = routing.experts_dim(c), chosen = routing.chosen_dim(c);
  const ValueId logits = c.op("score", {c.input("x", {n})}, {c.slot("router", {{experts}, {n}})});
  attrs.emplace_back("score", std::string(score));
  return c.output("weights", c.op("expert_weights", {logits, c.field(routing.name, {chosen})}, {}, std::move(attrs)));
}

// A router, and the numbers of its choices or, with a form of its loss, that loss.
CaseProgram router(const std::string& form = {}, double z_weight = 0) {
  CaseProgram c(form.empty() ? "router_stats" : "load_balance, " + form);
  const DimId n = c.dim("n", 37), experts = kScattered.experts_dim(c), chosen = kScattered.chosen_dim(c),
              size = c.dim("router_sums", 2 * kScattered.num_experts + 1);
  const ValueId logits = c.op("score", {c.input("x", {n})}, {c.slot("router", {{experts}, {n}})});
  const ValueId sums = c.op("router_stats", {logits, c.field(kScattered.name, {chosen})}, {}, {}, {size});
  if (form.empty()) {
    const ValueId largest = c.result(1);
    return c.output("sums", sums).output("largest", largest);
  }
  return c.output("loss", c.op("load_balance", {sums, c.field("labels")}, {},
                               {{"chosen", kScattered.num_chosen},
                                {"aux_weight", 0.3},
                                {"z_weight", z_weight},
                                {"balance", form},
                                {"ignore_index", int64_t{-100}}}));
}

// A mixture of experts without its router, or one op of it.
CaseProgram experts(const char* id, bool weighted, bool bias = false, int64_t width = 20,
                    const Routing& routing = kScattered) {
  CaseProgram c(std::string(id) + (weighted ? " with weights" : "") + (bias ? " with a bias" : "") +
                suffix_of(routing));
  const DimId in = c.dim("in", width), out = c.dim("out", 21), num_experts = routing.experts_dim(c),
              chosen = routing.chosen_dim(c);
  const ValueId which = c.field(routing.name, {chosen});
  ValueId weights = kAbsent;
  if (weighted)
    weights = c.op("expert_weights",
                   {c.op("score", {c.input("tokens", {in})}, {c.slot("router", {{num_experts}, {in}})}), which}, {},
                   {{"score", std::string("sigmoid")}});
  const auto with_weights = [&](ValueId x) {
    return weighted ? std::vector<ValueId>{x, which, weights} : std::vector<ValueId>{x, which};
  };
  if (id == std::string_view("dispatch")) return c.output("y", c.op(id, with_weights(c.input("x", {in}))));
  if (id == std::string_view("combine")) return c.output("y", c.op(id, with_weights(c.input("rows", {chosen, in}))));
  std::vector<SlotId> params = {c.slot("weight", {{num_experts}, {out}, {in}})};
  if (bias) params.push_back(c.slot("bias", {{num_experts}, {out}}));
  if (id == std::string_view("grouped_linear"))
    return c.output("y", c.op(id, {c.input("rows", {chosen, in}), which}, params));
  const std::string gated = "gated_activation ";
  const ValueId rows = std::string_view(id).starts_with(gated)
                           ? c.op("gated_activation", {c.input("gate", {chosen, in}), c.input("up", {chosen, in})}, {},
                                  {{"function", std::string(id).substr(gated.size())}})
                           : c.op("dispatch", {c.input("x", {in}), which});
  const ValueId y = c.op("grouped_linear", {rows, which}, params);
  return c.output("y", c.op("combine", with_weights(y)));
}

CaseProgram slice(int64_t first) {
  CaseProgram c("slice from " + std::to_string(first));
  const DimId heads = c.dim("heads", 3), dim = c.dim("head_dim", 10), part = c.dim("part", 4);
  return c.output("y", c.op("slice", {c.input("x", {heads, dim})}, {}, {{"first", first}}, {part}));
}

CaseProgram concat(bool shared) {
  CaseProgram c(shared ? "concat with one head" : "concat");
  const DimId heads = c.dim("heads", 3), others = shared ? c.dim("one", 1) : heads, a = c.dim("a", 10),
              b = c.dim("b", 6), both = c.dim("both", 16);
  return c.output("y", c.op("concat", {c.input("a", {heads, a}), c.input("b", {others, b})}, {}, {}, {both}));
}

CaseProgram gate_tokens() {
  CaseProgram c("gate_tokens");
  const DimId n = c.dim("n", 37), one = c.dim("one", 1);
  const ValueId x = c.input("x", {n});
  return c.output("y", c.op("gate_tokens", {x, c.op("score", {x}, {c.slot("gate", {{one}, {n}})})}));
}

CaseProgram attention(const char* name, OpAttrs masks, int64_t kv_heads, double scale = 0.2, int64_t num_heads = 6) {
  CaseProgram c(name);
  const DimId heads = c.dim("heads", num_heads), kv = c.dim("kv_heads", kv_heads), dim = c.dim("head_dim", 20);
  std::vector<ValueId> inputs = {c.input("q", {heads, dim}), c.input("k", {kv, dim}), c.input("v", {kv, dim})};
  for (const auto& [mask, value] : masks)
    if (mask == "document") inputs.push_back(c.field("document_ids"));
  masks.emplace_back("scale", scale);
  c.output("y", c.op("attention", inputs, {}, std::move(masks)));
  return c;
}

CaseProgram reshape() {
  CaseProgram c("reshape");
  const DimId heads = c.dim("heads", 3), dim = c.dim("head_dim", 10), joined = c.dim("width", 30);
  const std::vector<DimId> output = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, joined};
  return c.output("y", c.op("reshape", {c.input("x", {heads, dim})}, {}, {}, output));
}

CaseProgram channel_scale(bool of_heads) {
  CaseProgram c(of_heads ? "channel_scale of every head" : "channel_scale");
  const DimId heads = c.dim("heads", 3), dim = c.dim("head_dim", 10);
  const SlotId weight = of_heads ? c.slot("weight", {{dim}}) : c.slot("weight", {{heads, dim}});
  c.output("y", c.op("channel_scale", {c.input("x", {heads, dim})}, {weight}));
  return c;
}

// Experts without a row, all rows for one expert, a single expert, and rows of one token.
std::vector<CaseProgram> extreme_expert_cases() {
  std::vector<CaseProgram> cases;
  const auto add = [&](const Routing& routing) {
    cases.push_back(expert_weights("sigmoid", {}, routing));
    for (const bool bias : {false, true}) cases.push_back(experts("grouped_linear", false, bias, 20, routing));
    for (const char* id : {"dispatch", "combine"}) cases.push_back(experts(id, true, false, 20, routing));
  };
  for (const Routing& routing : kExtremes) add(routing);
  cases.push_back(top_experts("top_experts of a single expert", {}, true, 1, 1));
  cases.push_back(top_experts("top_experts, all of them", {}, true, 6, 6));

  const size_t first = cases.size();
  add(kScattered);
  cases.push_back(top_experts("top_experts", {}, true));
  cases.push_back(gate_tokens());
  for (size_t i = first; i < cases.size(); ++i) cases[i].one_token();
  return cases;
}

std::vector<CaseProgram> all_cases() {
  const auto one = AttrValue(int64_t{1});
  std::vector<CaseProgram> cases;
  cases.push_back(linear(false));
  cases.push_back(linear(true));
  cases.push_back(norm(false));
  cases.push_back(norm(true));
  cases.push_back(norm(false, 1.0));
  cases.push_back(norm(true, 1.0));
  cases.push_back(head_norm());
  cases.push_back(plain_norm(kSmallEps, 10));
  cases.push_back(layer_norm());
  cases.push_back(rope("rope", 10));
  cases.push_back(rope("rope of the first dims", 16, {{"rotary_dim", int64_t{10}}}));
  cases.push_back(rope("rope with long frequencies", 10,
                       {{"long_inv_freq", std::vector<double>{0.5, 0.2, 0.1, 0.02, 0.01}}, {"long_from", int64_t{9}}}));
  cases.push_back(embedding());
  cases.push_back(embedding_part());
  for (const char* id : {"cross_entropy", "token_logp"})
    for (const double cap : {0.0, 1.5}) cases.push_back(head({.id = id, .cap = cap}));
  for (const double cap : {0.0, 1.5}) cases.push_back(head({.id = "token_logp", .cap = cap, .frozen = true}));
  cases.push_back(head_part(0));
  cases.push_back(head_part(1.5));
  cases.push_back(total("total_cross_entropy", "loss"));
  cases.push_back(total("total_token_logp", "logps"));
  for (const double temperature : {1.0, 1.7}) {
    cases.push_back(top_head(temperature));
    cases.push_back(top_head_part(temperature));
  }
  cases.push_back(top_head(0.6, 1.5));
  cases.push_back(top_head(1.7, 0, true));
  cases.push_back(top_total());
  for (const int64_t num_labels : {1, 3}) cases.push_back(score(num_labels));
  cases.push_back(top_experts("top_experts", {}, false));
  cases.push_back(top_experts("top_experts of documents", {}, true));
  cases.push_back(top_experts("top_experts in groups", {{"groups", int64_t{3}}, {"top_groups", int64_t{2}}}, false));
  cases.push_back(top_experts("top_experts in one group", {{"groups", int64_t{2}}, {"top_groups", int64_t{1}}}, false));
  for (const char* score : {"softmax", "chosen_softmax", "sigmoid"}) {
    cases.push_back(expert_weights(score));
    cases.push_back(expert_weights(score, {{"normalize", one}}));
  }
  cases.push_back(expert_weights("softmax", {{"factor", 2.5}}));
  cases.push_back(router());
  for (const char* form : {"layers", "batch", "sequence"}) cases.push_back(router(form));
  cases.push_back(router("layers", 0.02));
  for (const bool weighted : {false, true}) {
    cases.push_back(experts("dispatch", weighted));
    cases.push_back(experts("combine", weighted));
    for (const char* id : {"grouped_linear+combine", "gated_activation silu", "gated_activation gelu_tanh"})
      for (const bool bias : {false, true}) cases.push_back(experts(id, weighted, bias));
  }
  for (const bool bias : {false, true}) cases.push_back(experts("grouped_linear", false, bias));
  for (CaseProgram& c : extreme_expert_cases()) cases.push_back(std::move(c));
  for (const int64_t first : {0, 6}) cases.push_back(slice(first));
  for (const bool shared : {false, true}) cases.push_back(concat(shared));
  cases.push_back(gate_tokens());
  cases.push_back(pointwise("scale", {{"factor", 5.5}}, false));
  cases.push_back(pointwise("softcap", {{"cap", 1.5}}, false));
  cases.push_back(pointwise("clip", {{"limit", 0.7}}, false));
  cases.push_back(position_scale(4, 0.3));
  cases.push_back(pointwise("dropout", {{"p", 0.3}}, false));
  cases.push_back(pointwise("dropout", {{"p", 0.3}, {"first", int64_t{37}}}, false));
  cases.push_back(reshape());
  cases.push_back(channel_scale(false));
  cases.push_back(channel_scale(true));
  cases.push_back(pointwise("add", {}, true));
  cases.push_back(pointwise("mul", {}, true));
  for (const char* function : {"silu", "gelu", "gelu_tanh", "relu"}) {
    cases.push_back(pointwise("activation", {{"function", std::string(function)}}, false));
    cases.push_back(pointwise("gated_activation", {{"function", std::string(function)}}, true));
  }
  cases.push_back(attention("attention causal", {{"causal", one}}, 6));
  cases.push_back(attention("attention causal, grouped", {{"causal", one}}, 2));
  cases.push_back(attention("attention of documents", {{"causal", one}, {"document", one}}, 2));
  cases.push_back(attention("attention in a window", {{"causal", one}, {"window", int64_t{4}}}, 1));
  cases.push_back(attention("attention in chunks", {{"causal", one}, {"chunk", int64_t{5}}}, 2));
  cases.push_back(
      attention("attention in chunks of documents", {{"causal", one}, {"chunk", int64_t{3}}, {"document", one}}, 2));
  cases.push_back(attention("attention both ways", {}, 3));
  cases.push_back(attention("attention with capped scores", {{"causal", one}, {"softcap", 0.5}}, 2));
  cases.push_back(attention("attention in a window with capped scores",
                            {{"causal", one}, {"window", int64_t{4}}, {"softcap", 0.5}}, 3));
  // Second values of the numeric attributes.
  cases.push_back(norm(false, 0, kLargeEps));
  cases.push_back(norm(true, 0, kLargeEps));
  cases.push_back(plain_norm(kLargeEps, 10));
  cases.push_back(layer_norm(kLargeEps));
  cases.push_back(rope("rope with a factor", 10, {}, 1.3));
  cases.push_back(rope("rope of interleaved pairs", 10, {}, 1.0, true));
  for (const char* id : {"cross_entropy", "token_logp"}) {
    cases.push_back(head({.id = id, .cap = 0.5}));
    for (const double cap : {0.0, 0.5}) cases.push_back(head({.id = id, .cap = cap, .logits_are_read = true}));
  }
  cases.push_back(pointwise("scale", {{"factor", -0.3}}, false));
  cases.push_back(pointwise("softcap", {{"cap", 0.4}}, false));
  cases.push_back(pointwise("clip", {{"limit", 0.2}}, false));
  cases.push_back(position_scale(2, -0.2));
  cases.push_back(attention("attention with another scale", {{"causal", one}}, 6, 0.7));
  cases.push_back(attention("attention with scores capped higher", {{"causal", one}, {"softcap", 2.0}}, 2));
  cases.push_back(branches(false));
  cases.push_back(branches(true));
  return cases;
}

// Programs of most ops, with many tokens.
std::vector<CaseProgram> large_cases() {
  const auto one = AttrValue(int64_t{1});
  std::vector<CaseProgram> cases;
  cases.push_back(linear(true, kWide));
  cases.push_back(norm(false, 0, kSmallEps, kWide));
  cases.push_back(norm(true, 0, kSmallEps, kWide));
  cases.push_back(plain_norm(kSmallEps, kWide));
  cases.push_back(layer_norm(kSmallEps, kWide));
  cases.push_back(rope("rope", 10));
  cases.push_back(embedding(kWide));
  for (const char* id : {"cross_entropy", "token_logp"}) cases.push_back(head({.id = id, .num_classes = kWide}));
  cases.push_back(top_head(1.7, 0, false, kWide));
  cases.push_back(score(1, kWide));
  for (const char* id : {"dispatch", "combine"}) cases.push_back(experts(id, true, false, kWide));
  cases.push_back(experts("grouped_linear", false));
  for (const char* id : {"add", "mul"}) cases.push_back(pointwise(id, {}, true, kWide));
  cases.push_back(pointwise("scale", {{"factor", 5.5}}, false, kWide));
  cases.push_back(pointwise("softcap", {{"cap", 1.5}}, false, kWide));
  cases.push_back(pointwise("clip", {{"limit", 0.7}}, false, kWide));
  cases.push_back(position_scale(4, 0.3, kWide));
  cases.push_back(pointwise("activation", {{"function", std::string("silu")}}, false, kWide));
  cases.push_back(pointwise("gated_activation", {{"function", std::string("silu")}}, true, kWide));
  cases.push_back(attention("attention causal, grouped", {{"causal", one}}, 1, 0.2, 2));
  for (CaseProgram& c : cases) c.large();
  return cases;
}

bool has_pattern(const CaseProgram& c, const std::vector<std::string>& pattern) {
  const std::vector<Op>& ops = c.program().blocks[0].ops;
  return std::search(ops.begin(), ops.end(), pattern.begin(), pattern.end(),
                     [](const Op& op, const std::string& id) { return op.id.text() == id; }) != ops.end();
}

// Programs for the provider's patterns that none of `cases` has. Patterns without one are added to `untested`.
std::vector<CaseProgram> cases_of_further_patterns(const OpsProvider& provider, const std::vector<CaseProgram>& cases,
                                                   std::vector<std::string>& untested) {
  std::vector<CaseProgram> out;
  for (uint32_t i = 0; i < provider.table->num_patterns; ++i) {
    const std::string text(view_of(provider.table->patterns[i]));
    const std::vector<std::string> pattern = ops_of_pattern(text);
    if (std::ranges::any_of(cases, [&](const CaseProgram& c) { return has_pattern(c, pattern); })) continue;
    for (const bool keeps_all : {false, true}) {
      if (keeps_all && pattern.size() < 2) continue;
      if (auto made = pattern_case(pattern, keeps_all))
        out.push_back(std::move(*made));
      else if (!keeps_all)
        untested.push_back(text);
    }
  }
  return out;
}

// The first row has documents of 5 and 6 tokens and 2 positions of padding; every other row is one document.
int32_t field_value(const std::string& name, int64_t row, int64_t t, int64_t index) {
  const int32_t document = row > 0 ? 0 : t < 5 ? 0 : t < 11 ? 1 : -1;
  if (name == "document_ids") return document;
  if (name == "positions") return static_cast<int32_t>(row > 0 || t < 5 ? t : t - 5);
  if (name == "labels" && index % 4 == 1) return -100;
  if (name == "teacher_ids" && index % 5 == 2) return -1;
  return static_cast<int32_t>(index * 7 % 29);
}

struct Named {
  std::string name;
  Tensor tensor;
};

std::vector<uint8_t> trainable_slots(const Program& program) {
  std::vector<uint8_t> out;
  for (const ParameterSlot& slot : program.blocks[0].slots) out.push_back(slot.frozen ? 0 : 1);
  return out;
}

constexpr const char* kOutsideTraining = " outside of training";

// All results of a program, each under its own name: outputs, gradients of inputs and of parameters. Runs two
// micro-batches: the first must overwrite the gradients of parameters, which hold NaN, and the second must add to them.
// Then runs forward outside of training. `num_micro_batches` is 1 or 2.
std::vector<Named> run_case(const Program& program, const ResolveOptions& options, const OpsProvider* candidate,
                            bool* claimed, int num_micro_batches = 2) {
  const DimSizes sizes = options.planned(program);
  const ProgramLayout layout;
  ParameterTable parameters(program, layout, {.compute = options.compute});
  const ParameterStorage storage(parameters, options.device);
  const std::vector<uint8_t> trainable = trainable_slots(program);
  const ResolvedBlock block = compile_block(program, layout, 0, trainable, true, options);
  *claimed = std::any_of(block.nodes.begin(), block.nodes.end(), [&](const Node& node) {
    return candidate && node.provider && node.provider->self == candidate->self;
  });

  auto random = [&](const std::string& name, const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    random_normal(7, name, 0, values);
    tensor.copy_from(Tensor::borrow(values.data(), tensor.sizes(), Dtype::f32));
  };
  for (const auto& p : parameters.all()) {
    random(p->name, p->stored());
    p->gradient_written = false;
  }
  parameters.update_values();
  for (const auto& p : parameters.all()) {
    p->gradient = Tensor::empty(p->value.sizes(), Dtype::f32, options.device);
    p->gradient.fill(std::numeric_limits<double>::quiet_NaN());
  }
  std::map<std::string, Tensor> inputs;
  Fields fields;
  for (const auto& [name, value] : program.blocks[0].inputs) {
    inputs[name] = Tensor::empty(layout.local_shape(program, program.blocks[0].values[value], sizes), options.compute);
    random(name, inputs[name]);
  }
  for (const auto& [name, value] : program.blocks[0].fields) {
    Tensor& field = fields[name] =
        Tensor::empty(layout.local_shape(program, program.blocks[0].values[value], sizes), Dtype::i32);
    const Routing* const routing = find_routing(name);
    for (int64_t i = 0; i < field.num_elements(); ++i)
      field.data_as<int32_t>()[i] = routing ? routing->expert(i) : field_value(name, i / sizes.time, i % sizes.time, i);
  }
  const Kernels kernels(options.device);
  RunContext context;
  context.backend = &kernels;
  context.program = &program;
  context.layout = &layout;
  context.options = &options;
  context.parameters = &parameters.of_unit(0);
  context.sizes = sizes;
  context.loss_scale = 0.25;
  context.random = {0x0123456789abcdef, kRows};
  std::vector<Named> results;
  for (int i = 0; i < num_micro_batches; ++i) {
    const bool second = i == 1;
    const char* const when = second ? " in the second micro-batch" : "";
    const char* const sum = second ? ", added to that of the micro-batch before" : "";
    Frame frame;
    std::map<std::string, Tensor> gradients;
    for (auto& [name, tensor] : run_forward(block, context, inputs, fields, true, frame)) {
      results.push_back({name + when, tensor.clone()});
      if (name == "loss" || tensor.dtype() == Dtype::i32) continue;
      gradients[name] = Tensor::empty(tensor.sizes(), tensor.dtype());
      random("gradient of " + name, gradients[name]);
    }
    for (auto& [name, tensor] : run_backward(block, context, std::move(gradients), frame))
      results.push_back({"gradient of " + name + when, tensor});
    for (size_t slot = 0; slot < trainable.size(); ++slot) {
      const Parameter& p = *parameters.of_unit(0)[slot];
      if (trainable[slot] != 0) results.push_back({"gradient of " + p.name + sum, p.gradient.clone()});
    }
  }
  ResolveOptions outside = options;
  outside.purpose = Purpose::kLoss;
  const std::vector<uint8_t> none(trainable.size(), 0);
  const ResolvedBlock forward_only = compile_block(program, layout, 0, none, false, outside);
  context.options = &outside;
  Frame frame;
  for (auto& [name, tensor] : run_forward(forward_only, context, inputs, fields, false, frame))
    results.push_back({name + kOutsideTraining, tensor.clone()});
  return results;
}

const Tensor* find(const std::vector<Named>& results, const std::string& name) {
  const auto found = std::ranges::find(results, name, &Named::name);
  return found == results.end() ? nullptr : &found->tensor;
}

// `got` or `expected` may be NULL: a gradient that is left out is zero. `exact_zeros`: the same elements must be zero.
void compare(const std::string& where, const std::string& name, const Tensor* got, const Tensor* expected, double bound,
             bool exact_zeros, std::vector<std::string>& failures) {
  const auto b = expected ? float_values(*expected) : std::vector<float>(static_cast<size_t>(got->num_elements()));
  const auto a = got ? float_values(*got) : std::vector<float>(b.size());
  if (a.size() != b.size()) {
    failures.push_back(where + ": " + name + " has " + std::to_string(a.size()) + " elements, expected " +
                       std::to_string(b.size()));
    return;
  }
  double largest = 0.0, worst = 0.0;
  size_t at = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= worst)) worst = difference, at = i;
    if (std::isnan(difference)) break;
  }
  if (exact_zeros)
    for (size_t i = 0; i < a.size(); ++i)
      if ((a[i] == 0) != (b[i] == 0)) at = i, worst = std::numeric_limits<double>::infinity();
  if (worst <= bound * largest) return;
  const std::string index = "[" + std::to_string(at) + "]";
  if (!got)
    failures.push_back(where + ": " + name + " is left out, which means zero, but the reference has " +
                       std::to_string(b[at]) + " at " + index);
  else
    failures.push_back(where + ": " + name + index + " is " + std::to_string(a[at]) + ", the reference has " +
                       std::to_string(b[at]) + (expected ? "" : ", since it leaves it out"));
}

// The first bits that differ; empty if none do.
std::string changed_bits(const std::vector<Named>& first, const std::vector<Named>& again) {
  for (const Named& result : first) {
    const Tensor* const other = find(again, result.name);
    if (!other && again.size() < first.size()) continue;  // `again` had fewer micro-batches
    if (!other || other->num_bytes() != result.tensor.num_bytes())
      return result.name + (other ? " has another size" : " is missing") + " when the same call is repeated";
    if (std::memcmp(result.tensor.data(), other->data(), result.tensor.num_bytes()) == 0) continue;
    const auto a = float_values(result.tensor), b = float_values(*other);
    size_t at = 0;
    while (at + 1 < a.size() && has_same_bits(a[at], b[at])) ++at;
    return fmt::format(
        "{}[{}] is {:.9g}, and {:.9g} when the same call is repeated; the same inputs must give the "
        "same bits",
        result.name, at, a[at], b[at]);
  }
  return "";
}

// Whether the provider claims a node of the program.
bool claims(const Program& program, const ResolveOptions& options, const OpsProvider& provider) {
  const std::vector<uint8_t> trainable = trainable_slots(program);
  const ResolvedBlock block = compile_block(program, ProgramLayout(), 0, trainable, true, options);
  return std::ranges::any_of(block.nodes,
                             [&](const Node& node) { return node.provider && node.provider->self == provider.self; });
}

// One case, computed by the provider where it claims nodes and by the oracles. Returns whether it claims any.
bool compare_case(const CaseProgram& c, const OpsProvider& provider, const ResolveOptions& reference, double bound,
                  std::vector<std::string>& failures) {
  ResolveOptions mixed = reference;
  mixed.kernels.insert(mixed.kernels.begin(), provider);
  const bool in_f32 = reference.compute == Dtype::f32;
  const std::string where = c.program().blocks[0].name + " in " + std::string(dtype_name(reference.compute));
  bool claimed = false;
  const auto got = run_case(c.program(), mixed, &provider, &claimed);
  for (int i = 0; i < 3 && !claimed; ++i) {
    if (!claims(c.program(), mixed, provider)) continue;
    failures.push_back(where + ": claim is not pure: it refuses the node first, and accepts it when it is asked again");
    return true;
  }
  if (!claimed) return false;
  const ProgramLayout layout;
  const std::vector<uint8_t> trainable = trainable_slots(c.program());
  const ResolvedBlock block = compile_block(c.program(), layout, 0, trainable, true, mixed);
  for (const std::string& failure : answer_failures(provider, c.program(), layout, block, mixed))
    failures.push_back(where + ": " + failure);

  std::string changed;
  // Runs alternate in length, so that a kernel whose results alternate from call to call is found.
  int num_repetitions = 0;
  const auto repeat = [&] {
    const auto again = run_case(c.program(), mixed, &provider, &claimed, ++num_repetitions % 2 == 0 ? 2 : 1);
    if (changed.empty()) changed = changed_bits(got, again);
  };
  const bool in_full = in_f32 && c.num_tokens() == CaseProgram::kTokens;
  for (int i = 0; i < 3 && !in_full; ++i) repeat();
  if (const std::string text = in_full ? growth_of("runs", 20, repeat) : ""; !text.empty())
    failures.push_back(where + ": " + text);
  if (!changed.empty()) failures.push_back(where + ": " + changed);

  const bool random = std::ranges::any_of(c.program().blocks[0].ops, [](const Op& op) { return op.spec().is_random; });
  bool unused = false;
  const auto expected = run_case(c.program(), reference, nullptr, &unused);
  for (const Named& result : got)
    compare(where, result.name, &result.tensor, find(expected, result.name), bound, random, failures);
  for (const Named& result : expected)
    if (!find(got, result.name)) compare(where, result.name, nullptr, &result.tensor, bound, random, failures);
  return true;
}

}  // namespace

ConformanceResult compare_with_oracles(const OpsProvider& provider, std::span<const OpsProvider> oracles) {
  ConformanceResult result;
  if (!provider.table->destroy_kernel) {
    result.failures.push_back("its table has create_kernel, but no function destroy_kernel, so no kernel can be freed");
    return result;
  }
  const auto run = [&](const CaseProgram& c, Dtype dtype, double bound) {
    ResolveOptions reference;
    reference.compute = dtype;
    reference.batch = kRows;
    reference.time = c.num_tokens();
    reference.kernels.assign(oracles.begin(), oracles.end());
    result.num_compared += compare_case(c, provider, reference, bound, result.failures);
  };
  std::vector<CaseProgram> cases = all_cases();
  for (CaseProgram& c : cases_of_further_patterns(provider, cases, result.untested_patterns))
    cases.push_back(std::move(c));
  for (const auto& [dtype, bound] : {std::pair(Dtype::f32, 1e-4), std::pair(Dtype::bf16, 2e-2)})
    for (const CaseProgram& c : cases) run(c, dtype, bound);
  for (const CaseProgram& c : large_cases()) run(c, Dtype::f32, 1e-4);
  return result;
}

std::set<std::string> ops_of_cases() {
  std::set<std::string> covered;
  for (const CaseProgram& c : all_cases())
    for (const Op& op : c.program().blocks[0].ops) {
      covered.insert(op.id.text());
      for (const auto& [name, value] : op.attrs) covered.insert(op.id.text() + "." + name);
    }
  return covered;
}

}  // namespace chassis
