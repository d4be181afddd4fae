// Distributed data parallelism (Li et al. 2020): every rank stores everything; gradients are summed in buckets during
// backward. The simplest strategy; tests compare others with it.
#include <vector>

#include "chassis/options.hpp"
#include "chassis/parallel.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Ddp final : public Parallel {
 public:
  static constexpr std::string_view kDoc = "parameters replicated, gradients summed in buckets during backward";
  static constexpr std::string_view kHomeAxis = "dp_replicate";

  static const Options& options() {
    static const Options schema = {
        option("bucket_mb", 25.0)
            .range(0, 65536)
            .doc("MiB of gradients that are reduced at once; 0: each gradient separately"),
    };
    return schema;
  }

  explicit Ddp(const Host& host) : Parallel(host), bucket_bytes_(option_value<double>(host, "bucket_mb") * (1 << 20)) {}

  void resolve(const ParallelProblem& problem, ParallelSink& sink) override {
    sink.claim(kHomeAxis);
    all_.clear(), bytes_.clear();
    for (const chassis_parallel_parameter_t& p : problem.parameters()) {
      const auto id = static_cast<uint32_t>(all_.size());
      sink.place(id, {.kind = CHASSIS_SHARD_REPLICATE, .resident = true});
      all_.push_back(id);
      bytes_.push_back(4.0 * static_cast<double>(p.num_elements));
    }
  }

  void grad_ready(uint32_t parameter, UnitFlags flags) override {
    if (!flags.last_microbatch) return;  // micro-batches add up in place
    bucket_.push_back(parameter);
    bucketed_bytes_ += bytes_[parameter];
    if (bucketed_bytes_ >= bucket_bytes_) flush_bucket();
  }

  void finish_grads() override {
    flush_bucket();
    shards().wait_reduced(all_);
  }

  // Updates whole tensors that are rounded copies; those that share the stored memory are already up to date.
  void post_optimizer() override {
    shards().gather(all_, "parameters");
    shards().wait_gathered(all_);
    shards().release(all_);
  }

  void drain() override {
    bucket_.clear();
    bucketed_bytes_ = 0;
  }

 private:
  void flush_bucket() {
    shards().reduce(bucket_, "bucket");
    bucket_.clear();
    bucketed_bytes_ = 0;
  }

  const double bucket_bytes_;
  std::vector<uint32_t> all_, bucket_;
  std::vector<double> bytes_;
  double bucketed_bytes_ = 0;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nswappable=1\nlicense=Apache-2.0\noracle=1\n", Ddp)
