// The words that a shell can complete: the commands and options of the program, as it declares them, and the keys of a
// configuration. Written as a script of bash, zsh or fish.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "host/config/schema_text.hpp"

namespace chassis {

// The value expected at a place on the command line.
struct CompletionValue {
  enum class Kind { kNone, kFlag, kFile, kFolder, kChoices, kKeys };
  Kind kind = Kind::kNone;
  std::string suffix = {};                // kFile: ".toml"; empty: any
  std::string prefix = {};                // kKeys: the beginning of the keys, "quant."
  std::vector<std::string> choices = {};  // kChoices
};

struct CompletionOption {
  std::string name;  // "--json"
  std::string doc;
  CompletionValue value;
};

struct CompletionCommand {
  std::string path;  // "ckpt merge"; empty: the program
  std::string doc;
  std::vector<std::string> parts = {};  // names of its subcommands
  std::vector<CompletionOption> options = {};
  std::vector<CompletionValue> places = {};  // its positional arguments
  bool repeats_last = false;                 // the last of them may be given several times
};

// "data.train.0.path"
struct CompletionKey {
  std::string name;
  CompletionValue value;
};

struct Completion {
  std::vector<CompletionCommand> commands;
  std::vector<CompletionKey> keys;

  const CompletionCommand& command(const std::string& path) const;
};

// Hidden commands and options are left out. The type of an argument in the help tells what is expected: FOLDER, FILE,
// PATH, FILE.toml, KEY=VALUE, quant.KEY=VALUE, PLUGIN (the name of an installed one), TEXT:{a,b}.
Completion completion_of(const CLI::App& program, const Schema& schema, const std::vector<PluginDoc>& plugins);

std::string bash_script(const Completion& completion);
std::string zsh_script(const Completion& completion);
std::string fish_script(const Completion& completion);

}  // namespace chassis
