// One model, built as two plugins: files of "plain_files" have a tensor for each parameter; those of "mapped_files"
// join, slice and transpose parameters, and hold a constant tensor.
#include <string>
#include <vector>

#include "chassis/model.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Small final : public Model {
 public:
  static constexpr std::string_view kDoc = "test: a small model";
  using Model::Model;

  void configure(std::string_view json) override {
    while (!json.empty() && json.back() == '\n') json.remove_suffix(1);
    if (json.empty() || json.front() != '{' || json.back() != '}') fail_invalid("this is no JSON object");
    field_ =
        json.find("\"field\": \"lens\"") != json.npos || json.find("\"field\":\"lens\"") != json.npos ? "lens" : "";
  }
  void record(Builder& b) override {
    const Dim hidden = b.dim("hidden", 16), vocab = b.dim("vocab", 259), ffn = b.dim("ffn", 32);
    b.init_std = 0.05;
    b.chain("embed", "", b.block("embed", [&] {
      if (!field_.empty()) b.field(field_, CHASSIS_DTYPE_I32, {kBatch});
      b.output("hidden", b.embedding(b.field("input_ids"), "embed.weight", vocab, {hidden}));
    }));
    b.chain("layers", "layers.{i}",
            b.block("layer",
                    [&] {
                      const Value x = b.input("hidden", {hidden});
                      const Value y = b.rms_norm(x, "norm.weight", 1e-5);
                      const Value up = b.gated_activation(b.linear(y, "gate", {ffn}), b.linear(y, "up", {ffn}), "silu");
                      b.output("hidden", b.add(x, b.linear(up, "down", {hidden})));
                    }),
            2);
    b.chain("head", "", b.block("head", [&] {
      const Value x = b.input("hidden", {hidden});
      b.output("hidden", x);
      b.output("logits", b.linear(x, "head", {vocab}, {.role = CHASSIS_ROLE_HEAD}));
    }));
  }
  std::string config() const override {
    return R"({"architectures": [")" CHASSIS_PLUGIN_ID R"("], "torch_dtype": "float32", "field": ")" + field_ + "\"}";
  }
#ifdef MAPPED_FILES
  void disk_mapping(DiskMapping& m) const override {
    m.permuted("ends.0", "embed.weight");
    m.tensor("h.{i}.gate_up", {{"layers.{i}.gate.weight"}, {"layers.{i}.up.weight"}}, 0, {1, 0});
    m.tensor("h.{i}.down.left", {{"layers.{i}.down.weight", {0, 0}, {0, 20}}});
    m.tensor("h.{i}.down.right", {{"layers.{i}.down.weight", {0, 20}, {0, 0}}}, 0, {1, 0});
    m.literal("mask", CHASSIS_DTYPE_I32, {2, 2}, std::vector<int32_t>{1, 0, 1, 1});
    m.skip("*.inv_freq");
    m.alias("model.*", "*");
  }
#endif

 private:
  std::string field_;
};

}  // namespace

CHASSIS_PLUGIN("architecture=" CHASSIS_PLUGIN_ID "\nlicense=Apache-2.0\n", Small)
