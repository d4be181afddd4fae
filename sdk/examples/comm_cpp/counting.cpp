// A communication backend that wraps another one, counts the calls and passes them on. It uses only the public headers,
// so it can wrap any installed backend.
#include <memory>
#include <string>

#include "chassis/comm_backend.hpp"
#include "chassis/members.hpp"
#include "chassis/metrics.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

// The wrapped backend.
class Inner : public OpenedMember<chassis_comm_backend_t> {
 public:
  Inner(const Host& host, const std::string& id, const std::string& options)
      : OpenedMember(host, "comm", id, CHASSIS_COMM_BACKEND_ID, options), host_(host) {}
  const Host& host() const { return host_; }

 private:
  const Host& host_;
};

class Work final : public BackendWork {
 public:
  Work(const Inner& inner, chassis_backend_work_t* work) : inner_(inner), work_(work) {}
  ~Work() override { inner_.table().release(inner_.self(), work_); }
  bool wait(std::chrono::nanoseconds timeout) override {
    chassis_status_t* status = inner_.table().wait(inner_.self(), work_, static_cast<uint64_t>(timeout.count()));
    if (status != nullptr && inner_.host().table()->status_code(status) == CHASSIS_DEADLINE_EXCEEDED) {
      inner_.host().table()->status_release(status);
      return false;
    }
    inner_.host().check(status);
    return true;
  }
  bool done() noexcept override { return inner_.table().done(inner_.self(), work_) != 0; }

 private:
  const Inner& inner_;
  chassis_backend_work_t* work_;
};

class Group final : public BackendGroup {
 public:
  Group(const Inner& inner, chassis_backend_group_t* group) : inner_(inner), group_(group) {}
  ~Group() override { inner_.table().destroy_group(inner_.self(), group_); }
  std::unique_ptr<BackendWork> start(std::span<const chassis_collective_t> calls, void* stream) override {
    chassis_backend_work_t* work = nullptr;
    const auto batch = pointers_to(calls);
    inner_.host().check(
        inner_.table().start(inner_.self(), group_, batch.data(), static_cast<uint32_t>(batch.size()), stream, &work));
    add_metric(inner_.host(), "calls", static_cast<double>(calls.size()));
    return std::make_unique<Work>(inner_, work);
  }
  void abort() noexcept override { inner_.table().abort(inner_.self(), group_); }

 private:
  const Inner& inner_;
  chassis_backend_group_t* group_;
};

class Counting final : public CommBackend {
 public:
  static constexpr std::string_view kDoc = "example: counts the calls of another backend";
  static const Options& options() {
    static const Options schema = {option("wraps", "gloo").doc("the backend that does the work"),
                                   table("wraps_options").doc("its options that differ from their defaults")};
    return schema;
  }
  using CommBackend::CommBackend;

  void supports(uint32_t device_type, int32_t device_index) override {
    host().check(inner().table().supports(inner().self(), device_type, device_index));
  }
  std::unique_ptr<BackendGroup> create_group(const CommGroupDesc& desc) override {
    chassis_comm_group_desc_t raw{};
    raw.struct_size = sizeof raw;
    raw.size = desc.size;
    raw.rank = desc.rank;
    raw.device_type = desc.device_type;
    raw.device_index = desc.device_index;
    raw.name = str(desc.name);
    raw.store = desc.store.raw();
    raw.timeout_ns = static_cast<uint64_t>(desc.timeout.count());
    raw.host = str(desc.host);
    chassis_backend_group_t* group = nullptr;
    host().check(inner().table().create_group(inner().self(), &raw, &group));
    return std::make_unique<Group>(inner(), group);
  }

 private:
  // Opens the backend on first use.
  const Inner& inner() {
    if (!inner_)
      inner_ = std::make_unique<Inner>(host(), option_value<std::string>(host(), "wraps"),
                                       option_json(host(), "wraps_options"));
    return *inner_;
  }
  std::unique_ptr<Inner> inner_;
};

}  // namespace

CHASSIS_PLUGIN("requires=" CHASSIS_MEMBERS_ID "\nrequires=" CHASSIS_OPTIONS_ID "\nrequires=" CHASSIS_METRICS_ID
               "\nlicense=Apache-2.0\n",
               Counting)
