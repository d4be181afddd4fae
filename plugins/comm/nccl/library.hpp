// libnccl.so.2, loaded on first use: with LibTorch's CUDA libraries the process already contains it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#include "chassis/guard.hpp"

namespace comm_nccl {

using namespace chassis;

#define COMM_NCCL_FUNCTIONS(X)                                                                                       \
  X(GetVersion)                                                                                                      \
  X(GetUniqueId) X(GetErrorString) X(GetLastError) X(CommInitRankConfig) X(CommFinalize) X(CommDestroy) X(CommAbort) \
      X(CommGetAsyncError) X(CommRegister) X(CommDeregister) X(GroupStart) X(GroupEnd) X(AllGather) X(ReduceScatter) \
          X(AllReduce) X(Broadcast) X(Reduce) X(Send) X(Recv)

struct Library {
#define COMM_NCCL_MEMBER(name) decltype(&::nccl##name) name;
  COMM_NCCL_FUNCTIONS(COMM_NCCL_MEMBER)
#undef COMM_NCCL_MEMBER
};

// An empty path means the library in this process, else the one on the system's search path. Refuses, with the reason,
// if there is none or it is too old.
Library open_library(const std::string& path);

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Failure(error == cudaErrorMemoryAllocation ? CHASSIS_RESOURCE_EXHAUSTED : CHASSIS_INTERNAL, what, ": ",
                cudaGetErrorString(error));
}

}  // namespace comm_nccl
