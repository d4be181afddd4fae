// Metrics of what the router of each layer chooses: sums over all ranks and the steps since the last ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/execute/executor.hpp"
#include "host/graph/program.hpp"
#include "host/session/ranks.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

// Sums of router_stats over any number of tokens.
struct RouterSums {
  std::vector<double> counts, probabilities;  // by expert
  double largest = 0.0;                       // logit

  double num_tokens() const;
  double max_load() const;  // tokens of the expert that has most, divided by the mean; 0 without tokens
  double num_idle() const;  // experts that no token chose
  double entropy() const;   // of the mean probabilities, in nats
  double aux() const;       // E · Σ f·P of these tokens; as many as the experts of a token if all loads are equal
};

// True if the router pass measures loads in this program.
bool has_routers(const Program& program);

class RouterMetrics {
 public:
  // The loads above which a warning is counted, and the steps after which an expert without a token is.
  static constexpr double kMostLoad = 4.0;
  static constexpr int64_t kMostIdleSteps = 100;

  explicit RouterMetrics(const Program& program);

  // True at step 1 and every so many steps, if the model has routers. Called at each step.
  bool is_due(int64_t step, int64_t every_steps);
  // [step][all-ranks] The metrics of all routers since the last call; counts warnings.
  NamedValues take(Executor& executor, const Ranks& ranks, int64_t step);

 private:
  struct Router {
    size_t unit = 0;
    std::string output, name;  // "router.sums", "layers.3"
    int64_t num_experts = 0;
    std::vector<int64_t> last_used;  // by expert: the last step at which it is known to have had a token
  };
  void warn(Router& router, const RouterSums& sums, int64_t step) const;

  std::vector<Router> routers_;
  bool is_first_ = true;
};

}  // namespace chassis
