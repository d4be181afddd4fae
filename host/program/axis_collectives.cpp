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

// Writes what `rank` has of the input, and zeros behind its end.
void copy_part(const Tensor& part, int dim, int rank, const Tensor& input) {
  const int64_t begin = std::min(rank * part.size(dim), input.size(dim)),
                length = std::min(part.size(dim), input.size(dim) - begin);
  if (length < part.size(dim)) part.zero();
  if (length > 0) part.narrow(dim, 0, length).copy_from(input.narrow(dim, begin, length));
}

std::vector<int64_t> with_size(const Tensor& tensor, int dim, int64_t size) {
  std::vector<int64_t> sizes = tensor.sizes();
  sizes[static_cast<size_t>(dim)] = size;
  return sizes;
}

}  // namespace

Tensor AxisCollectives::run(const std::string& op, const std::string& axis, int dim, const Tensor& input) {
  CommGroup& group = communicator_.group(std::vector<std::string>{axis});
  if (op == "comm.all_reduce") return all_reduce(group, input);
  if (op == "comm.all_gather") return all_gather(group, dim, input);
  if (op == "comm.reduce_scatter") return reduce_scatter(group, dim, input);
  if (op == kLogSumExp) {
    const int64_t rows[] = {group.size(), input.num_elements()};
    return log_sum_of_rows(gather_rows(group, input).view(rows)).view(input.sizes());
  }
  CHASSIS_CHECK(op == "comm.slice", op);
  const Tensor part = Tensor::empty(with_size(input, dim, part_size(group, dim, input)), input.dtype(), input.device());
  copy_part(part, dim, group.rank(), input);
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

}  // namespace chassis
