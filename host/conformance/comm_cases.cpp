// Values that ranks send, expected results with bounds, and the list of cases.
#include "host/conformance/comm_cases.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>

#include "host/plugin/status.hpp"
#include "host/service/comm_call.hpp"

namespace chassis::comm_cases {
namespace {

double rounding(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return 0x1p-52;
    case Dtype::f32:
      return 0x1p-23;
    case Dtype::f16:
      return 0x1p-10;
    case Dtype::bf16:
      return 0x1p-7;
    default:
      return 0;
  }
}

uint64_t total(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), uint64_t{0}); }
uint64_t before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, uint64_t{0});
}

Tensor tensor_of(const Values& values, Dtype dtype) {
  const int64_t sizes[] = {static_cast<int64_t>(values.size())};
  Tensor out = Tensor::empty(sizes, dtype);
  if (!values.empty()) out.copy_from(Tensor::borrow(const_cast<double*>(values.data()), sizes, Dtype::f64));
  return out;
}

// The values that `rank` sends, rounded to the dtype. Floats are not whole numbers, so that a wrong sum is visible.
Values sent(const Case& c, int rank) {
  uint64_t count = 0;
  switch (c.op) {
    case CHASSIS_COMM_ALL_GATHER:
      count = c.counts[0][static_cast<size_t>(rank)];
      break;
    case CHASSIS_COMM_REDUCE_SCATTER:
      count = total(c.counts[0]);
      break;
    case CHASSIS_COMM_ALL_TO_ALL:
      count = total(c.counts[static_cast<size_t>(rank)]);
      break;
    case CHASSIS_COMM_BROADCAST:
      count = rank == c.peer ? c.counts[0][0] : 0;
      break;
    case CHASSIS_COMM_BARRIER:
      break;
    default:
      count = c.counts[0][0];
  }
  Values out(count);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t bits = (static_cast<uint64_t>(rank) * 7919 + c.op * 104729 + i + 1) * 0x9e3779b97f4a7c15u;
    bits ^= bits >> 29;
    out[i] = is_float(c.dtype)         ? static_cast<double>(static_cast<int64_t>(bits % 20003) - 10001) / 37.0
             : c.dtype == Dtype::bool8 ? static_cast<double>(bits % 2)
                                       : static_cast<double>(bits % 101);
  }
  return values_of(tensor_of(out, c.dtype));
}

}  // namespace

std::string Case::text(int size) const {
  constexpr std::array<const char*, 4> kReduce = {"", " (sum)", " (average)", " (maximum)"};
  std::string list;
  for (const uint64_t count : counts.empty() ? Counts{0} : counts[0])
    list += (list.empty() ? "" : "+") + std::to_string(count);
  return fmt::format("{}{} of {} {} on {} ranks{}", comm_op_name(op), kReduce[reduce],
                     is_equal && !counts.empty() ? std::to_string(counts[0][0]) : list, dtype_name(dtype), size,
                     in_place ? ", in place" : "");
}

Values values_of(const Tensor& tensor) {
  Values out(static_cast<size_t>(tensor.num_elements()));
  const int64_t sizes[] = {tensor.num_elements()};
  if (!out.empty()) Tensor::borrow(out.data(), sizes, Dtype::f64).copy_from(tensor);
  return out;
}

Expected received(const Case& c, int rank, int size, bool rounds_halves) {
  Expected out;
  const auto r = static_cast<size_t>(rank);
  const auto append = [&](const Values& from, uint64_t begin, uint64_t count) {
    out.values.insert(out.values.end(), from.begin() + static_cast<int64_t>(begin),
                      from.begin() + static_cast<int64_t>(begin + count));
  };
  const auto reduce = [&](uint64_t begin, uint64_t count) {
    std::vector<Values> all;
    for (int s = 0; s < size; ++s) all.push_back(sent(c, s));
    for (uint64_t i = begin; i < begin + count; ++i) {
      double sum = all[0][i], magnitude = std::abs(sum);
      for (int s = 1; s < size; ++s) {
        const double next = all[static_cast<size_t>(s)][i];
        sum = c.reduce == CHASSIS_REDUCE_MAX ? std::max(sum, next) : sum + next;
        magnitude += std::abs(next);
      }
      const bool is_half = size_bytes(c.dtype) == 2;
      const double steps = is_half && !rounds_halves ? 1 : size;
      out.values.push_back(c.reduce == CHASSIS_REDUCE_AVG ? sum / size : sum);
      out.bounds.push_back(c.reduce == CHASSIS_REDUCE_MAX ? 0 : rounding(c.dtype) * steps * magnitude);
    }
  };
  switch (c.op) {
    case CHASSIS_COMM_ALL_GATHER:
      for (int s = 0; s < size; ++s) append(sent(c, s), 0, c.counts[0][static_cast<size_t>(s)]);
      break;
    case CHASSIS_COMM_REDUCE_SCATTER:
      reduce(before(c.counts[0], rank), c.counts[0][r]);
      break;
    case CHASSIS_COMM_ALL_REDUCE:
      reduce(0, c.counts[0][0]);
      break;
    case CHASSIS_COMM_ALL_TO_ALL:
      for (int s = 0; s < size; ++s) {
        const Counts& of = c.counts[static_cast<size_t>(s)];
        append(sent(c, s), before(of, rank), of[r]);
      }
      break;
    case CHASSIS_COMM_BROADCAST:
      append(sent(c, c.peer), 0, c.counts[0][0]);
      break;
    case CHASSIS_COMM_SEND:
      append(sent(c, (rank + size - 1) % size), 0, c.counts[0][0]);
      break;
    default:
      break;
  }
  out.bounds.resize(out.values.size());
  return out;
}

