// ZeRO (Rajbhandari et al. 2020) with DeepSpeed's names: parameters are cut into flat, padded ranges. Stage 1 divides
// optimizer states, stage 2 also gradients, stage 3 also parameters, which are then gathered unit by unit and ahead of
// use, in the order recorded in the first step.
#include <algorithm>
#include <string>
#include <vector>

#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"
#include "trace.hpp"

namespace {

using namespace chassis;

class Zero final : public Parallel {
 public:
  static constexpr std::string_view kDoc =
      "ZeRO stages 1, 2 and 3: flat ranges of optimizer states, gradients, parameters";
  static constexpr std::string_view kHomeAxis = "dp_shard";
  static constexpr Saving kSavings[] = {{"stage", "2"},
                                        {"stage", "3"},
                                        {"stage3_prefetch_bucket_size", "0"},
                                        {"stage3_param_persistence_threshold", "0"},
                                        {"stage3_max_live_parameters", "0"},
                                        {"stage3_max_reuse_distance", "0"},
                                        {"reduce_bucket_size", "5e7"},
                                        {"allgather_bucket_size", "5e7"},
                                        {"offload_optimizer_device", "\"cpu\""},
                                        {"offload_param_device", "\"cpu\""}};

  static const Options& options() {
    static const Options schema = {
        option("stage", 3).range(1, 3).doc("1: divide optimizer states; 2: gradients too; 3: parameters too"),
        option("reduce_bucket_size", 5e8).range(1, 1e15).doc("elements of gradients that are reduced at once"),
        option("allgather_bucket_size", 5e8)
            .range(1, 1e15)
            .doc("elements of parameters that are gathered at once after a step"),
        option("overlap_comm", "auto")
            .choices({"auto", "true", "false"})
            .doc("continue while gradients are reduced; auto: on CUDA"),
        option("stage3_prefetch_bucket_size", 5e7)
            .range(0, 1e15)
            .doc("elements gathered ahead of use; 0: none. On the CPU only with overlap_comm = true, since it gains "
                 "nothing there"),
        option("stage3_param_persistence_threshold", 1e5)
            .range(0, 1e15)
            .doc("largest number of elements of a parameter that stays whole"),
        option("stage3_model_persistence_threshold", 9e15)
            .range(0, 1e16)
            .doc("limit of the elements of all parameters that stay whole"),
        option("stage3_max_live_parameters", 1e9)
            .range(0, 1e15)
            .doc("limit of the elements that are gathered at a time; nothing is gathered ahead beyond it"),
        option("stage3_max_reuse_distance", 1e9)
            .range(0, 1e15)
            .doc("a unit stays whole if it is used again within this number of elements"),
        option("offload_optimizer_device", "none")
            .choices({"none", "cpu"})
            .doc("where fp32 ranges, their gradients and optimizer states are stored, and where the optimizer steps"),
        option("offload_optimizer_fraction", 1.0)
            .range(0, 1)
            .doc("share of the elements that are offloaded, largest parameters first"),
        option("offload_param_device", "none")
            .choices({"none", "cpu"})
            .doc("stage 3: the same for the ranges that parameters are gathered from"),
        option("offload_param_fraction", 1.0)
            .range(0, 1)
            .doc("share of the elements that are offloaded, largest parameters first"),
        option("pin_memory", true).doc("offload to page-locked memory; useful only with CUDA"),
    };
    return schema;
  }

  explicit Zero(const Host& host)
      : Parallel(host),
        stage_(static_cast<int>(option_value<int64_t>(host, "stage"))),
        reduce_bucket_(option_value<double>(host, "reduce_bucket_size")),
        allgather_bucket_(option_value<double>(host, "allgather_bucket_size")),
        prefetch_bucket_(option_value<double>(host, "stage3_prefetch_bucket_size")),
        persistence_(option_value<double>(host, "stage3_param_persistence_threshold")),
        model_persistence_(option_value<double>(host, "stage3_model_persistence_threshold")),
        max_live_(option_value<double>(host, "stage3_max_live_parameters")),
        max_reuse_(option_value<double>(host, "stage3_max_reuse_distance")) {
    if (stage_ < 3)
      refuse_options("has no effect in stage " + std::to_string(stage_) + "; remove it or set stage = 3",
                     {"stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
                      "stage3_model_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
                      "offload_param_device", "offload_param_fraction"});
    const bool states = offloads("offload_optimizer"), params = offloads("offload_param");
    const std::string nothing = "has no effect while nothing is offloaded; remove it or set ";
    if (!states) refuse_options(nothing + "offload_optimizer_device = \"cpu\"", {"offload_optimizer_fraction"});
    if (!params) refuse_options(nothing + "offload_param_device = \"cpu\"", {"offload_param_fraction"});
    if (!states && !params) refuse_options(nothing + "offload_optimizer_device = \"cpu\"", {"pin_memory"});
  }

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    sink.claim(kHomeAxis);
    if (problem.axis_size("dp_replicate") > 1) sink.claim("dp_replicate");
    const auto overlap = option_value<std::string>(host(), "overlap_comm");
    overlap_ = overlap == "true" || (overlap == "auto" && problem.device_type() != CHASSIS_DEVICE_CPU);
    if (stage_ == 3 && !overlap_ && prefetch_bucket_ > 0 && differs("stage3_prefetch_bucket_size"))
      host().count("no prefetch",
                   "stage3_prefetch_bucket_size has no effect without overlap; set overlap_comm = \"true\"");

