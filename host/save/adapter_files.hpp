// How files of an adapter name the parameters that it added and those of the model that it trains: as PEFT does.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "host/checkpoint/reader.hpp"
#include "host/session/session.hpp"
#include "host/state/stored_part.hpp"

namespace chassis {

// The format of adapters.
inline constexpr char kAdapterFormat[] = "peft";

// Throws a config error if `--format` names the format of adapters, which cannot hold a whole model.
void refuse_adapter_format(const std::string& format);
// True if the directory has files of an adapter, and is not a checkpoint of a run.
bool is_adapter_directory(const std::string& path);
// The plugin for the adapter in a directory: peft_type in adapter_config.json, in lower case. Throws a config error if
// the file names none.
std::string adapter_plugin_of(const std::string& path);
// base_model_name_or_path in adapter_config.json of a directory; empty if there is none.
std::string named_base(const std::string& adapter);
// Counts a warning if adapter_config.json names another model than `base`, which was given as "model.path" or "--base".
// Nothing else reveals a different base if its shapes are the same.
void compare_base_name(const std::string& adapter, const std::string& base, const std::string& given_as);
// True if [export] writes the adapter alone.
bool exports_adapter(const Session& session);
// The text of adapter_config.json for the session's adapter.
std::string adapter_config(const Session& session);
// True if a checkpoint of trained parameters, or an export of the adapter, has this one.
inline bool is_kept(const Parameter& p) { return p.added || p.trainable; }

// The modules of a model to which an adapter has added parameters.
class AdapterNames {
 public:
  struct Module {
    std::string in_files;  // its name in files
    std::vector<const Parameter*> added, recorded;
    std::vector<const Parameter*> shared;  // added to other modules, and read for this one too
    bool is_tied = false;                  // its weight belongs to another module
  };

  // `in_files`: the tensors of an adapter's files that are read; none if files are written.
  explicit AdapterNames(const Session& session, std::span<const DiskTensor> in_files = {});

  // The modules by their names in the program.
  const std::map<std::string, Module>& modules() const { return modules_; }
  // The module to which a parameter was added, or to which it belongs; NULL if nothing was added there.
  const Module* module_of(const Parameter& p) const;
  // The places of a parameter in an adapter's files.
  std::vector<StoredPart> parts(const Parameter& p) const;
  // The parameter's name within its module: "lora_A.weight".
  std::string name_in_module(const Parameter& p) const;

 private:
  const DiskLayout& mapping_;
  std::map<std::string, Module> modules_;
  std::map<std::string, std::string> module_of_;           // by parameter
  std::map<std::string, std::vector<StoredPart>> placed_;  // by parameter that the adapter places itself
};

// The reason that the branch of a module whose weight is tied to another one cannot be merged.
std::string tied_branch_text(const std::string& module);
// Maps the full name of each slot that shares a parameter to the name of that parameter.
std::map<std::string, std::string> tied_slots(const Program& program);

}  // namespace chassis
