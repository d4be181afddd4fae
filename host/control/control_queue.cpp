#include "host/control/control_queue.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"

namespace chassis {

std::string control_line(const ControlReply& reply) { return json_line(control_json(reply)) + "\n"; }

ControlReply refused_reply(std::string id, std::string text, int64_t generation) {
  ControlReply reply;
  reply.id = std::move(id);
  reply.ok = false;
  reply.name = kRefusedOutcome;
  reply.text = std::move(text);
  reply.generation = generation;
  return reply;
}

std::string ControlTask::text() const { return fmt::format("{} '{}'", control_verb_name(request.verb), request.id); }

double ControlTask::ms() const {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

ControlQueue::ControlQueue(int64_t generation)
    : wakes_(File::adopt(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")), generation_(generation) {
  if (!wakes_.is_open()) throw config_error(std::string("cannot open an eventfd: ") + std::strerror(errno));
}

void ControlQueue::wake() const {
  const uint64_t one = 1;
  if (::write(wakes_.descriptor(), &one, sizeof one) < 0) return;  // full, and so readable already
}

void ControlQueue::forget_wakes() {
  uint64_t count = 0;
  if (::read(wakes_.descriptor(), &count, sizeof count) < 0) return;  // there were none
}

void ControlQueue::end() {
  is_ending_ = true;
  wake();
}

std::optional<ControlRequest> ControlQueue::take() {
  if (!has_untaken_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  has_untaken_ = false;
  for (std::optional<ControlTask>* task : {&task_, &decision_}) {
    if (!*task || (*task)->is_taken) continue;
    (*task)->is_taken = true;
    (*task)->phase = "starting";
    return (*task)->request;
  }
  return std::nullopt;
}

void ControlQueue::phase(const std::string& name, const Json& facts) {
  const std::lock_guard lock(mutex_);
  for (std::optional<ControlTask>* task : {&task_, &decision_}) {
    if (!*task || !(*task)->is_taken) continue;
    (*task)->phase = name;
    ControlReply said;
    said.kind = ControlReply::Kind::kPhase;
    said.name = name;
    said.facts = facts;
    reply(**task, std::move(said));
  }
}

void ControlQueue::finish(bool ok, const std::string& outcome, const std::string& text, const Json& facts) {
  const std::lock_guard lock(mutex_);
  if (!task_ || !task_->is_taken) return;  // nothing is in progress
  for (std::optional<ControlTask>* task : {&task_, &decision_}) {
    if (!*task) continue;
    ControlReply end;
    end.ok = ok;
    end.name = outcome;
    end.text = text;
    end.facts = facts;
    reply(**task, std::move(end));
    task->reset();
  }
  has_untaken_ = false;
  cancels_ = false;
}

void ControlQueue::set_status(const Json& status) {
  auto copy = std::make_shared<const Json>(status);
  const std::lock_guard lock(mutex_);
  status_.swap(copy);
}

void ControlQueue::set_generation(int64_t generation) {
  const std::lock_guard lock(mutex_);
  generation_ = generation;
}

int64_t ControlQueue::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

ControlReply ControlQueue::answer(const ControlRequest& request, uint64_t client) {
  if (request.verb == ControlVerb::kStatus) return answer_status(request);
  const std::lock_guard lock(mutex_);
  if (request.generation >= 0 && request.generation != generation_)
    return refused_reply(
        request.id,
        fmt::format("the run has generation {}, and the request expects {}", generation_, request.generation),
        generation_);
  return request.verb == ControlVerb::kCancel ? cancel(request) : add(request, client);
}

ControlReply ControlQueue::answer_status(const ControlRequest& request) const {
  std::shared_ptr<const Json> status;
  Json in_progress;
  ControlReply reply;
  reply.id = request.id;
  reply.name = "status";
  {
    const std::lock_guard lock(mutex_);
    status = status_;
    reply.generation = generation_;
    if (task_)
      in_progress = {{"verb", control_verb_name(task_->request.verb)},
                     {"id", task_->request.id},
                     {"phase", task_->phase},
                     {"ms", task_->ms()}};
  }
  reply.facts = status && status->is_object() ? *status : Json::object();
  if (!in_progress.is_null()) reply.facts["in_progress"] = std::move(in_progress);
  return reply;
}

ControlReply ControlQueue::cancel(const ControlRequest& request) {
  if (!task_) return refused_reply(request.id, "no request is in progress", generation_);
  ControlReply answer;
  answer.id = request.id;
  answer.generation = generation_;
  if (task_->is_taken) {
    cancels_ = true;
    answer.name = "cancelling";
    answer.text = fmt::format("{} is asked to stop, in phase '{}'", task_->text(), printable(task_->phase));
    return answer;
  }
  answer.name = "cancelled";
  answer.text = task_->text() + " was withdrawn before it began";
  reply(*task_, refused_reply("", "cancelled before it began", generation_));
  task_.reset();
  has_untaken_ = false;
  return answer;
}

ControlReply ControlQueue::add(const ControlRequest& request, uint64_t client) {
  const bool decides = request.verb == ControlVerb::kCommit || request.verb == ControlVerb::kRollback;
  const bool in_probation =
      task_ && task_->is_taken && task_->request.verb == ControlVerb::kSwap && task_->phase == kProbationPhase;
  std::optional<ControlTask>& place = decides && in_probation ? decision_ : task_;
  if (place)
    return refused_reply(request.id,
                         fmt::format("{} is in progress: phase '{}', {:.0f} ms after it was accepted", place->text(),
                                     printable(place->phase), place->ms()),
                         generation_);
  place.emplace();
  place->request = request;
  place->client = client;
  has_untaken_ = true;
  ControlReply accepted;
  accepted.kind = ControlReply::Kind::kAccepted;
  accepted.id = request.id;
  accepted.generation = generation_;
  return accepted;
}

ControlQueue::Lines ControlQueue::take_lines() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lines_, {});
}

bool ControlQueue::awaits(uint64_t client) const {
  const std::lock_guard lock(mutex_);
  return (task_ && task_->client == client) || (decision_ && decision_->client == client) ||
         std::any_of(lines_.begin(), lines_.end(), [&](const auto& line) { return line.first == client; });
}

std::string ControlQueue::awaited_id(uint64_t client) const {
  const std::lock_guard lock(mutex_);
  for (const std::optional<ControlTask>* task : {&task_, &decision_})
    if (*task && (*task)->client == client) return (*task)->request.id;
  return "";
}

void ControlQueue::reply(const ControlTask& task, ControlReply said) {
  said.id = task.request.id;
  said.ms = task.ms();
  said.generation = generation_;
  lines_.emplace_back(task.client, control_line(said));
  wake();
}

}  // namespace chassis
