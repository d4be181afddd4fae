// The strategies of [[parallel]] as plugin instances, in list order. An instance keeps what it was asked last, so one
// StackPlan and one StackEvents use it; another plan needs new instances.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "chassis/kind/parallel.h"
#include "host/base/error.hpp"
#include "host/parallel/resolve_arguments.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

// One table of [[parallel]].
struct StackMember {
  std::unique_ptr<Instance> instance;
  SourcePosition where;
};

struct StackStrategy {
  std::unique_ptr<Instance> instance;
  SourcePosition where;
  const chassis_parallel_t* table = nullptr;

  const std::string& label() const { return instance->label(); }
};

class Strategies {
 public:
  // Throws a plugin error if a member lacks the interface of a strategy.
  explicit Strategies(std::vector<StackMember> members);

  const std::vector<StackStrategy>& all() const { return all_; }
  const StackStrategy& operator[](size_t i) const { return all_[i]; }
  bool empty() const { return all_.empty(); }
  size_t size() const { return all_.size(); }

  // The axis that gets the ranks that [mesh] leaves over: the first home axis, in list order, without a given size.
  std::string home_axis(const std::vector<std::string>& given) const;
  // The home axis of each strategy, in list order.
  std::vector<std::string> home_axes() const;
  // An option that may save memory, as a strategy declares it: the strategy's index in the stack, the option's name,
  // and its value in JSON.
  struct Saving {
    size_t member;
    std::string option, json;
  };
  std::vector<Saving> savings() const;

  // Keeps the arguments of resolve() until the instances, which borrow them, are destroyed.
  const ResolveArguments& keep(std::unique_ptr<const ResolveArguments> problem);

 private:
  std::vector<std::unique_ptr<const ResolveArguments>> kept_;  // outlives the instances
  std::vector<StackStrategy> all_;
};

}  // namespace chassis
