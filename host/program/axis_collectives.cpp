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

// The size of one rank's part; the last ranks' parts are padded.
int64_t part_size(const CommGroup& group, int dim, const Tensor& input) {
  return (input.size(dim) + group.size() - 1) / group.size();
}

// Writes what `rank` has of the input, and `pad` behind its end.
void copy_part(const Tensor& part, int dim, int rank, const Tensor& input, double pad = 0.0) {
  const int64_t begin = std::min(rank * part.size(dim), input.size(dim)),
                length = std::min(part.size(dim), input.size(dim) - begin);
  if (length < part.size(dim)) part.fill(pad);
  if (length > 0) part.narrow(dim, 0, length).copy_from(input.narrow(dim, begin, length));
}

std::vector<int64_t> with_size(const Tensor& tensor, int dim, int64_t size) {
  std::vector<int64_t> sizes = tensor.sizes();
  sizes[static_cast<size_t>(dim)] = size;
  return sizes;
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
  const Tensor part =
      Tensor::empty(with_size(input, call.dim, part_size(group, call.dim, input)), input.dtype(), input.device());
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
  const int64_t part = input.size(dim);
  const Tensor rows = gather_rows(group, input);
  const Tensor whole = Tensor::empty(with_size(input, dim, part * group.size()), input.dtype(), input.device());
  for (int rank = 0; rank < group.size(); ++rank)
    whole.narrow(dim, rank * part, part)
        .copy_from(rows.narrow(0, rank * input.num_elements(), input.num_elements()).view(input.sizes()));
  return whole;
}

Tensor AxisCollectives::reduce_scatter(CommGroup& group, int dim, const Tensor& input) {
  const std::vector<int64_t> sizes = with_size(input, dim, part_size(group, dim, input));
  const int64_t elements = numel(Shape(sizes)), all[] = {elements * group.size()};
  Collective call;
  call.op = CHASSIS_COMM_REDUCE_SCATTER;
  call.send = Tensor::empty(all, input.dtype(), input.device());
  for (int rank = 0; rank < group.size(); ++rank)
    copy_part(call.send.narrow(0, rank * elements, elements).view(sizes), dim, rank, input);
  call.recv = Tensor::empty(sizes, input.dtype(), input.device());
  call.name = "sum and scatter";
  Tensor sum = call.recv;
  communicator_.run(group, std::move(call));
  return sum;
}

// Row r of what is sent is the part of rank r along `to`; row r of what comes is part r along `from`.
Tensor AxisCollectives::all_to_all(CommGroup& group, int from, int to, const Tensor& input) {
  const std::vector<int64_t> sizes = with_size(input, to, part_size(group, to, input));
  const int64_t elements = numel(Shape(sizes)), all[] = {elements * group.size()}, part = input.size(from);
  Collective call;
  call.op = CHASSIS_COMM_ALL_TO_ALL;
  call.send = Tensor::empty(all, input.dtype(), input.device());
  for (int rank = 0; rank < group.size(); ++rank)
    copy_part(call.send.narrow(0, rank * elements, elements).view(sizes), to, rank, input);
  call.recv = Tensor::empty(all, input.dtype(), input.device());
  call.name = "exchange";
  const Tensor rows = call.recv;
  communicator_.run(group, std::move(call));
  std::vector<int64_t> gathered = sizes;
  gathered[static_cast<size_t>(from)] = part * group.size();
  const Tensor out = Tensor::empty(gathered, input.dtype(), input.device());
  for (int rank = 0; rank < group.size(); ++rank)
    out.narrow(from, rank * part, part).copy_from(rows.narrow(0, rank * elements, elements).view(sizes));
  return out;
}

}  // namespace chassis
