// Fully sharded data parallelism with the layout of PyTorch's FSDP2: every parameter is divided into chunks of its
// first dim. Each unit is gathered before it is used and freed afterwards; its gradients are reduced and scattered
// after its backward. Over dp_replicate, the shards are replicated (HSDP).
#include <algorithm>
#include <vector>

#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

constexpr uint32_t kNone = UINT32_MAX;

uint32_t dtype_option(const Host& host, std::string_view name) {
  const auto text = option_value<std::string>(host, name);
  return text == "fp32"   ? CHASSIS_DTYPE_F32
         : text == "bf16" ? CHASSIS_DTYPE_BF16
         : text == "fp16" ? CHASSIS_DTYPE_F16
                          : 0;
}

class Fsdp2 final : public Parallel {
 public:
  static constexpr std::string_view kDoc =
      "parameters, gradients and optimizer states in chunks of dim 0, gathered unit by unit";
  static constexpr std::string_view kHomeAxis = "dp_shard";
  static constexpr Saving kSavings[] = {{"reshard_after_forward", "\"always\""}, {"reshard_to", "0"},
                                        {"forward_prefetch", "0"},                {"backward_prefetch", "0"},
                                        {"reduce_every_microbatch", "true"},      {"reduce_tied_once", "false"},
                                        {"offload", "\"cpu\""}};

  static const Options& options() {
    static const Options schema = {
        option("reshard_after_forward", "default")
            .choices({"default", "always", "never"})
            .doc("free a unit's parameters after its forward and gather them again for backward; default: for all "
                 "units but the last, whose backward comes next"),
        option("reshard_to", 0)
            .range(0, 1 << 20)
            .doc("number of neighbouring ranks that parameters stay divided over after forward; 0: all ranks"),
        option("forward_prefetch", -1)
            .range(-1, 64)
            .doc("units gathered ahead in forward; -1: 1 on CUDA, 0 on the CPU"),
        option("backward_prefetch", -1)
            .range(-1, 64)
            .doc("units gathered ahead in backward; -1: 1 on CUDA, 0 on the CPU"),
        option("reduce_every_microbatch", true)
            .doc("false: keep whole gradients and reduce them once per step, which needs their memory and saves "
                 "communication"),
        option("reduce_tied_once", false)
            .doc("true: keep the whole gradient of a tied parameter until the last unit that reads it, which needs its "
                 "memory and saves a reduction"),
        option("all_reduce_every_microbatch", false)
            .doc("HSDP: sum over dp_replicate in each micro-batch, not once per step"),
        option("param_dtype", "auto")
            .choices({"auto", "fp32", "bf16", "fp16"})
            .doc("dtype that is sent when parameters are gathered; auto: [precision] compute"),
        option("reduce_dtype", "auto")
            .choices({"auto", "fp32", "bf16", "fp16"})
            .doc("dtype that is sent when gradients are reduced; auto: [precision] reduce"),
        option("output_dtype", "auto")
            .choices({"auto", "fp32", "bf16", "fp16"})
            .doc("dtype of values between units; only [precision] compute is possible"),
        option("offload", "none")
            .choices({"none", "cpu"})
            .doc("cpu: parameters, gradients and optimizer states stay in host memory, and the optimizer steps there"),
        option("pin_memory", true).doc("offload to page-locked memory; useful only with CUDA"),
    };
    return schema;
  }

