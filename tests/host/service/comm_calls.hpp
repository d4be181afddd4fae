// Calls on buffers of floats, for tests of a Communicator.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "chassis/comm_call.hpp"
#include "host/service/comm.hpp"

namespace chassis::test {

struct Buffers {
  std::vector<float> send = std::vector<float>(4096, 1.0f), recv = std::vector<float>(4096);
};

inline chassis_collective_t call_of(uint32_t op, Buffers& buffers, uint64_t count, std::string_view name) {
  chassis_collective_t call{};
  call.struct_size = sizeof call;
  call.op = op;
  call.dtype = CHASSIS_DTYPE_F32;
  call.reduce = op == CHASSIS_COMM_REDUCE_SCATTER || op == CHASSIS_COMM_ALL_REDUCE ? CHASSIS_REDUCE_SUM : 0;
  call.send = buffers.send.data();
  call.recv = buffers.recv.data();
  call.count = count;
  call.name = {name.data(), name.size()};
  return call;
}

inline CommHandle start_raw(Communicator& communicator, ProcessGroup& group,
                            std::span<const chassis_collective_t> calls) {
  return communicator.start_raw(group, pointers_to(calls));
}

}  // namespace chassis::test
