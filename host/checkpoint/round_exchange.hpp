// Executes single rounds of a reshard plan: an all-to-all through two buffers, and copies within a rank. It does not
// decide which rounds there are, nor when tensors exist.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "host/service/comm.hpp"
#include "host/state/reshard_plan.hpp"

namespace chassis {

class RoundExchange {
 public:
  // Every move starts at a multiple of the widest element.
  static constexpr int64_t kAlignBytes = 8;

  struct Bytes {
    int64_t sent = 0, received = 0, local = 0;
  };
  // A rank's one-dimensional tensor on one side, by the tensor's index in the plan; valid until the next call.
  using FlatTensors = std::function<const Tensor&(uint32_t tensor)>;

  // `name` is that of the collective in messages.
  RoundExchange(Communicator& communicator, std::string name);

  // Memory for the largest round.
  void make_buffers(int64_t send_bytes, int64_t receive_bytes, Device device);
  // This rank's bytes in a round. Moves between ranks are rounded up to the alignment.
  Bytes bytes(const ReshardPlan::Round& round) const;

  // One round: start(), then pack(), send_and_receive() and unpack(). The round outlives them.
  void start(const ReshardPlan::Round& round);
  void pack(const FlatTensors& from);
  // [all-ranks] Sends nothing if no rank does. After a failed pack(), it sends undefined values.
  void send_and_receive();
  void unpack(const FlatTensors& to);
  void copy_within(const FlatTensors& from, const FlatTensors& to);

 private:
  // The moves that this rank sends or receives, by peer and then in the order of the plan.
  struct Parcel {
    std::vector<std::vector<const ReshardMove*>> moves;  // by peer
    std::vector<uint64_t> counts;                        // bytes by peer
    int64_t num_bytes = 0;
  };
  Parcel parcel(const ReshardPlan::Round& round, bool sends) const;

  Communicator& communicator_;
  ProcessGroup& group_;
  const std::string name_;
  const int rank_;
  Tensor send_buffer_, receive_buffer_;
  const ReshardPlan::Round* round_ = nullptr;
  Parcel out_, in_;
};

}  // namespace chassis