  explicit Fsdp2(const Host& host)
      : Parallel(host),
        reshard_(option_value<std::string>(host, "reshard_after_forward")),
        reshard_to_(static_cast<uint32_t>(option_value<int64_t>(host, "reshard_to"))),
        forward_prefetch_(static_cast<int>(option_value<int64_t>(host, "forward_prefetch"))),
        backward_prefetch_(static_cast<int>(option_value<int64_t>(host, "backward_prefetch"))),
        reduce_every_microbatch_(option_value<bool>(host, "reduce_every_microbatch")),
        reduce_tied_once_(option_value<bool>(host, "reduce_tied_once")),
        all_reduce_every_microbatch_(option_value<bool>(host, "all_reduce_every_microbatch")),
        offload_(option_value<std::string>(host, "offload") == "cpu"),
        pin_memory_(option_value<bool>(host, "pin_memory")) {
    if (reshard_to_ > 1 && reshard_ == "never")
      fail_invalid(option_origin(host, "reshard_to"), ": reshard_to is ", reshard_to_,
                   ", but reshard_after_forward = \"never\" keeps parameters whole; set one or the other");
    if (!offload_ && differs("pin_memory"))
      fail_invalid(option_origin(host, "pin_memory"),
                   ": pin_memory has no effect while nothing is offloaded; remove it or set offload = \"cpu\"");
    if (all_reduce_every_microbatch_ && !reduce_every_microbatch_)
      fail_invalid(option_origin(host, "all_reduce_every_microbatch"),
                   ": all_reduce_every_microbatch has no effect with reduce_every_microbatch = false; set one or the "
                   "other");
  }

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    sink.claim(kHomeAxis);
    if (problem.axis_size("dp_replicate") > 1) sink.claim("dp_replicate");
    else if (all_reduce_every_microbatch_)
      host().count("no replicas", "all_reduce_every_microbatch has no effect: mesh.dp_replicate is 1");
    const uint32_t ranks = problem.axis_size(kHomeAxis);
    if (reshard_to_ > 0 && ranks % reshard_to_ != 0)
      fail_invalid(option_origin(host(), "reshard_to"), ": reshard_to = ", reshard_to_, " does not divide the ", ranks,
                   " ranks of dp_shard");
    if (const uint32_t output = dtype_option(host(), "output_dtype"); output && output != problem.compute_dtype())
      fail_invalid(option_origin(host(), "output_dtype"),
                   ": units output [precision] compute and no other dtype; leave output_dtype at \"auto\"");
    const bool has_streams = problem.device_type() != CHASSIS_DEVICE_CPU;
    if (forward_prefetch_ < 0) forward_prefetch_ = has_streams;
    if (backward_prefetch_ < 0) backward_prefetch_ = has_streams;

