// `chassis plugins`: what is installed, what it says of itself, and whether it keeps the contract.
#include <cstdio>

#include "host/checkpoint/format_conformance.hpp"
#include "host/command/command.hpp"
#include "host/plugin/check.hpp"
#include "host/plugin/inspect.hpp"
#include "host/plugin/registry.hpp"
#include "host/program/conformance.hpp"
#include "host/service/host_services.hpp"
#include "host/service/memory.hpp"
#include "host/train/optimizer_conformance.hpp"

namespace chassis {
namespace {

struct Arguments {
  std::vector<std::string> plugin_path;
  std::string name;
  std::string test;
  std::vector<std::string> only;
};

PluginIndex index_of(const Arguments& arguments) {
  return PluginIndex(plugin_folders(arguments.plugin_path, {}, {}));
}

int info(const Arguments& arguments) {
  const PluginIndex index = index_of(arguments);
  const PluginFile* file = index.library(arguments.name);
  for (const PluginFile& candidate : index.files())
    for (const MemberName& member : candidate.manifest.members)
      if (!file && (member.id == arguments.name || member.text() == arguments.name || candidate.path == arguments.name))
        file = &candidate;
  if (!file) throw plugin_error("no plugin '" + arguments.name + "' is installed").hint("see `chassis plugins list`");
  std::printf("%s", plugin_info_text(*file).c_str());
  MetricsStore metrics;
  HostServices services(0, metrics);
  PluginRegistry registry(index, {}, services);
  for (const MemberName& member : file->manifest.members)
    std::printf("%s", member_options_text(member, "", registry.option_specs(member.kind, member.id)).c_str());
  return 0;
}

int check(const Arguments& arguments) {
  CheckRequest request;
  request.path = arguments.name;
  request.self = program_file();
  request.only = arguments.only;
  return check_plugin(std::move(request));
}

void expect_none(const std::vector<std::string>& failures, const std::string& what) {
  if (failures.empty()) return;
  std::string text = std::to_string(failures.size()) + " " + what + ":";
  for (const std::string& failure : failures) text += "\n  " + failure;
  throw plugin_error(text);
}

// Compares an ops provider with the members whose libraries say that they are oracles.
bool compare_ops(PluginRegistry& registry, Instance& instance) {
  std::vector<std::unique_ptr<Instance>> instances;
  std::vector<OpsProvider> oracles;
  for (const PluginFile& file : registry.index().files()) {
    if (!file.manifest.oracle) continue;
    for (const MemberName& member : file.manifest.members) {
      if (member.kind != "ops") continue;
      instances.push_back(registry.open(member.kind, member.id));
      oracles.push_back({member.id, instances.back()->get(), &instances.back()->interface<chassis_ops_t>(CHASSIS_OPS_ID)});
    }
  }
  if (oracles.empty()) return false;
  const OpsProvider provider{instance.id(), instance.get(), &instance.interface<chassis_ops_t>(CHASSIS_OPS_ID)};
  const ConformanceResult result = compare_with_oracles(provider, oracles);
  expect_none(result.failures, "results differ from the reference");
  return result.num_compared > 0;
}

// What a member computes or gives back. False: its kind has nothing to compare with.
bool check_numerics(PluginRegistry& registry, Instance& instance) {
  const std::string& kind = instance.context().kind;
  if (kind == "ops") return compare_ops(registry, instance);
  if (kind == "optimizer") {
    const auto& table = instance.interface<chassis_optimizer_t>(CHASSIS_OPTIMIZER_ID);
    expect_none(optimizer_failures(table, instance.get(), instance.who()), "promises of an optimizer are broken");
    return true;
  }
  if (kind == "format") {
    expect_none(format_failures(FormatPlugin(instance)), "promises of a format are broken");
    return true;
  }
  return false;
}

int check_in_process(const Arguments& arguments) {
  install_memory_allocator();
  MetricsStore metrics;
  HostServices services(0, metrics);
  PluginRegistry registry(index_of(arguments), {}, services);
  CheckHooks hooks;
  hooks.numerics = [&](Instance& instance) { return check_numerics(registry, instance); };
  return run_check_in_process(arguments.name, arguments.test, services, hooks);
}

}  // namespace

Verb add_plugins(CLI::App& app) {
  app.require_subcommand(1);
  auto arguments = std::make_shared<Arguments>();
  add_plugin_path(app, arguments->plugin_path);
  CLI::App* list = app.add_subcommand("list", "every member that is installed");
  CLI::App* describe = app.add_subcommand("info", "a plugin's manifest and options");
  describe->add_option("name", arguments->name, "of the plugin, of a member, or a file")->required();
  CLI::App* conform = app.add_subcommand("check", "test a plugin against the contract, each test in its own process");
  conform->add_option("file", arguments->name, "FILE.so")->required();
  conform->add_option("--only", arguments->only, "tests or groups of tests");
  CLI::App* hidden = app.add_subcommand("check-in-process", "")->group("");
  hidden->add_option("file", arguments->name)->required();
  hidden->add_option("test", arguments->test)->required();
  return [=]() -> int {
    if (list->parsed()) {
      std::printf("%s", plugin_list_text(index_of(*arguments)).c_str());
      return 0;
    }
    if (describe->parsed()) return info(*arguments);
    if (conform->parsed()) return check(*arguments);
    return check_in_process(*arguments);
  };
}

}  // namespace chassis
