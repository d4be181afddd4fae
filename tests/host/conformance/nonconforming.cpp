// A strategy, a model and an ops provider with one fault, which the environment variable NONCONFORMING selects and
// `plugins check` must find. Correct if the variable is not set.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/model.hpp"
#include "chassis/ops.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

bool has(std::string_view fault) {
  const char* chosen = std::getenv("NONCONFORMING");
  return chosen != nullptr && fault == chosen;
}

// Matrices are sharded by rows and gathered for each unit; other parameters are replicated.
class Strategy final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "test: shards by rows, with a fault";
  static constexpr std::string_view kId = "nonconforming";
  static constexpr std::string_view kHomeAxis = "dp_shard";
  using Parallel::Parallel;

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    if (!has("claims nothing")) sink.claim(kHomeAxis);
    if (has("claims tp")) sink.claim("tp");
    units_ = problem.parameters_by_unit();
    sharded_.assign(problem.parameters().size(), false);
    whole_.clear(), trained_.clear();
    for (const chassis_mesh_axis_t& axis : problem.axes())
      if (text_of(axis.name) == kHomeAxis) rank_ = axis.rank;
    std::vector<std::string_view> axes = {kHomeAxis};
    if (has("divides twice")) axes.push_back(kHomeAxis);
    for (uint32_t id = 0; id < problem.parameters().size(); ++id) {
      const chassis_parallel_parameter_t& p = problem.parameters()[id];
      sharded_[id] = p.num_dims == 2;
      if (has("leaves one out") && id == 3) continue;
      if (sharded_[id] && !(has("another place") && rank_ == 2 && id == 0))
        sink.place(id, {.kind = CHASSIS_SHARD_DIM, .axes = axes});
      else
        sink.place(id, {.kind = CHASSIS_SHARD_REPLICATE, .resident = true});
      if (has("places twice") && id == 3) sink.place(id, {.kind = CHASSIS_SHARD_REPLICATE, .resident = true});
      if (!sharded_[id]) whole_.push_back(id);
      if (p.trainable) trained_.push_back(id);
    }
  }

  void pre_forward(uint32_t unit, UnitFlags) override {
    if (has("not whole") && unit == 2) return;
    if (has("gives up") && unit == 2) throw Failure(CHASSIS_INTERNAL, "it gave up");
    take(unit);
  }
  void post_forward(uint32_t unit, UnitFlags flags) override {
    if (has("holds on") && unit == 2 && !flags.training) return;
    if (!(has("not whole") && unit == 2)) shards().release(sharded(unit));
  }
  void pre_backward(uint32_t unit, UnitFlags) override { take(unit); }
  void post_backward(uint32_t unit, UnitFlags) override { shards().release(sharded(unit)); }
  void finish_grads() override {
    std::vector<uint32_t> ids = trained_;
    if (has("forgets a gradient")) ids.pop_back();
    const std::vector<uint32_t> first(ids.begin(), ids.begin() + 2), rest(ids.begin() + 2, ids.end());
    const bool turned = has("another order") && rank_ == 3;
    shards().reduce(turned ? rest : first, "gradients");
    shards().reduce(turned ? first : rest, "gradients");
    shards().wait_reduced(ids);
  }
  void post_optimizer() override {
    if (has("stale")) return;
    shards().gather(whole_, "parameters");
    shards().wait_gathered(whole_);
    shards().release(whole_);
  }

 private:
  std::vector<uint32_t> sharded(uint32_t unit) const {
    std::vector<uint32_t> ids;
    for (uint32_t id : units_[unit])
      if (sharded_[id]) ids.push_back(id);
    return ids;
  }
  void take(uint32_t unit) {
    shards().gather(sharded(unit), "unit");
    shards().wait_gathered(sharded(unit));
  }

  std::vector<std::vector<uint32_t>> units_;
  std::vector<bool> sharded_;
  std::vector<uint32_t> whole_, trained_;
  uint32_t rank_ = 0;
};

// A model of an embedding, two layers and a head. Its config has one key.
class Family final : public Model {
 public:
  static constexpr std::string_view kDoc = "test: a small model, with a fault";
  static constexpr std::string_view kId = "nonconforming";
  using Model::Model;

