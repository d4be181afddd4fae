// `chassis plugins`: lists and describes plugins, and tests them against the contract.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <span>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/compile/compile.hpp"
#include "host/compile/provider_checks.hpp"
#include "host/config/read.hpp"
#include "host/conformance/adapter_checks.hpp"
#include "host/conformance/check.hpp"
#include "host/conformance/comm_checks.hpp"
#include "host/conformance/format_checks.hpp"
#include "host/conformance/model_checks.hpp"
#include "host/conformance/objective_checks.hpp"
#include "host/conformance/ops_checks.hpp"
#include "host/conformance/optimizer_checks.hpp"
#include "host/conformance/parallel_checks.hpp"
#include "host/conformance/quant_checks.hpp"
#include "host/conformance/quant_product.hpp"
#include "host/conformance/rows_checks.hpp"
#include "host/conformance/sink_checks.hpp"
#include "host/conformance/tokenizer_member.hpp"
#include "host/plugin/plugin_list.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/guarded_memory.hpp"
#include "host/service/host_services.hpp"
#include "host/service/memory.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

struct PluginsArguments {
  std::vector<std::string> plugin_path;
  std::string name;
  std::string test;
  std::vector<std::string> only;
  std::string model_config;
  std::string model;
  std::vector<std::string> data;
  std::vector<std::string> options;  // "name=value"
  double timeout_s = 300;
  bool as_json = false;
  bool with_options = false;
};

std::string absolute(const std::string& path) { return std::filesystem::absolute(path).string(); }

PluginIndex index_of(const PluginsArguments& arguments) {
  return PluginIndex(plugin_folders(arguments.plugin_path, {}, {}));
}

// A file by its path, installed or not; else the installed plugin of that name.
PluginIndex index_for_info(const PluginsArguments& arguments) {
  const bool is_path = arguments.name.find('/') != std::string::npos || arguments.name.ends_with(".so");
  const PathKind kind = is_path ? path_kind(arguments.name) : PathKind::kAbsent;
  if (kind != PathKind::kAbsent && kind != PathKind::kDirectory) return PluginIndex::of_file(arguments.name);
  return index_of(arguments);
}

int info(const PluginsArguments& arguments) {
  const PluginIndex index = index_for_info(arguments);
  const PluginFile* const file = &index.at_name(arguments.name);
  Json json = arguments.as_json ? plugin_info_json(*file) : Json();
  if (!arguments.as_json) std::fprintf(output(), "%s", plugin_info_text(*file).c_str());
  if (arguments.with_options) {
    MetricsStore metrics;
    HostServices services(0, metrics);
    PluginRegistry registry(index, {}, services);
    Json all = Json::array();
    for (const MemberName& member : file->manifest.members) {
      if (!unusable_reason(*file, member).empty()) continue;  // shown above
      const auto& options = registry.option_specs(member.kind, member.id);
      const std::string doc = registry.doc(member.kind, member.id);
      if (arguments.as_json)
        all.push_back(member_options_json(member, doc, options));
      else
        std::fprintf(output(), "%s", member_options_text(member, doc, options).c_str());
    }
    if (arguments.as_json) json["options"] = std::move(all);
  }
  if (arguments.as_json) print_document("plugins_info", json);
  return 0;
}

// A file by its path; else the file of the installed plugin of that name.
std::string file_to_check(const PluginsArguments& arguments) {
  const std::string& name = arguments.name;
  if (path_kind(name) != PathKind::kAbsent || name.ends_with(".so")) return name;
  return index_of(arguments).at_name(name).path;
}

// The reason to refuse a library as a whole; empty if there is none.
std::string refusal_of(const PluginFile& file, const ServiceProvider& services) {
  try {
    const LoadPolicy policy;
    check_plugin_file(file, policy, services);
    check_trusted(file, policy);
    return "";
  } catch (const Error& refusal) {
    return refusal.message();
  }
}

int list(const PluginsArguments& arguments) {
  MetricsStore metrics;
  const HostServices services(0, metrics);
  const auto refusal = [&](const PluginFile& file) { return refusal_of(file, services); };
  const PluginIndex index = index_of(arguments);
  const std::vector<ListedMember> members = listed_members(index, refusal);
  if (arguments.as_json)
    print_document("plugins_list", plugin_list_json(index, members));
  else
    std::fprintf(output(), "%s", plugin_list_text(index, members).c_str());
  return 0;
}

