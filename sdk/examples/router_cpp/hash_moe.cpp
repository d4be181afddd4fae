// A mixture of experts with a router of its own: a hash of a token's id chooses its experts (Roller et al. 2021, "Hash
// Layers For Large Sparse Models"), and only their weights are learned. Attention has no positions.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "chassis/config_keys.hpp"
#include "chassis/model.hpp"
#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;
using Json = nlohmann::ordered_json;

class HashMoe final : public Model {
 public:
  static constexpr std::string_view kId = "router_cpp";
  static constexpr std::string_view kDoc = "a decoder whose experts a hash chooses (HashMoeForCausalLM)";
  using Model::Model;

  void configure(std::string_view config_json) override {
    source_ = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
    if (!source_.is_object()) fail_invalid("config.json is not a JSON object");
    ConfigKeys keys(source_, kId);
    keys.require("architectures", {"HashMoeForCausalLM"});
    for (auto& [key, size] : sizes_) size = keys.positive(key, size);
    if (at("num_experts_per_tok") > at("num_experts"))
      fail_config({"num_experts_per_tok", "num_experts"}, "num_experts_per_tok ", at("num_experts_per_tok"),
                  " is above num_experts ", at("num_experts"));
    if (at("hidden_size") % at("num_attention_heads") != 0)
      fail_config({"hidden_size", "num_attention_heads"}, "hidden_size ", at("hidden_size"),
                  " is not a multiple of num_attention_heads ", at("num_attention_heads"));
    keys.for_each_unknown([&](const std::string& key) {
      host().count("config key " + key, "key '", key, "' is unknown to model '", kId, "' and ignored");
    });
  }

  void record(Builder& b) override {
    const Dim vocab = b.dim("vocab", at("vocab_size")), heads = b.dim("heads", at("num_attention_heads"));
    const int64_t head_size = at("hidden_size") / at("num_attention_heads");
    const Dim head_dim = b.dim("head_dim", head_size);
    hidden_ = b.dim("hidden", at("hidden_size")), ffn_ = b.dim("expert_ffn", at("moe_intermediate_size"));
    experts_ = b.dim("experts", at("num_experts")), chosen_ = b.dim("chosen_experts", at("num_experts_per_tok"));
    const double scale = 1 / std::sqrt(static_cast<double>(head_size));

    b.chain("embed", "model", b.block("embed", [&] {
      b.output("hidden", b.embedding(b.field("input_ids"), "embed_tokens.weight", vocab, {hidden_}));
    }));
    const auto layer = [&] {
      const Value x = b.input("hidden", {hidden_}), n = b.rms_norm(x, "input_layernorm.weight", kEps);
      const auto head = [&](const char* name) { return b.linear(n, name, {heads, head_dim}); };
      const Value q = head("self_attn.q_proj"), k = head("self_attn.k_proj"), v = head("self_attn.v_proj");
      const Value y = b.attention(q, k, v, {.causal = true, .document_ids = b.field("document_ids")}, scale);
      const Value sum = b.add(x, b.linear(y, "self_attn.o_proj", {hidden_}));
      b.output("hidden", b.add(sum, experts(b, b.rms_norm(sum, "post_attention_layernorm.weight", kEps))));
    };
    b.chain("layers", "model.layers.{i}", b.block("layer", layer), at("num_hidden_layers"));
    b.chain("head", "", b.block("head", [&] {
      const Value x = b.rms_norm(b.input("hidden", {hidden_}), "model.norm.weight", kEps);
      b.output("hidden", x);
      b.output("logits", b.linear(x, "lm_head", {vocab}, {.role = CHASSIS_ROLE_HEAD}));
    }));
  }

  std::string config() const override {
    Json out = source_;
    out["architectures"] = {"HashMoeForCausalLM"};
    for (const auto& [key, size] : sizes_) out[key] = size;
    return out.dump(2) + "\n";
  }

 private:
  // The gradient reaches the router through the weights alone: the choice has none.
  Value experts(Builder& b, const Value& x) const {
    const Value chosen =
        b.own_op("router_cpp/hash_experts", "hash_experts", {b.field("input_ids"), b.field("document_ids")},
                 Attrs().set("num_experts", at("num_experts")), {kBatch, kTime, chosen_},
                 {.mixed_dims = Dims{}, .output_dtype = CHASSIS_DTYPE_I32});
    const Value weights = b.expert_weights(b.router(x, "mlp.gate.weight", experts_), chosen, "chosen_softmax");
    const auto linear = [&](const Value& rows, const char* name, Dim out) {
      return b.grouped_linear(rows, chosen, std::string("mlp.experts.") + name, experts_, {out});
    };
    const Value rows = b.dispatch(x, chosen);
    const Value gate = linear(rows, "gate_proj", ffn_), up = linear(rows, "up_proj", ffn_);
    return b.combine(linear(b.gated_activation(gate, up, "silu"), "down_proj", hidden_), chosen, weights);
  }
  int64_t at(std::string_view key) const { return std::ranges::find(sizes_, key, &Size::first)->second; }

  using Size = std::pair<std::string, int64_t>;
  static constexpr double kEps = 1e-5;
  Json source_ = nullptr;
  std::vector<Size> sizes_ = {{"vocab_size", 32000},         {"hidden_size", 512}, {"num_hidden_layers", 8},
                              {"num_attention_heads", 8},    {"num_experts", 8},   {"num_experts_per_tok", 2},
                              {"moe_intermediate_size", 512}};
  Dim hidden_{}, ffn_{}, experts_{}, chosen_{};
};

class HashKernel final : public Kernel {
 public:
  explicit HashKernel(const NodeView& node)
      : num_experts_(node.op(0).attr_int("num_experts")), num_chosen_(node.output(0).size(2)) {}

  void forward(Call& call) override {
    const BorrowedTensor ids = call.input(0), documents = call.input(1);
    const int64_t sizes[] = {ids.size(0), ids.size(1), num_chosen_};
    int32_t* chosen = call.make_output(0, CHASSIS_DTYPE_I32, sizes).data<int32_t>();
    for (int64_t t = 0; t < ids.num_elements(); ++t, chosen += num_chosen_) {
      const bool is_padding = documents && documents.data<int32_t>()[t] < 0;
      const int64_t first = (static_cast<uint32_t>(ids.data<int32_t>()[t]) * 2654435761u) >> 16;  // Knuth's hash
      for (int64_t i = 0; i < num_chosen_; ++i)
        chosen[i] = is_padding ? -1 : static_cast<int32_t>((first + i) % num_experts_);
      std::sort(chosen, chosen + num_chosen_);
    }
  }

 private:
  const int64_t num_experts_, num_chosen_;
};

class HashExperts final : public Ops {
 public:
  static constexpr std::string_view kId = "router_cpp";
  static constexpr std::string_view kDoc = "the experts of a token by a hash of its id, on the CPU";
  static constexpr std::string_view kPatterns[] = {"router_cpp/hash_experts"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"num_experts"});
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs on the CPU only");
    return 0;
  }
  void infer(const NodeView&, Infer&) override {}
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override { return std::make_unique<HashKernel>(node); }
};

}  // namespace

CHASSIS_PLUGIN(
    "architecture=HashMoeForCausalLM\n"
    "requires=chassis.log/1\n"
    "requires=chassis.tensor/1\n"
    "license=Apache-2.0\n",
    HashMoe, HashExperts)
