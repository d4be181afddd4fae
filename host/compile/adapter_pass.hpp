// The adapter pass: offers a recorded model to an adapter plugin, block by block, and records what it adds.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "host/compile/adapter_plugin.hpp"
#include "host/compile/compile.hpp"

namespace chassis {

// The names that files use for the parameters of a model.
struct FileNames {
  std::map<std::string, std::string> of;                    // by parameter
  std::map<std::string, std::vector<std::string>> in_file;  // by name in files: the parameters that are joined in it
};

class AdapterPass final : public RewritePass {
 public:
  using FileNamesOf = std::function<FileNames(const Program& recorded)>;
  // `plugin` must outlive it.
  AdapterPass(const AdapterPlugin& plugin, FileNamesOf file_names)
      : plugin_(plugin), file_names_(std::move(file_names)) {}

  std::string name() const override { return plugin_.id(); }
  // Freezes the recorded parameters that the plugin does not train. Blocks of one type that the plugin extends in the
  // same way stay one type; others get types of their own, named "layer-2" and so on.
  void rewrite(Program& program, const Report& report) const override;

 private:
  const AdapterPlugin& plugin_;
  FileNamesOf file_names_;
};

}  // namespace chassis
