// The tests of `plugins check` that create instances: life/*, negotiation/*, options/* and numerics/*.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

#include "chassis/service/dispatch.h"
#include "chassis/service/gemm.h"
#include "chassis/service/log.h"
#include "chassis/service/members.h"
#include "chassis/service/memory.h"
#include "chassis/service/metrics.h"
#include "chassis/service/options.h"
#include "chassis/service/rng.h"
#include "chassis/service/task.h"
#include "chassis/service/tensor.h"
#include "host/base/json.hpp"
#include "host/conformance/check_bench.hpp"
#include "host/conformance/growth.hpp"
#include "host/plugin/option_schema.hpp"
#include "host/plugin/sized.hpp"

namespace chassis::check {
namespace {

constexpr int kNumRepeats = 1000, kNumGrowthRounds = 3;
constexpr int64_t kMaxGrowthBytes = 8 << 20;
constexpr int64_t kMaxHeapGrowthBytes = 16 * kNumRepeats;
constexpr uint64_t kQuiesceDeadlineNs = 5'000'000'000;
constexpr std::array<std::string_view, 10> kServices = {
    CHASSIS_LOG_ID,     CHASSIS_OPTIONS_ID, CHASSIS_TENSOR_ID,   CHASSIS_MEMORY_ID,  CHASSIS_RNG_ID,
    CHASSIS_METRICS_ID, CHASSIS_TASK_ID,    CHASSIS_DISPATCH_ID, CHASSIS_MEMBERS_ID, CHASSIS_GEMM_ID};

void run_life_cycle(Instance& instance) {
  instance.prepare();
  instance.activate();
  instance.quiesce(std::chrono::nanoseconds(kQuiesceDeadlineNs));
  instance.deactivate();
}

void expect_no_tensors(const Instance& instance) {
  if (const int64_t live = instance.live_tensors(); live != 0) {
    throw plugin_error(
        fmt::format("{} holds {} tensors at the end of its life cycle, expected 0", instance.label(), live));
  }
}

int64_t resident_bytes() {
#ifdef __SANITIZE_ADDRESS__
  return 0;  // its quarantine keeps freed memory
#else
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
#endif
}

// negotiation: hosts that differ from this one.

// Creates every member with a host table of the given size and minor, and runs its life cycle.
void run_with_host_table(Bench& bench, AbiVersion negotiated, uint32_t struct_size) {
  const auto library = bench.load();
  const PoisonedHost entry_host(negotiated, nullptr, struct_size);
  const chassis_factory_t factory = enter_plugin(library->entry(), entry_host.get(), library->manifest());
  read_members(factory, library->manifest());
  bench.each(library, [&](const MemberName& member, std::unique_ptr<Instance> usual) {
    usual.reset();
    const InstanceContext context = bench.context(*library, member);
    const auto services = bench.services.attach(context);
    const PoisonedHost host(negotiated, services.get(), struct_size);
    const std::string label = library->manifest().label() + " " + member.text();
    chassis_instance_t* instance = nullptr;
    const CallSite& site = call_site(label);
    {
      const PluginCall call(site, "create");
      throw_if_failed(factory.create(host.get(), str_of(member.kind), str_of(member.id), &instance), label);
    }
    if (instance == nullptr) throw plugin_error(label + ": create returned no instance and no error");
    const chassis_instance_t hooks = read_struct(instance, label + ": the instance that create returned");
    const auto with_phase = [&](const char* phase) { return CalledInstance(site, phase, instance); };
    if (hooks.prepare != nullptr) throw_if_failed(hooks.prepare(with_phase("prepare")), label);
    if (hooks.activate != nullptr) throw_if_failed(hooks.activate(with_phase("activate")), label);
    if (hooks.quiesce != nullptr) throw_if_failed(hooks.quiesce(with_phase("quiesce"), kQuiesceDeadlineNs), label);
    if (hooks.deactivate != nullptr) throw_if_failed(hooks.deactivate(with_phase("deactivate")), label);
    hooks.destroy(with_phase("destroy"));
  });
}

void negotiation_poison(Bench& bench) {
  run_with_host_table(bench, bench.load()->negotiated(), sizeof(chassis_host_t));
}

void negotiation_newer_host(Bench& bench) {
  const PluginFile file = bench.file();
  HostAbi newer;
  newer.version.minor += 1;
  check_abi(file, newer);
  run_with_host_table(bench, {file.manifest.abi.major, std::min(newer.version.minor, file.manifest.abi.minor)},
                      sizeof(chassis_host_t) + 128);
}

void negotiation_older_host(Bench& bench) {
  const PluginFile file = bench.file();
  HostAbi older;
  older.version.minor -= 1;
  older.min_plugin_minor = 0;
  try {
    check_abi(file, older);
  } catch (const Error&) {
    if (file.manifest.abi_min_host.minor > older.version.minor) return;  // refused, as its manifest asks
    throw;
  }
  run_with_host_table(bench, {older.version.major, std::min(older.version.minor, file.manifest.abi.minor)},
                      sizeof(chassis_host_t));
}

bool is_required(const Manifest& manifest, std::string_view service) {
  return std::find(manifest.required_services.begin(), manifest.required_services.end(), service) !=
         manifest.required_services.end();
}

// Creates every member without one service. It may refuse with a message, but not crash. Returns the first refusal.
std::string run_without_service(Bench& bench, const std::shared_ptr<const PluginLibrary>& library,
                                const std::string& service) {
  WithoutService without(bench.services, service);
  std::string refusal;
  for (const MemberName& member : library->manifest().members) {
    if (!bench.make(library, member)) continue;
    try {
      Instance instance(library, bench.context(*library, member), without);
      run_life_cycle(instance);
    } catch (const Error& error) {
      if (error.message().find("exception") != std::string::npos) throw;
      if (refusal.empty()) refusal = member.text() + ": " + error.what();
    }
  }
  return refusal;
}

Error undeclared(const std::string& service, const std::string& refusal) {
  return plugin_error(
      fmt::format("it does not work without {}, which its manifest does not require; add the line "
                  "requires={} to the manifest, or do without the service: {}",
                  service, service, refusal));
}

void negotiation_optional_services(Bench& bench) {
  const auto library = bench.load();
  for (const std::string_view service : kServices) {
    if (is_required(library->manifest(), service)) continue;
    const std::string refusal = run_without_service(bench, library, std::string(service));
    if (!refusal.empty()) throw undeclared(std::string(service), refusal);
  }
}

void negotiation_required_services(Bench& bench) {
  const PluginFile file = bench.file();
  if (file.manifest.required_services.empty()) throw Skip{"requires no service"};
  // Members are not created without the service: a plugin may rely on its manifest.
  for (const std::string& service : file.manifest.required_services) {
    const WithoutService without(bench.services, service);
    try {
      check_services(file, without);
      throw plugin_error(fmt::format("was not refused by a host without {}", service));
    } catch (const Error& refusal) {
      if (refusal.message().find(service) == std::string::npos) throw;
    }
  }
}

// life

void life_cycle(Bench& bench) {
  bench.each(bench.load(), [](const MemberName&, std::unique_ptr<Instance> instance) {
    run_life_cycle(*instance);
    expect_no_tensors(*instance);
  });
}

void life_early_end(Bench& bench) {
  const auto library = bench.load();
  for (int num_steps = 0; num_steps < 4; ++num_steps) {
    bench.each(library, [&](const MemberName&, std::unique_ptr<Instance> instance) {
      if (num_steps > 0) instance->prepare();
      if (num_steps > 1) instance->activate();
      if (num_steps > 2) instance->quiesce();
    });
  }
}

void life_illegal_order(Bench& bench) {
  bench.each(bench.load(), [](const MemberName&, std::unique_ptr<Instance> instance) {
    using Action = std::pair<std::string_view, std::function<void()>>;
    const std::vector<Action> actions = {{"prepare", [&] { instance->prepare(); }},
                                         {"activate", [&] { instance->activate(); }},
                                         {"quiesce", [&] { instance->quiesce(); }},
                                         {"deactivate", [&] { instance->deactivate(); }}};
    for (size_t next = 0; next <= actions.size(); ++next) {
      for (size_t i = 0; i < actions.size(); ++i) {
        if (i == next) continue;
        const InstanceState before = instance->state();
        bool refused = false;
        try {
          actions[i].second();
        } catch (const Error& error) {
          refused = error.code() == ExitCode::kInternal && instance->state() == before;
        }
        if (!refused)
          throw plugin_error(
              fmt::format("{} was accepted when the instance was {}", actions[i].first, instance_state_text(before)));
      }
      if (next < actions.size()) actions[next].second();
    }
  });
}

// Describes what kNumRepeats calls left behind; empty if no more than is allowed.
std::string growth_of_thousand(const std::function<void()>& once) {
  const int64_t bytes = resident_bytes(), heap = heap_bytes();
  const size_t threads = num_entries("/proc/self/task"), files = num_entries("/proc/self/fd");
  for (int i = 0; i < kNumRepeats; ++i) once();
  if (const int64_t growth = heap_bytes() - heap; growth > kMaxHeapGrowthBytes)
    return fmt::format("{} life cycles left {} bytes of malloc in use, about {} each; at most {} are allowed",
                       kNumRepeats, growth, growth / kNumRepeats, kMaxHeapGrowthBytes);
  if (const int64_t growth = resident_bytes() - bytes; growth > kMaxGrowthBytes)
    return fmt::format("{} life cycles took {} bytes of memory, at most {} are allowed", kNumRepeats, growth,
                       kMaxGrowthBytes);
  const size_t threads_after = num_entries("/proc/self/task"), files_after = num_entries("/proc/self/fd");
  if (threads_after > threads || files_after > files)
    return fmt::format("{} life cycles left {} threads and {} files", kNumRepeats, threads_after - threads,
                       files_after - files);
  return "";
}

void life_thousand(Bench& bench) {
  const auto library = bench.load();
  bench.each(library, [&](const MemberName& member, std::unique_ptr<Instance> first) {
    first.reset();
    const auto once = [&] {
      const auto instance = bench.make(library, member);
      run_life_cycle(*instance);
      expect_no_tensors(*instance);
    };
    for (int i = 0; i < kNumRepeats / 10; ++i) once();
    // A leak grows every time; a library's table that doubles, or a pool that fills, grows only once.
    std::string growth;
    for (int round = 0; round < kNumGrowthRounds; ++round) {
      growth = growth_of_thousand(once);
      if (growth.empty()) return;
    }
    throw plugin_error(member.text() + ": " + growth);
  });
}

void life_two_instances(Bench& bench) {
  const auto library = bench.load();
  bench.each(library, [&](const MemberName& member, std::unique_ptr<Instance> first) {
    for (const bool in_order : {true, false}) {
      auto a = first ? std::move(first) : bench.make(library, member);
      auto b = bench.make(library, member);
      a->prepare();
      b->prepare();
      a->activate();
      b->activate();
      auto& early = in_order ? a : b;
      auto& late = in_order ? b : a;
      early->quiesce();
      early->deactivate();
      early.reset();
      late->quiesce();
      late->deactivate();
    }
  });
}

// options

void options_defaults(Bench& bench) {
  const auto library = bench.load();
  for (const MemberName& member : library->manifest().members) {
    for (const OptionSpec& spec : bench.specs(*library, member)) {
      if (spec.required) continue;
      check_option(spec, parse_json(spec.default_json, spec.name, ExitCode::kPlugin), library->manifest().label());
    }
  }
  bench.each(library, [](const MemberName&, std::unique_ptr<Instance>) {});
}

void expect_refused(const OptionSpec& spec, const Json& value, const std::string& label) {
  try {
    check_option(spec, value, label);
  } catch (const Error&) {
    return;
  }
  throw plugin_error(fmt::format("{}: option '{}' accepts the invalid value {}", label, spec.name, value.dump()));
}

void options_refusals(Bench& bench) {
  const auto library = bench.load();
  for (const MemberName& member : library->manifest().members) {
    const std::string label = library->manifest().label() + " " + member.text();
    for (const OptionSpec& spec : bench.specs(*library, member)) {
      const bool is_list = spec.type == OptionType::kStringList || spec.type == OptionType::kIntList ||
                           spec.type == OptionType::kFloatList;
      const auto wrap = [&](Json value) { return is_list ? Json::array({std::move(value)}) : value; };
      expect_refused(spec, spec.type == OptionType::kBool ? Json("yes") : Json(true), label);
      if (is_list) expect_refused(spec, Json::array({true}), label);
      if (spec.type == OptionType::kInt) expect_refused(spec, 0.5, label);
      const bool whole = spec.type == OptionType::kInt || spec.type == OptionType::kIntList;
      const auto number = [&](double value) { return whole ? Json(static_cast<int64_t>(value)) : Json(value); };
      if (spec.min && std::abs(*spec.min) < 1e15) expect_refused(spec, wrap(number(*spec.min - 1)), label);
      if (spec.max && std::abs(*spec.max) < 1e15) expect_refused(spec, wrap(number(*spec.max + 1)), label);
      if (!spec.choices.empty()) expect_refused(spec, wrap("no such choice"), label);
    }
  }
}

// numerics

void numerics(Bench& bench) {
  if (!bench.hooks.numerics) throw Skip{"this program has no reference to compare with"};
  size_t num_compared = 0;
  std::string reasons;
  const auto library = bench.load();
  bench.each(library, [&](const MemberName& member, std::unique_ptr<Instance> instance) {
    const std::vector<OptionSpec> specs = bench.specs(*library, member);
    const auto another = [&](const Json& options) {
      auto other = bench.make(library, member, options);
      if (other) other->prepare(), other->activate();
      return other;
    };
    instance->prepare();
    instance->activate();
    const auto note = [&](const std::string& text) {
      reasons += (reasons.empty() ? "" : "\n") + member.text() + ": " + text;
    };
    if (const std::string reason = bench.hooks.numerics({*instance, specs, another, note}); !reason.empty())
      note(reason);
    else
      ++num_compared;
    instance->quiesce();
    instance->deactivate();
    expect_no_tensors(*instance);
  });
  if (num_compared == 0) throw Untested{{reasons}};
  bench.note = reasons;
}

// Runs numerics(), then repeats it without each service that the members asked for and the manifest does not require.
void numerics_with_fewer_services(Bench& bench) {
  WatchedServices watched(bench.services);
  Bench first{bench.path, watched, bench.hooks};
  numerics(first);
  bench.note = first.note;
  const Manifest manifest = bench.file().manifest;
  for (const std::string& service : watched.asked()) {
    if (is_required(manifest, service) || !bench.services.offers(service)) continue;
    WithoutService without(bench.services, service);
    Bench fewer{bench.path, without, bench.hooks};
    try {
      numerics(fewer);
    } catch (const Skip&) {  // without the service it computes nothing
    } catch (const Error& error) {
      throw undeclared(service, error.what());
    }
  }
}

constexpr Test kInstanceTests[] = {
    {"life/cycle", "load/options", life_cycle},
    {"life/early-end", "life/cycle", life_early_end},
    {"life/illegal-order", "life/cycle", life_illegal_order},
    {"life/thousand", "life/cycle", life_thousand},
    {"life/two-instances", "life/cycle", life_two_instances},
    {"negotiation/poison", "life/cycle", negotiation_poison},
    {"negotiation/newer-host", "life/cycle", negotiation_newer_host},
    {"negotiation/older-host", "life/cycle", negotiation_older_host},
    {"negotiation/optional-services", "life/cycle", negotiation_optional_services},
    {"negotiation/required-services", "life/cycle", negotiation_required_services},
    {"options/defaults", "load/options", options_defaults},
    {"options/refusals", "load/options", options_refusals},
    {"numerics/reference", "life/cycle", numerics_with_fewer_services},
    {"numerics/guard-after", "numerics/reference", numerics, Guard::kAfter},
    {"numerics/guard-before", "numerics/reference", numerics, Guard::kBefore},
};

}  // namespace

std::span<const Test> instance_tests() { return kInstanceTests; }

}  // namespace chassis::check