std::vector<Case> all_cases(int size) {
  std::vector<Case> cases = {{}};
  const auto n = static_cast<size_t>(size);
  Counts uneven(n);
  for (size_t r = 0; r < n; ++r) uneven[r] = r == 1 ? 0 : 3 + 5 * r;
  std::vector<Counts> matrix(n, uneven);
  for (size_t r = 0; r < n; ++r)
    std::rotate(matrix[r].begin(), matrix[r].begin() + static_cast<int64_t>(r), matrix[r].end());
  for (const Dtype dtype : kAllDtypes) {
    const bool adds = is_float(dtype) || dtype == Dtype::i32 || dtype == Dtype::i64;
    const std::vector<uint64_t> lengths =
        dtype == Dtype::f32 ? std::vector<uint64_t>{0, 1, 17, 20001} : std::vector<uint64_t>{17};
    for (const uint64_t length : lengths) {
      const std::vector<Counts> equal = {Counts(n, length)}, square(n, Counts(n, length));
      for (const bool in_place : {false, true}) {
        cases.push_back({CHASSIS_COMM_ALL_GATHER, dtype, 0, equal, true, in_place});
        cases.push_back({CHASSIS_COMM_BROADCAST, dtype, 0, equal, true, in_place, size - 1});
      }
      cases.push_back({CHASSIS_COMM_ALL_TO_ALL, dtype, 0, square});
      cases.push_back({CHASSIS_COMM_SEND, dtype, 0, equal});
      if (!adds) continue;
      for (const uint32_t reduce : {CHASSIS_REDUCE_SUM, CHASSIS_REDUCE_AVG, CHASSIS_REDUCE_MAX}) {
        if (reduce == CHASSIS_REDUCE_AVG && !is_float(dtype)) continue;
        for (const bool in_place : {false, true}) {
          cases.push_back({CHASSIS_COMM_REDUCE_SCATTER, dtype, reduce, equal, true, in_place});
          cases.push_back({CHASSIS_COMM_ALL_REDUCE, dtype, reduce, equal, true, in_place});
        }
      }
    }
    cases.push_back({CHASSIS_COMM_ALL_GATHER, dtype, 0, {uneven}, false});
    cases.push_back({CHASSIS_COMM_ALL_TO_ALL, dtype, 0, matrix, false});
    if (adds) cases.push_back({CHASSIS_COMM_REDUCE_SCATTER, dtype, CHASSIS_REDUCE_SUM, {uneven}, false});
  }
  return cases;
}

Prepared prepare(const Case& c, int rank, int size) {
  Prepared out;
  out.sends = sent(c, rank);
  const uint64_t num_received = received(c, rank, size, false).values.size();
  const auto length = [](uint64_t count) { return static_cast<int64_t>(count); };
  if (!c.in_place) {
    out.send = tensor_of(out.sends, c.dtype);
    out.recv = tensor_of(Values(num_received), c.dtype);
  } else if (c.op == CHASSIS_COMM_ALL_GATHER) {
    out.recv = out.buffer = tensor_of(Values(num_received), c.dtype);
    out.send = out.buffer.narrow(0, length(before(c.counts[0], rank)), length(out.sends.size()));
    if (!out.sends.empty()) out.send.copy_from(tensor_of(out.sends, c.dtype));
  } else if (c.op == CHASSIS_COMM_REDUCE_SCATTER) {
    out.send = out.buffer = tensor_of(out.sends, c.dtype);
    out.recv = out.buffer.narrow(0, length(before(c.counts[0], rank)), length(num_received));
  } else {
    out.recv = out.buffer = tensor_of(out.sends.empty() ? Values(num_received) : out.sends, c.dtype);
    out.send = out.buffer;
  }
  chassis_collective_t call{};
  call.struct_size = sizeof call;
  call.op = c.op;
  call.dtype = c.op == CHASSIS_COMM_BARRIER ? 0 : static_cast<uint32_t>(c.dtype);
  call.reduce = c.reduce;
  call.peer = c.peer;
  call.name = str_of("weight");
  const auto pointer = [](const Tensor& tensor) {
    return tensor && tensor.num_elements() > 0 ? tensor.data() : nullptr;
  };
  call.send = c.op == CHASSIS_COMM_BROADCAST && rank != c.peer ? nullptr : pointer(out.send);
  call.recv = pointer(out.recv);
  if (c.op != CHASSIS_COMM_BARRIER && c.is_equal) call.count = c.counts[0][0];
  if (!c.is_equal) {
    out.counts = c.op == CHASSIS_COMM_ALL_TO_ALL ? c.counts[static_cast<size_t>(rank)] : c.counts[0];
    call.counts = out.counts.data();
    if (c.op == CHASSIS_COMM_ALL_TO_ALL) {
      for (const Counts& of : c.counts) out.recv_counts.push_back(of[static_cast<size_t>(rank)]);
      call.recv_counts = out.recv_counts.data();
    }
  }
  if (c.op == CHASSIS_COMM_SEND) {
    chassis_collective_t other = call;
    call.peer = (rank + 1) % size;
    call.recv = nullptr;
    other.op = CHASSIS_COMM_RECV;
    other.send = nullptr;
    other.peer = (rank + size - 1) % size;
    out.calls.push_back(other);
  }
  out.calls.push_back(call);
  return out;
}

}  // namespace chassis::comm_cases
