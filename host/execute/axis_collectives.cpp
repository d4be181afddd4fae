// Backends gather and scatter only the first dim, so parts along other dims are copied to or from one row per rank.
#include "host/execute/axis_collectives.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/compile/layout_pass.hpp"
#include "host/service/log_sum.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

// One rank's part of a dim of the input: one piece, or two of a zigzag (see LayoutAxis).
struct Pieces {
  int64_t length;               // length of a piece; the last ranks' pieces are padded
  std::vector<int64_t> begins;  // offsets in the whole dim
};

Pieces pieces_of(int rank, int num_ranks, int64_t length, bool is_zigzag) {
  if (!is_zigzag) return {length, {rank * length}};
  return {length, {zigzag_begin(rank, num_ranks, 0, length), zigzag_begin(rank, num_ranks, 1, length)}};
}

class RankParts {
 public:
  RankParts(const ProcessGroup& group, int dim, const Tensor& input, bool is_zigzag)
      : num_ranks_(group.size()), dim_(dim), is_zigzag_(is_zigzag), whole_(input.sizes()) {
    const int64_t ways = num_ranks_ * num_pieces();
    piece_ = (whole_[static_cast<size_t>(dim)] + ways - 1) / ways;
  }
  // The sizes of one rank's part.
  std::vector<int64_t> sizes() const {
    std::vector<int64_t> out = whole_;
    out[static_cast<size_t>(dim_)] = piece_ * num_pieces();
    return out;
  }
  int64_t num_pieces() const { return is_zigzag_ ? 2 : 1; }
  Pieces of(int rank) const { return pieces_of(rank, num_ranks_, piece_, is_zigzag_); }

 private:
  const int num_ranks_;
  const int dim_;
  const bool is_zigzag_;
  const std::vector<int64_t> whole_;
  int64_t piece_ = 0;
};

// Writes a rank's part of the input, and `pad` after the input's end.
void copy_part(const Tensor& part, int dim, const Pieces& pieces, const Tensor& input, double pad = 0.0) {
  for (size_t i = 0; i < pieces.begins.size(); ++i) {
    const Tensor piece = part.narrow(dim, static_cast<int64_t>(i) * pieces.length, pieces.length);
    const int64_t begin = std::min(pieces.begins[i], input.size(dim)),
                  length = std::min(pieces.length, input.size(dim) - begin);
    if (length < pieces.length) piece.fill(pad);
    if (length > 0) piece.narrow(dim, 0, length).copy_from(input.narrow(dim, begin, length));
  }
}

// One row for each rank, holding its part of the input.
Tensor rows_of_parts(const ProcessGroup& group, int dim, const Tensor& input, bool is_zigzag) {
  const RankParts parts(group, dim, input, is_zigzag);
  const std::vector<int64_t> sizes = parts.sizes();
  const int64_t elements = numel(Shape(sizes)), all[] = {elements * group.size()};
  const Tensor rows = Tensor::empty(all, input.dtype(), input.device());
  for (int rank = 0; rank < group.size(); ++rank)
    copy_part(rows.narrow(0, rank * elements, elements).view(sizes), dim, parts.of(rank), input);
  return rows;
}

// Joins rows that hold parts of these sizes along a dim.
Tensor joined_parts(const Tensor& rows, int dim, const std::vector<int64_t>& sizes, int num_parts, bool is_zigzag) {
  const int64_t elements = numel(Shape(sizes)), part = sizes[static_cast<size_t>(dim)];
  std::vector<int64_t> joined = sizes;
  joined[static_cast<size_t>(dim)] = part * num_parts;
  const Tensor whole = Tensor::empty(joined, rows.dtype(), rows.device());
  for (int i = 0; i < num_parts; ++i) {
    const Pieces pieces = pieces_of(i, num_parts, is_zigzag ? part / 2 : part, is_zigzag);
    const Tensor from = rows.narrow(0, i * elements, elements).view(sizes);
    for (size_t k = 0; k < pieces.begins.size(); ++k)
      whole.narrow(dim, pieces.begins[k], pieces.length)
          .copy_from(from.narrow(dim, static_cast<int64_t>(k) * pieces.length, pieces.length));
  }
  return whole;
}

// Tensors in transit around the ranks of an axis.
class RingShift final : public Shift {
 public:
  RingShift(Communicator& communicator, ProcessGroup& group, std::vector<Tensor> sent, bool back)
      : communicator_(communicator) {
    const int next = (group.rank() + 1) % group.size(), before = (group.rank() + group.size() - 1) % group.size();
    std::vector<Collective> calls;
    for (Tensor& tensor : sent) {
      received_.push_back(Tensor::empty(tensor.sizes(), tensor.dtype(), tensor.device()));
      Collective send, receive;
      send.op = CHASSIS_COMM_SEND;
      send.send = std::move(tensor);
      send.peer = back ? before : next;
      receive.op = CHASSIS_COMM_RECV;
      receive.recv = received_.back();
      receive.peer = back ? next : before;
      send.name = receive.name = "ring";
      calls.push_back(std::move(send));
      calls.push_back(std::move(receive));
    }
    work_ = communicator.start(group, std::move(calls));
  }
  std::vector<Tensor> take() override {
    communicator_.wait(work_);
    return std::move(received_);
  }

