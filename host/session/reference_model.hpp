// The model before training, which the objective of a run compares with: the same program without gradients. Where
// nothing but an adapter's own parameters is trained, it is the run's model without the adapter's ops, and needs no
// memory. Otherwise it has a frozen copy of what is trained, divided as that is, and shares all else.
#pragma once

#include <memory>
#include <optional>

#include "host/session/placed_model.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The purpose for which the program of a session computes the reference while its parameters are those before training.
// Throws a config error if the run has dropout, since then the model at the first step would differ from its reference.
Purpose reference_purpose(const Session& session);

class ReferenceModel {
 public:
  // Compiles the frozen copy, if there is one; allocates nothing. Throws as reference_purpose(). The session outlives
  // it.
  explicit ReferenceModel(Session& session);

  bool has_copy() const { return copy_ != nullptr; }
  // [all-ranks] After the session's allocate(). `rehearsal` as in Execution.
  void allocate(std::optional<Device> rehearsal = {});
  // [all-ranks] Makes it the model that the session now has.
  void take();
  // [step] The outputs of a micro-batch on ranks with the last stage; nothing on others.
  StreamValues outputs(const Fields& fields);
  // [step] Call at the end of a step that used it.
  void finish_step();

 private:
  Session& session_;
  std::unique_ptr<PlacedModel> copy_;  // NULL: the adapter is left out
};

}  // namespace chassis
