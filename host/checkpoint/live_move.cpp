// Groups of tensors move one after the other, forward and, after a failure, back. Both directions are one code.
#include "host/checkpoint/live_move.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <utility>

#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/round_exchange.hpp"
#include "host/service/strided.hpp"
#include "host/state/move_order.hpp"

namespace chassis {
namespace {

constexpr int64_t kSlabBytes = int64_t{1} << 20;  // that a checksum reads at a time

// splitmix64's finalizer.
uint64_t mixed(uint64_t h) {
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

bool is_held(const Layout& layout, int rank) { return rank < layout.world_size() && layout.holds(rank); }

uint64_t checksum_of_flat(const Layout& layout, int rank, uint32_t tensor, const Tensor& flat, int64_t slab_bytes) {
  const auto size = static_cast<size_t>(size_bytes(layout.descriptor().dtype));
  const int64_t max_elements = std::max<int64_t>(1, slab_bytes / static_cast<int64_t>(size));
  const uint64_t seed = mixed(tensor + 1);
  uint64_t sum = 0;
  for (const Piece& piece : layout.pieces(rank)) {
    if (!piece.owned) continue;
    for_each_slab(piece.box, max_elements, [&](const Box& slab) {
      const Tensor here = strided(flat, slab.sizes(), piece.view(slab)).contiguous().to(Device{});
      const char* bytes = here.data_as<char>();
      const Copy rows{
          slab, {0, row_major_strides(slab.sizes())}, row_major_view(layout.descriptor().global_shape, slab)};
      for_each_run(rows, [&](int64_t at, int64_t index, int64_t length) {
        for (int64_t k = 0; k < length; ++k) {
          uint64_t value = 0;
          std::memcpy(&value, bytes + static_cast<size_t>(at + k) * size, size);
          sum += mixed(mixed(seed + static_cast<uint64_t>(index + k)) + value);
        }
      });
    });
  }
  return sum;
}

// The moves between two sides of some tensors, with their indices in the whole plan.
ReshardPlan planned(std::span<const ReshardTensor> tensors, std::span<const uint32_t> group, bool is_back,
                    const LiveMoveOptions& options, int rank) {
  std::vector<ReshardTensor> between;
  for (const uint32_t t : group)
    between.push_back(is_back ? ReshardTensor{tensors[t].to, tensors[t].from} : tensors[t]);
  ReshardOptions reshard_options;
  reshard_options.budget_bytes = options.bucket_bytes;
  reshard_options.align_bytes = RoundExchange::kAlignBytes;
  reshard_options.in_sequence = false;
  ReshardPlan out = plan_reshard(between, reshard_options, rank);
  for (ReshardPlan::Round& round : out.rounds)
    for (ReshardMove& move : round.moves) move.tensor = group[move.tensor];
  return out;
}

class LiveMoveRun {
 public:
  LiveMoveRun(const LiveMovePlan& plan, const LiveMove& request, Communicator& communicator)
      : plan_(plan),
        request_(request),
        communicator_(communicator),
        exchange_(communicator, "live_move"),
        rank_(communicator.rank()) {}

  LiveMoveResult operator()() {
    attempt([&] {
      if (request_.verify) result_.checksums.resize(plan_.tensors.size());
      const int64_t bucket_bytes = plan_.groups.empty() ? 0 : plan_.options.bucket_bytes;
      exchange_.make_buffers(bucket_bytes, bucket_bytes, request_.device);
    });
    const size_t num_done = all_are_well() ? move_forward() : 0;
    if (failed_) go_back(num_done);
    return std::move(result_);
  }

 private:
  // The number of groups that are done.
  size_t move_forward() {
    for (size_t k = 0; k < plan_.groups.size(); ++k)
      if (!move(plan_.groups[k])) return k;
    return plan_.groups.size();
  }

  // Returns false if any rank has failed; then all sources of the group are as they were.
  bool move(const LiveMovePlan::Group& group) {
    attempt([&] { take(group); });
    for (const ReshardPlan::Round& round : group.moves.rounds) {
      run_round(round);
      if (!all_are_well()) return give_up();
    }
    if (request_.verify && !is_intact(group)) return give_up();
    sources_.clear();
    destinations_.clear();
    made_.clear();
    for (const uint32_t t : group.tensors)
      if (is_held(layout(t, kSource), rank_)) free_source(t);
    return true;
  }

  void take(const LiveMovePlan::Group& group) {
    for (const uint32_t t : group.tensors)
      if (is_held(layout(t, kSource), rank_))
        sources_[t] = checked_flat(layout(t, kSource), rank_, is_back_ ? arrived_.at(t) : request_.source(t));
    for (const uint32_t t : group.tensors) {
      if (!is_held(layout(t, kDestination), rank_)) continue;
      const Tensor local = is_back_ ? request_.restore(t) : request_.allocate(t);
      made_.push_back(t);
      destinations_[t] = checked_flat(layout(t, kDestination), rank_, local);
      if (!is_back_) arrived_[t] = local;
    }
  }

  void run_round(const ReshardPlan::Round& round) {
    const auto from = [&](uint32_t tensor) -> const Tensor& { return sources_.at(tensor); };
    const auto to = [&](uint32_t tensor) -> const Tensor& { return destinations_.at(tensor); };
    exchange_.start(round);
    attempt([&] {
      if (request_.on_round && !is_back_) request_.on_round(static_cast<uint32_t>(result_.num_rounds));
      exchange_.copy_within(from, to);
      exchange_.pack(from);
    });
    exchange_.send_and_receive();  // also on a rank that has failed, for which the others wait
    attempt([&] { exchange_.unpack(to); });
    const RoundExchange::Bytes bytes = exchange_.bytes(round);
    ++result_.num_rounds;
    result_.sent_bytes += static_cast<uint64_t>(bytes.sent);
    result_.received_bytes += static_cast<uint64_t>(bytes.received);
    result_.local_bytes += static_cast<uint64_t>(bytes.local);
  }

  void free_source(uint32_t tensor) {
    if (!is_back_) return request_.release(tensor);
    arrived_.erase(tensor);
    request_.discard(tensor);
  }

  bool give_up() {
    sources_.clear();
    destinations_.clear();
    for (const uint32_t t : std::exchange(made_, {})) {
      if (is_back_) continue;  // the state is lost
      arrived_.erase(t);
      request_.discard(t);
    }
    return false;
  }

  // Compares the checksums of sources and destinations.
  bool is_intact(const LiveMovePlan::Group& group) {
    // The two halves of each sum, which stay exact in fp64.
    std::vector<double> halves;
    attempt([&] {
      for (const uint32_t t : group.tensors)
        for (const Side side : {kSource, kDestination}) {
          const auto& locals = side == kSource ? sources_ : destinations_;
          const auto local = locals.find(t);
          const uint64_t sum =
              local == locals.end() ? 0 : checksum_of_flat(layout(t, side), rank_, t, local->second, kSlabBytes);
          halves.push_back(static_cast<double>(sum & 0xFFFFFFFFu));
          halves.push_back(static_cast<double>(sum >> 32));
        }
    });
    halves.resize(group.tensors.size() * 4);
    communicator_.reduce(communicator_.group({}), halves, CHASSIS_REDUCE_SUM, "live_move checksums");
    if (!all_are_well()) return false;
    const auto sum = [&](size_t at) {
      return static_cast<uint64_t>(halves[at]) + (static_cast<uint64_t>(halves[at + 1]) << 32);
    };
    attempt([&] {
      for (size_t k = 0; k < group.tensors.size(); ++k) {
        const uint32_t t = group.tensors[k];
        if (sum(k * 4) != sum(k * 4 + 2))
          throw internal_error("tensor '" + layout(t, kDestination).descriptor().fqn +
                               "' has a different checksum after it has moved: its bytes are wrong on some rank");
        result_.checksums[t] = sum(k * 4);
      }
    });
    return all_are_well();
  }

  // Returns the finished groups, the last one first, and throws the cause.
  [[noreturn]] void go_back(size_t num_done) {
    std::exception_ptr cause;
    try {
      agree_on_error();
    } catch (...) {
      cause = std::current_exception();
    }
    is_back_ = true;
    failed_ = false;
    while (num_done > 0) {
      LiveMovePlan::Group group{plan_.groups[--num_done].tensors, {}};
      std::reverse(group.tensors.begin(), group.tensors.end());
      group.moves = planned(plan_.tensors, group.tensors, is_back_, plan_.options, rank_);
      if (!move(group)) lose(cause);
    }
    std::rethrow_exception(cause);
  }

  [[noreturn]] void lose(const std::exception_ptr& cause) {
    StateLost lost(ExitCode::kInternal, "");
    try {
      agree_on_error();
    } catch (...) {
      const Error second = current_error();
      lost = StateLost(second.code(), "tensors were lost on the way back from a failed change of layouts");
      lost.hint("resume from the last checkpoint");
      lost.note("on the way back: " + std::string(second.what()));
    }
    try {
      std::rethrow_exception(cause);
    } catch (...) {
      lost.caused_by(current_error());
    }
    throw lost;
  }

  // Throws on all ranks.
  void agree_on_error() {
    communicator_.world().run_and_agree("the error of a change of layouts", [&] {
      if (own_) std::rethrow_exception(std::exchange(own_, nullptr));
    });
    throw internal_error("no rank has an error to report");
  }

  // Does nothing after a failure of this rank. An error that came from another rank ends the run and is not kept.
  template <class Part>
  void attempt(const Part& part) {
    if (own_) return;
    try {
      part();
    } catch (const RemoteError&) {
      throw;
    } catch (...) {
      own_ = std::current_exception();
    }
  }

  bool all_are_well() {
    double word = own_ ? 1.0 : 0.0;
    communicator_.reduce(communicator_.group({}), {&word, 1}, CHASSIS_REDUCE_MAX, "live_move error word");
    failed_ = word != 0.0;
    return !failed_;
  }

  // The two sides in the direction of the move.
  enum Side { kSource, kDestination };
  const Layout& layout(uint32_t tensor, Side side) const {
    const ReshardTensor& t = plan_.tensors[tensor];
    return (side == kSource) != is_back_ ? t.from : t.to;
  }

  const LiveMovePlan& plan_;
  const LiveMove& request_;
  Communicator& communicator_;
  RoundExchange exchange_;
  const int rank_;
  bool is_back_ = false;
  bool failed_ = false;                                // some rank has, as all ranks know
  std::exception_ptr own_;                             // this rank has, which others learn after the round
  std::map<uint32_t, Tensor> sources_, destinations_;  // of the group in progress, one-dimensional
  std::vector<uint32_t> made_;                         // destinations of the group in progress
  std::map<uint32_t, Tensor> arrived_;                 // destinations of all groups so far
  LiveMoveResult result_;
};

}  // namespace

LiveMovePlan plan_live_move(std::vector<ReshardTensor> tensors, const LiveMoveOptions& options, int rank) {
  for (const ReshardTensor& tensor : tensors) {
    const Descriptor &from = tensor.from.descriptor(), &to = tensor.to.descriptor();
    if (from.dtype != to.dtype)
      throw plugin_error("tensor '" + to.fqn + "' is " + std::string(dtype_name(to.dtype)) + ", its source " +
                         std::string(dtype_name(from.dtype)) + "; a live move does not cast");
  }
  LiveMovePlan out{std::move(tensors), options, {}, {}, 0};
  const std::vector<MovedItem> items = moved_items(out.tensors);
  MoveGroups groups = group_moves(items, order_moves(items), options.room_bytes);
  out.peak_bytes = swap_memory(items, groups);
  for (std::vector<uint32_t>& group : groups) {
    ReshardPlan moves = planned(out.tensors, group, false, options, rank);
    out.num_rounds += moves.rounds.size();
    out.groups.push_back({std::move(group), std::move(moves)});
  }
  return out;
}

LiveMoveResult live_move(const LiveMovePlan& plan, const LiveMove& request, Communicator& communicator) {
  return LiveMoveRun(plan, request, communicator)();
}

uint64_t owned_checksum(const Layout& layout, int rank, uint32_t tensor, const Tensor& local, int64_t slab_bytes) {
  return checksum_of_flat(layout, rank, tensor, checked_flat(layout, rank, local), slab_bytes);
}

}  // namespace chassis
