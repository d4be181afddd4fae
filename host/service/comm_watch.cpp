// The thread that watches works.
#include "host/service/comm_watch.hpp"

namespace chassis {

using Clock = std::chrono::steady_clock;

StreamWatch::StreamWatch(const Instance& backend, const chassis_comm_backend_t& table, Flights& flights)
    : backend_(backend), table_(table), flights_(flights) {}

StreamWatch::~StreamWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const Watched& watched : works_) release(watched);
}

void StreamWatch::add(chassis_backend_work_t* work, chassis_backend_group_t* group, const Flight& flight) {
  const std::lock_guard lock(mutex_);
  works_.push_back({work, group, &flight, Clock::now()});
  if (!thread_.joinable()) thread_ = Thread("comm watch", [this] { run(); });
}

void StreamWatch::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  release_done();
  if (failure_) std::rethrow_exception(failure_);
}

// Works of one group complete in the order of their start, works of different groups in any order.
void StreamWatch::release_done() {
  for (auto watched = works_.begin(); watched != works_.end();) {
    if (!backend_.call("done", [&](auto* self) { return table_.done(self, watched->work); })) {
      ++watched;
      continue;
    }
    try {
      backend_.call("wait", [&](auto* self) { return table_.wait(self, watched->work, 0); });
    } catch (Error& error) {
      error.with("call", watched->flight->text());
      if (!failure_) failure_ = std::current_exception();
    }
    release(*watched);
    watched = works_.erase(watched);
  }
}

void StreamWatch::release(const Watched& watched) {
  const CalledInstance self = backend_.get("release");
  guarded_end([&] { table_.release(self, watched.work); });
  flights_.end(*watched.flight);
}

void StreamWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, std::chrono::milliseconds(100), [&] { return stop_; }) && !failure_) {
    try {
      release_done();
      if (failure_ || works_.empty()) continue;
      flights_.check(*works_.front().flight, Clock::now() - works_.front().start);
    } catch (...) {
      failure_ = std::current_exception();
      for (const Watched& watched : works_) {
        const CalledInstance self = backend_.get("abort");
        guarded_end([&] { table_.abort(self, watched.group); });
      }
    }
  }
}

}  // namespace chassis
