// Sends values between pipeline stages on different ranks, over the groups of the pipeline's axis.
#pragma once

#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "host/compile/pipeline.hpp"
#include "host/execute/executor.hpp"
#include "host/service/comm.hpp"

namespace chassis {

class RankLinks final : public StageLinks {
 public:
  // [control][all-ranks] of the pipeline. Forms one group of two ranks for each sender and receiver, so that transfers
  // in one direction never wait for those in the other. Both arguments must outlive it.
  RankLinks(const Pipeline& pipeline, Communicator& communicator);

  void send(int from_stage, int to_stage, StreamValues values) override;
  StreamValues receive(int from_stage, int to_stage, const std::vector<StreamSpec>& specs, Device device) override;
  Tensor share_last(Tensor own, const StreamSpec& spec, Device device) override;
  // [step] Waits until all that was sent has arrived.
  void finish();

 private:
  struct Link {
    ProcessGroup* group = nullptr;
    std::deque<CommHandle> sent;  // in order; tensors live until they have arrived
  };
  // By the ranks of the sending and the receiving stage. Forward and backward have separate links.
  using Key = std::tuple<int, int, bool>;  // ranks of the pipeline, and whether values go forward

  Key key(int from_stage, int to_stage) const;
  // Drops the transfers that have arrived, and waits until at most `most` are left.
  void drop_arrived(Link& link, size_t most);

  const Pipeline& pipeline_;
  Communicator& communicator_;
  ProcessGroup* all_ = nullptr;  // group of the pipeline's ranks
  std::map<Key, Link> links_;
};

}  // namespace chassis