    const auto parameters = problem.parameters();
    elements_.clear(), trained_.clear(), resident_.clear(), bucket_.clear(), names_.clear();
    for (const auto& p : parameters) elements_.push_back(static_cast<double>(p.num_elements));
    const std::vector<uint8_t> persists = choose_persistent();
    const std::vector<uint8_t> offload_states = choose_offloaded("offload_optimizer");
    const std::vector<uint8_t> offload_params = choose_offloaded("offload_param");
    units_ = problem.parameters_by_unit();
    for (auto& unit : units_) std::erase_if(unit, [&](uint32_t id) { return persists[id]; });
    for (uint32_t u = 0; u < problem.num_units(); ++u) names_.emplace_back(problem.unit_name(u));
    held_.assign(units_.size(), 0);
    trace_.forget();
    std::vector<uint8_t> trains(units_.size());
    for (uint32_t i = 0; i < parameters.size(); ++i) {
      const bool trained = parameters[i].trainable != 0;
      if (trained) trained_.push_back(i);
      for (uint32_t k = 0; trained && k < parameters[i].num_units; ++k) trains[parameters[i].units[k]] = 1;
      if (persists[i]) resident_.push_back(i);
      // A frozen parameter that stays whole is not divided at all.
      if (persists[i] && !trained) {
        sink.place(i, {.kind = CHASSIS_SHARD_REPLICATE, .resident = true});
        continue;
      }
      sink.place(i, {.kind = CHASSIS_SHARD_FLAT,
                     .axes = {kHomeAxis},
                     .resident = persists[i] != 0,
                     .offload = offload_states[i] || offload_params[i],
                     .pin_memory = option_value<bool>(host(), "pin_memory")});
    }
    ends_backward_.assign(units_.size(), 0);
    for (const chassis_chunk_t& chunk : problem.chunks()) {
      const auto first = std::find(trains.begin() + chunk.first_unit, trains.begin() + chunk.end_unit, 1);
      if (first != trains.begin() + chunk.end_unit) ends_backward_[static_cast<size_t>(first - trains.begin())] = 1;
    }
  }

  void pre_forward(uint32_t unit, UnitFlags flags) override {
    if (stage_ == 3 && !flags.recompute) fetch(unit, flags.training);
  }
  void post_forward(uint32_t unit, UnitFlags flags) override {
    if (stage_ == 3 && !flags.recompute) free_unless_reused(unit, flags.training);
  }
  void pre_backward(uint32_t unit, UnitFlags) override {
    if (stage_ == 3) fetch(unit, true);
  }
  void post_backward(uint32_t unit, UnitFlags flags) override {
    if (stage_ == 3) free_unless_reused(unit, true);
    if (stage_ > 1 && ends_backward_[unit]) flush_bucket(flags.last_microbatch);
  }

  void grad_ready(uint32_t parameter, UnitFlags flags) override {
    if (stage_ == 1 && !flags.last_microbatch) return;  // micro-batches add up in the whole gradients
    bucket_.push_back(parameter);
    bucketed_ += elements_[parameter];
    if (bucketed_ >= reduce_bucket_) flush_bucket(flags.last_microbatch);
  }

  void finish_grads() override {
    flush_bucket(true);
    shards().wait_reduced(trained_);
    in_flight_.clear();
    release_all();
    trace_.end_step();
  }

  void post_optimizer() override {
    size_t begin = 0;
    while (begin < resident_.size()) {
      size_t end = begin;
      for (double sum = 0;
           end < resident_.size() && (end == begin || sum + elements_[resident_[end]] <= allgather_bucket_); ++end)
        sum += elements_[resident_[end]];
      const std::span<const uint32_t> ids(resident_.data() + begin, end - begin);
      shards().gather(ids, "parameters");
      shards().wait_gathered(ids);
      shards().release(ids);
      begin = end;
    }
  }

  void drain() override { release_all(); }

