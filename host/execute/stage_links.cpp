// One batch of sends, or of receives, for each transfer.
#include "host/execute/stage_links.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/service/memory.hpp"

namespace chassis {
namespace {

// Maximum number of transfers that may wait in one link. In training the schedule keeps it lower; evaluation has no
// backward that would hold a fast stage back.
constexpr size_t kMostWaiting = 64;

std::string name_of(int from_stage, int to_stage, const std::string& value) {
  return "stage " + std::to_string(from_stage) + " > " + std::to_string(to_stage) + " " + value;
}

}  // namespace

RankLinks::RankLinks(const Pipeline& pipeline, Communicator& communicator)
    : pipeline_(pipeline), communicator_(communicator) {
  const MeshShape& mesh = communicator.mesh();
  const int own = mesh.coordinates(communicator.rank())[static_cast<size_t>(mesh.find(pipeline.axis))];
  all_ = &communicator.group(std::vector<std::string>{pipeline.axis});
  for (int stage = 0; stage + 1 < pipeline.num_stages(); ++stage)
    for (const bool forward : {true, false}) {
      const Key key = forward ? this->key(stage, stage + 1) : this->key(stage + 1, stage);
      const auto [from, to, is_forward] = key;
      if (from == to || (own != from && own != to) || links_.contains(key)) continue;
      const int both[] = {from, to};
      const std::string text =
          std::string(forward ? "values" : "gradients") + "," + std::to_string(from) + "," + std::to_string(to);
      links_[key].group = &communicator.group_on(pipeline.axis, both, text);
    }
}

RankLinks::Key RankLinks::key(int from_stage, int to_stage) const {
  return {pipeline_.stages().rank(from_stage), pipeline_.stages().rank(to_stage), from_stage < to_stage};
}

void RankLinks::drop_arrived(Link& link, size_t most) {
  while (!link.sent.empty() && (link.sent.size() > most || link.sent.front().done())) {
    communicator_.wait(link.sent.front());
    link.sent.pop_front();
  }
}

void RankLinks::send(int from_stage, int to_stage, StreamValues values) {
  Link& link = links_.at(key(from_stage, to_stage));
  drop_arrived(link, kMostWaiting);
  std::vector<Collective> calls;
  for (auto& [name, value] : values) {
    Collective& call = calls.emplace_back();
    call.op = CHASSIS_COMM_SEND;
    call.send = std::move(value);
    call.peer = 1 - link.group->rank();
    call.name = name_of(from_stage, to_stage, name);
  }
  if (!calls.empty()) link.sent.push_back(communicator_.start(*link.group, std::move(calls)));
}

StreamValues RankLinks::receive(int from_stage, int to_stage, const std::vector<StreamSpec>& specs, Device device) {
  Link& link = links_.at(key(from_stage, to_stage));
  const MemoryTag tag(MemoryCategory::kActivations);
  StreamValues out;
  for (const StreamSpec& spec : specs) out[spec.name] = Tensor::empty(spec.sizes, spec.dtype, device);
  std::vector<Collective> calls;
  for (const auto& [name, value] : out) {
    Collective& call = calls.emplace_back();
    call.op = CHASSIS_COMM_RECV;
    call.recv = value;
    call.peer = 1 - link.group->rank();
    call.name = name_of(from_stage, to_stage, name);
  }
  if (calls.empty()) return out;
  CommHandle work = communicator_.start(*link.group, std::move(calls));
  communicator_.wait(work);
  return out;
}

Tensor RankLinks::share_last(Tensor own, const StreamSpec& spec, Device device) {
  Collective call;
  call.op = CHASSIS_COMM_BROADCAST;
  call.peer = pipeline_.stages().rank(pipeline_.num_stages() - 1);
  call.name = spec.name;
  if (all_->rank() == call.peer) call.send = own.contiguous();
  call.recv = call.send ? call.send : Tensor::empty(spec.sizes, spec.dtype, device);
  const Tensor shared = call.recv;
  communicator_.run(*all_, std::move(call));
  return shared;
}

void RankLinks::finish() {
  for (auto& [key, link] : links_) drop_arrived(link, 0);
}

}  // namespace chassis
