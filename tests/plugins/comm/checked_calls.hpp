// Collectives with their expected results by plain loops: adds calls of every op to a rank's batch and checks what they
// give.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/comm_ranks.hpp"

// After the host's headers, which have some of the same names.
#include "chassis/comm_call.hpp"

namespace chassis::test {

template <typename T>
constexpr Dtype kDtype = Dtype::u8;
template <>
constexpr Dtype kDtype<float> = Dtype::f32;
template <>
constexpr Dtype kDtype<double> = Dtype::f64;
template <>
constexpr Dtype kDtype<c10::Half> = Dtype::f16;
template <>
constexpr Dtype kDtype<c10::BFloat16> = Dtype::bf16;
template <>
constexpr Dtype kDtype<int32_t> = Dtype::i32;
template <>
constexpr Dtype kDtype<int64_t> = Dtype::i64;

template <typename T>
constexpr bool kReduces = !std::is_same_v<T, uint8_t>;
template <typename T>
constexpr bool kAverages = kReduces<T> && !std::is_integral_v<T>;

// The type that sums are computed in.
template <typename T>
struct SumOf {
  using Type = T;
};
template <>
struct SumOf<c10::Half> {
  using Type = float;
};
template <>
struct SumOf<c10::BFloat16> {
  using Type = float;
};

// Element i that `rank` sends in its call `call`. Elements are fractions, so that the order of sums matters.
template <typename T>
T value(int rank, int call, uint64_t i) {
  uint64_t bits = (static_cast<uint64_t>(rank) * 7919 + static_cast<uint64_t>(call) * 104729 + i) * 0x9e3779b97f4a7c15u;
  bits ^= bits >> 29;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(bits % 1000003);
  else
    return static_cast<T>(static_cast<float>(static_cast<int64_t>(bits % 2000003) - 1000001) / 257.0f);
}

template <typename T>
std::vector<T> values(int rank, int call, uint64_t count, uint64_t first = 0) {
  std::vector<T> out(count);
  for (uint64_t i = 0; i < count; ++i) out[i] = value<T>(rank, call, first + i);
  return out;
}

template <typename T>
std::vector<T> reduced(int num_ranks, int call, uint64_t count, uint32_t reduce, uint64_t first = 0) {
  using Sum = typename SumOf<T>::Type;
  std::vector<T> out(count);
  for (uint64_t i = 0; i < count; ++i) {
    Sum sum = static_cast<Sum>(value<T>(0, call, first + i));
    for (int r = 1; r < num_ranks; ++r) {
      const Sum next = static_cast<Sum>(value<T>(r, call, first + i));
      sum = reduce == CHASSIS_REDUCE_MAX ? std::max(sum, next) : sum + next;
    }
    if (reduce == CHASSIS_REDUCE_AVG) sum /= static_cast<Sum>(num_ranks);
    out[i] = static_cast<T>(sum);
  }
  return out;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline chassis_collective_t call_of(uint32_t op, Dtype dtype, const void* send, void* recv, uint64_t count,
                                    uint32_t reduce = 0, int32_t peer = 0) {
  constexpr std::string_view kName = "weight";
  return {sizeof(chassis_collective_t),
          op,
          static_cast<uint32_t>(dtype),
          reduce,
          send,
          recv,
          count,
          nullptr,
          nullptr,
          peer,
          0,
          {kName.data(), kName.size()}};
}

// One rank's calls and their expected results, which are checked when all calls are done.
class CheckedCalls {
 public:
  CheckedCalls(Communicator& communicator, ProcessGroup& group) : communicator_(communicator), group_(group) {}

  template <typename T>
  std::vector<T>& buffer(std::vector<T> content) {
    auto kept = std::make_shared<std::vector<T>>(std::move(content));
    kept_.push_back(kept);
    return *kept;
  }
  template <typename T>
  void expect(const std::vector<T>& got, std::vector<T> wanted, std::string what) {
    checks_.push_back(
        [&got, wanted = std::move(wanted), what = std::move(what)] { EXPECT_TRUE(same_bits(got, wanted)) << what; });
  }
  void add(chassis_collective_t call) { batch_.push_back(call); }
  void add(chassis_collective_t call, std::vector<uint64_t> counts, std::vector<uint64_t> recv_counts = {}) {
    call.counts = counts_.emplace_back(std::move(counts)).data();
    if (!recv_counts.empty()) call.recv_counts = counts_.emplace_back(std::move(recv_counts)).data();
    batch_.push_back(call);
  }
  void start() {
    works_.push_back(communicator_.start_raw(group_, pointers_to(batch_)));
    batch_.clear();
  }
  // Waits for the last work first; it ends after all earlier ones.
  void wait() {
    for (; !works_.empty(); works_.pop_back()) {
      communicator_.wait(works_.back());
      EXPECT_FALSE(works_.back());
    }
    for (const auto& check : checks_) check();
    checks_.clear();
    kept_.clear();
    counts_.clear();
  }
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  int next_call() { return ++num_calls_; }

 private:
  Communicator& communicator_;
  ProcessGroup& group_;
  std::deque<std::shared_ptr<void>> kept_;
  std::deque<std::vector<uint64_t>> counts_;
  std::vector<chassis_collective_t> batch_;
  std::vector<CommHandle> works_;
  std::vector<std::function<void()>> checks_;
  int num_calls_ = 0;
};

template <typename T>
std::string label(const CheckedCalls& calls, const char* op, uint64_t count) {
  return std::string(op) + " of " + std::to_string(count) + " " + std::string(dtype_name(kDtype<T>)) + ", rank " +
         std::to_string(calls.rank()) + " of " + std::to_string(calls.size());
}

template <typename T>
void add_all_gather(CheckedCalls& calls, uint64_t count, bool in_place) {
  const int call = calls.next_call();
  const auto size = static_cast<uint64_t>(calls.size()), rank = static_cast<uint64_t>(calls.rank());
  auto& recv = calls.buffer(std::vector<T>(size * count));
  const auto& send = calls.buffer(values<T>(calls.rank(), call, count));
  if (in_place) std::copy(send.begin(), send.end(), recv.begin() + static_cast<int64_t>(rank * count));
  calls.add(call_of(CHASSIS_COMM_ALL_GATHER, kDtype<T>, in_place ? recv.data() + rank * count : send.data(),
                    recv.data(), count));
  std::vector<T> wanted;
  for (int r = 0; r < calls.size(); ++r) {
    const auto part = values<T>(r, call, count);
    wanted.insert(wanted.end(), part.begin(), part.end());
  }
  calls.expect(recv, std::move(wanted), label<T>(calls, "all_gather", count));
}

// Rank r has count · r + 3 elements, rank 1 none.
inline std::vector<uint64_t> unequal(int size, uint64_t count) {
  std::vector<uint64_t> out;
  for (int r = 0; r < size; ++r) out.push_back(r == 1 ? 0 : count * static_cast<uint64_t>(r) + 3);
  return out;
}
inline uint64_t total(const std::vector<uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}
inline uint64_t before(const std::vector<uint64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, uint64_t{0});
}

template <typename T>
void add_unequal_all_gather(CheckedCalls& calls, uint64_t count) {
  const int call = calls.next_call();
  const auto counts = unequal(calls.size(), count);
  auto& recv = calls.buffer(std::vector<T>(total(counts)));
  const auto& send = calls.buffer(values<T>(calls.rank(), call, counts[static_cast<size_t>(calls.rank())]));
  calls.add(call_of(CHASSIS_COMM_ALL_GATHER, kDtype<T>, send.data(), recv.data(), 0), counts);
  std::vector<T> wanted;
  for (int r = 0; r < calls.size(); ++r) {
    const auto part = values<T>(r, call, counts[static_cast<size_t>(r)]);
    wanted.insert(wanted.end(), part.begin(), part.end());
  }
  calls.expect(recv, std::move(wanted), label<T>(calls, "unequal all_gather", count));
}

template <typename T>
void add_reduce_scatter(CheckedCalls& calls, uint64_t count, uint32_t reduce, bool in_place) {
  const int call = calls.next_call();
  const auto size = static_cast<uint64_t>(calls.size()), rank = static_cast<uint64_t>(calls.rank());
  auto& send = calls.buffer(values<T>(calls.rank(), call, size * count));
  auto& recv = calls.buffer(std::vector<T>(count));
  T* out = in_place ? send.data() + rank * count : recv.data();
  calls.add(call_of(CHASSIS_COMM_REDUCE_SCATTER, kDtype<T>, send.data(), out, count, reduce));
  auto wanted = reduced<T>(calls.size(), call, count, reduce, rank * count);
  if (in_place) {
    auto all = values<T>(calls.rank(), call, size * count);
    std::copy(wanted.begin(), wanted.end(), all.begin() + static_cast<int64_t>(rank * count));
    calls.expect(send, std::move(all), label<T>(calls, "reduce_scatter in place", count));
  } else {
    calls.expect(recv, std::move(wanted), label<T>(calls, "reduce_scatter", count));
  }
}

template <typename T>
void add_unequal_reduce_scatter(CheckedCalls& calls, uint64_t count, uint32_t reduce) {
  const int call = calls.next_call();
  const auto counts = unequal(calls.size(), count);
  const uint64_t own = counts[static_cast<size_t>(calls.rank())];
  const auto& send = calls.buffer(values<T>(calls.rank(), call, total(counts)));
  auto& recv = calls.buffer(std::vector<T>(own));
  calls.add(call_of(CHASSIS_COMM_REDUCE_SCATTER, kDtype<T>, send.data(), recv.data(), 0, reduce), counts);
  calls.expect(recv, reduced<T>(calls.size(), call, own, reduce, before(counts, calls.rank())),
               label<T>(calls, "unequal reduce_scatter", count));
}

template <typename T>
void add_all_reduce(CheckedCalls& calls, uint64_t count, uint32_t reduce, bool in_place) {
  const int call = calls.next_call();
  auto& send = calls.buffer(values<T>(calls.rank(), call, count));
  auto& recv = in_place ? send : calls.buffer(std::vector<T>(count));
  calls.add(call_of(CHASSIS_COMM_ALL_REDUCE, kDtype<T>, send.data(), recv.data(), count, reduce));
  calls.expect(recv, reduced<T>(calls.size(), call, count, reduce), label<T>(calls, "all_reduce", count));
}

template <typename T>
void add_all_to_all(CheckedCalls& calls, uint64_t count) {
  const int call = calls.next_call();
  const auto size = static_cast<uint64_t>(calls.size()), rank = static_cast<uint64_t>(calls.rank());
  const auto& send = calls.buffer(values<T>(calls.rank(), call, size * count));
  auto& recv = calls.buffer(std::vector<T>(size * count));
  calls.add(call_of(CHASSIS_COMM_ALL_TO_ALL, kDtype<T>, send.data(), recv.data(), count));
  std::vector<T> wanted;
  for (int r = 0; r < calls.size(); ++r) {
    const auto part = values<T>(r, call, count, rank * count);
    wanted.insert(wanted.end(), part.begin(), part.end());
  }
  calls.expect(recv, std::move(wanted), label<T>(calls, "all_to_all", count));
}

// Rank a sends count · a + b elements to rank b.
template <typename T>
void add_unequal_all_to_all(CheckedCalls& calls, uint64_t count) {
  const int call = calls.next_call();
  const auto between = [&](int from, int to) {
    return from == to ? 0 : count * static_cast<uint64_t>(from) + static_cast<uint64_t>(to);
  };
  std::vector<uint64_t> counts, recv_counts;
  for (int r = 0; r < calls.size(); ++r) {
    counts.push_back(between(calls.rank(), r));
    recv_counts.push_back(between(r, calls.rank()));
  }
  const auto& send = calls.buffer(values<T>(calls.rank(), call, total(counts)));
  auto& recv = calls.buffer(std::vector<T>(total(recv_counts)));
  std::vector<T> wanted;
  for (int r = 0; r < calls.size(); ++r) {
    uint64_t first = 0;
    for (int b = 0; b < calls.rank(); ++b) first += between(r, b);
    const auto part = values<T>(r, call, between(r, calls.rank()), first);
    wanted.insert(wanted.end(), part.begin(), part.end());
  }
  calls.add(call_of(CHASSIS_COMM_ALL_TO_ALL, kDtype<T>, send.data(), recv.data(), 0), counts, recv_counts);
  calls.expect(recv, std::move(wanted), label<T>(calls, "unequal all_to_all", count));
}

template <typename T>
void add_broadcast(CheckedCalls& calls, uint64_t count, int root) {
  const int call = calls.next_call();
  auto& recv = calls.buffer(std::vector<T>(count));
  if (calls.rank() == root) recv = values<T>(root, call, count);
  calls.add(call_of(CHASSIS_COMM_BROADCAST, kDtype<T>, calls.rank() == root ? recv.data() : nullptr, recv.data(), count,
                    0, root));
  calls.expect(recv, values<T>(root, call, count), label<T>(calls, "broadcast", count));
}

// Sends two messages to the next rank. Even ranks add SENDs before RECVs, odd ranks after them.
template <typename T>
void add_ring(CheckedCalls& calls, uint64_t count) {
  if (calls.size() == 1) return;
  const int first = calls.next_call(), second = calls.next_call();
  const int next = (calls.rank() + 1) % calls.size(), previous = (calls.rank() + calls.size() - 1) % calls.size();
  const auto receive = [&] {
    for (int call : {first, second}) {
      auto& recv = calls.buffer(std::vector<T>(count));
      calls.add(call_of(CHASSIS_COMM_RECV, kDtype<T>, nullptr, recv.data(), count, 0, previous));
      calls.expect(recv, values<T>(previous, call, count), label<T>(calls, "recv", count));
    }
  };
  if (calls.rank() % 2 == 1) receive();
  for (int call : {first, second}) {
    const auto& send = calls.buffer(values<T>(calls.rank(), call, count));
    calls.add(call_of(CHASSIS_COMM_SEND, kDtype<T>, send.data(), nullptr, count, 0, next));
  }
  if (calls.rank() % 2 == 0) receive();
}

}  // namespace chassis::test