 private:
  bool differs(std::string_view name) const { return option_differs(host(), options(), name); }
  void refuse_options(const std::string& why, std::initializer_list<std::string_view> options) const {
    for (std::string_view name : options)
      if (differs(name)) fail_invalid(option_origin(host(), name), ": ", name, " ", why);
  }
  bool offloads(const std::string& what) const { return option_value<std::string>(host(), what + "_device") != "none"; }

  // Stages 1 and 2 keep all parameters whole; stage 3 keeps small ones whole, in order, up to the allowed sum.
  std::vector<uint8_t> choose_persistent() const {
    std::vector<uint8_t> persists(elements_.size(), 1);
    if (stage_ < 3) return persists;
    double sum = 0;
    for (size_t i = 0; i < elements_.size(); ++i) {
      persists[i] = elements_[i] <= persistence_ && sum + elements_[i] <= model_persistence_;
      if (persists[i]) sum += elements_[i];
    }
    return persists;
  }

  std::vector<uint8_t> choose_offloaded(const std::string& what) const {
    std::vector<uint8_t> offloaded(elements_.size(), 0);
    if (!offloads(what)) return offloaded;
    double all = 0, sum = 0;
    std::vector<uint32_t> order(elements_.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i, all += elements_[i];
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return elements_[a] > elements_[b]; });
    const double wanted = all * option_value<double>(host(), what + "_fraction");
    for (uint32_t id : order) {
      if (sum >= wanted) break;
      offloaded[id] = 1;
      sum += elements_[id];
    }
    return offloaded;
  }

  double elements_of(uint32_t unit) const {
    double sum = 0;
    for (uint32_t id : units_[unit]) sum += elements_[id];
    return sum;
  }

  void gather_unit(uint32_t unit) {
    if (held_[unit]) return;
    held_[unit] = 1;
    live_ += elements_of(unit);
    shards().gather(units_[unit], names_[unit]);
  }

  void release_unit(uint32_t unit) {
    held_[unit] = 0;
    live_ -= elements_of(unit);
    shards().release(units_[unit]);
  }

  void fetch(uint32_t unit, bool training) {
    if (training && !trace_.visit(unit))
      host().count("zero trace",
                   "a step used its units in another order than the step before; the order is recorded again");
    gather_unit(unit);
    if (training && overlap_) prefetch();
    shards().wait_gathered(units_[unit]);
  }

  void prefetch() {
    double ahead = 0;
    const uint32_t* next = trace_.begin_ahead();
    for (size_t i = 0; i < trace_.num_ahead(); ++i) {
      if (held_[next[i]]) continue;
      const double size = elements_of(next[i]);
      ahead += size;
      if (ahead > prefetch_bucket_ || live_ + size > max_live_) return;
      gather_unit(next[i]);
    }
  }

  void free_unless_reused(uint32_t unit, bool training) {
    if (!held_[unit]) return;
    if (training) {
      double distance = 0;
      const uint32_t* next = trace_.begin_ahead();
      for (size_t i = 0; i < trace_.num_ahead() && distance <= max_reuse_; ++i) {
        if (next[i] == unit && live_ <= max_live_) return;
        distance += elements_of(next[i]);
      }
    }
    release_unit(unit);
  }

  void release_all() {
    for (uint32_t unit = 0; unit < units_.size(); ++unit)
      if (held_[unit]) release_unit(unit);
  }

  // Only the last micro-batch sums over replicas.
  void flush_bucket(bool last_microbatch) {
    shards().wait_reduced(in_flight_);
    shards().reduce(bucket_, "bucket", last_microbatch ? 0 : CHASSIS_REDUCE_KEEP);
    in_flight_ = std::move(bucket_);
    bucket_.clear();
    bucketed_ = 0;
    if (!overlap_) {
      shards().wait_reduced(in_flight_);
      in_flight_.clear();
    }
  }

  const int stage_;
  const double reduce_bucket_, allgather_bucket_, prefetch_bucket_, persistence_, model_persistence_, max_live_,
      max_reuse_;
  bool overlap_ = false;

  std::vector<double> elements_;                // by parameter
  std::vector<std::vector<uint32_t>> units_;    // parameters that are gathered and freed; the others stay whole
  std::vector<std::string> names_;
  std::vector<uint8_t> held_;
  double live_ = 0;  // gathered elements
  std::vector<uint32_t> trained_, resident_, bucket_, in_flight_;
  double bucketed_ = 0;
  std::vector<uint8_t> ends_backward_;  // by unit: the first of its chunk that trains anything
  zero::Trace trace_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nrequires=chassis.log/1\nswappable=1\nlicense=Apache-2.0\n", Zero)
