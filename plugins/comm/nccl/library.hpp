// libnccl.so.2, looked up when it is first needed: beside LibTorch's CUDA part there is one in the process already.
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

// An empty path: the one of this process, else where the system looks. Throws in words if there is none or it is too
// old.
Library open_library(const std::string& path);

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Failure(error == cudaErrorMemoryAllocation ? CHASSIS_RESOURCE_EXHAUSTED : CHASSIS_INTERNAL, what, ": ",
                cudaGetErrorString(error));
}

}  // namespace comm_nccl