void expect_none(const std::vector<std::string>& failures, const std::string& what) {
  if (failures.empty()) return;
  std::string text = std::to_string(failures.size()) + " " + what + ":";
  for (const std::string& failure : failures) text += "\n  " + failure;
  throw plugin_error(text);
}

// Providers of the libraries whose manifest says that they are the reference.
class Oracles {
 public:
  explicit Oracles(PluginRegistry& registry) {
    for (const PluginFile& file : registry.index().files()) {
      if (!file.manifest.oracle) continue;
      for (const MemberName& member : file.manifest.members) {
        if (member.kind != "ops") continue;
        instances_.push_back(registry.open(member.kind, member.id));
        providers_.push_back(ops_provider(*instances_.back()));
      }
    }
  }
  const std::vector<OpsProvider>& providers() const { return providers_; }

 private:
  std::vector<std::unique_ptr<Instance>> instances_;
  std::vector<OpsProvider> providers_;
};

// Providers of ops that chassis/op.h does not know, in the order of the search path.
class OwnKernels {
 public:
  explicit OwnKernels(PluginRegistry& registry) : registry_(registry) {}

  std::vector<OpsProvider> open() {
    std::vector<OpsProvider> out;
    for (const PluginFile& file : registry_.index().files())
      for (const MemberName& member : file.manifest.members)
        if (member.kind == "ops" && !file.manifest.oracle) add(member, out);
    return out;
  }

 private:
  void add(const MemberName& member, std::vector<OpsProvider>& out) {
    try {
      std::unique_ptr<Instance> instance = registry_.open(member.kind, member.id);
      const OpsProvider provider = ops_provider(*instance);
      const std::span patterns(provider.table->patterns, provider.table->num_patterns);
      const auto is_own = [](chassis_str_t p) { return view_of(p).find('/') != std::string_view::npos; };
      if (!std::ranges::any_of(patterns, is_own)) return;
      instances_.push_back(std::move(instance));
      out.push_back(provider);
    } catch (const Error&) {  // one that this machine cannot open computes nothing here
    }
  }
  PluginRegistry& registry_;
  std::vector<std::unique_ptr<Instance>> instances_;
};

constexpr const char* kNoOracle = "no reference plugin to compare with is installed";

std::string check_ops(PluginRegistry& registry, const CheckedMember& member) {
  Instance& instance = member.instance;
  const Oracles oracles(registry);
  if (oracles.providers().empty()) return kNoOracle;
  const OpsProvider provider = ops_provider(instance);
  check_provider(provider);
  const ConformanceResult result = compare_with_oracles(provider, oracles.providers());
  expect_none(result.failures, "promises of an ops provider are broken");
  std::string untested;
  for (const std::string& pattern : result.untested_patterns)
    untested += (untested.empty() ? "no test has '" : ", '") + pattern + "'";
  if (!untested.empty())
    untested += " of its patterns, since the reference does not compute these ops one after another";
  if (result.num_compared == 0)
    return untested.empty() ? "it refuses, on the CPU, every program that has one of its patterns" : untested;
  if (!untested.empty()) member.note(untested);
  return "";
}

// A family that knows other keys than a sample takes the sizes of its published models, which take hours here.
bool is_small(const Program& program) {
  constexpr int64_t kMostParameters = 1 << 19;
  int64_t count = 0;
  for (const Chain& chain : program.chains)
    for (const uint32_t block : chain.blocks)
      for (const ParameterSlot& slot : program.blocks[block].slots) count += numel(Shape(program.global_shape(slot)));
  return count <= kMostParameters;
}

Program program_of(const ModelPlugin& model) {
  return compile(Recording{[&](const chassis_builder_t* builder) { return model.record(builder); }}, {}).program();
}

