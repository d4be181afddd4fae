// Runs the rounds of the plan, and asks for tensors when they are first used.
#include "host/checkpoint/reshard.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "host/checkpoint/round_exchange.hpp"

namespace chassis {
namespace {

class ReshardRun {
 public:
  ReshardRun(const ReshardRequest& request, Communicator& communicator)
      : request_(request),
        exchange_(communicator, "reshard"),
        rank_(communicator.rank()),
        plan_(plan_reshard(request.tensors, request.options, rank_)) {}

  ReshardResult operator()() {
    make_buffers();
    uint32_t num_done = 0;
    for (uint32_t round = 0; round < plan_.rounds.size(); ++round) {
      run_round(plan_.rounds[round]);
      for (; num_done < request_.tensors.size() && plan_.lifetimes[num_done].last_round == round; ++num_done) {
        held_.erase(num_done);
        if (request_.on_done) request_.on_done(num_done);
      }
    }
    result_.num_rounds = plan_.rounds.size();
    return result_;
  }

 private:
  struct Held {
    Tensor from, to;  // one-dimensional; empty if this rank holds no part
  };

  // The buffers are as large as the largest round needs.
  void make_buffers() {
    RoundExchange::Bytes most;
    for (const auto& round : plan_.rounds) {
      const RoundExchange::Bytes bytes = exchange_.bytes(round);
      most.sent = std::max(most.sent, bytes.sent);
      most.received = std::max(most.received, bytes.received);
    }
    exchange_.make_buffers(most.sent, most.received, request_.device);
  }

  const Held& held(uint32_t tensor) {
    const auto [it, is_new] = held_.try_emplace(tensor);
    if (is_new) {
      const ReshardTensor& t = request_.tensors[tensor];
      if (rank_ < t.from.world_size() && t.from.holds(rank_))
        it->second.from = checked_flat(t.from, rank_, request_.from);
      if (rank_ < t.to.world_size() && t.to.holds(rank_)) it->second.to = checked_flat(t.to, rank_, request_.to);
    }
    return it->second;
  }

  void run_round(const ReshardPlan::Round& round) {
    const auto from = [&](uint32_t tensor) -> const Tensor& { return held(tensor).from; };
    const auto to = [&](uint32_t tensor) -> const Tensor& { return held(tensor).to; };
    exchange_.start(round);
    exchange_.copy_within(from, to);
    exchange_.pack(from);
    exchange_.send_and_receive();
    exchange_.unpack(to);
    const RoundExchange::Bytes bytes = exchange_.bytes(round);
    result_.sent_bytes += static_cast<uint64_t>(bytes.sent);
    result_.received_bytes += static_cast<uint64_t>(bytes.received);
  }

  const ReshardRequest& request_;
  RoundExchange exchange_;
  const int rank_;
  const ReshardPlan plan_;
  std::map<uint32_t, Held> held_;
  ReshardResult result_;
};

}  // namespace

ReshardResult reshard(const ReshardRequest& request, Communicator& communicator) {
  return ReshardRun(request, communicator)();
}

ReshardResult fill_replicas(std::span<const Descriptor> tensors, const LocalTensors& local, Device device,
                            int64_t budget_bytes, Communicator& communicator) {
  std::vector<ReshardTensor> in_place;
  for (const Descriptor& tensor : tensors) {
    const Layout layout(tensor, communicator.mesh());
    in_place.push_back({layout, layout});
  }
  ReshardRequest request;
  request.tensors = in_place;
  request.options = {budget_bytes, false};
  request.from = request.to = local;
  request.device = device;
  return reshard(request, communicator);
}

}  // namespace chassis
