// The base of communication backends: groups of ranks, and work in flight.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "chassis/comm_call.hpp"
#include "chassis/kind/comm.h"
#include "chassis/member.hpp"

CHASSIS_SDK_BEGIN

// The rendezvous of the ranks of one group. [any]
class CommStore {
 public:
  CommStore(const Host& host, const chassis_store_t* raw) : host_(&host), raw_(raw) {}

  void set(std::string_view key, std::string_view value) const { host_->check(raw_->set(raw_, str(key), str(value))); }
  // Blocks until the key exists. Throws DEADLINE_EXCEEDED after `timeout`, ABORTED if a rank failed.
  std::string get(std::string_view key, std::chrono::nanoseconds timeout) const {
    std::string value;
    host_->check(raw_->get(
        raw_, str(key), static_cast<uint64_t>(timeout.count()),
        [](void* context, chassis_str_t text) { *static_cast<std::string*>(context) = text_of(text); }, &value));
    return value;
  }
  // The store in the form that another backend takes.
  const chassis_store_t* raw() const noexcept { return raw_; }
  int64_t add(std::string_view key, int64_t amount) const {
    int64_t value = 0;
    host_->check(raw_->add(raw_, str(key), amount, &value));
    return value;
  }

 private:
  const Host* host_;
  const chassis_store_t* raw_;
};

struct CommGroupDesc {
  std::string name;  // unique in the run
  uint32_t size;
  uint32_t rank;
  uint32_t device_type;
  int32_t device_index;
  CommStore store;
  std::chrono::nanoseconds timeout;
  std::string host;  // an address of this machine that the other ranks can reach
};

// Calls in flight. The destructor gives up unfinished calls; after it has returned, nothing touches their buffers.
class BackendWork {
 public:
  virtual ~BackendWork() = default;
  // [step] True when done, false after `timeout`; throws if the calls failed.
  virtual bool wait(std::chrono::nanoseconds timeout) = 0;
  // [step] Makes the stream wait instead of the caller; for backends with kOnStream.
  virtual void wait_on_stream(void* /*stream*/) {}
  // [any]
  virtual bool done() noexcept = 0;
};

class BackendGroup {
 public:
  virtual ~BackendGroup() = default;
  // [step][all-ranks] Starts the calls as one.
  virtual std::unique_ptr<BackendWork> start(std::span<const chassis_collective_t> calls, void* stream) = 0;
  // [any] Ends work in flight, so that waits return.
  virtual void abort() noexcept {}
};

class CommBackend : public Member {
 public:
  static constexpr std::string_view kKind = "comm";
  static constexpr uint32_t kProperties = 0;  // CHASSIS_COMM_…
  static constexpr bool kOnStream = false;    // true if CUDA streams can wait for its works
  using Member::Member;

  // [control] Refuses a device that it cannot serve here, with the reason.
  virtual void supports(uint32_t device_type, int32_t device_index) = 0;
  // [control][all-ranks] (all ranks of the group) Blocks until all have called.
  virtual std::unique_ptr<BackendGroup> create_group(const CommGroupDesc& desc) = 0;

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr chassis_comm_backend_t kTable = {sizeof(chassis_comm_backend_t),
                                                      T::kProperties,
                                                      &supports_entry,
                                                      &create_group_entry,
                                                      &destroy_group_entry,
                                                      &start_entry,
                                                      &wait_entry,
                                                      T::kOnStream ? &wait_on_stream_entry : nullptr,
                                                      &done_entry,
                                                      &release_entry,
                                                      &abort_entry};
    return id == CHASSIS_COMM_BACKEND_ID ? &kTable : nullptr;
  }

 private:
  static BackendGroup& group_of(chassis_backend_group_t* group) noexcept {
    return *reinterpret_cast<BackendGroup*>(group);
  }
  static BackendWork& work_of(chassis_backend_work_t* work) noexcept { return *reinterpret_cast<BackendWork*>(work); }

  static chassis_status_t* supports_entry(chassis_instance* self, uint32_t device_type, int32_t device_index) noexcept {
    CommBackend& backend = member_of<CommBackend>(self);
    return guard(backend.host().table(), [&] { backend.supports(device_type, device_index); });
  }
  static chassis_status_t* create_group_entry(chassis_instance* self, const chassis_comm_group_desc_t* raw,
                                              chassis_backend_group_t** out) noexcept {
    CommBackend& backend = member_of<CommBackend>(self);
    return guard(backend.host().table(), [&] {
      const chassis_comm_group_desc_t given = read_sized(raw);
      const CommGroupDesc desc = {std::string(text_of(given.name)),
                                  given.size,
                                  given.rank,
                                  given.device_type,
                                  given.device_index,
                                  CommStore(backend.host(), given.store),
                                  std::chrono::nanoseconds(given.timeout_ns),
                                  std::string(text_of(given.host))};
      *out = reinterpret_cast<chassis_backend_group_t*>(backend.create_group(desc).release());
    });
  }
  static void destroy_group_entry(chassis_instance*, chassis_backend_group_t* group) noexcept {
    delete &group_of(group);
  }
  static chassis_status_t* start_entry(chassis_instance* self, chassis_backend_group_t* group,
                                       const chassis_collective_t* const* calls, uint32_t num_calls, void* stream,
                                       chassis_backend_work_t** out) noexcept {
    return guard(member_of<CommBackend>(self).host().table(), [&] {
      *out = reinterpret_cast<chassis_backend_work_t*>(
          group_of(group).start(read_calls(calls, num_calls), stream).release());
    });
  }
  static chassis_status_t* wait_entry(chassis_instance* self, chassis_backend_work_t* work,
                                      uint64_t timeout_ns) noexcept {
    const chassis_host_t* host = member_of<CommBackend>(self).host().table();
    bool done = false;
    chassis_status_t* status = guard(host, [&] { done = work_of(work).wait(std::chrono::nanoseconds(timeout_ns)); });
    if (done || status != nullptr) return status;
    return host->status_new(host, CHASSIS_DEADLINE_EXCEEDED, str("not done yet"), nullptr);
  }
  static chassis_status_t* wait_on_stream_entry(chassis_instance* self, chassis_backend_work_t* work,
                                                void* stream) noexcept {
    return guard(member_of<CommBackend>(self).host().table(), [&] { work_of(work).wait_on_stream(stream); });
  }
  static int32_t done_entry(chassis_instance*, chassis_backend_work_t* work) noexcept { return work_of(work).done(); }
  static void release_entry(chassis_instance*, chassis_backend_work_t* work) noexcept { delete &work_of(work); }
  static void abort_entry(chassis_instance*, chassis_backend_group_t* group) noexcept { group_of(group).abort(); }
};

CHASSIS_SDK_END