// The first config of a small model that the family accepts, else the first that it accepts. If it accepts none, empty,
// and `refusal` says why it refuses the last one.
std::string accepted_config(const std::function<std::unique_ptr<Instance>()>& make,
                            const std::vector<std::string>& configs, std::string& refusal) {
  std::string accepted;
  for (const std::string& config : configs) {
    const std::unique_ptr<Instance> instance = make();
    refusal = configure_refusal(*instance, config);
    if (!refusal.empty()) continue;
    if (accepted.empty()) accepted = config;
    try {
      if (is_small(program_of(ModelPlugin(*instance)))) return config;
    } catch (const Error&) {
      return config;  // its examination reports the error
    }
  }
  return accepted;
}

std::string check_model(PluginRegistry& registry, const CheckedMember& member, const std::string& config_file) {
  const auto make = [&] { return member.another(Json::object()); };
  std::string config, refusal;
  if (config_file.empty()) {
    config = accepted_config(make, sample_model_configs(member.instance.library().manifest().architectures), refusal);
    if (config.empty())
      return "it refuses the config of a small decoder (" + refusal +
             "); give a config.json that it accepts, with small sizes, with --model-config FILE";
  } else {
    config = read_file(config_file);
    refusal = configure_refusal(member.instance, config);
    if (!refusal.empty()) throw plugin_error("the model refuses " + config_file + ": " + refusal);
  }
  const Oracles oracles(registry);
  OwnKernels own(registry);
  expect_none(model_failures(make, config, oracles.providers(), [&] { return own.open(); }),
              "promises of a model are broken");
  return "";
}

std::string check_comm(const CheckedMember& member) {
  const auto subject = [](Instance& instance) {
    return CommSubject{&instance.interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID), instance.get(),
                       instance.label()};
  };
  if (std::string reason = comm_unsupported_reason(subject(member.instance)); !reason.empty()) return reason;
  constexpr int kNumRanks = 4;
  std::vector<std::unique_ptr<Instance>> instances;
  std::vector<CommSubject> ranks;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    instances.push_back(member.another(Json::object()));
    ranks.push_back(subject(*instances.back()));
  }
  expect_none(comm_failures(ranks), "promises of a backend of collectives are broken");
  return "";
}

// Opens the first comm backend that needs no other process; NULL if there is none.
std::unique_ptr<Instance> open_backend_of_plans(PluginRegistry& registry) {
  for (const std::string& id : registry.index().ids("comm")) {
    auto backend = registry.open("comm", id);
    if (backend->interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID).properties & CHASSIS_COMM_MOVES_NOTHING)
      return backend;
  }
  return nullptr;
}

std::string check_parallel(PluginRegistry& registry, MetricsStore& metrics, const CheckedMember& member) {
  if (!open_backend_of_plans(registry)) return "no comm plugin that moves nothing is installed, which plans need";
  const auto failures = parallel_failures([&] { return member.another(Json::object()); },
                                          [&] { return open_backend_of_plans(registry); }, metrics);
  expect_none(failures, "promises of a strategy are broken");
  return "";
}

std::string check_tokenizer(const CheckedMember& member, const std::string& directory) {
  const TokenizerReport report = examine_tokenizer(member, directory);
  expect_none(report.failures, "promises of a tokenizer are broken");
  return report.left_out;
}

std::string check_quant(PluginRegistry& registry, const CheckedMember& member) {
  const Oracles oracles(registry);
  const QuantPlugin plugin(member.instance);
  const std::unique_ptr<Instance> another = member.another(Json::object());
  std::vector<std::string> failures = quant_failures(plugin, QuantPlugin(*another));
  expect_none(failures, "promises of a quantization are broken");
  if (oracles.providers().empty()) return kNoOracle;
  const QuantProducts products = compare_quant_products(plugin, oracles.providers());
  expect_none(products.failures, "products are not those of the decoded weights");
  return products.num_compared > 0 ? "" : "none of its products was compared: " + products.left_out;
}

std::string check_objective(const CheckedMember& member) {
  const ObjectiveReport report = examine_objective(member);
  expect_none(report.failures, "promises of an objective are broken");
  if (!report.left_out.empty()) member.note(report.left_out);
  return "";
}

