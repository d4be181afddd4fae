// Places of moves in the buffers, and the collective.
#include "host/checkpoint/round_exchange.hpp"

#include <array>
#include <utility>

#include "host/service/strided.hpp"

namespace chassis {
namespace {

int64_t aligned(int64_t num_bytes) {
  constexpr int64_t kAlign = RoundExchange::kAlignBytes;
  return (num_bytes + kAlign - 1) / kAlign * kAlign;
}

// Calls `visit` for each move with the tensor of that side, and with the move's place in the buffer, as a tensor of the
// move's shape and dtype.
template <class Moves, class Visit>
void for_each_place(const Moves& by_peer, const Tensor& buffer, const RoundExchange::FlatTensors& side,
                    const Visit& visit) {
  int64_t at = 0;
  for (const auto& of_peer : by_peer)
    for (const ReshardMove* move : of_peer) {
      const Shape sizes = move->copy.box.sizes();
      const Tensor bytes = buffer.narrow(0, at, move->num_bytes);
      visit(*move, side(move->tensor), bytes.reinterpret(move->dtype).view({sizes.begin(), sizes.end()}));
      at += aligned(move->num_bytes);
    }
}

}  // namespace

RoundExchange::RoundExchange(Communicator& communicator, std::string name)
    : communicator_(communicator), group_(communicator.group({})), name_(std::move(name)), rank_(communicator.rank()) {}

void RoundExchange::make_buffers(int64_t send_bytes, int64_t receive_bytes, Device device) {
  send_buffer_ = Tensor::empty(std::array{send_bytes}, Dtype::u8, device);
  receive_buffer_ = Tensor::empty(std::array{receive_bytes}, Dtype::u8, device);
}

RoundExchange::Bytes RoundExchange::bytes(const ReshardPlan::Round& round) const {
  Bytes out;
  for (const ReshardMove& move : round.moves) {
    if (move.is_local())
      out.local += move.from_rank == rank_ ? move.num_bytes : 0;
    else if (move.from_rank == rank_)
      out.sent += aligned(move.num_bytes);
    else if (move.to_rank == rank_)
      out.received += aligned(move.num_bytes);
  }
  return out;
}

RoundExchange::Parcel RoundExchange::parcel(const ReshardPlan::Round& round, bool sends) const {
  Parcel out;
  out.moves.resize(static_cast<size_t>(group_.size()));
  out.counts.resize(static_cast<size_t>(group_.size()));
  for (const ReshardMove& move : round.moves) {
    if (move.is_local() || (sends ? move.from_rank : move.to_rank) != rank_) continue;
    const auto peer = static_cast<size_t>(sends ? move.to_rank : move.from_rank);
    out.moves[peer].push_back(&move);
    out.counts[peer] += static_cast<uint64_t>(aligned(move.num_bytes));
    out.num_bytes += aligned(move.num_bytes);
  }
  return out;
}

void RoundExchange::start(const ReshardPlan::Round& round) {
  round_ = &round;
  out_ = parcel(round, true);
  in_ = parcel(round, false);
}

void RoundExchange::pack(const FlatTensors& from) {
  for_each_place(out_.moves, send_buffer_, from,
                 [](const ReshardMove& move, const Tensor& source, const Tensor& place) {
                   place.copy_from(strided(source, move.copy.box.sizes(), move.copy.from));
                 });
}

void RoundExchange::send_and_receive() {
  if (round_->is_local) return;
  Collective call;
  call.op = CHASSIS_COMM_ALL_TO_ALL;
  call.send = send_buffer_.narrow(0, 0, out_.num_bytes);
  call.recv = receive_buffer_.narrow(0, 0, in_.num_bytes);
  call.counts = out_.counts;
  call.recv_counts = in_.counts;
  call.name = name_;
  communicator_.run(group_, std::move(call));
}

void RoundExchange::unpack(const FlatTensors& to) {
  for_each_place(in_.moves, receive_buffer_, to,
                 [](const ReshardMove& move, const Tensor& target, const Tensor& place) {
                   strided(target, move.copy.box.sizes(), move.copy.to).copy_from(place);
                 });
}

void RoundExchange::copy_within(const FlatTensors& from, const FlatTensors& to) {
  for (const ReshardMove& move : round_->moves) {
    if (!move.is_local() || move.from_rank != rank_) continue;
    const Tensor& source = from(move.tensor);
    const Tensor target = to(move.tensor);
    if (source.data() == target.data() && move.copy.from == move.copy.to) continue;
    strided(target, move.copy.box.sizes(), move.copy.to)
        .copy_from(strided(source, move.copy.box.sizes(), move.copy.from));
  }
}

}  // namespace chassis