  void configure(std::string_view json) override {
    if (json.size() < 2 || json.front() != '{' || json.back() != '}' || json.find("-1") != std::string_view::npos) {
      if (!has("takes any config")) fail_invalid("this is no config");
    }
    is_own_ = json.find("nonconforming") != std::string_view::npos;
    config_ = json;
  }
  void record(Builder& b) override {
    const Dim hidden = b.dim("hidden", is_own_ && has("another program") ? 12 : 10), vocab = b.dim("vocab", 31);
    b.chain("embed", "", b.block("embed", [&] {
      b.output("hidden", b.embedding(b.field("input_ids"), "embed.weight", vocab, {hidden}));
    }));
    const bool sees_later = has("sees later tokens") || has("scores that see later tokens");
    b.chain("layers", "layers.{i}",
            b.block("layer",
                    [&] {
                      const Value x = b.input("hidden", {hidden});
                      const Value y =
                          b.linear(x, has("recorded anew") && num_records_++ % 2 ? "other" : "first", {hidden});
                      Value z = b.mul(y, b.linear(x, "second", {hidden}));
                      if (sees_later || has("sees other documents")) {
                        const Dim heads = b.dim("heads", 1);
                        const auto split = [&](const char* name) { return b.linear(x, name, {heads, hidden}); };
                        z = b.add(
                            z, b.linear(b.attention(split("q"), split("k"), split("v"), {.causal = !sees_later}, 0.3),
                                        "o", {hidden}));
                      }
                      b.output("hidden", z);
                    }),
            2);
    b.chain("head", "", b.block("head", [&] {
      if (has("no deviation")) b.init_std = std::nan("");
      const Value x = b.input("hidden", {hidden});
      if (has("scores") || has("scores that see later tokens")) {
        b.output("scores", b.score(x, "head.weight", vocab));
        return;
      }
      const Value logits = b.linear(x, "head", {vocab}, {.role = CHASSIS_ROLE_HEAD});
      b.output("hidden", x);
      if (has("scores of rows")) b.output("scores", b.own_op("trial/sum", "sum", {logits}, {}, {kBatch, vocab}, {}));
      if (!has("no logits")) b.output("logits", logits);
      if (has("a loss")) b.output("loss", b.cross_entropy(logits, b.field("labels")));
      if (has("no scalar")) b.output("aux_loss", logits);
      if (has("a narrow loss"))
        b.output("aux_loss", b.own_op("trial/mean", "mean", {logits}, {}, {}, {.mixed_dims = Dims{vocab}}));
    }));
  }
  int64_t max_positions() const override { return has("negative positions") ? -5 : 0; }
  std::string config() const override {
    return has("no config")                        ? "hidden"
           : has("a config of its own") && is_own_ ? "{\"other\": 1}"
           : has("drops keys")                     ? "{\"family\": \"nonconforming\"}"
           : is_own_                               ? config_
           : config_ == "{}"                       ? "{\"family\": \"nonconforming\"}"
                             : config_.substr(0, config_.size() - 1) + ", \"family\": \"nonconforming\"}";
  }
  void disk_mapping(DiskMapping& m) const override {
    m.tensor("disk.ends", {{"embed.weight"}, {has("no such parameter") ? "tail.weight" : "head.weight"}});
    m.permuted("disk.{i}.first", "layers.{i}.first.weight");
    const std::string second = "layers.{i}.second.weight";
    m.tensor("disk.{i}.upper", {{second, {0}, {4}}});
    m.tensor(has("one name for two") ? "disk.{i}.upper" : "disk.{i}.lower", {{second,
                                                                              {has("a row twice")     ? 3
                                                                               : has("a row nowhere") ? 5
                                                                                                      : 4},
                                                                              {0}}});
    if (has("skips its own")) m.skip("disk.*.first");
    m.literal("disk.mask", CHASSIS_DTYPE_F32, {2}, std::vector<float>{1, 1});
  }

 private:
  std::string config_;
  bool is_own_ = false;
  int num_records_ = 0;
};

// The ops mul, scale and embedding in fp32.
class Products final : public Ops {
 public:
  static constexpr std::string_view kDoc = "test: mul, scale and embedding, with a fault";
  static constexpr std::string_view kId = "nonconforming";
  static constexpr std::string_view kPatterns[] = {"mul", "scale", "embedding"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    if (is_scale(node))
      node.op(0).refuse_attrs_other_than({"factor"});
    else if (is_embedding(node) || !has("any attribute"))
      node.op(0).refuse_attrs_other_than({});
    const OperandView first = is_embedding(node) ? node.param(0) : node.input(0);
    if (node.device_type() != CHASSIS_DEVICE_CPU || first.dtype() != CHASSIS_DTYPE_F32) refuse("fp32 on the CPU");
    if (has("claims every second time") && num_claims_++ % 2 == 0) refuse("not now");
    if (has("another cost")) return ++num_claims_;
    return has("no number") ? std::numeric_limits<double>::quiet_NaN() : 0;
  }
  void infer(const NodeView& node, Infer& out) override {
    if (node.training() && !is_scale(node)) out.keeps_input(0);
    if (node.training() && !is_scale(node) && !is_embedding(node)) out.keeps_input(1);
    if (has("unknown flags")) out.flags(1u << 20);
    if (has("another answer")) out.workspace(num_infers_++ % 3, 0);
    static constexpr chassis_tile_t kTiles[] = {{128, 64, 4096, 8192}, {64, 64, 2048, 4096}, {64, 64, 2048, 4096}};
    if (has("another tile")) out.tiles(kTiles, static_cast<size_t>(num_infers_++ % 3));
    if (has("a tile twice")) out.tiles(kTiles, 0);
    if (has("stray bits")) out.keeps_output(5);
    if (has("stray saved tensor")) out.raw().saved[2].dtype = CHASSIS_DTYPE_F32;
    if (has("gradients at once")) out.flags(CHASSIS_KERNEL_FORWARD_BACKWARD);
    if (has("replaces an output")) out.flags(CHASSIS_KERNEL_HOST_OUTPUTS);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    if (is_embedding(node)) return std::make_unique<Embedding>();
    if (is_scale(node)) return std::make_unique<Scale>(has("one factor") ? 5.5 : node.op(0).attr_float("factor"));
    return std::make_unique<Mul>();
  }

