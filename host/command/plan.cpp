// `chassis plan`: the needs of every rank of a run, computed by one process without a device.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdio>

#include "host/base/creation_limit.hpp"
#include "host/base/device_types.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/base/output.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/command/page_file.hpp"
#include "host/config/config_files.hpp"
#include "host/plan/plan_report.hpp"
#include "host/plan/swap_plan.hpp"

namespace chassis {
namespace {

struct PlanArguments {
  int world_size = 0;
  std::string mesh, device, memory, html, swap_to;
  bool json = false;
};

std::string example_of_mesh() { return std::string(kReplicaAxis) + "=2," + std::string(kShardAxis) + "=8"; }

// "axis=size,axis=size" as overrides of [mesh].
std::vector<std::string> mesh_overrides(const std::string& text) {
  std::vector<std::string> overrides;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    if (part.find('=') == std::string::npos || part.find('=') == 0)
      throw config_error("--mesh " + text + ": '" + part + "' does not have the form axis=size")
          .hint("for example --mesh " + example_of_mesh());
    overrides.push_back(mesh_key(part));
    begin = end + 1;
  }
  return overrides;
}

// "80GiB", "80 GB".
uint64_t bytes_from(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  const std::pair<const char*, double> units[] = {{"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
                                                  {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB", 1e3},
                                                  {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  for (const auto& [name, factor] : units)
    if (error == std::errc() && unit == name && number > 0 && number * factor < 0x1p63)
      return static_cast<uint64_t>(number * factor);
  const bool unitless = error == std::errc() && unit.empty();
  throw config_error("--memory " + text + (unitless ? " has no unit" : " is not a size"))
      .hint("for example --memory 80GiB; units are B, KiB, MiB, GiB, TiB, kB, MB, GB and TB");
}

}  // namespace

Verb add_plan(CLI::App& app) {
  auto arguments = std::make_shared<ConfigArguments>();
  auto plan_arguments = std::make_shared<PlanArguments>();
  arguments->add_to(app);
  app.add_option("--world", plan_arguments->world_size,
                 "number of ranks; default: the product of the sizes in [mesh], which must be given if [[parallel]] is")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--mesh", plan_arguments->mesh, "sizes of axes, such as " + example_of_mesh());
  app.add_option("--device", plan_arguments->device,
                 fmt::format("{}, which this machine need not have; default: run.device, where auto is cpu",
                             fmt::join(device_names(), " or ")))
      ->check(CLI::IsMember(device_names()));
  const CLI::Option* const memory =
      app.add_option("--memory", plan_arguments->memory,
                     "of each device, such as 80GiB; if it is not enough, prints what to change and exits with code 4");
  app.add_option("--swap-to", plan_arguments->swap_to,
                 "instead, plan the change of a run that trains to this configuration: bytes, rounds, memory, time")
      ->type_name("FILE");
  add_json(app, plan_arguments->json);
  app.add_option("--html", plan_arguments->html, "also write the plan to this file, as an HTML page")
      ->type_name("FILE");
  return [=] {
    PlanRequest request;
    request.config = [=](const std::vector<std::string>& more) {
      std::vector<std::string> overrides = arguments->overrides;
      overrides.insert(overrides.end(), more.begin(), more.end());
      return load_config(arguments->source(), overrides);
    };
    request.overrides = mesh_overrides(plan_arguments->mesh);
    if (!plan_arguments->device.empty()) request.overrides.push_back("run.device=\"" + plan_arguments->device + "\"");
    request.plugin_path = arguments->plugin_path;
    request.world_size = plan_arguments->world_size;
    if (memory->count() > 0) request.memory_bytes = bytes_from(plan_arguments->memory);

    if (!plan_arguments->swap_to.empty()) {
      const SwapPlan plan =
          plan_swap(request.config(request.overrides), load_config(plan_arguments->swap_to, arguments->overrides),
                    request.plugin_path, request.world_size);
      if (plan_arguments->json)
        print_document("swap-plan", swap_plan_json(plan));
      else
        std::fputs(swap_plan_text(plan).c_str(), output());
      return 0;
    }
    refuse_other_page(plan_arguments->html, kPlanHtmlHead, "plan");  // before planning
    const Plan plan = make_plan(request);
    std::optional<AdviceList> advice;
    if (!plan.fits() || plan.is_tight()) advice = advise(request, plan);
    const AdviceList* const shown = advice ? &*advice : nullptr;
    const std::string text = plan_arguments->json ? plan_json(plan, shown).dump(2) + "\n" : plan_text(plan, shown);
    std::fwrite(text.data(), 1, text.size(), output());
    if (!plan_arguments->html.empty()) {
      const CreationLimit limit(shared_read_mode(config_files(arguments->source().name)));
      write_file_atomic(plan_arguments->html, plan_html(plan, shown));
    }
    return static_cast<int>(plan.fits() ? ExitCode::kOk : ExitCode::kOutOfMemory);
  };
}

}  // namespace chassis