 private:
  Communicator& communicator_;
  std::vector<Tensor> received_;
  CommHandle work_;
};

}  // namespace

Tensor AxisCollectives::run(const CollectiveCall& call, const Tensor& input) {
  ProcessGroup& group = communicator_.group(std::vector<std::string>{call.axis});
  if (call.op == CommOp::kAllReduce) return all_reduce(group, input);
  if (call.op == CommOp::kAllGather) return all_gather(group, call.dim, input, call.is_zigzag);
  if (call.op == CommOp::kReduceScatter) return reduce_scatter(group, call.dim, input, call.is_zigzag);
  if (call.op == CommOp::kGather)
    return call.sharers > 1 ? gather_shared(group, call, input) : all_gather(group, call.dim, input, call.is_zigzag);
  if (call.op == CommOp::kSplit && call.sharers > 1) return shared_part(group, call, input);
  if (call.op == CommOp::kAllToAll) return all_to_all(group, call.dim, call.to, input);
  if (call.op == CommOp::kLogSumExp) {
    const int64_t rows[] = {group.size(), input.num_elements()};
    return log_sum_of_rows(gather_rows(group, input).view(rows)).view(input.sizes());
  }
  CHASSIS_CHECK(call.op == CommOp::kSlice || call.op == CommOp::kSplit, std::string(comm_spec(call.op).name));
  const RankParts parts(group, call.dim, input, call.is_zigzag);
  const Tensor part = Tensor::empty(parts.sizes(), input.dtype(), input.device());
  copy_part(part, call.dim, parts.of(group.rank()), input, call.pad);
  return part;
}

std::unique_ptr<Shift> AxisCollectives::shift(const std::string& axis, std::vector<Tensor> sent, bool back) {
  return std::make_unique<RingShift>(communicator_, communicator_.group(std::vector<std::string>{axis}),
                                     std::move(sent), back);
}

Tensor AxisCollectives::all_reduce(ProcessGroup& group, const Tensor& input) {
  Collective call;
  call.send = input.contiguous();
  call.recv = Tensor::empty(input.sizes(), input.dtype(), input.device());
  call.name = "sum";
  Tensor sum = call.recv;
  communicator_.run(group, std::move(call));
  return sum;
}

Tensor AxisCollectives::gather_rows(ProcessGroup& group, const Tensor& input) {
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

Tensor AxisCollectives::all_gather(ProcessGroup& group, int dim, const Tensor& input, bool is_zigzag) {
  return joined_parts(gather_rows(group, input), dim, input.sizes(), group.size(), is_zigzag);
}

// Neighbours share each part: they have the same values, and each has a part of the gradient.
Tensor AxisCollectives::gather_shared(ProcessGroup& group, const CollectiveCall& call, const Tensor& input) {
  const Tensor all = all_gather(group, call.dim, input, false);
  const int64_t length = input.size(call.dim), num_parts = group.size() / call.sharers;
  std::vector<int64_t> sizes = input.sizes();
  sizes[static_cast<size_t>(call.dim)] = num_parts * length;
  const Tensor out = Tensor::empty(sizes, input.dtype(), input.device());
  for (int64_t i = 0; i < num_parts; ++i) {
    const Tensor to = out.narrow(call.dim, i * length, length);
    Tensor sum = all.narrow(call.dim, i * call.sharers * length, length).clone();
    for (int64_t k = 1; call.of_gradient && k < call.sharers; ++k)
      sum.add(all.narrow(call.dim, (i * call.sharers + k) * length, length));
    to.copy_from(sum);
  }
  return out;
}

// The first of the ranks that share a part keeps its gradient.
Tensor AxisCollectives::shared_part(ProcessGroup& group, const CollectiveCall& call, const Tensor& input) {
  const int64_t length = input.size(call.dim) * call.sharers / group.size();
  Tensor out = input.narrow(call.dim, group.rank() / call.sharers * length, length).contiguous();
  if (call.of_gradient && group.rank() % call.sharers != 0) {
    out = Tensor::empty(out.sizes(), out.dtype(), out.device());
    out.zero();
  }
  return out;
}

Tensor AxisCollectives::reduce_scatter(ProcessGroup& group, int dim, const Tensor& input, bool is_zigzag) {
  Collective call;
  call.op = CHASSIS_COMM_REDUCE_SCATTER;
  call.send = rows_of_parts(group, dim, input, is_zigzag);
  call.recv = Tensor::empty(RankParts(group, dim, input, is_zigzag).sizes(), input.dtype(), input.device());
  call.name = "sum and scatter";
  Tensor sum = call.recv;
  communicator_.run(group, std::move(call));
  return sum;
}

// Row r of the sent tensor is rank r's part along `to`; row r of the received tensor is rank r's part along `from`.
Tensor AxisCollectives::all_to_all(ProcessGroup& group, int from, int to, const Tensor& input) {
  Collective call;
  call.op = CHASSIS_COMM_ALL_TO_ALL;
  call.send = rows_of_parts(group, to, input, false);
  call.recv = Tensor::empty(call.send.sizes(), input.dtype(), input.device());
  call.name = "exchange";
  const Tensor rows = call.recv;
  communicator_.run(group, std::move(call));
  return joined_parts(rows, from, RankParts(group, to, input, false).sizes(), group.size(), false);
}

}  // namespace chassis