 private:
  static bool is_scale(const NodeView& node) { return node.op(0).id() == "scale"; }
  static bool is_embedding(const NodeView& node) { return node.num_params() > 0; }
  int num_claims_ = 0, num_infers_ = 0;

  class Scale final : public Kernel {
   public:
    explicit Scale(double factor) : factor_(static_cast<float>(factor)) {}
    void forward(Call& call) override {
      if (has("replaces an output")) call.raw().outputs[0] = nullptr;
      const BorrowedTensor a = call.input(0);
      const BorrowedTensor y = call.make_output(0, CHASSIS_DTYPE_F32, {a.sizes().begin(), a.sizes().end()});
      for (int64_t i = 0; i < a.num_elements(); ++i) y.data<float>()[i] = factor_ * a.data<float>()[i];
    }
    void backward_inputs(Call& call) override {
      const BorrowedTensor dy = call.grad_output(0);
      if (!dy || !call.wants_grad_input(0)) return;
      call.set_grad_input(0, Tensor::create(call.host(), CHASSIS_DTYPE_F32, dy.sizes()));
      for (int64_t i = 0; i < dy.num_elements(); ++i)
        call.grad_input(0).data<float>()[i] = factor_ * dy.data<float>()[i];
    }

   private:
    float factor_;
  };
  class Embedding final : public Kernel {
   public:
    void forward(Call& call) override {
      const BorrowedTensor ids = call.input(0), table = call.param(0);
      const int64_t width = table.sizes()[1];
      std::vector<int64_t> sizes(ids.sizes().begin(), ids.sizes().end());
      sizes.push_back(width);
      const BorrowedTensor y = call.make_output(0, CHASSIS_DTYPE_F32, sizes);
      for (int64_t i = 0; i < ids.num_elements(); ++i)
        std::copy_n(table.data<float>() + ids.data<int32_t>()[i] * width, width, y.data<float>() + i * width);
    }
    void backward_inputs(Call&) override {}
    void backward_params(Call& call) override {
      const BorrowedTensor ids = call.input(0), dy = call.grad_output(0), sum = call.grad_param(0);
      if (!sum || has("writes no gradient")) return;
      const int64_t width = sum.sizes()[1];
      const bool adds = has("always adds") || (call.grad_param_beta(0) == 1 && !has("never adds"));
      if (!adds) std::fill_n(sum.data<float>(), sum.num_elements(), 0.0f);
      for (int64_t i = 0; i < ids.num_elements(); ++i)
        for (int64_t e = 0; e < width; ++e)
          sum.data<float>()[ids.data<int32_t>()[i] * width + e] += dy.data<float>()[i * width + e];
    }
  };
  class Mul final : public Kernel {
   public:
    void forward(Call& call) override {
      const BorrowedTensor a = call.input(0), b = call.input(1);
      if (has("replaces an output")) call.raw().outputs[0] = nullptr;
      static std::vector<std::vector<char>> leaked;
      if (has("leaks")) leaked.emplace_back(1 << 20);
      const BorrowedTensor y = call.make_output(0, CHASSIS_DTYPE_F32, {a.sizes().begin(), a.sizes().end()});
      const int64_t count = a.num_elements() + (has("one too far") ? 1 : 0);
      for (int64_t i = has("one too early") ? -1 : 0; i < count; ++i)
        y.data<float>()[i] = a.data<float>()[i] * b.data<float>()[i];
      static int num_runs = 0;
      if (has("wrong outside of training") && !call.training()) y.data<float>()[0] *= 1.01f;
      if (has("wrong if large") && a.num_elements() > 500'000) y.data<float>()[0] = 0;
      static int num_calls = 0;
      if (has("alternates")) y.data<float>()[0] *= 1 + 1e-6f * static_cast<float>(num_calls++ % 2);
      if (has("not repeatable")) y.data<float>()[0] *= 1 + 1e-6f * static_cast<float>(num_runs++ % 7);
    }
    void backward_inputs(Call& call) override {
      const BorrowedTensor dy = call.grad_output(0);
      for (uint32_t i = 0; dy && i < 2; ++i) {
        if (!call.wants_grad_input(i) || (i == 0 && has("leaves out a gradient"))) continue;
        const BorrowedTensor other = call.input(1 - i);
        call.set_grad_input(i, Tensor::create(call.host(), CHASSIS_DTYPE_F32, other.sizes()));
        for (int64_t e = 0; e < other.num_elements(); ++e)
          call.grad_input(i).data<float>()[e] =
              dy.data<float>()[e] * other.data<float>()[e] * (has("half a gradient") ? 0.5f : 1.0f);
      }
    }
  };
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nlicense=Apache-2.0\n", Strategy, Family, Products)