    units_ = problem.parameters_by_unit();
    chunk_end_.assign(units_.size(), 0), chunk_begin_.assign(units_.size(), 0);
    backward_is_next_.assign(units_.size(), 0);
    for (const chassis_chunk_t& chunk : problem.chunks()) {
      for (uint32_t u = chunk.first_unit; u < chunk.end_unit; ++u)
        chunk_begin_[u] = chunk.first_unit, chunk_end_[u] = chunk.end_unit;
      if (chunk.stage + 1 == problem.num_stages()) backward_is_next_[chunk.end_unit - 1] = 1;
    }
    elements_.clear();
    names_.clear(), bucket_.clear();
    for (uint32_t u = 0; u < problem.num_units(); ++u) names_.emplace_back(problem.unit_name(u));
    held_.assign(units_.size(), 0);
    first_trained_unit_ = kNone;
    const auto parameters = problem.parameters();
    for (uint32_t i = 0; i < parameters.size(); ++i) {
      elements_.push_back(parameters[i].trainable ? parameters[i].num_elements : 0);
      sink.place(i, {.kind = CHASSIS_SHARD_DIM,
                     .axes = {kHomeAxis},
                     .gather_dtype = dtype_option(host(), "param_dtype"),
                     .reduce_dtype = dtype_option(host(), "reduce_dtype"),
                     .offload = offload_,
                     .pin_memory = pin_memory_});
      if (!parameters[i].trainable) continue;
      first_trained_unit_ = std::min(first_trained_unit_, parameters[i].units[0]);
    }
  }

  void pre_forward(uint32_t unit, UnitFlags flags) override {
    if (flags.recompute) return;  // already gathered for backward
    gather_unit(unit);
    for (int ahead = 1; ahead <= forward_prefetch_ && unit + ahead < chunk_end_[unit]; ++ahead)
      gather_unit(unit + ahead);
    shards().wait_gathered(units_[unit]);
  }

  void post_forward(uint32_t unit, UnitFlags flags) override {
    if (flags.recompute) return;
    if (!flags.training) return release_unit(unit);
    if (reshard_ == "never" || (reshard_ == "default" && backward_is_next_[unit])) return;
    if (reshard_to_ > 1) return shrink_unit(unit);
    release_unit(unit);
  }

  void pre_backward(uint32_t unit, UnitFlags) override {
    if (gradient_elements(in_flight_) > gradient_elements(units_[unit])) wait_for_reduction();
    gather_unit(unit);
    // The last unit of this chunk that runs backward; if nothing is trained, it is above every unit.
    const uint32_t last = std::max(first_trained_unit_, chunk_begin_[unit]);
    const auto prefetched = static_cast<uint32_t>(backward_prefetch_);
    for (uint32_t ahead = 1; ahead <= prefetched && unit >= ahead && unit - ahead >= last; ++ahead)
      gather_unit(unit - ahead);
    shards().wait_gathered(units_[unit]);
  }

  void grad_ready(uint32_t parameter, UnitFlags) override { bucket_.push_back(parameter); }

  void post_backward(uint32_t unit, UnitFlags flags) override {
    release_unit(unit);
    if (flags.inputs_only) return;
    if (flags.last_microbatch || reduce_every_microbatch_) {
      if (!reduce_tied_once_) add_tied_gradients(unit);
      wait_for_reduction();  // so that whole gradients of at most two units exist
      const bool keep = !flags.last_microbatch && !all_reduce_every_microbatch_;
      shards().reduce(bucket_, names_[unit], keep ? CHASSIS_REDUCE_KEEP : 0);
      in_flight_ = std::move(bucket_);
    }
    bucket_.clear();
  }

  void finish_grads() override {
    drain();
    wait_for_reduction();
  }

  void drain() override {
    for (uint32_t unit = 0; unit < units_.size(); ++unit)
      if (held_[unit]) release_unit(unit);
  }

 private:
  bool differs(std::string_view name) const { return option_differs(host(), options(), name); }
  void gather_unit(uint32_t unit) {
    if (held_[unit]) return;
    held_[unit] = 1;
    shards().gather(units_[unit], names_[unit]);
  }
  void release_unit(uint32_t unit) {
    held_[unit] = 0;
    shards().release(units_[unit]);
  }
  void wait_for_reduction() {
    shards().wait_reduced(in_flight_);
    in_flight_.clear();
  }
  int64_t gradient_elements(const std::vector<uint32_t>& parameters) const {
    int64_t sum = 0;
    for (uint32_t p : parameters) sum += elements_[p];
    return sum;
  }
  // Adds gradients of tied parameters to the bucket although other units will still add to them.
  void add_tied_gradients(uint32_t unit) {
    for (uint32_t p : units_[unit])
      if (elements_[p] > 0 && std::find(bucket_.begin(), bucket_.end(), p) == bucket_.end()) bucket_.push_back(p);
  }
  void shrink_unit(uint32_t unit) {
    held_[unit] = 0;
    shards().shrink(units_[unit], reshard_to_);
  }

  const std::string reshard_;
  const uint32_t reshard_to_;
  int forward_prefetch_, backward_prefetch_;
  const bool reduce_every_microbatch_, reduce_tied_once_, all_reduce_every_microbatch_, offload_, pin_memory_;

  std::vector<std::vector<uint32_t>> units_;
  std::vector<std::string> names_;
  std::vector<uint32_t> chunk_begin_, chunk_end_;  // by unit
  std::vector<uint8_t> backward_is_next_;          // by unit: no other unit runs before its backward
  std::vector<uint8_t> held_;      // by unit: gathered or being gathered
  std::vector<int64_t> elements_;  // by parameter, 0 if it is not trained
  std::vector<uint32_t> bucket_;   // gradients that are ready
  std::vector<uint32_t> in_flight_;
  uint32_t first_trained_unit_ = kNone;  // where backward ends
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nrequires=chassis.log/1\nswappable=1\nlicense=Apache-2.0\n", Fsdp2)
