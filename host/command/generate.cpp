// `chassis generate`: continues a text with the newest weights of a run, or of a model directory.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/command/command.hpp"
#include "host/save/weights.hpp"
#include "host/session/join.hpp"
#include "host/session/session.hpp"
#include "host/train/generate.hpp"

namespace chassis {
namespace {

struct GenerateArguments {
  ConfigArguments config;
  std::string prompt;
  std::string from;
  bool no_cache = false;
};

}  // namespace

Verb add_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  arguments->config.add_to(app);
  app.add_option("--prompt", arguments->prompt, "the text to continue")->required();
  app.add_option("--from", arguments->from,
                 "a checkpoint or model directory; default: the newest checkpoint of the run");
  app.add_flag("--no-cache", arguments->no_cache, "compute every row again, without the key-value cache");
  arguments->config.add_ranks_to(app);
  return [=] {
    std::vector<std::string> more = {"--prompt", arguments->prompt};
    if (!arguments->from.empty()) more.insert(more.end(), {"--from", arguments->from});
    if (arguments->no_cache) more.push_back("--no-cache");
    if (const auto exit_code = arguments->config.run_ranks("generate", ConfigUse::kGeneration, more)) return *exit_code;
    Config given = arguments->config.load(ConfigUse::kGeneration);
    return join_world(given.settings().comm, [&](World& world) {
      Session session(std::move(given), {.plugin_path = arguments->config.plugin_path, .world = &world});
      const Settings& settings = session.settings();
      session.allocate();
      load_weights(session, arguments->from);
      GenerateOptions options;
      options.max_new_tokens = settings.generate.max_new_tokens;
      options.temperature = settings.generate.temperature;
      options.top_p = settings.generate.top_p;
      options.seed = static_cast<uint64_t>(*settings.run.seed);
      options.eos_id = session.tokenizer()->eos_id();
      options.vocab_size = session.tokenizer()->vocab_size();
      options.use_cache = !arguments->no_cache;
      std::vector<int32_t> prompt;
      session.tokenizer()->encode(arguments->prompt, prompt);
      if (session.tokenizer()->bos_id() >= 0) prompt.insert(prompt.begin(), session.tokenizer()->bos_id());
      check_positions(session.model(), static_cast<int64_t>(prompt.size()) + options.max_new_tokens,
                      "tokens of the prompt + generate.max_new_tokens");
      // All ranks compute the same text, and rank 0 prints it: unchanged to a file or a pipe, and without harmful
      // control characters to a terminal.
      const bool to_terminal = isatty(output_descriptor()) == 1;
      PrintablePieces pieces;
      const auto write = [&](std::string_view text) {
        if (world.rank() != 0) return;
        std::fwrite(text.data(), 1, text.size(), output());
        flush_output();
      };
      const auto print = [&](std::string_view text) { write(to_terminal ? pieces.add(text) : std::string(text)); };
      print(arguments->prompt);
      const Generated text = generate(session.executor(), prompt, options, session.device(),
                                      [&](int32_t id) { print(session.tokenizer()->decode(std::span(&id, 1))); });
      write(pieces.finish() + "\n");
      if (text.num_masked > 0 && world.rank() == 0)
        counted_warning(
            "generate.masked_ids",
            fmt::format("for {} of {} tokens the model's most likely id was outside the tokenizer's {} ids, "
                        "and the most likely of those was taken; does the tokenizer belong to the model?",
                        text.num_masked, text.ids.size(), options.vocab_size),
            text.num_masked);
      return 0;
    });
  };
}

}  // namespace chassis
