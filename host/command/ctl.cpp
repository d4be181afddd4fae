// `chassis ctl`: asks a running training for its status, or to change while it trains.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/output.hpp"
#include "host/base/pipe.hpp"
#include "host/base/printable.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/control/control_client.hpp"

namespace chassis {
namespace {

constexpr std::chrono::seconds kFileTimeout{10};  // if --file is a pipe

struct CtlArguments {
  std::string run, action, file;
  std::vector<std::string> changes, plugins;
  int64_t generation = -1;
  bool json = false;
};

void print_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), output());
  std::fflush(output());
}

std::string short_text(const Json& value) {
  return printable(value.is_string() ? value.get<std::string>() : json_line(value));
}

// "key value, key value".
std::string facts_text(const Json& facts) {
  std::string text;
  if (!facts.is_object()) return text;
  for (const auto& [key, value] : dotted_values(facts))
    text += (text.empty() ? "" : ", ") + printable(key) + " " + short_text(value);
  return text;
}

std::string in_progress_text(const Json& task) {
  const std::string where = "reply";
  return fmt::format("{} '{}' is in progress: phase '{}', {:.0f} ms after it was accepted\n",
                     printable(json_string(task, "verb", where)), printable(json_string(task, "id", where)),
                     printable(json_string(task, "phase", where)), json_number(task, "ms", where));
}

std::string status_text(const ControlReply& reply) {
  std::string text = fmt::format("generation {}", reply.generation), rest;
  const Json facts = reply.facts.is_object() ? reply.facts : Json::object();
  if (facts.contains("step")) text += ", step " + short_text(facts["step"]);
  text += "\n";
  for (const auto& [key, value] : facts.items()) {
    if (key == "step") continue;
    if (key == "computes" && value.is_object()) {
      size_t width = 0;
      for (const auto& item : value.items()) width = std::max(width, printable(item.key()).size());
      for (const auto& [computed, plugin] : value.items())
        text += fmt::format("  {:<{}}  {}\n", printable(computed), width, short_text(plugin));
    } else if (key == "probation" && value.is_object()) {
      rest += "the last swap is in probation: " + facts_text(value) + "\n";
    } else if (key == "in_progress" && value.is_object()) {
      rest += in_progress_text(value);
    } else {
      rest += printable(key) + ": " + (value.is_object() ? facts_text(value) : short_text(value)) + "\n";
    }
  }
  return text + rest;
}

std::string reply_text(ControlVerb verb, const ControlReply& reply) {
  const bool is_end = reply.kind == ControlReply::Kind::kEnd;
  if (is_end && reply.ok && verb == ControlVerb::kStatus) return status_text(reply);
  std::string text = fmt::format("{:>9.0f} ms  ", reply.ms);
  if (reply.kind == ControlReply::Kind::kAccepted)
    text += fmt::format("accepted as '{}', generation {}", printable(reply.id), reply.generation);
  else
    text += printable(reply.name);
  const std::string facts = facts_text(reply.facts);
  if (!reply.text.empty()) text += ": " + printable_message(reply.text);
  if (!facts.empty()) text += (reply.text.empty() ? "  " : "; ") + facts;
  if (is_end && reply.generation >= 0) text += fmt::format(" (generation {})", reply.generation);
  return text + "\n";
}

ControlRequest request_of(const CtlArguments& arguments) {
  ControlRequest request;
  request.verb = *control_verb_named(arguments.action);
  request.id = new_control_id();
  request.generation = arguments.generation;
  request.set = arguments.changes;
  request.plugins = arguments.plugins;
  if (!arguments.file.empty()) {
    refuse_other_than_toml(arguments.file);
    std::error_code ignored;
    request.file_name = std::filesystem::absolute(arguments.file, ignored).string();
    request.file = read_file_or_pipe(arguments.file, kMaxControlLineBytes, kFileTimeout);
    if (request.file.empty()) throw config_error("'" + printable(arguments.file) + "' is empty");
  }
  control_line(request);  // refuses it before a run is looked for
  return request;
}

}  // namespace

Verb add_ctl(CLI::App& app) {
  auto arguments = std::make_shared<CtlArguments>();
  app.add_option("run", arguments->run, "the run.output_dir of a run that trains on this machine")
      ->required()
      ->type_name("FOLDER");
  app.add_option("action", arguments->action,
                 "status, or check a change; swap to it; cancel what is in progress; end a swap's probation by commit "
                 "or rollback")
      ->required()
      ->check(CLI::IsMember(control_verb_names()));
  app.add_option("changes", arguments->changes, "key.path=value, for check and swap")->type_name("KEY=VALUE");
  app.add_option("--file", arguments->file, "a configuration to change to, for check and swap")->type_name("FILE.toml");
  app.add_option("--plugin", arguments->plugins,
                 "another version of a plugin in use, for check and swap; may be repeated")
      ->type_name("ID@VERSION")
      ->expected(1)
      ->take_all();
  app.add_option("--generation", arguments->generation, "refuse the request if the run has another generation")
      ->check(CLI::NonNegativeNumber);
  add_json(app, arguments->json);
  return [=] {
    const ControlRequest request = request_of(*arguments);
    ControlClient client(arguments->run);
    const ControlReply end = client.ask(request, [&](const ControlReply& reply) {
      print_now(arguments->json ? json_line(json_document("ctl", control_json(reply))) + "\n"
                                : reply_text(request.verb, reply));
    });
    return static_cast<int>(control_exit_code(request.verb, end));
  };
}

}  // namespace chassis
