// `chassis report`: what runs have done, from the files in their directories.
#include <cstdio>
#include <deque>
#include <memory>

#include "host/base/creation_limit.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/command/page_file.hpp"
#include "host/command/terminal.hpp"
#include "host/report/page.hpp"
#include "host/report/run_light.hpp"
#include "host/report/run_summary.hpp"
#include "host/service/device.hpp"
#include "host/service/machine_limits.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::string html;
  bool json = false, light = false;
};

Light measured_light(const RunReader& run) {
  return light_of(run, device_name(Device{}), [](Dtype dtype, int threads) {
    set_threads(threads);
    return measure_limits(dtype);
  });
}

std::string json_text(const std::vector<const RunReader*>& runs, bool with_light) {
  Json json = summary_json(runs);
  for (size_t i = 0; with_light && i < runs.size(); ++i)
    json["runs"][i]["light"] = light_json(measured_light(*runs[i]));
  return json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Verb add_report(CLI::App& app) {
  auto arguments = std::make_shared<ReportArguments>();
  app.add_option("runs", arguments->runs, "the run.output_dir of each run")->required()->type_name("FOLDER");
  app.add_option("--html", arguments->html, "write a page with charts to this file")
      ->type_name("FILE")
      ->check([](const std::string& path) {
        return path.empty() ? std::string("give the name of a file") : std::string();
      });
  app.add_flag("--light", arguments->light,
               "measure the fastest product and copy of this processor, and print how near to them the steps are");
  add_json(app, arguments->json);
  return [=] {
    refuse_other_page(arguments->html, kReportHtmlHead, "report");  // before reading runs
    std::deque<RunReader> readers;
    std::vector<const RunReader*> runs;
    for (const std::string& path : arguments->runs) runs.push_back(&readers.emplace_back(path));
    std::string text;
    if (arguments->json) {
      text = json_text(runs, arguments->light);
    } else {
      for (const RunReader* run : runs) {
        text += (text.empty() ? "" : "\n") + summary_text(*run, terminal_style());
        if (arguments->light) text += light_text(measured_light(*run));
      }
      const std::vector<ConfigDifference> differences = config_differences(runs);
      if (!differences.empty()) {
        text += "\ndifferences of the configurations\n  (";
        for (size_t i = 0; i < runs.size(); ++i) text += (i ? " | " : "") + printable(runs[i]->name());
        text += ")\n";
      }
      for (const ConfigDifference& difference : differences) {
        text += "  " + difference.key + ":";
        for (size_t i = 0; i < runs.size(); ++i)
          text += (i ? " | " : " ") + (difference.values[i].empty() ? "-" : difference.values[i]);
        text += "\n";
      }
    }
    std::fwrite(text.data(), 1, text.size(), output());
    if (!arguments->html.empty()) {
      std::vector<std::string> sources;
      for (const RunReader* run : runs)
        for (const char* const name : {"metrics.jsonl", "samples.jsonl", "events.jsonl", "resolved.toml", "log.txt"})
          sources.push_back(run->path() + "/" + name);
      const CreationLimit limit(shared_read_mode(sources));
      write_file_atomic(arguments->html, page_html(runs));
      log::info("the page is in {}", arguments->html);
    }
    return 0;
  };
}

}  // namespace chassis
