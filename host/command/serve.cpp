// `chassis serve`: answers requests in OpenAI's format on 127.0.0.1, with the newest weights of a run or those of a
// model directory, and with adapters over them.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/command/command.hpp"
#include "host/command/generation.hpp"
#include "host/command/served_adapters.hpp"
#include "host/command/weights_arguments.hpp"
#include "host/generate/chat.hpp"
#include "host/save/weights.hpp"
#include "host/serve/answer_service.hpp"
#include "host/session/join.hpp"
#include "host/train/run_report.hpp"
#include "host/train/signals.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxKeyBytes = 4096;
constexpr int64_t kUnknownPositions = 32768;  // the limit for a model that does not say what it was made for

struct ServeArguments {
  ConfigArguments config;
  WeightsArguments weights;
  int port = 8000;
  std::string api_key_file;
  std::vector<std::string> adapters;
  bool logs_requests = false;
  int64_t max_positions = 0;  // 0: those of the model

  void add_to(CLI::App& app) {
    config.takes_directories = true;
    config.add_to(app);
    app.get_option("config")->type_name("PATH")->description(
        "a TOML file, the directory of a run, or a model directory");
    weights.add_to(app);
    app.add_option("--lora", adapters,
                   "also serve the adapter in DIR, to requests with \"model\": \"NAME\"; DIR is in PEFT's format, or "
                   "the directory of a run; repeatable")
        ->type_name("NAME=DIR")
        ->expected(1)
        ->take_all();
    app.add_option("--port", port, "the port of 127.0.0.1; 0: any free one")
        ->check(CLI::Range(0, 65535))
        ->capture_default_str();
    app.add_option("--api-key-file", api_key_file,
                   "a file with a key that requests must send, as 'Authorization: Bearer KEY'")
        ->type_name("FILE");
    app.add_flag("--log-requests", logs_requests,
                 "log a line for each request: method, path, status, seconds, model and tokens");
    app.add_option("--max-positions", max_positions,
                   "the most tokens of a prompt with its answer; default: as many as the model was made for")
        ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
    config.add_ranks_to(app);
  }

  // A directory stands for its own weights, wherever the configuration would look for them.
  void choose_weights() {
    const bool is_model = path_kind(config.file + "/config.json") != PathKind::kAbsent;
    if (weights.from.empty() && (is_model || is_run_directory(config.file))) weights.from = config.file;
    weights.choose_adapter(config, ConfigUse::kGeneration);
  }
};

std::string read_key(const std::string& path) {
  if (path.empty()) return "";
  std::string key = read_file(path, kMaxKeyBytes);
  key.erase(key.find_last_not_of(" \t\r\n") + 1);
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  if (key.empty() || !std::ranges::all_of(key, is_visible))
    throw config_error("--api-key-file '" + printable(path) + "' has no key of visible ASCII characters on one line");
  return key;
}

int64_t max_positions(const Session& session, int64_t wanted) {
  const int64_t table = num_table_positions(session.program());
  if (table > 0 && wanted > table)
    throw config_error(fmt::format("--max-positions {}, but the model has a table of {} positions", wanted, table));
  if (wanted > 0) return wanted;
  if (table > 0) return table;
  const int64_t trained = session.model().plugin().max_positions();
  return trained > 0 ? trained : kUnknownPositions;
}

ServiceOptions service_options(const Session& session, const Answerer& answerer, const ServeArguments& arguments) {
  ServiceOptions options;
  options.models = {.names = {*session.settings().run.name},
                    .options = answerer.options(),
                    .max_positions = max_positions(session, arguments.max_positions)};
  options.num_running = static_cast<size_t>(*session.settings().generate.batch_size);
  options.num_waiting = std::max(options.models.max_answers, 4 * options.num_running);
  options.api_key = read_key(arguments.api_key_file);
  options.logs_requests = arguments.logs_requests;
  return options;
}

