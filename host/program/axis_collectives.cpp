// Backends gather and scatter along the first dim only, so parts along another dim are copied to or from rows of ranks.
#include "host/program/axis_collectives.hpp"

#include <utility>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {
namespace {

// The size of one rank's part.
int64_t part_size(const CommGroup& group, int dim, const Tensor& input) {
  const int64_t size = input.size(dim), ranks = group.size();
  if (size % ranks != 0)
    throw config_error("axis '" + group.name() + "' of size " + std::to_string(ranks) + " cannot divide dim " +
                       std::to_string(dim) + " of a value, which has " + std::to_string(size) + " elements")
        .hint("choose a sequence length that is a multiple of " + std::to_string(ranks));
  return size / ranks;
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
  CHASSIS_CHECK(op == "comm.slice", op);
  const int64_t part = part_size(group, dim, input);
  return input.narrow(dim, group.rank() * part, part).contiguous();
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

Tensor AxisCollectives::all_gather(CommGroup& group, int dim, const Tensor& input) {
  const int64_t part = input.size(dim);
  Collective call;
  call.op = CHASSIS_COMM_ALL_GATHER;
  call.send = input.contiguous().flat();
  const int64_t elements[] = {input.num_elements() * group.size()};
  call.recv = Tensor::empty(elements, input.dtype(), input.device());
  call.name = "gather";
  const Tensor rows = call.recv;
  communicator_.run(group, std::move(call));
  const Tensor whole = Tensor::empty(with_size(input, dim, part * group.size()), input.dtype(), input.device());
  for (int rank = 0; rank < group.size(); ++rank)
    whole.narrow(dim, rank * part, part)
        .copy_from(rows.narrow(0, rank * input.num_elements(), input.num_elements()).view(input.sizes()));
  return whole;
}

Tensor AxisCollectives::reduce_scatter(CommGroup& group, int dim, const Tensor& input) {
  const int64_t part = part_size(group, dim, input), elements = input.num_elements() / group.size();
  const std::vector<int64_t> sizes = with_size(input, dim, part);
  const int64_t all[] = {input.num_elements()};
  Collective call;
  call.op = CHASSIS_COMM_REDUCE_SCATTER;
  call.send = Tensor::empty(all, input.dtype(), input.device());
  for (int rank = 0; rank < group.size(); ++rank)
    call.send.narrow(0, rank * elements, elements).view(sizes).copy_from(input.narrow(dim, rank * part, part));
  call.recv = Tensor::empty(sizes, input.dtype(), input.device());
  call.name = "sum and scatter";
  Tensor sum = call.recv;
  communicator_.run(group, std::move(call));
  return sum;
}

}  // namespace chassis
