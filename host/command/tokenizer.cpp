// `chassis tokenizer`: trains a vocabulary, and turns lines of text into lines of ids and back.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/base/progress.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/data/line_reader.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"
#include "host/service/memory.hpp"
#include "host/service/threads.hpp"
#include "host/text/tokenizer_training.hpp"

namespace chassis {
namespace {

struct TokenizerArguments {
  std::vector<std::string> plugin_path, files;
  std::string plugin, directory, out;
  VocabularyOptions vocabulary{.min_frequency = 2};
  bool plain = false, keep_special = false, with_offsets = false, as_json = false;
};

// A loaded set of plugins without a run.
struct Plugins {
  explicit Plugins(const TokenizerArguments& arguments)
      : registry(PluginIndex(plugin_folders(arguments.plugin_path, {}, {})), {}, services) {
    services.set_registry(&registry);
  }
  MetricsStore metrics;
  HostServices services{0, metrics};
  PluginRegistry registry;
};

// The tokenizer of the directory that the command line names. Throws if that has changed since it was written.
std::unique_ptr<PluginTokenizer> open_named(PluginRegistry& registry, const TokenizerArguments& arguments) {
  const std::string directory = find_tokenizer_directory(arguments.directory);
  compare_with_manifest(directory);
  return open_tokenizer_of(registry, directory, arguments.plugin);
}

int train(const TokenizerArguments& arguments) {
  install_memory_allocator();
  Plugins plugins(arguments);
  VocabularyOptions options = arguments.vocabulary;
  options.num_threads = static_cast<uint32_t>(default_num_threads(1));
  const std::string member = training_tokenizer(plugins.registry, arguments.plugin);
  const auto start = std::chrono::steady_clock::now();
  TrainedTokenizer trained;
  {
    ProgressBar bar("reading text");
    trained =
        train_tokenizer(plugins.registry, member, options, arguments.files, arguments.out,
                        [&](uint64_t done, uint64_t total, std::string_view file) { bar.update(done, total, file); });
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const auto tokenizer = open_tokenizer_of(plugins.registry, arguments.out, member);
  if (arguments.as_json)
    print_document("tokenizer_train", {{"path", arguments.out},
                                       {"ids", tokenizer->vocab_size()},
                                       {"text_bytes", trained.num_bytes},
                                       {"seconds", elapsed.count()},
                                       {"files", trained.files}});
  else
    std::fprintf(
        output(), "%s\n",
        printable(fmt::format("{}: {} ids from {} of text in {:.1f} s ({})", arguments.out, tokenizer->vocab_size(),
                              bytes_text(trained.num_bytes), elapsed.count(), fmt::join(trained.files, ", ")),
                  4096)
            .c_str());
  if (tokenizer->vocab_size() < options.vocab_size)
    counted_warning("tokenizer train --vocab",
                    fmt::format("the vocabulary has {} of {} ids: the text has no more pairs that occur {} times",
                                tokenizer->vocab_size(), options.vocab_size, options.min_frequency));
  return 0;
}

class StandardInput final : public ByteSource {
 public:
  StandardInput() : ByteSource("standard input") {}
  size_t read(char* data, size_t num_bytes) override {
    std::fflush(output());  // the lines may be typed
    while (true) {
      const ssize_t count = ::read(STDIN_FILENO, data, num_bytes);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) throw file_error("cannot read", path(), errno);
    }
  }
  uint64_t num_bytes_read(uint64_t) const override { return 0; }
};

// Calls `use` with each line of standard input or of the files. Stops once the output can no longer be written.
void for_each_line(const std::vector<std::string>& files,
                   const std::function<void(std::string_view line, const SourcePosition& where)>& use) {
  const auto read = [&](std::unique_ptr<ByteSource> source) {
    LineReader reader(std::move(source));
    for (std::string_view line; std::ferror(output()) == 0 && reader.next(line);) use(line, reader.position());
  };
  if (files.empty()) read(std::make_unique<StandardInput>());
  for (const std::string& path : files) read(open_bytes(path));
}

void print_line(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), output());
  std::fputc('\n', output());
}

