// What computes the nodes of a program: the kernels of its providers, or a rehearsal, for which only sizes count.
#pragma once

#include "host/service/tensor.hpp"

namespace chassis {

class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Tensors are allocated there.
  Device device() const { return device_; }
  virtual bool is_rehearsal() const = 0;

 protected:
  explicit Backend(Device device) : device_(device) {}

 private:
  const Device device_;
};

// Calls the kernels of the providers.
class Kernels final : public Backend {
 public:
  explicit Kernels(Device device) : Backend(device) {}
  bool is_rehearsal() const override { return false; }
};

// Allocates on a meta device what kernels would, to count the memory of a step, and calls none.
class Rehearsal final : public Backend {
 public:
  explicit Rehearsal(Device meta) : Backend(meta) {}
  bool is_rehearsal() const override { return true; }
};

}  // namespace chassis
