// Finds replicas of parameters that have drifted apart: tensors of which several ranks store the same part, and whose
// bytes differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/launch/world.hpp"
#include "host/session/run_state.hpp"

namespace chassis {

class ReplicaCheck {
 public:
  // Both must outlive it.
  ReplicaCheck(const RunState& state, World& world) : state_(state), world_(world) {}

  // [step][all-ranks] Throws a numeric error on all ranks if replicas differ after this step; it names the first
  // parameter that differs, and the ranks. Reads what this rank stores once; sends nothing if nothing is replicated.
  // Replicas along axes whose strategy currently lets them differ are not compared.
  void require_equal(int64_t step);
  // After another state was assigned, whose replicas are others.
  void forget() {
    exempt_axes_.reset();
    last_step_ = -1;
  }

 private:
  // Parameters of which the same ranks store the same part.
  struct Class {
    std::string id;                  // equal on ranks that store the same part of the same parameters
    std::vector<size_t> parameters;  // indices into the table
    bool is_shared = false;
  };

  void find_classes(std::vector<std::string> exempt_axes);
  std::vector<uint64_t> checksums(const Class& shared) const;
  [[noreturn]] void throw_difference(int64_t step);

  const RunState& state_;
  World& world_;
  std::optional<std::vector<std::string>> exempt_axes_;  // the ones with which the classes were found
  std::vector<Class> classes_;
  bool any_shared_ = false;  // by any ranks of the run
  int64_t last_step_ = -1;   // the last step after which they were equal
};

}  // namespace chassis