int encode(const TokenizerArguments& arguments) {
  Plugins plugins(arguments);
  const auto tokenizer = open_named(plugins.registry, arguments);
  std::string out;
  for_each_line(arguments.files, [&](std::string_view line, const SourcePosition& where) {
    out.clear();
    try {
      const Encoding encoding = tokenizer->encode_with_offsets(line, !arguments.plain);
      for (size_t i = 0; i < encoding.ids.size(); ++i) {
        if (i > 0) out += ' ';
        out += std::to_string(encoding.ids[i]);
        if (arguments.with_offsets) out += fmt::format(":{}-{}", encoding.begin[i], encoding.end[i]);
      }
    } catch (const Error& error) {
      throw Error(error.code(), where, error.message()).hint(error.hint_text());
    }
    print_line(out);
  });
  return 0;
}

std::vector<int32_t> ids_of_line(std::string_view line, int64_t vocab_size, const SourcePosition& where) {
  std::vector<int32_t> ids;
  for (size_t begin = 0; (begin = line.find_first_not_of(" \t,[]", begin)) != std::string_view::npos;) {
    const std::string_view word = line.substr(begin, line.find_first_of(" \t,[]", begin) - begin);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size())
      throw Error(ExitCode::kConfig, where, "'" + printable(word, 40) + "' is not an id");
    if (id < 0 || id >= vocab_size)
      throw Error(ExitCode::kConfig, where,
                  fmt::format("id {} is not in the tokenizer's vocabulary of {}", id, vocab_size));
    ids.push_back(id);
    begin += word.size();
  }
  return ids;
}

int decode(const TokenizerArguments& arguments) {
  Plugins plugins(arguments);
  const auto tokenizer = open_named(plugins.registry, arguments);
  const bool to_terminal = isatty(output_descriptor()) == 1;
  for_each_line(arguments.files, [&](std::string_view line, const SourcePosition& where) {
    const std::string text =
        tokenizer->decode(ids_of_line(line, tokenizer->vocab_size(), where), arguments.keep_special);
    print_line(to_terminal ? printable_lines(text) : text);
  });
  return 0;
}

}  // namespace

Verb add_tokenizer(CLI::App& app) {
  app.require_subcommand(1);
  auto arguments = std::make_shared<TokenizerArguments>();
  add_plugin_path(app, arguments->plugin_path);
  CLI::App* make =
      app.add_subcommand("train", "train a vocabulary on text, and write it as the files of a model directory");
  make->add_option("files", arguments->files, "data files of format text (.txt, .jsonl, …), folders or patterns")
      ->type_name("PATH")
      ->required();
  make->add_option("--vocab", arguments->vocabulary.vocab_size, "number of ids, including special tokens")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  make->add_option("--min-frequency", arguments->vocabulary.min_frequency,
                   "pairs that occur less often are not merged; default 2");
  make->add_option("--out", arguments->out, "the new directory")
      ->required()
      ->type_name("FOLDER")
      ->check([](const std::string& path) { return path.empty() ? "the path is empty" : ""; });
  add_json(*make, arguments->as_json);
  CLI::App* to_ids = app.add_subcommand("encode", "print the ids of each line");
  CLI::App* to_text = app.add_subcommand("decode", "print the text of each line of ids");
  for (CLI::App* verb : {to_ids, to_text}) {
    verb->add_option("directory", arguments->directory, "a directory with the files of a tokenizer, or hub:Org/Name")
        ->required()
        ->type_name("FOLDER");
    verb->add_option("files", arguments->files, "default: standard input")->type_name("FILE");
  }
  to_ids->add_flag("--plain", arguments->plain, "read special tokens that the text spells as plain text");
  to_ids->add_flag("--offsets", arguments->with_offsets,
                   "print each id as ID:BEGIN-END, the bytes of the line that it covers");
  to_text->add_flag("--special", arguments->keep_special, "print special tokens too");
  for (CLI::App* verb : {make, to_ids, to_text})
    verb->add_option("--plugin", arguments->plugin, "the tokenizer; default: one that is installed with the program");
  return [=]() -> int {
    if (make->parsed()) return train(*arguments);
    return to_ids->parsed() ? encode(*arguments) : decode(*arguments);
  };
}

}  // namespace chassis
