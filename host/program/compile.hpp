// From what a model records to what the executor runs. All passes are called from here, in their order, and from
// nowhere else; tools/check-layering proves it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chassis/kind/model.h"
#include "host/base/error.hpp"
#include "host/program/layout.hpp"
#include "host/program/parameters.hpp"
#include "host/program/pass_report.hpp"
#include "host/program/program.hpp"
#include "host/program/recompute.hpp"
#include "host/program/resolve.hpp"

namespace chassis {

// A pass that a run chooses: an adapter, which adds parameters and branches, or a quant scheme, which says how slots
// are stored and which ops read them.
class RewritePass {
 public:
  // What was done to a thing of the program, or why it was left as it is.
  using Report = std::function<void(std::string subject, std::string what)>;

  virtual ~RewritePass() = default;
  virtual std::string name() const = 0;
  virtual void rewrite(Program& program, const Report& report) const = 0;
};

// In order of application; all must outlive the call that takes them.
struct ProgramPasses {
  std::vector<const RewritePass*> adapters = {};
  std::vector<const LayoutStrategy*> layout = {};
  std::vector<const RewritePass*> quant = {};
};

struct Recording {
  std::function<chassis_status_t*(const chassis_builder_2_t*)> record;  // a model plugin's function, or a test
  SourcePosition where = {};                                            // what errors of the recording are blamed on
  std::string file = {};                                                // named beside them
  std::function<void(const Program&)> check = {};                       // throws what the run cannot give it
};

struct CompileOptions {
  ProgramPasses passes = {};
  std::function<void(ParameterTable&)> freeze = {};  // says which parameters are not trained
  ResolveOptions resolve = {};                       // without a purpose
  Recompute recompute = Recompute::kNone;
  std::vector<Purpose> purposes = {};  // resolved at once; any other when it is first asked for
};

// Nodes point into it and kernels are its own: it is moved, never copied.
class CompiledProgram {
 public:
  Program program;
  ProgramLayout layout;
  std::unique_ptr<ParameterTable> parameters;
  ResolveOptions options;

  // Throws a plugin error that lists every refusal if no provider claims an op.
  const ResolvedProgram& resolved(Purpose purpose);
  const Recompute& recompute() const { return recompute_; }
  // Runs the passes from recompute on once more: what is chosen may be measured on the program itself. Between steps.
  // `reason` is shown with what the pass did.
  void set_recompute(Recompute recompute, std::string reason = {});
  // What each pass did or refused for that purpose, in order; at least one for each pass.
  std::vector<PassReport> reports(Purpose purpose);

 private:
  friend CompiledProgram compile(Program recorded, CompileOptions options);
  void finish(ResolvedProgram& resolved) const;  // the passes behind the providers

  Recompute recompute_ = Recompute::kNone;
  std::string recompute_reason_;
  std::map<Purpose, ResolvedProgram> resolved_;
  bool counted_idle_ = false;
  std::vector<PassReport> rewrites_;  // reports of the passes before the providers
};

CompiledProgram compile(const Recording& recording, CompileOptions options);
// The passes behind the first.
CompiledProgram compile(Program recorded, CompileOptions options);

// One block by itself, for comparisons between providers; as resolve_block.
ResolvedBlock compile_block(const Program& program, const ProgramLayout& layout, uint32_t type,
                            std::span<const uint8_t> slot_trainable, bool inputs_need_grad,
                            const ResolveOptions& options);

}  // namespace chassis
