// From the recorded model to the program that the executor runs. All passes are called from here, in their order, and
// from nowhere else; tools/check-layering enforces this.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chassis/kind/model.h"
#include "host/base/error.hpp"
#include "host/compile/layout.hpp"
#include "host/compile/parameters.hpp"
#include "host/compile/pass_report.hpp"
#include "host/compile/recompute.hpp"
#include "host/compile/resolve.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// A pass that a run chooses: an adapter, which adds parameters and branches, or a quant scheme, which decides how slots
// are stored and which ops read them.
class RewritePass {
 public:
  // `what` describes what the pass did to `subject`, or why it left it unchanged.
  using Report = std::function<void(std::string subject, std::string what)>;

  virtual ~RewritePass() = default;
  virtual std::string name() const = 0;
  virtual void rewrite(Program& program, const Report& report) const = 0;
};

// In order of application; all must outlive the call that receives them.
struct ProgramPasses {
  std::vector<const RewritePass*> adapters = {};
  std::vector<const LayoutStrategy*> layout = {};
  std::vector<const RewritePass*> quant = {};
};

struct Recording {
  std::function<chassis_status_t*(const chassis_builder_t*)> record;  // a model plugin's function, or a test's
  SourcePosition where = {};                                          // shown in errors about the recording
  std::string file = {};                                              // also named in those errors
  std::function<void(const Program&)> check = {};  // throws if the run cannot give the model what it needs
};

struct CompileOptions {
  ProgramPasses passes = {};
  std::function<void(ParameterTable&)> freeze = {};  // marks the parameters that are not trained
  ResolveOptions resolve = {};                       // its purpose is ignored
  Recompute recompute = Recompute::kNone;
  std::vector<Purpose> purposes = {};  // resolved by compile(); others on first use
};

// Movable, not copyable: nodes point into it, and it owns the kernels.
class CompiledProgram {
 public:
  Program program;
  ProgramLayout layout;
  std::unique_ptr<ParameterTable> parameters;
  ResolveOptions options;

  // Throws a plugin error that lists every refusal if no provider claims an op.
  const ResolvedProgram& resolved(Purpose purpose);
  const Recompute& recompute() const { return recompute_; }
  // Runs the recompute pass and those after it again, so that the choice may depend on measurements of this program.
  // Call between steps. `reason` is shown in the pass's report.
  void set_recompute(Recompute recompute, std::string reason = {});
  // Bytes alive at the peak of a training micro-batch, as `infer` declares them for the planned sizes, without
  // parameters, gradients and optimizer states.
  uint64_t planned_activation_bytes(Recompute recompute);
  // Reports of what each pass did or refused for that purpose, in order; at least one per pass.
  std::vector<PassReport> reports(Purpose purpose);

 private:
  friend CompiledProgram compile(Program recorded, CompileOptions options);
  void finish(ResolvedProgram& resolved) const;  // the passes after the providers pass

  Recompute recompute_ = Recompute::kNone;
  std::string recompute_reason_;
  std::map<Purpose, ResolvedProgram> resolved_;
  bool counted_idle_ = false;
  std::vector<PassReport> rewrites_;  // reports of the passes before the providers pass
};

CompiledProgram compile(const Recording& recording, CompileOptions options);
// The same without the record pass.
CompiledProgram compile(Program recorded, CompileOptions options);

// Compiles one block alone, to compare providers. The arguments are those of resolve_block.
ResolvedBlock compile_block(const Program& program, const ProgramLayout& layout, uint32_t type,
                            std::span<const uint8_t> slot_trainable, bool inputs_need_grad,
                            const ResolveOptions& options);

}  // namespace chassis
