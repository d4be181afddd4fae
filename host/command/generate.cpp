// `chassis generate`: continues a text, talks, or answers a file of prompts, with the newest weights of a run or of a
// model directory.
#include <algorithm>

#include "host/base/creation_limit.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/command/answering.hpp"
#include "host/command/generation.hpp"
#include "host/command/weights_arguments.hpp"
#include "host/generate/generation_record.hpp"
#include "host/generate/generation_settings.hpp"
#include "host/save/weights.hpp"
#include "host/session/join.hpp"

namespace chassis {
namespace {

struct GenerateArguments {
  ConfigArguments config;
  std::string prompt, prompts, out;
  std::vector<std::string> stop;
  WeightsArguments weights;
  bool chat = false;
  bool no_cache = false;
  bool has_prompt = false;

  // Throws unless exactly one way to give prompts is chosen.
  void check() const {
    const int ways = has_prompt + chat + !prompts.empty();
    if (ways != 1)
      throw config_error(ways == 0 ? "no prompt is given" : "more than one of --prompt, --prompts and --chat is given")
          .hint("give --prompt TEXT, --chat, or --prompts FILE.jsonl with --out FILE");
    if (prompts.empty() != out.empty())
      throw config_error(out.empty() ? "--prompts needs --out FILE for the answers" : "--out belongs to --prompts");
    if (!out.empty()) require_other_file(prompts, out);
    if (!is_utf8(prompt)) throw config_error("--prompt is not UTF-8");
  }
};

// All ranks compute the same text, and rank 0 prints it.
int continue_text(Session& session, Answerer& answerer, const std::string& prompt, const std::vector<int32_t>& ids) {
  const bool prints = session.world().rank() == 0;
  TextOutput out;
  if (prints) out.add(prompt);
  answerer.answer({.prompt = ids, .continues_text = true, .on_text = [&](std::string_view text) {
                     if (prints) out.add(text);
                     return true;
                   }});
  if (prints) out.end_line();
  return 0;
}

}  // namespace

Verb add_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  arguments->config.add_to(app);
  CLI::Option* const prompt = app.add_option("--prompt", arguments->prompt, "the text to continue");
  app.add_flag("--chat", arguments->chat, "answer the lines of standard input, each a turn of the user");
  app.add_option("--prompts", arguments->prompts, "a .jsonl file with rows {\"prompt\": …} or {\"messages\": […]}")
      ->type_name("FILE");
  app.add_option("--out", arguments->out,
                 "the answers to --prompts; if it exists and was made with the same settings, its rows are kept and "
                 "the remaining prompts answered");
  app.add_option("--stop", arguments->stop,
                 "a text that ends an answer, in addition to those of generate.stop; repeatable")
      ->expected(1)
      ->take_all();
  arguments->weights.add_to(app);
  app.add_flag("--no-cache", arguments->no_cache, "compute every row again, without the key-value cache");
  arguments->config.add_ranks_to(app);
  const auto start_ranks = [=] {
    arguments->has_prompt = prompt->count() > 0;
    arguments->check();
    if (arguments->chat && arguments->config.num_ranks > 1)
      throw config_error("--chat runs in one process, and --nproc asks for " +
                         std::to_string(arguments->config.num_ranks))
          .hint("several processes answer --prompts FILE.jsonl --out FILE");
    if (arguments->chat) arguments->config.num_ranks = 1;
    arguments->weights.choose_adapter(arguments->config, ConfigUse::kGeneration);
    return arguments->config.run_ranks(ConfigUse::kGeneration);
  };
  const auto run = [=] {
    std::vector<PromptRow> rows;
    if (!arguments->prompts.empty()) rows = read_prompts(arguments->prompts);
    Config given = arguments->config.load(ConfigUse::kGeneration);
    return join_world(given.settings().comm, [&](World& world) {
      if (arguments->chat && world.size() > 1)
        throw config_error("--chat runs in one process, and a launcher has started " + std::to_string(world.size()));
      Session session(std::move(given), {.plugin_path = arguments->config.plugin_path, .world = &world});
      // Prompts and stop texts are refused before the weights are loaded, which may take minutes.
      GenerationSettings generation = settings_of_generation(session, arguments->stop);
      generation.options.use_cache = !arguments->no_cache;
      Answerer answerer(session, generation);
      std::vector<std::vector<int32_t>> ids;
      if (arguments->has_prompt) ids.push_back(answerer.ids_of_text(arguments->prompt));
      if (!rows.empty()) ids = ids_of_rows(session, answerer, rows);
      require_adapter_of_run(session, run_of(arguments->weights.from));
      session.allocate();
      const std::string weights = load_weights(session, arguments->weights.from).directory;
      if (!arguments->has_prompt) warn_of_other_template(session, run_of(arguments->weights.from));
      if (arguments->chat) return chat_on_standard_input(session, answerer);
      if (!rows.empty()) {
        // Answers may repeat what the weights have learned, so no one may read them who may not read those.
        const CreationLimit limit(shared_file_mode(weights) & shared_file_mode(session.settings()));
        const bool with_chat = std::ranges::any_of(rows, [](const PromptRow& row) { return row.chat.has_value(); });
        return answer_rows(session, answerer, rows, ids, arguments->out,
                           [&] { return generation_record(session, generation, weights, with_chat); });
      }
      return continue_text(session, answerer, arguments->prompt, ids.front());
    });
  };
  return {start_ranks, run};
}

}  // namespace chassis