// Checks the adapter on a small model of every installed family.
std::string check_adapter(PluginRegistry& registry, const CheckedMember& member) {
  const Oracles oracles(registry);
  if (oracles.providers().empty()) return kNoOracle;
  std::vector<std::unique_ptr<Instance>> instances;
  std::deque<ModelPlugin> models;
  std::vector<AdapterBase> bases;
  for (const std::string& id : registry.index().ids("model")) {
    std::string refusal;
    const std::string config =
        accepted_config([&] { return registry.open("model", id); },
                        adapter_base_configs(registry.open("model", id)->library().manifest().architectures), refusal);
    if (config.empty()) continue;
    instances.push_back(registry.open("model", id));
    const ModelPlugin& model = models.emplace_back(*instances.back());
    model.configure(config);
    Program program = program_of(model);
    if (is_small(program)) bases.push_back({id, std::move(program), config, &model});
  }
  if (bases.empty()) return "no model plugin that takes the usual keys is installed";
  Json defaults = Json::object();
  for (const OptionSpec& spec : member.specs)
    if (!spec.default_json.empty()) defaults[spec.name] = Json::parse(spec.default_json);
  const AdapterReport report = examine_adapter([&] { return member.another(Json::object()); }, bases,
                                               oracles.providers(), [&] { return member.another(defaults); });
  expect_none(report.failures, "promises of an adapter are broken");
  if (report.num_bases == 0) return report.left_out;
  if (!report.left_out.empty()) member.note(report.left_out);
  return "";
}

std::string check_rows(const Instance& instance, const std::vector<std::string>& files) {
  expect_none(rows_failures(instance, files), "promises of a reader of rows are broken");
  return files.empty() ? "only its refusals; give a file of its kind with --data FILE" : "";
}

// Tests what a member computes. Returns why nothing could be compared; empty if it was.
std::string check_numerics(PluginRegistry& registry, MetricsStore& metrics, const CheckedMember& member,
                           const PluginsArguments& arguments) {
  Instance& instance = member.instance;
  const std::string& kind = instance.context().kind;
  if (kind == "ops") return check_ops(registry, member);
  if (kind == "model") return check_model(registry, member, arguments.model_config);
  if (kind == "comm") return check_comm(member);
  if (kind == "parallel") return check_parallel(registry, metrics, member);
  if (kind == "tokenizer") return check_tokenizer(member, arguments.model);
  if (kind == "adapter") return check_adapter(registry, member);
  if (kind == "rows") return check_rows(instance, arguments.data);
  if (kind == "quant") return check_quant(registry, member);
  if (kind == "objective") return check_objective(member);
  if (kind == "sink") {
    expect_none(sink_failures([&] { return member.another(Json::object()); }), "promises of a sink are broken");
    return "";
  }
  if (kind == "optimizer") {
    const std::unique_ptr<Instance> another = member.another(Json::object());
    expect_none(optimizer_failures(OptimizerPlugin(instance), OptimizerPlugin(*another)),
                "promises of an optimizer are broken");
    return "";
  }
  if (kind == "format") {
    expect_none(format_failures(FormatPlugin(instance)), "promises of a format are broken");
    return "";
  }
  return "the kind '" + kind + "' has no reference";
}

int check_in_process(const PluginsArguments& arguments) {
  // All output counts as the plugin's, so warnings of other files in its folder may not appear.
  log::set_level(log::Level::kError);
  install_memory_allocator();
  MetricsStore metrics;
  HostServices services(0, metrics);
  PluginRegistry registry(index_of(arguments), {}, services);
  services.set_registry(&registry);
  const std::string plugin = read_plugin_file(arguments.name).manifest.id;
  CheckHooks hooks;
  hooks.given_options = arguments.options;
  hooks.numerics = [&](const CheckedMember& member) { return check_numerics(registry, metrics, member, arguments); };
  hooks.process_facts = [&] {
    uint64_t held = 0;
    for (const PluginMemory& memory : memory_by_plugin())
      if (memory.plugin == plugin) held = memory.live_bytes;
    return std::vector<std::pair<std::string, std::string>>{
        {"the number of threads for computing", std::to_string(num_threads())},
        {"the memory of the host that the plugin holds", std::to_string(held) + " bytes"}};
  };
  hooks.guard_buffers = [](bool behind) {
    guard_memory(behind ? MemoryGuard::kAfter : MemoryGuard::kBefore);
    return [] { return overwritten_guards(); };
  };
  return run_check_in_process(arguments.name, arguments.test, services, hooks);
}

