// Collectives over groups of ranks, through chassis.comm/1.
#pragma once

#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "chassis/comm_call.hpp"
#include "chassis/host.hpp"

CHASSIS_SDK_BEGIN

// Calls in flight; the destructor waits for them if wait() was not called.
class CommWork {
 public:
  CommWork() = default;  // no calls
  CommWork(const Host& host, CHASSIS_STOLEN chassis_comm_work_t* work) : host_(&host), work_(work) {}
  CommWork(CommWork&& other) noexcept : host_(other.host_), work_(std::exchange(other.work_, nullptr)) {}
  CommWork& operator=(CommWork&& other) noexcept {
    if (this != &other) {
      finish();
      host_ = other.host_;
      work_ = std::exchange(other.work_, nullptr);
    }
    return *this;
  }
  CommWork(const CommWork&) = delete;
  CommWork& operator=(const CommWork&) = delete;
  ~CommWork() { finish(); }

  explicit operator bool() const noexcept { return work_ != nullptr; }
  // [step] Blocks until the results may be read. A second call does nothing.
  void wait() {
    if (work_ == nullptr) return;
    const auto& comm = host_->service<chassis_comm_t>();
    host_->check(comm.wait(&comm, std::exchange(work_, nullptr)));
  }
  // [step] True if wait would not block.
  bool done() const {
    if (work_ == nullptr) return true;
    const auto& comm = host_->service<chassis_comm_t>();
    return comm.done(&comm, work_) != 0;
  }

 private:
  void finish() noexcept {
    try {
      wait();
    } catch (const Failure&) {  // the next wait on the group reports it
    }
  }
  const Host* host_ = nullptr;
  chassis_comm_work_t* work_ = nullptr;
};

// The ranks that differ from this one on some axes of the mesh.
class CommGroup {
 public:
  // [control][all-ranks] No axes: all ranks.
  CommGroup(const Host& host, std::span<const std::string_view> axes) : host_(&host) {
    std::vector<chassis_str_t> names;
    for (std::string_view axis : axes) names.push_back(str(axis));
    const auto& comm = host.service<chassis_comm_t>();
    host.check(comm.group(&comm, names.data(), static_cast<uint32_t>(names.size()), &group_));
  }
  CommGroup(const Host& host, std::initializer_list<std::string_view> axes)
      : CommGroup(host, std::span(axes.begin(), axes.size())) {}

  uint32_t size() const { return host_->service<chassis_comm_t>().size(group_); }
  uint32_t rank() const { return host_->service<chassis_comm_t>().rank(group_); }

  // [step][all-ranks] Starts the calls as one. Do not touch their buffers until wait() has returned.
  CommWork start(std::span<const chassis_collective_t> calls) const {
    const auto& comm = host_->service<chassis_comm_t>();
    chassis_comm_work_t* work = nullptr;
    const auto batch = pointers_to(calls);
    host_->check(comm.start(&comm, group_, batch.data(), static_cast<uint32_t>(batch.size()), &work));
    return {*host_, work};
  }
  CommWork start(const chassis_collective_t& call) const { return start(std::span(&call, 1)); }
  void run(const chassis_collective_t& call) const { start(call).wait(); }

 private:
  const Host* host_;
  const chassis_comm_group_t* group_ = nullptr;
};

// [step][all-ranks] Runs `part` on all ranks of the run. If it throws on one, this throws on all.
template <typename Part>
void together(const Host& host, std::string_view what, Part&& part) {
  const auto& comm = host.service<chassis_comm_t>();
  host.check(comm.agree(&comm, str(what), guard(host.table(), std::forward<Part>(part))));
}

CHASSIS_SDK_END
