// Launches CUDA kernels. A source that does so through launch_kernel() also compiles as C++ and then runs on the CPU,
// where tests need no GPU. For CUDA C++17 and later; empty in sources that use no CUDA.
#pragma once

#include "chassis/namespace.hpp"

#if defined(__CUDACC__) || defined(CHASSIS_CUDA_ON_CPU)
#include <cuda_runtime.h>

CHASSIS_SDK_BEGIN

// [any] Queues kernel(arguments…) on the stream, with `block` threads in each of `grid` blocks. Does not wait for it;
// cudaGetLastError() says whether CUDA refused the launch.
template <typename... Parameters, typename... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments... arguments) {
#if defined(__CUDACC__)
  kernel<<<grid, block, 0, stream>>>(static_cast<Parameters>(arguments)...);
#else
  cuda_on_cpu::launch(kernel, grid, block, stream, static_cast<Parameters>(arguments)...);
#endif
}

CHASSIS_SDK_END
#endif