int check(const PluginsArguments& arguments) {
  CheckRequest request;
  read_assignments(arguments.options);  // a malformed one is an error before the first test
  request.path = file_to_check(arguments);
  request.self = program_file();
  // The child process has another working directory.
  PluginsArguments of_child = arguments;
  of_child.name = absolute(request.path);
  for (std::string& folder : of_child.plugin_path) folder = absolute(folder);
  for (std::string* path : {&of_child.model_config, &of_child.model})
    if (!path->empty()) *path = absolute(*path);
  for (std::string& file : of_child.data) file = absolute(file);
  request.in_child = [of_child](const std::string& test) mutable {
    of_child.test = test;
    return check_in_process(of_child);
  };
  request.only = arguments.only;
  request.total_timeout = std::chrono::milliseconds(static_cast<int64_t>(arguments.timeout_s * 1000));
  for (const std::string& folder : of_child.plugin_path)
    request.arguments.insert(request.arguments.end(), {"--plugin-path", folder});
  if (!of_child.model_config.empty())
    request.arguments.insert(request.arguments.end(), {"--model-config", of_child.model_config});
  if (!of_child.model.empty()) request.arguments.insert(request.arguments.end(), {"--model", of_child.model});
  for (const std::string& file : of_child.data) request.arguments.insert(request.arguments.end(), {"--data", file});
  request.arguments.insert(request.arguments.end(), of_child.options.begin(), of_child.options.end());
  try {
    return check_plugin(std::move(request), arguments.as_json);
  } catch (const EndOfChild& child) {
    return child.exit_code;
  }
}

}  // namespace

Verb add_plugins(CLI::App& app) {
  app.require_subcommand(1);
  auto arguments = std::make_shared<PluginsArguments>();
  add_plugin_path(app, arguments->plugin_path);
  CLI::App* show = app.add_subcommand("list", "list all installed members");
  CLI::App* describe = app.add_subcommand("info", "print a plugin's manifest, without running its code");
  describe->add_option("name", arguments->name, "of a plugin or a member, or a file")->required()->type_name("PLUGIN");
  describe->add_flag("--options", arguments->with_options, "also load the plugin, and print its options");
  CLI::App* conform = app.add_subcommand("check", "test a plugin against the contract, each test in its own process");
  conform->add_option("file", arguments->name, "FILE.so, or the name of an installed plugin")
      ->required()
      ->type_name("PLUGIN");
  conform->add_option("options", arguments->options, "values of the members' options instead of their defaults")
      ->type_name("NAME=VALUE");
  conform->add_option("--only", arguments->only, "tests or groups of tests, such as numerics, life/cycle or process")
      ->allow_extra_args(false);
  conform
      ->add_option("--timeout", arguments->timeout_s,
                   "seconds for all tests together, of which each may take 15 %; default 300")
      ->check(CLI::PositiveNumber);
  for (CLI::App* verb : {show, describe, conform}) add_json(*verb, arguments->as_json);
  conform
      ->add_option("--model-config", arguments->model_config,
                   "a config.json with small sizes, for a model that refuses the usual one")
      ->check(CLI::ExistingFile);
  conform->add_option("--model", arguments->model, "a directory with the files of a tokenizer that needs some")
      ->check(CLI::ExistingDirectory);
  conform->add_option("--data", arguments->data, "a file that a member of kind rows reads; several may be given")
      ->check(CLI::ExistingFile)
      ->allow_extra_args(false);
  CLI::App* hidden = app.add_subcommand("check-in-process", "")->group("");
  hidden->add_option("file", arguments->name)->required();
  hidden->add_option("test", arguments->test)->required();
  hidden->add_option("options", arguments->options);
  hidden->add_option("--plugin-path", arguments->plugin_path)->allow_extra_args(false);
  hidden->add_option("--model-config", arguments->model_config);
  hidden->add_option("--model", arguments->model);
  hidden->add_option("--data", arguments->data)->allow_extra_args(false);
  return [=]() -> int {
    if (show->parsed()) return list(*arguments);
    if (describe->parsed()) return info(*arguments);
    if (conform->parsed()) return check(*arguments);
    return check_in_process(*arguments);
  };
}

}  // namespace chassis