// Nothing if conversations cannot be rendered; `why` then says why.
std::optional<ChatRenderer> find_renderer(const Session& session, std::string& why) {
  try {
    return chat_renderer(session);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kConfig) throw;
    why = error.message();
    return std::nullopt;
  }
}

std::vector<ServedAdapter> open_adapters(Session& session, const ServeArguments& arguments) {
  const Settings& settings = session.settings();
  if (!arguments.adapters.empty() && session.adapter() != nullptr)
    throw config_error(settings.adapter.plugin, "--lora serves adapters over a base without one, and this base has one")
        .hint("give the base with --no-adapter, and its adapter as --lora NAME=" + shell_word(settings.run.output_dir));
  std::vector<ServedAdapter> adapters;
  for (AdapterArgument& adapter : read_adapter_arguments(arguments.adapters, settings.run.name))
    adapters.emplace_back(std::move(adapter), arguments.config, session, session.world());
  return adapters;
}

int serve(Session& session, std::vector<ServedAdapter>& adapters, const ServeArguments& arguments) {
  // A deque, since answerers do not move.
  std::deque<Answerer> answerers;
  answerers.emplace_back(session, settings_of_generation(session, {}));
  const GenerationSettings generation = answerers.front().settings();
  for (ServedAdapter& adapter : adapters) answerers.emplace_back(adapter.session(), generation);
  ServiceOptions options = service_options(session, answerers.front(), arguments);
  std::vector<Answerer*> all;
  for (Answerer& answerer : answerers) all.push_back(&answerer);
  for (const ServedAdapter& adapter : adapters) options.models.names.push_back(adapter.name());
  std::optional<ChatRenderer> renderer = find_renderer(session, options.chat_refusal);
  if (!renderer) log::warn("only texts are continued, chats are refused: {}", options.chat_refusal);
  AnswerService service(std::move(all), std::move(renderer), options);
  // A port in use is refused before the weights are loaded, which may take minutes.
  HttpServer server(static_cast<uint16_t>(arguments.port), service.handler());
  const std::string run = run_of(arguments.weights.from);
  require_adapter_of_run(session, run);
  session.allocate();
  const LoadedWeights base = load_weights(session, arguments.weights.from);
  warn_of_other_template(session, run);
  for (ServedAdapter& adapter : adapters) {
    adapter.load(base);
    warn_of_other_template(adapter.session(), run_of(adapter.directory()));
  }
  const RunSignals signals(/*answering=*/false);
  server.start();
  std::string names;
  for (const std::string& name : options.models.names) names += (names.empty() ? "" : ", ") + printable(name);
  log::info("serving {} at http://127.0.0.1:{}/v1{}; Ctrl-C ends", names, server.port(),
            options.api_key.empty() ? "" : ", with a key");
  service.run([&] { return signals.stop_requested(); });
  log::info("{}: ended", signals.name());
  return 0;
}

}  // namespace

Verb add_serve(CLI::App& app) {
  auto arguments = std::make_shared<ServeArguments>();
  arguments->add_to(app);
  const auto start_ranks = [=] {
    if (arguments->config.num_ranks > 1)
      throw config_error("serve runs in one process, and --nproc asks for " +
                         std::to_string(arguments->config.num_ranks));
    arguments->config.num_ranks = 1;
    arguments->choose_weights();
    return arguments->config.run_ranks(ConfigUse::kGeneration);
  };
  const auto run = [=] {
    Config given = arguments->config.load(ConfigUse::kGeneration);
    return join_world(given.settings().comm, [&](World& world) {
      if (world.size() > 1)
        throw config_error("serve runs in one process, and a launcher has started " + std::to_string(world.size()));
      Session session(
          std::move(given),
          {.plugin_path = arguments->config.plugin_path, .world = &world, .freezes_all = !arguments->adapters.empty()});
      std::vector<ServedAdapter> adapters = open_adapters(session, *arguments);
      return serve(session, adapters, *arguments);
    });
  };
  return {start_ranks, run};
}

}  // namespace chassis
