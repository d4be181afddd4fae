// Tools for the tests of `plugins check`: members with default options, hosts without a service, poisoned host tables.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/conformance/check_types.hpp"
#include "host/plugin/instance.hpp"
#include "host/plugin/library.hpp"
#include "host/plugin/services.hpp"

namespace chassis::check {

// Thrown by a test that does not apply.
struct Skip {
  std::string reason;
};
// Thrown by a test that applies, but could compare nothing.
struct Untested : Skip {};
// Thrown if an option was given that does not exist, or has no such value.
struct BadOption {
  std::string text;
};

// Hides one service.
class WithoutService : public ServiceProvider {
 public:
  WithoutService(ServiceProvider& inner, std::string hidden) : inner_(inner), hidden_(std::move(hidden)) {}
  bool offers(std::string_view id) const override { return id != hidden_ && inner_.offers(id); }
  void check_operators(const Manifest& manifest) const override { inner_.check_operators(manifest); }
  std::string torch_version() const override { return inner_.torch_version(); }
  std::unique_ptr<InstanceServices> attach(const InstanceContext& context) override;

 private:
  ServiceProvider& inner_;
  std::string hidden_;
};

// Records which services instances ask for.
class WatchedServices : public ServiceProvider {
 public:
  explicit WatchedServices(ServiceProvider& inner) : inner_(inner) {}
  bool offers(std::string_view id) const override { return inner_.offers(id); }
  void check_operators(const Manifest& manifest) const override { inner_.check_operators(manifest); }
  std::string torch_version() const override { return inner_.torch_version(); }
  std::unique_ptr<InstanceServices> attach(const InstanceContext& context) override;

  void add(std::string_view id);
  std::set<std::string> asked() const;

 private:
  ServiceProvider& inner_;
  mutable std::mutex mutex_;  // plugins may ask on any thread
  std::set<std::string> asked_;
};

// A host table with the given struct_size. Bytes beyond this host's own table are poisoned.
class PoisonedHost {
 public:
  PoisonedHost(AbiVersion negotiated, InstanceServices* services, uint32_t struct_size);
  const chassis_host_t* get() const { return reinterpret_cast<const chassis_host_t*>(bytes_); }

 private:
  HostTable plain_;
  alignas(16) unsigned char bytes_[sizeof(chassis_host_t) + 256];
};

// A plugin file under test, with the services and hooks for its instances.
struct Bench {
  std::string path;
  ServiceProvider& services;
  const CheckHooks& hooks;
  std::string note = {};  // reported with a test that passes

  PluginFile file() const { return read_plugin_file(path); }
  std::shared_ptr<const PluginLibrary> load() const;
  std::vector<OptionSpec> specs(const PluginLibrary& library, const MemberName& member) const;
  // The values that were given, defaults, and guesses for options without a default. Sets `all_known` to false if there
  // was a guess. Throws BadOption.
  Json options(const PluginLibrary& library, const MemberName& member, bool& all_known) const;
  // Throws BadOption if an option was given that no member has.
  void expect_options_exist(const PluginLibrary& library) const;
  InstanceContext context(const PluginLibrary& library, const MemberName& member) const;
  // NULL if the member refuses guessed or changed options with a message.
  std::unique_ptr<Instance> make(const std::shared_ptr<const PluginLibrary>& library, const MemberName& member,
                                 const Json& changed_options = nullptr) const;
  // Calls `test` for every member that can be created; skips the test if there is none.
  void each(const std::shared_ptr<const PluginLibrary>& library,
            const std::function<void(const MemberName&, std::unique_ptr<Instance>)>& test) const;
};

// Number of entries of a folder such as /proc/self/fd, without hidden ones. Throws Skip if it cannot be read.
size_t num_entries(const char* folder);

enum class Guard { kNone, kAfter, kBefore };

struct Test {
  std::string_view name;
  std::string_view needs;  // a test that must pass first; empty if there is none
  void (*run)(Bench&);
  Guard guard = Guard::kNone;  // the side of every buffer with a page without access
};
// static/* and load/*.
std::span<const Test> file_tests();
// life/*, negotiation/*, options/* and numerics/*.
std::span<const Test> instance_tests();
// Both, in this order.
std::span<const Test> tests();
// NULL if there is none.
const Test* find_test(std::string_view name);

}  // namespace chassis::check
