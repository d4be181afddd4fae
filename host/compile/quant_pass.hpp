// The quant pass: offers the parameters of a recorded model to a quant plugin, and notes how those that it takes are
// stored. Ops are left as they are: their attribute "storage" says that their first parameter is quantized.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "host/compile/adapter_pass.hpp"
#include "host/compile/compile.hpp"
#include "host/compile/quant_plugin.hpp"

namespace chassis {

class QuantPass final : public RewritePass {
 public:
  using FileNamesOf = AdapterPass::FileNamesOf;
  // `plugin` must outlive it.
  QuantPass(const QuantPlugin& plugin, FileNamesOf file_names) : plugin_(plugin), file_names_(std::move(file_names)) {}

  std::string name() const override { return plugin_.id(); }
  // Freezes what it quantizes. Blocks of one type whose parameters are stored alike stay one type; others get types of
  // their own, named "layer-2" and so on.
  void rewrite(Program& program, const Report& report) const override;

 private:
  const QuantPlugin& plugin_;
  FileNamesOf file_names_;
};

}  // namespace chassis
