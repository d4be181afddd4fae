// Backends gather and scatter along the first dim only, so parts along another dim are copied to or from rows of ranks.
#include "host/program/axis_collectives.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/service/log_sum.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

// Of one rank; the last ranks' parts are padded.
std::vector<int64_t> part_sizes(const CommGroup& group, int dim, const Tensor& input) {
  std::vector<int64_t> sizes = input.sizes();
  int64_t& size = sizes[static_cast<size_t>(dim)];
  size = (size + group.size() - 1) / group.size();
  return sizes;
}

// Writes what `rank` has of the input, and `pad` behind its end.
void copy_part(const Tensor& part, int dim, int rank, const Tensor& input, double pad = 0.0) {
  const int64_t begin = std::min(rank * part.size(dim), input.size(dim)),
                length = std::min(part.size(dim), input.size(dim) - begin);
  if (length < part.size(dim)) part.fill(pad);
  if (length > 0) part.narrow(dim, 0, length).copy_from(input.narrow(dim, begin, length));
}

// One row for each rank, with its part of the input.
Tensor rows_of_parts(const CommGroup& group, int dim, const Tensor& input) {
  const std::vector<int64_t> sizes = part_sizes(group, dim, input);
  const int64_t elements = numel(Shape(sizes)), all[] = {elements * group.size()};
  const Tensor rows = Tensor::empty(all, input.dtype(), input.device());
  for (int rank = 0; rank < group.size(); ++rank)
    copy_part(rows.narrow(0, rank * elements, elements).view(sizes), dim, rank, input);
  return rows;
}

// Rows with parts of these sizes, side by side along a dim.
Tensor joined_parts(const Tensor& rows, int dim, const std::vector<int64_t>& sizes, int num_parts) {
  const int64_t elements = numel(Shape(sizes)), part = sizes[static_cast<size_t>(dim)];
  std::vector<int64_t> joined = sizes;
  joined[static_cast<size_t>(dim)] = part * num_parts;
  const Tensor whole = Tensor::empty(joined, rows.dtype(), rows.device());
  for (int i = 0; i < num_parts; ++i)
    whole.narrow(dim, i * part, part).copy_from(rows.narrow(0, i * elements, elements).view(sizes));
  return whole;
}

}  // namespace

Tensor AxisCollectives::run(const CollectiveCall& call, const Tensor& input) {
  CommGroup& group = communicator_.group(std::vector<std::string>{call.axis});
  if (call.op == "comm.all_reduce") return all_reduce(group, input);
  if (call.op == "comm.all_gather") return all_gather(group, call.dim, input);
  if (call.op == "comm.reduce_scatter") return reduce_scatter(group, call.dim, input);
  if (call.op == kAllToAll) return all_to_all(group, call.dim, call.to, input);
  if (call.op == kLogSumExp) {
    const int64_t rows[] = {group.size(), input.num_elements()};
    return log_sum_of_rows(gather_rows(group, input).view(rows)).view(input.sizes());
  }
  CHASSIS_CHECK(call.op == kSlice, call.op);
  const Tensor part = Tensor::empty(part_sizes(group, call.dim, input), input.dtype(), input.device());
  copy_part(part, call.dim, group.rank(), input, call.pad);
  return part;
}

Tensor AxisCollectives::all_reduce(CommGroup& group, const Tensor& input) {
  Collective call;
  call.send = input.contiguous();
  call.recv = Tensor::empty(input.sizes(), input.dtype(), input.device());
  call.name = "sum";
  Tensor sum = call.recv;
  communicator_.run(group, std::move(call));
  return sum;
}

Tensor AxisCollectives::gather_rows(CommGroup& group, const Tensor& input) {
  Collective call;
  call.op = CHASSIS_COMM_ALL_GATHER;
  call.send = input.contiguous().flat();
  const int64_t elements[] = {input.num_elements() * group.size()};
  call.recv = Tensor::empty(elements, input.dtype(), input.device());
  call.name = "gather";
  Tensor rows = call.recv;
  communicator_.run(group, std::move(call));
  return rows;
}

Tensor AxisCollectives::all_gather(CommGroup& group, int dim, const Tensor& input) {
  return joined_parts(gather_rows(group, input), dim, input.sizes(), group.size());
}

Tensor AxisCollectives::reduce_scatter(CommGroup& group, int dim, const Tensor& input) {
  Collective call;
  call.op = CHASSIS_COMM_REDUCE_SCATTER;
  call.send = rows_of_parts(group, dim, input);
  call.recv = Tensor::empty(part_sizes(group, dim, input), input.dtype(), input.device());
  call.name = "sum and scatter";
  Tensor sum = call.recv;
  communicator_.run(group, std::move(call));
  return sum;
}

// Row r of what is sent is the part of rank r along `to`; row r of what comes is part r along `from`.
Tensor AxisCollectives::all_to_all(CommGroup& group, int from, int to, const Tensor& input) {
  Collective call;
  call.op = CHASSIS_COMM_ALL_TO_ALL;
  call.send = rows_of_parts(group, to, input);
  call.recv = Tensor::empty(call.send.sizes(), input.dtype(), input.device());
  call.name = "exchange";
  const Tensor rows = call.recv;
  communicator_.run(group, std::move(call));
  return joined_parts(rows, from, part_sizes(group, to, input), group.size());
}

}  // namespace chassis
