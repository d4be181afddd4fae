// Packs the moves of a round into one all-to-all, and copies moves within a rank directly.
#include "host/checkpoint/reshard.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "host/base/error.hpp"
#include "host/service/strided.hpp"

namespace chassis {
namespace {

// Every move starts at a multiple of the widest element.
constexpr uint64_t kAlign = 8;
uint64_t aligned(uint64_t num_bytes) { return (num_bytes + kAlign - 1) / kAlign * kAlign; }

// The moves of one round that this rank sends or receives, by peer and then in the order of the plan.
struct Parcel {
  std::vector<std::vector<const ReshardMove*>> moves;  // by peer
  std::vector<uint64_t> counts;                        // bytes by peer
  uint64_t num_bytes = 0;

  Parcel(const ReshardPlan::Round& round, int num_ranks, int rank, bool sends)
      : moves(static_cast<size_t>(num_ranks)), counts(static_cast<size_t>(num_ranks)) {
    for (const ReshardMove& move : round.moves) {
      if (move.is_local() || (sends ? move.from_rank : move.to_rank) != rank) continue;
      const auto peer = static_cast<size_t>(sends ? move.to_rank : move.from_rank);
      moves[peer].push_back(&move);
      counts[peer] += aligned(static_cast<uint64_t>(move.num_bytes));
      num_bytes += aligned(static_cast<uint64_t>(move.num_bytes));
    }
  }
};

class ReshardRun {
 public:
  ReshardRun(const ReshardRequest& request, Communicator& communicator)
      : request_(request),
        communicator_(communicator),
        group_(communicator.group({})),
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
    uint64_t most_sent = 0, most_received = 0;
    for (const auto& round : plan_.rounds) {
      most_sent = std::max(most_sent, Parcel(round, group_.size(), rank_, true).num_bytes);
      most_received = std::max(most_received, Parcel(round, group_.size(), rank_, false).num_bytes);
    }
    const int64_t sent[] = {static_cast<int64_t>(most_sent)}, received[] = {static_cast<int64_t>(most_received)};
    send_buffer_ = Tensor::empty(sent, Dtype::u8, request_.device);
    receive_buffer_ = Tensor::empty(received, Dtype::u8, request_.device);
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
    for (const ReshardMove& move : round.moves)
      if (move.is_local()) copy_within(move);
    if (round.is_local) return;

    const Parcel out(round, group_.size(), rank_, true), in(round, group_.size(), rank_, false);
    const Tensor send = send_buffer_.narrow(0, 0, static_cast<int64_t>(out.num_bytes));
    const Tensor receive = receive_buffer_.narrow(0, 0, static_cast<int64_t>(in.num_bytes));
    for_each_place(out, send, [&](const ReshardMove& move, const Tensor& place) {
      place.copy_from(strided(held(move.tensor).from, move.copy.box.sizes(), move.copy.from));
    });
    Collective call;
    call.op = CHASSIS_COMM_ALL_TO_ALL;
    call.send = send;
    call.recv = receive;
    call.counts = out.counts;
    call.recv_counts = in.counts;
    call.name = "reshard";
    communicator_.run(group_, std::move(call));
    for_each_place(in, receive, [&](const ReshardMove& move, const Tensor& place) {
      strided(held(move.tensor).to, move.copy.box.sizes(), move.copy.to).copy_from(place);
    });
    result_.sent_bytes += out.num_bytes;
    result_.received_bytes += in.num_bytes;
  }

  void copy_within(const ReshardMove& move) {
    const Held& tensor = held(move.tensor);
    if (tensor.from.data() == tensor.to.data() && move.copy.from == move.copy.to) return;
    strided(tensor.to, move.copy.box.sizes(), move.copy.to)
        .copy_from(strided(tensor.from, move.copy.box.sizes(), move.copy.from));
  }

  // Calls `visit` for each move with its place in the buffer, as a tensor of the move's shape and dtype.
  template <class Visit>
  void for_each_place(const Parcel& parcel, const Tensor& buffer, const Visit& visit) {
    int64_t at = 0;
    for (const auto& of_peer : parcel.moves)
      for (const ReshardMove* move : of_peer) {
        const Dtype dtype = request_.tensors[move->tensor].from.descriptor().dtype;
        const Shape sizes = move->copy.box.sizes();
        const Tensor bytes = buffer.narrow(0, at, move->num_bytes);
        visit(*move, bytes.reinterpret(dtype).view({sizes.begin(), sizes.end()}));
        at += static_cast<int64_t>(aligned(static_cast<uint64_t>(move->num_bytes)));
      }
  }

  const ReshardRequest& request_;
  Communicator& communicator_;
  ProcessGroup& group_;
  const int rank_;
  const ReshardPlan plan_;
  Tensor send_buffer_, receive_buffer_;
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
