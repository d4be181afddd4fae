// One fault of the fake CUDA runtime or the fake NCCL, read from the environment.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>

#include "tests/regress/mark_fault.hpp"

namespace fake_cuda {

// FAKE_CUDA_FAULT="RANK FUNCTION CALL RESULT [PATH]": on this rank of --nproc, call number CALL of FUNCTION, counted
// from 1, gives RESULT. Calls are counted once PATH exists.
class Fault {
 public:
  Fault() {
    const char* text = std::getenv("FAKE_CUDA_FAULT");
    const char* own_rank = std::getenv("CHASSIS_RANK");
    if (text == nullptr || own_rank == nullptr) return;
    std::istringstream words(text);
    std::string rank;
    words >> rank >> function_ >> call_ >> result_ >> path_;
    if (rank != own_rank) function_.clear();
  }

  // The result that this call gives instead of its own; 0: none.
  int result_of(std::string_view function) {
    if (function != function_) return 0;
    const std::lock_guard lock(mutex_);
    if (!path_.empty() && access(path_.c_str(), F_OK) != 0) return 0;
    path_.clear();
    if (++num_calls_ != call_) return 0;
    chassis::test::mark_fault();
    return result_;
  }

 private:
  std::string function_, path_;
  int call_ = 0, result_ = 0, num_calls_ = 0;
  std::mutex mutex_;
};

inline Fault& fault() {
  static Fault fault;
  return fault;
}

}  // namespace fake_cuda
